"""Retention: what is old goes, in small steps, and everybody else goes on working."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.data.feed import number_changes
from mdm_gitops.data.retention import Removed, remove_expired
from mdm_gitops.settings import Settings, load_settings
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.changes import Event, write_events
from tests.support.serving import served

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()


async def write(conn: AsyncConnection[Any], days_ago: float, count: int = 1) -> None:
    moment = datetime.now(UTC) - timedelta(days=days_ago)
    await write_events(conn, [Event() for _ in range(count)], occurred_at=moment)
    await number_changes(conn, schemas=SCHEMAS)


async def left(conn: AsyncConnection[Any]) -> list[int]:
    query = """SELECT c.first_id + e.ordinal FROM mdm.change_set c
                 JOIN mdm.event e ON e.change_set = c.key ORDER BY 1"""
    return [row[0] for row in await (await conn.execute(query)).fetchall()]


async def counts(conn: AsyncConnection[Any]) -> tuple[int, ...]:
    query = """SELECT (SELECT count(*) FROM mdm.change_set), (SELECT count(*) FROM mdm.event),
                      (SELECT removed_id FROM mdm.feed_retention)"""
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return tuple(row)


@pytest.mark.parametrize("batch", [1, 3, 10_000])
async def test_what_is_older_goes_in_steps(conn: AsyncConnection[Any], batch: int) -> None:
    for days, count in ((40, 5), (35, 1), (31, 4), (29, 3), (1, 1)):
        await write(conn, days, count)
    removed = await remove_expired(conn, schemas=SCHEMAS, days=30, batch=batch)
    assert removed == Removed(changes=10)
    assert await left(conn) == [11, 12, 13, 14]
    assert await counts(conn) == (2, 4, 10)
    assert await remove_expired(conn, schemas=SCHEMAS, days=30, batch=batch) == Removed()


async def test_a_large_set_goes_in_parts(conn: AsyncConnection[Any]) -> None:
    await write(conn, 40, 3_000)
    await write(conn, 1, 2)
    await remove_expired(conn, schemas=SCHEMAS, days=30, batch=700, budget_s=0)
    assert await counts(conn) == (2, 2_302, 700)
    await remove_expired(conn, schemas=SCHEMAS, days=30, batch=700)
    assert await counts(conn) == (1, 2, 3_000)
    blocks = await (await conn.execute("SELECT min(block) FROM mdm.feed_block")).fetchone()
    assert blocks == (3_001 >> 10,)


async def test_a_young_change_keeps_those_behind_it(conn: AsyncConnection[Any]) -> None:
    """Removed is a beginning of the feed: an old change of a long transaction waits for the others."""
    await write(conn, 40)
    await write(conn, 5)
    await write(conn, 40)
    await remove_expired(conn, schemas=SCHEMAS, days=30)
    assert await left(conn) == [2, 3]


async def test_what_has_no_id_yet_stays(conn: AsyncConnection[Any]) -> None:
    moment = datetime.now(UTC) - timedelta(days=40)
    await write_events(conn, [Event()], occurred_at=moment)
    assert await remove_expired(conn, schemas=SCHEMAS, days=30) == Removed()


async def test_nothing_is_removed_where_all_is_kept(conn: AsyncConnection[Any]) -> None:
    await write(conn, 4_000)
    assert await remove_expired(conn, schemas=SCHEMAS, days=0) == Removed()
    assert await left(conn) == [1]


@pytest.mark.parametrize(("text", "days"), [("0", 0), ("", 0), ("30", 30), (None, 365)])
def test_the_setting(monkeypatch: pytest.MonkeyPatch, text: str | None, days: int) -> None:
    if text is not None:
        monkeypatch.setenv("Mdm__AuditRetentionDays", text)
    assert load_settings().AuditRetentionDays == days


async def test_audited_actions_go_too(conn: AsyncConnection[Any]) -> None:
    await conn.execute(
        "INSERT INTO mdm.audit (occurred_at, actor, action)"
        " SELECT now() - n * interval '1 day', 'user:a', 'x' FROM generate_series(1, 50) n"
    )
    removed = await remove_expired(conn, schemas=SCHEMAS, days=30, batch=7)
    assert removed.actions == 21
    rows = await (await conn.execute("SELECT count(*) FROM mdm.audit")).fetchone()
    assert rows == (29,)


async def test_one_removes_and_nobody_waits(database_url: str, conn: AsyncConnection[Any]) -> None:
    """Another process that removes is not waited for; numbering goes on beside it."""
    await write(conn, 40, 10)
    async with await connect(database_url, application_name="other") as other, other.transaction():
        await other.execute("SELECT removed_id FROM mdm.feed_retention FOR UPDATE")
        async with asyncio.timeout(2):
            assert await remove_expired(conn, schemas=SCHEMAS, days=30) == Removed()
            await write(conn, 1)
    assert await left(conn) == list(range(1, 12))


async def test_two_who_remove_at_once_remove_all_once(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    for _ in range(30):
        await write(conn, 40, 10)
    async with await connect(database_url, application_name="other") as other:
        both = await asyncio.gather(
            *(remove_expired(c, schemas=SCHEMAS, days=30, batch=7) for c in (conn, other))
        )
    rest = await remove_expired(conn, schemas=SCHEMAS, days=30)
    assert sum(each.changes for each in both) + rest.changes == 300
    assert await left(conn) == []


async def test_the_server_removes_by_itself(database_url: str, conn: AsyncConnection[Any]) -> None:
    await write(conn, 40, 5)
    await write(conn, 20, 5)
    settings = Settings(AuditRetentionDays=30)
    async with served(create_app(database_url=database_url, settings=settings)):
        for _ in range(500):
            if len(await left(conn)) <= 5:
                break
            await asyncio.sleep(0.02)
    assert await left(conn) == [6, 7, 8, 9, 10]
