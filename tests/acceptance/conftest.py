"""What modules of this folder share: a server that commands speak to, and terminals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.processes import KEY, mdm
from tests.acceptance.site import FILES, Shell, Site
from tests.conftest import DatabaseMaker
from tests.support.crash_server import Server
from tests.support.providers import AUDIENCE, running_provider
from tests.support.served_folder import repository


@pytest.fixture(scope="module")
def site(
    admin: psycopg.Connection[Any],
    server_url: str,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    url = DatabaseMaker(admin, server_url, template)()
    folder = repository(
        tmp_path_factory.mktemp("site") / "lab",
        {path: text.encode() for path, text in FILES.items()},
    )
    allowed = ("--auto-approve", "--allow", "WIDENS_ACCESS:permissions.yaml")
    mdm("apply", folder, *allowed, Mdm__Database__Url=url)
    with running_provider() as provider:
        provider.add_program()
        provider.add_user("root", roles=["mdm-admin"])
        provider.add_user("anna")
        auth = {
            "Mdm__Auth__Issuer": provider.issuer,
            "Mdm__Auth__Audience": AUDIENCE,
        }
        server = Server(folder, url, workers=1, **auth)
        with server:
            yield Site(server.url, url, provider)


@pytest.fixture
def shell(site: Site, tmp_path: Path) -> Shell:
    given = {"MDM_URL": site.url, "MDM_API_KEY": KEY, "MDM_CONFIG_DIR": str(tmp_path / "config")}
    return Shell(tmp_path, site.url, given)


@pytest.fixture
def stranger(site: Site, tmp_path: Path) -> Shell:
    """Somebody with nothing set yet."""
    return Shell(tmp_path, site.url, {"MDM_CONFIG_DIR": str(tmp_path / "config")})
