"""Packages, permissions and webhooks by the command line, against a server that listens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.acceptance.processes import PROGRAM, environment
from tests.integration.test_api_packages import SMALL, repository
from tests.support.contract import listening
from tests.support.served_folder import git
from tests.support.serving import KEY

pytestmark = pytest.mark.anyio
PERMISSIONS = "permissions:\n  - {users: [ana], domains: [ref], actions: [admin]}\n"


class Shell:
    """Runs commands in a folder that has a server, a key and a warehouse."""

    def __init__(self, folder: Path, url: str, database_url: str) -> None:
        self._folder = folder
        self._variables = environment(MDM_URL=url, MDM_API_KEY=KEY, Mdm__Database__Url=database_url)

    async def __call__(self, *arguments: str | Path, code: int = 0) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *map(str, arguments),
            cwd=self._folder,
            env=self._variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = (each.decode() for each in await process.communicate())
        assert process.returncode == code, out + err
        assert "Traceback" not in err, err
        return out, err


async def test_there_and_back(database_url: str, tmp_path: Path) -> None:
    """One server exports, its package is looked into and deployed; then the shared files."""
    async with await connect(database_url, application_name="test") as conn:
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    source = repository(tmp_path / "source", {**SMALL, "permissions.yaml": PERMISSIONS})
    package = tmp_path / "small.zip"
    settings = Settings()
    served = folder_definitions(source, settings)
    app = create_app(database_url=database_url, settings=settings, definitions=served)
    async with listening(app) as url:
        mdm = Shell(tmp_path, url, database_url)
        await mdm(
            "packages", "export", "--file", package, "--include-seed", "--include-permissions"
        )
        _, err = await mdm("packages", "export", "--file", "x.zip", "--entity", "cty", code=1)
        assert "city" in err and not (tmp_path / "x.zip").exists()

    _, err = await mdm("validate", package)
    assert "2 entities" in err
    out, _ = await mdm("plan", package, "--detailed-exitcode", code=2)
    assert "country" in out and "city" in out
    broken = tmp_path / "broken.zip"
    broken.write_bytes(package.read_bytes()[:-100])
    assert "ZIP" in (await mdm("plan", broken, code=1))[1]

    target = repository(tmp_path / "target", {"README.md": "nothing yet\n"})
    served = folder_definitions(target, settings)
    app = create_app(database_url=database_url, settings=settings, definitions=served)
    async with listening(app) as url:
        mdm = Shell(tmp_path, url, database_url)
        options = ("--import-permissions", "--import-webhooks", "--import-seed")
        _, err = await mdm("packages", "deploy", "--file", package, *options)
        assert "deployed 2 entities: country, city" in err
        assert f"commit: {git(target, 'rev-parse', 'HEAD')}" in err
        out, _ = await mdm("plan", package, "--detailed-exitcode")
        assert "nothing to do" in out
        assert (
            "PACKAGE_UNREADABLE"
            not in (await mdm("packages", "deploy", "--file", broken, code=1))[0]
        )

        changed = tmp_path / "permissions.yaml"
        changed.write_text(PERMISSIONS.replace("[ana]", "[ana, bob]"))
        _, err = await mdm("permissions", "yaml-import", "--file", changed)
        assert git(target, "rev-parse", "HEAD") in err
        assert "bob" in (await mdm("permissions", "yaml-export"))[0]
        hooks = tmp_path / "webhooks.yaml"
        hooks.write_text("webhooks:\n  - {name: erp, url: 'https://erp.example.com/'}\n")
        out, _ = await mdm("webhooks", "yaml-import", "--file", hooks, "--json")
        assert json.loads(out)["commit"] == git(target, "rev-parse", "HEAD")
        await mdm("webhooks", "yaml-export", "--file", "again.yaml")
        assert "erp.example.com" in (tmp_path / "again.yaml").read_text()
