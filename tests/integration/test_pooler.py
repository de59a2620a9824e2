"""Behind a pooler in session mode everything works; one in transaction mode is refused by who writes.

The stand-in does what matters of session mode, so this is tested where no PgBouncer is installed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.errors import WarehouseError
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import borrow, check_server, connect, connection_pool
from mdm_gitops.warehouse.session import open_connection
from tests.conftest import Prepare
from tests.support.countries import countries
from tests.support.pooler import pgbouncer, without_options
from tests.support.serving import KEY, Client, served

pytestmark = pytest.mark.anyio
real = pytest.mark.skipif(
    shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin") is None,
    reason="PgBouncer is not installed; the stand-in is tested in any case",
)
DATA = "/api/v1/entities/country/data"
CHANGED = "SELECT name, setting FROM pg_settings WHERE source IN ('client', 'session') ORDER BY 1"


@pytest.fixture
def url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(countries).partition("options=")[0].rstrip("?&")


@pytest.fixture(params=["stand-in", pytest.param("PgBouncer", marks=real)])
def way(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    """What yields an address past a pooler in session mode."""
    if request.param == "stand-in":
        yield without_options(url)
        return
    with pgbouncer(url, pool_mode="session", ignore_startup_parameters="options") as address:
        yield nullcontext(address)


async def _settings(conn: AsyncConnection[Any]) -> dict[str, str]:
    found = dict(await (await conn.execute(CHANGED)).fetchall())
    # Those of the way itself.
    return {name: value for name, value in found.items() if not name.startswith("tcp_")}


async def test_sessions_are_as_they_are_without_it(url: str, way: Any) -> None:
    async with (
        way as address,
        await connect(url, application_name="test") as direct,
        await connect(address, application_name="test") as alone,
        connection_pool(address, application_name="test") as pool,
        borrow(pool) as lent,
    ):
        wanted = await _settings(direct)
        assert "search_path" in wanted and "statement_timeout" in wanted  # it can fail
        assert await _settings(alone) == wanted
        assert await _settings(lent) == wanted
        assert not (await check_server(alone)).warnings


async def test_what_the_api_does_works(url: str, way: Any) -> None:
    async with (
        way as address,
        served(create_app(database_url=address, settings=Settings())) as client,
    ):
        client.headers["X-API-Key"] = KEY
        await _write_and_read(client)


async def _write_and_read(client: Client) -> None:
    for number in range(8):  # a statement is prepared from the second time on
        made = await client.post(DATA, json={"code": f"Q{number}", "name": "made"})
        assert made.status_code == 201, made.text
    rows = b"code,name\nQA,imported\nQB,imported\n"
    csv = {"Content-Type": "text/csv"}
    imported = await client.post(f"{DATA}/bulk-csv", content=rows, headers=csv)
    assert imported.json()["inserted"] == 2, imported.text
    listed = await client.get(DATA, params={"filter": "[code] STARTSWITH 'Q'", "take": "20"})
    assert len(listed.json()["items"]) == 10, listed.text
    changes = await client.get("/api/v1/changes", params={"entity": "country"})
    assert len(changes.json()["entries"]) == 10, changes.text
    exported = await client.get(f"{DATA}/export", params={"format": "csv"})
    assert exported.text.count("imported") == 2


@real
@pytest.mark.parametrize("order", ["0", "1"])
async def test_transaction_mode_is_refused(url: str, order: str) -> None:
    settings = {"ignore_startup_parameters": "options", "server_round_robin": order}
    with pgbouncer(url, pool_mode="transaction", **settings) as address:
        with pytest.raises(WarehouseError, match="a pooler in transaction mode") as caught:
            await open_connection(address, Settings(), application_name="test")
        assert "session mode" in caught.value.hint
        async with await connect(address, application_name="test") as conn:
            with pytest.raises(WarehouseError, match="a pooler in transaction mode"):
                await check_server(conn)


@real
async def test_a_pooler_that_is_strict_is_told_how_not_to_be(url: str) -> None:
    with (
        pgbouncer(url, pool_mode="session") as address,
        pytest.raises(WarehouseError, match="unsupported startup parameter") as caught,
    ):
        await connect(address, application_name="test")
    assert "ignore_startup_parameters = options" in caught.value.hint


@real
@pytest.mark.soak
async def test_a_pooler_without_a_second_session_is_believed(url: str) -> None:
    """Who has the only one may keep it: that is session mode."""
    few = {"default_pool_size": "1", "ignore_startup_parameters": "options"}
    with pgbouncer(url, pool_mode="session", **few) as address:
        async with await open_connection(address, Settings(), application_name="test") as conn:
            assert await _settings(conn)
