"""Indexes that are built while others write: what the build locks, and what a failed one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection, errors

from mdm_gitops.plan.changes import AddIndex, Phase
from mdm_gitops.plan.physical import Index
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.script import ScriptStep
from tests.support.lock_observer import Observer, observing, steps_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def observer(database_url: str) -> AsyncIterator[Observer]:
    async with observing(database_url) as observer:
        yield observer


def _online_index(*, unique: bool = False, rebuild: bool = False) -> tuple[ScriptStep, ...]:
    index = Index(name="child__ix_code", columns=("code",), unique=unique)
    return steps_of(AddIndex(table="child", index=index, online=True, rebuild=rebuild))


async def test_an_index_is_built_while_others_write(observer: Observer, database_url: str) -> None:
    [step] = [s for s in _online_index() if s.phase is Phase.ENFORCE]
    create = step.statements[0]
    assert not step.transactional
    with pytest.raises(errors.ActiveSqlTransaction):
        async with observer.conn.transaction():
            await observer.conn.execute(create.sql)

    async with await connect(database_url, application_name="writer") as writer:
        async with writer.transaction():
            await writer.execute("INSERT INTO mdm_data.child (code) VALUES ('held')")
            building = asyncio.create_task(observer.conn.execute(create.sql))
            modes = await _modes_of_other(writer, observer.conn.info.backend_pid)
            assert modes == {"ShareUpdateExclusiveLock"}
            async with await connect(database_url, application_name="other") as other:
                await other.execute("INSERT INTO mdm_data.child (code) VALUES ('during')")
        await building
    for statement in step.statements[1:]:
        await observer.conn.execute(statement.sql)
    assert await _is_valid(observer.conn, "child__ix_code") is True


async def _modes_of_other(conn: AsyncConnection[Any], pid: int) -> set[str]:
    """Return the modes on the table once that process waits for us."""
    for _ in range(200):
        rows = await conn.execute(
            "SELECT mode FROM pg_locks WHERE pid = %s AND granted"
            " AND relation = 'mdm_data.child'::regclass",
            [pid],
        )
        if modes := {mode async for (mode,) in rows}:
            return modes
        await asyncio.sleep(0.02)
    raise AssertionError("the build never began")


async def _is_valid(conn: AsyncConnection[Any], index: str) -> bool | None:
    row = await (
        await conn.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('mdm_data.' || %s)",
            [index],
        )
    ).fetchone()
    return bool(row[0]) if row else None


async def test_a_build_that_failed_is_found_dropped_and_built_again(observer: Observer) -> None:
    conn = observer.conn
    await conn.execute("UPDATE mdm_data.child SET code = 'same' WHERE amount <= 2")
    [step] = [s for s in _online_index(unique=True) if s.phase is Phase.ENFORCE]
    create, leftover = step.statements[0], step.statements[0].leftover
    assert leftover is not None
    with pytest.raises(errors.UniqueViolation):
        await conn.execute(create.sql)
    assert await _is_valid(conn, "child__ix_code") is False
    with pytest.raises(errors.DuplicateTable):  # never content with what is invalid
        await conn.execute(create.sql)
    assert await _one(conn, leftover.exists_sql) is True

    await conn.execute("UPDATE mdm_data.child SET code = amount::text")
    for again in _online_index(unique=True, rebuild=True):
        if again.phase is Phase.ENFORCE:
            for statement in again.statements:
                await conn.execute(statement.sql)

    assert await _is_valid(conn, "child__ix_code") is True
    assert await _one(conn, leftover.exists_sql) is False


async def test_a_short_lock_timeout_leaves_an_invalid_index(
    observer: Observer, database_url: str
) -> None:
    """CONCURRENTLY waits for old snapshots on any table, so it needs a budget of its own."""
    create = next(s for s in _online_index() if s.phase is Phase.ENFORCE).statements[0]
    assert create.leftover is not None
    async with (
        await connect(database_url, application_name="reader") as reader,
        reader.transaction(),
    ):
        await reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await reader.execute("SELECT count(*) FROM mdm_data.parent")
        await observer.conn.execute("SET lock_timeout = '200ms'")
        with pytest.raises(errors.LockNotAvailable):
            await observer.conn.execute(create.sql)
    assert await _one(observer.conn, create.leftover.exists_sql) is True
    await observer.conn.execute(create.leftover.drop_sql)
    await observer.conn.execute(create.sql)
    assert await _is_valid(observer.conn, "child__ix_code") is True


async def _one(conn: AsyncConnection[Any], sql: str) -> Any:
    row = await (await conn.execute(sql)).fetchone()
    assert row is not None
    return row[0]
