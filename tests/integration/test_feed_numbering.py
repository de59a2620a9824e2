"""Numbering stays cheap: without news it is one look, and what was numbered is not passed over again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.data.feed import number_changes
from mdm_gitops.data.feed_sql import number_sql
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.changes import Event, write_events

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()


async def position(conn: AsyncConnection[Any]) -> dict[str, Any]:
    query = "SELECT row_to_json(p) FROM mdm.feed_position p"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return dict(row[0])


async def unnumbered(conn: AsyncConnection[Any]) -> int:
    query = "SELECT count(*) FROM mdm.change_set WHERE first_id IS NULL"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def moved(conn: AsyncConnection[Any], *, to: int) -> int:
    """Write and number until the mark is past *to*; return how many changes were written.

    It waits for the transactions of the whole server, also those of other tests.
    """
    written = 0
    async with asyncio.timeout(60):
        while (await position(conn))["low_seq"] < to:
            await write_events(conn, [Event()])
            await number_changes(conn, schemas=SCHEMAS)
            written += 1
    return written


async def write_many(conn: AsyncConnection[Any], sets: int) -> None:
    await conn.execute(
        """WITH k AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor)
             SELECT nextval('mdm.change_set_key'), 1, now(), 'user:a' FROM generate_series(1, %s)
             RETURNING key)
           INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version)
           SELECT key, 0, 1, gen_random_uuid(), 'data_created', 1 FROM k""",
        [sets],
    )


async def pages_looked_at(conn: AsyncConnection[Any]) -> int:
    """Return how many pages the look for new changes reads."""
    explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {number_sql('mdm')}"
    row = await (await conn.execute(explained.encode())).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


@asynccontextmanager
async def long_snapshot(url: str) -> AsyncIterator[None]:
    """Keep what is dead from being removed, as a dump does that takes an hour."""
    async with await connect(url, application_name="dump") as conn, conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await conn.execute("SELECT count(*) FROM mdm.change_set")
        yield


async def test_the_look_for_news_does_not_pass_over_the_dead(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with long_snapshot(database_url):
        for _ in range(8):
            await write_many(conn, 2_000)
            await number_changes(conn, schemas=SCHEMAS)
        assert await unnumbered(conn) == 0
        await moved(conn, to=12_000)
        looked_at = await pages_looked_at(conn)
        # The control: without the mark it would pass over all of them.
        await conn.execute("UPDATE mdm.feed_position SET low_seq = 0")
        assert await pages_looked_at(conn) > 3 * looked_at


async def test_a_slow_writer_is_not_left_behind(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    """The mark waits for each transaction that may have drawn a number below it."""
    async with await connect(database_url, application_name="slow") as slow:
        async with slow.transaction():
            await write_events(slow, [Event()])
            for _ in range(5):
                await write_events(conn, [Event()])
                await number_changes(conn, schemas=SCHEMAS)
            assert (await position(conn))["low_seq"] < 1
            assert await unnumbered(conn) == 0
        assert await unnumbered(conn) == 1
        await number_changes(conn, schemas=SCHEMAS)
        assert await unnumbered(conn) == 0
        written = 6 + await moved(conn, to=6)
    assert (await position(conn))["last_id"] == written


async def test_a_store_from_a_dump_of_another_server_goes_on(conn: AsyncConnection[Any]) -> None:
    """Transaction numbers of another server's life say nothing here."""
    await conn.execute("UPDATE mdm.feed_position SET next_xid = '99999999999', next_seq = 0")
    await moved(conn, to=2)
    assert await unnumbered(conn) == 0


async def test_many_are_numbered_in_portions(conn: AsyncConnection[Any]) -> None:
    await write_many(conn, 25)
    row = await (await conn.execute("SELECT mdm.number_changes(10, 1000)")).fetchone()
    assert row == (True,)
    assert await unnumbered(conn) == 15
    row = await (await conn.execute("SELECT mdm.number_changes(100, 5)")).fetchone()
    assert row == (True,)
    assert await unnumbered(conn) == 10
    assert await number_changes(conn, schemas=SCHEMAS) is False
    query = "SELECT first_id FROM mdm.change_set ORDER BY seq"
    assert [r[0] for r in await (await conn.execute(query)).fetchall()] == list(range(1, 26))


async def test_a_set_larger_than_a_portion_is_numbered_whole(conn: AsyncConnection[Any]) -> None:
    await write_events(conn, [Event() for _ in range(30)])
    await write_events(conn, [Event()])
    await conn.execute("SELECT mdm.number_changes(100, 10)")
    assert (await position(conn))["last_id"] == 30
    await number_changes(conn, schemas=SCHEMAS)
    assert (await position(conn))["last_id"] == 31
