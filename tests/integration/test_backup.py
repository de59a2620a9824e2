"""docs/guides/backup.md, walked through: what pg_dump took, pg_restore makes a warehouse of again."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.embedded_binaries import find_binaries
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker
from tests.support import scenario
from tests.support.serving import served
from tests.support.warehouses import apply, opened, plan

pytestmark = pytest.mark.anyio
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "backup.md"
KEY = "the key of the backed up server"


def commands(program: str) -> list[str]:
    """Return the command of the guide that calls *program*, as words."""
    (line,) = re.findall(rf"^\$ ({program} .*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    return shlex.split(line)


def run_as_told(program: str, major: int, **values: str) -> None:
    """Run the guide's command for *program* with *values* in the place of its variables."""
    words = [values.get(word.removeprefix("$"), word) for word in commands(program)]
    words[0] = str(find_binaries(major=major).program(program))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def _changes(client: Any, after: int) -> dict[str, Any]:
    answer = await client.get("/api/v1/changes", params={"afterId": after, "take": 500})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _vendor(client: Any, code: str) -> None:
    body = {"code": code, "country": "k1"}
    answer = await client.post("/api/v1/entities/vendor/data", json=body)
    assert answer.status_code == 201, answer.text


async def test_a_restored_warehouse_goes_on_where_the_backup_was_taken(
    conn: AsyncConnection[Any],
    database_url: str,
    make_database: DatabaseMaker,
    tmp_path: Path,
    pg_major: int,
) -> None:
    await apply(conn, scenario.a())
    await scenario.fill(conn)
    await apply(conn, scenario.b())  # archives, a retype, versions, views, seeds, webhooks
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    async with served(create_app(database_url=database_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        await _vendor(client, "before")
        before = await _changes(client, 0)
        rows = (await client.get("/api/v1/entities/client/data")).json()["items"]
    assert (len(rows), before["hasMore"]) == (7, False)

    file, restored_url = str(tmp_path / "mdm.dump"), make_database(store=False)
    run_as_told("pg_dump", pg_major, DATABASE_URL=database_url, FILE=file)
    async with served(create_app(database_url=database_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        await _vendor(client, "lost")  # after the backup: this is what a restore loses
    run_as_told("pg_restore", pg_major, NEW_DATABASE_URL=restored_url, FILE=file)

    async with opened(restored_url) as restored:
        again = await plan(restored, scenario.b())
        assert (again.changes, again.drift, again.refusals) == ((), (), ())
    async with served(create_app(database_url=restored_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/api/v1/entities/client/data")).json()["items"] == rows
        assert await _changes(client, 0) == before
        await _vendor(client, "after")
        (entry,) = (await _changes(client, before["nextAfterId"]))["entries"]
        assert entry["id"] == before["nextAfterId"] + 1
        row = await client.get(f"/api/v1/entities/vendor/data/{entry['recordId']}")
        assert (entry["action"], row.json()["code"]) == ("data_created", "after")
    async with opened(restored_url) as restored:  # the archives came along, and their numbers
        await apply(restored, scenario.a())
        query = b"SELECT amount, zip FROM mdm_data.customer WHERE code = 'c4'"
        assert await (await restored.execute(query)).fetchone() == ("004.50", "04")
        assert (await plan(restored, scenario.a())).is_empty
