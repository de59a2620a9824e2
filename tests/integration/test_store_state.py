"""The state that a server knows is never older than what it was asked about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access.api_keys import digest
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store
from tests.support.serving import add_key

pytestmark = pytest.mark.anyio
_ASKED = """
SELECT 1 FROM pg_stat_activity
 WHERE pid = %s AND state = 'idle' AND query LIKE 'SELECT value FROM%%revision'
"""
_WAITS = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"


async def until(conn: AsyncConnection[Any], question: str, pid: int) -> None:
    async with asyncio.timeout(60):
        while await (await conn.execute(question.encode(), [pid])).fetchone() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_key_made_while_somebody_reads_the_state_is_known_to_who_asks_afterwards(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    store = Store(Schemas())
    await store.current(conn)
    await add_key(conn, "read by the first")
    async with (
        await connect(database_url, application_name="test") as first,
        await connect(database_url, application_name="test") as second,
        await connect(database_url, application_name="test") as holding,
    ):
        async with holding.transaction():
            await holding.execute("LOCK TABLE mdm.entity IN ACCESS EXCLUSIVE MODE")
            early = asyncio.create_task(store.current(first))
            await until(conn, _WAITS, first.info.backend_pid)  # it has its snapshot
            key = await add_key(conn, "new")
            late = asyncio.create_task(store.current(second))
            await until(conn, _ASKED, second.info.backend_pid)
        assert digest(key) not in (await early).keys
        assert digest(key) in (await late).keys
        assert store.last_known is await late
