"""The rate limit: exact across workers, by principal, told in headers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.access.rate_limit import _MAX_TURNED_AWAY, RateLimit
from mdm_gitops.errors import WarehouseError
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import connection_pool
from mdm_gitops.warehouse.names import Schemas
from tests.support.serving import KEY, Client, served

pytestmark = pytest.mark.anyio
PATH = "/api/v1/entities"


def limited(permits: int, window_s: int = 3_600) -> Settings:
    given = {"Enabled": True, "PermitLimit": permits, "WindowSeconds": window_s}
    return Settings(RateLimit=given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def settings_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("Mdm__RateLimit__Enabled")  # which all other tests have


@pytest.fixture
async def conn(conn: AsyncConnection[Any]) -> AsyncIterator[AsyncConnection[Any]]:
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    yield conn


async def ask(client: Client, path: str = PATH, key: str = KEY) -> Any:
    return await client.get(path, headers={"X-API-Key": key})


async def test_exactly_the_permitted_requests_pass_over_all_workers(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    apps = [create_app(database_url=database_url, settings=limited(200)) for _ in range(4)]
    async with (
        served(apps[0]) as a,
        served(apps[1]) as b,
        served(apps[2]) as c,
        served(apps[3]) as d,
    ):
        answers = await asyncio.gather(*(ask(client) for client in (a, b, c, d) for _ in range(80)))
    assert Counter(answer.status_code for answer in answers) == {200: 200, 429: 120}


async def test_a_clock_that_was_set_back_locks_nobody_out(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with served(create_app(database_url=database_url, settings=limited(2))) as client:
        for _ in range(2):
            assert (await ask(client)).status_code == 200
        # What the counts look like then: of a window that begins in two days.
        await conn.execute("UPDATE mdm.rate_window SET started = started + interval '2 days'")
        assert [(await ask(client)).status_code for _ in range(3)] == [200, 200, 429]
        rows = await conn.execute("SELECT max(started) <= now() FROM mdm.rate_window")
        assert await rows.fetchone() == (True,)


async def test_a_count_per_process_would_let_more_pass(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    """The negative control: two limits that do not share a table let twice as many through."""
    pool = connection_pool(database_url, application_name="test")
    await conn.execute("CREATE SCHEMA other")
    await conn.execute("CREATE TABLE other.rate_window (LIKE mdm.rate_window INCLUDING ALL)")
    async with pool:
        limits = [
            RateLimit(pool, schemas=Schemas(config=name), limit=20, window_s=3_600)
            for name in ("mdm", "other")
        ]
        permits = await asyncio.gather(*(limit.take("x") for limit in limits for _ in range(30)))
    assert sum(permit.allowed for permit in permits) == 40


async def test_the_caller_is_told_where_it_stands(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with served(create_app(database_url=database_url, settings=limited(2))) as client:
        first, second, third, fourth = [await ask(client) for _ in range(4)]
    assert first.headers["RateLimit-Policy"] == '"default";q=2;w=3600'
    assert first.headers["RateLimit"].startswith('"default";r=1;t=')
    assert second.headers["RateLimit"].startswith('"default";r=0;t=')
    for answer in (third, fourth):
        assert (answer.status_code, answer.json()["code"]) == (429, "MDM_RATE_LIMIT")
        assert "try again in" in answer.json()["message"]
        assert 1 <= int(answer.headers["Retry-After"]) <= 3_600
        assert answer.headers["Content-Type"] == "application/problem+json"


async def test_each_principal_and_each_unknown_address_has_its_own_count(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with served(create_app(database_url=database_url, settings=limited(2))) as client:
        assert [(await ask(client, key="wrong")).status_code for _ in range(3)] == [401, 401, 429]
        assert [(await ask(client)).status_code for _ in range(3)] == [200, 200, 429]
        # What is not there counts, too; what is not under /api does not.
        assert (await ask(client, "/api/v1/nothing")).status_code == 429
        assert (await client.post(PATH, headers={"X-API-Key": KEY})).status_code == 429
        statuses = [(await client.get("/healthz")).status_code for _ in range(5)]
        assert set(statuses) == {200}
        assert "RateLimit" not in (await client.get("/healthz")).headers


async def test_a_new_window_begins_by_the_clock_of_the_database(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with served(create_app(database_url=database_url, settings=limited(3, 1))) as client:
        statuses: list[int] = []
        for _ in range(40):
            statuses.append((await ask(client)).status_code)
            await asyncio.sleep(0.05)
    assert 429 in statuses and 200 in statuses[statuses.index(429) :]
    # At most three in each of the windows that two seconds can touch.
    assert statuses.count(200) <= 3 * (2 + 40 // 10)


async def test_counts_of_past_windows_are_forgotten(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    pool = connection_pool(database_url, application_name="test")
    async with pool:
        limit = RateLimit(pool, schemas=Schemas(), limit=1, window_s=3_600)
        await limit.take("present")
        await conn.execute(
            "INSERT INTO mdm.rate_window VALUES ('past', now() - interval '1 day', 1)"
        )
        await limit.forget_past_windows()
    rows = await (await conn.execute("SELECT client FROM mdm.rate_window")).fetchall()
    assert rows == [("present",)]


async def test_it_can_be_switched_off(database_url: str, conn: AsyncConnection[Any]) -> None:
    settings = Settings(RateLimit={"Enabled": False, "PermitLimit": 1})  # type: ignore[arg-type]
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        assert [(await ask(client)).status_code for _ in range(3)] == [200] * 3


async def test_a_store_that_does_not_answer_is_an_outage(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    pool = connection_pool(database_url, application_name="test")
    async with pool:
        limit = RateLimit(pool, schemas=Schemas(config="nowhere"), limit=1, window_s=60)
        with pytest.raises(WarehouseError, match="the request could not be counted"):
            await limit.take("a")
        with pytest.raises(WarehouseError, match="old counts of requests could not be removed"):
            await limit.forget_past_windows()


class Watched(RateLimit):
    """Notes how many requests each of its statements counted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counted: list[int] = []

    async def _flush(self, kind: Any, clients: Sequence[str]) -> Any:
        self.counted.append(len(clients))
        return await super()._flush(kind, clients)


