"""A warehouse that takes no writes: a standby is never taken for the primary; else rows are still read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from mdm_api.app import create_app
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import connect, connection_failed
from tests.conftest import Prepare
from tests.support.countries import countries
from tests.support.serving import KEY, Client, problem, served

pytestmark = pytest.mark.anyio
DATA = "/api/v1/entities/country/data"
BOUNDLESS = Settings.model_validate({"RateLimit": {"Enabled": False}})


async def test_only_who_reads_takes_a_standby(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    connecting = psycopg.AsyncConnection.connect

    async def noting(**arguments: Any) -> Any:
        asked.append(arguments["target_session_attrs"])
        return await connecting(**arguments)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", noting)
    given = f"{empty_database_url}&target_session_attrs=read-write"
    for url in (empty_database_url, given):
        for read_only in (False, True):
            async with await connect(url, application_name="test", read_only=read_only):
                pass
    assert asked == ["primary", "any", "read-write", "read-write"]


async def test_the_hint_for_a_standby_says_what_to_name(empty_database_url: str) -> None:
    failed = psycopg.OperationalError("connection failed: server is in hot standby mode")
    assert "must name the primary" in connection_failed(empty_database_url, failed).hint


async def test_what_can_be_done_is_done_and_the_rest_told(
    copy_of: Callable[[Prepare], str],
    admin: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where a provider protects a disk that is full, or an administrator the data."""
    url = copy_of(countries)
    name = conninfo_to_dict(url)["dbname"]
    async with served(create_app(database_url=url, settings=BOUNDLESS)) as client:
        client.headers["X-API-Key"] = KEY
        row = (await client.get(DATA)).json()["items"][0]
        _switch(admin, name, "on")
        assert (await client.get(DATA)).status_code == 200
        assert (await client.get(f"{DATA}/{row['_sys_id']}")).status_code == 200
        for answer in await _writes(client, row["_sys_id"]):
            assert problem(answer) == (503, "WAREHOUSE_UNAVAILABLE"), answer.text
        assert caplog.text.count("the warehouse takes no writes now") == 5  # callers are told less
        assert (await client.get("/api/v1/changes")).status_code == 200  # nothing is new
        _switch(admin, name, "off")
        assert (await _writes(client, row["_sys_id"]))[0].status_code == 201


def _switch(admin: psycopg.Connection[Any], name: Any, to: str) -> None:
    """Let all sessions of the database be new ones, which may write or not."""
    admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {to}')
    admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [name]
    )


async def _writes(client: Client, row_id: str) -> list[Any]:
    csv = {"Content-Type": "text/csv"}
    tag = {"If-Match": "*"}
    return [
        await client.post(DATA, json={"code": "NW", "Name": "new"}),
        await client.put(f"{DATA}/{row_id}", json={"Name": "changed"}, headers=tag),
        await client.delete(f"{DATA}/{row_id}", headers=tag),
        await client.post(f"{DATA}/bulk-csv", content=b"code,Name\nNI,x\n", headers=csv),
        await client.post(f"{DATA}/bulk", json=[{"code": "NB", "Name": "x"}]),
        await client.post("/api/v1/api-keys", json={"name": "somebody"}),
    ]