async def test_requests_that_wait_are_counted_by_one_statement(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    pool = connection_pool(database_url, application_name="test")
    async with pool:
        limit = Watched(pool, schemas=Schemas(), limit=100, window_s=3_600)
        permits = await asyncio.gather(*(limit.take(f"c{n % 2}") for n in range(100)))
    assert sorted(permit.remaining for permit in permits) == sorted([*range(50, 100)] * 2)
    assert (sum(limit.counted), len(limit.counted) <= 3) == (100, True), limit.counted


async def test_connections_that_died_in_the_pool_turn_nobody_away(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    dead = """SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()
                 AND backend_type = 'client backend'"""
    rows = f"{PATH}/nothing/data"  # who asks for rows is known from memory, so counting comes first
    async with served(create_app(database_url=database_url, settings=limited(1_000))) as client:
        await asyncio.gather(*(ask(client) for _ in range(8)))
        for _ in range(2):
            [(killed,)] = await (await conn.execute(dead)).fetchall()
            assert killed > 0
            assert (await ask(client, rows)).status_code == 404


async def test_ever_more_clients_that_are_turned_away_fill_no_memory(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    """Those that are forgotten are counted again, and turned away again."""
    pool = connection_pool(database_url, application_name="test")
    async with pool:
        limit = RateLimit(pool, schemas=Schemas(), limit=1, window_s=3_600)
        clients = [f"c{number}" for number in range(_MAX_TURNED_AWAY + 10)]
        taken = await asyncio.gather(*(limit.take(name) for name in (*clients, *clients)))
        assert sum(permit.allowed for permit in taken) == len(clients)
        assert 0 < len(limit._turned_away) <= _MAX_TURNED_AWAY
        assert not (await limit.take(clients[0])).allowed
