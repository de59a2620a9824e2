"""Runs statements on tables with rows, and says what each of them locked, read and rewrote.

After each statement, in its transaction, the strongest lock comes from ``pg_locks``, a rewrite from
``pg_relation_filenode``, and a scan from what PostgreSQL says at DEBUG1.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.model import ChangeClass
from mdm_gitops.plan.changes import Change
from mdm_gitops.plan.plan import Assessment, Lock, Plan, PlannedChange
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.script import ScriptStep, build_script

SCHEMAS = Schemas()
MODES = {
    "RowExclusiveLock": Lock.ROW_EXCLUSIVE,
    "ShareUpdateExclusiveLock": Lock.SHARE_UPDATE_EXCLUSIVE,
    "ShareLock": Lock.SHARE,
    "ShareRowExclusiveLock": Lock.SHARE_ROW_EXCLUSIVE,
    "ExclusiveLock": Lock.ACCESS_EXCLUSIVE,
    "AccessExclusiveLock": Lock.ACCESS_EXCLUSIVE,
}
STRENGTH = list(Lock)
WITH_ROWS = {"child", "parent", "kid"}

TABLES = """
    CREATE TABLE mdm_data.parent (
        _sys_id uuid CONSTRAINT parent__pk PRIMARY KEY DEFAULT gen_random_uuid(),
        code text NOT NULL
    );
    CREATE UNIQUE INDEX parent__uq_code ON mdm_data.parent (code);
    CREATE TABLE mdm_data.child (
        _sys_id uuid CONSTRAINT child__pk PRIMARY KEY DEFAULT gen_random_uuid(),
        code text DEFAULT 'x', amount integer, price numeric(10,2), parent text,
        checked integer CONSTRAINT ck_checked_range CHECK (checked >= 0),
        _sys_is_deleted boolean NOT NULL DEFAULT false
    );
    CREATE UNIQUE INDEX child__uq_amount ON mdm_data.child (amount);
    INSERT INTO mdm_data.parent (code) SELECT 'p' || n FROM generate_series(1, 200) n;
    INSERT INTO mdm_data.child (code, amount, price, parent, checked)
        SELECT n::text, n, n, 'p' || n % 200 + 1, n FROM generate_series(1, 2000) n;
    CREATE TABLE mdm_data.fresh (_sys_id uuid CONSTRAINT fresh__pk PRIMARY KEY, parent text);
"""


@dataclass(frozen=True, kw_only=True)
class Observed:
    sql: str
    locks: dict[str, Lock]  # held after the statement, so those of earlier ones count too
    read: frozenset[str]  # tables with rows that PostgreSQL went through
    rewritten: frozenset[str]

    @property
    def lock(self) -> Lock:
        return strongest_of(self.locks.values())


def strongest_of(locks: Iterable[Lock]) -> Lock:
    return max(locks, key=STRENGTH.index, default=Lock.NONE)


class Observer:
    """Runs statements and measures each one before its transaction ends."""

    def __init__(self, conn: AsyncConnection[Any]) -> None:
        self.conn = conn
        self.said: list[str] = []
        conn.add_notice_handler(lambda notice: self.said.append(notice.message_primary or ""))

    async def run(self, statements: Sequence[str]) -> list[Observed]:
        """Run *statements* in one transaction."""
        async with self.conn.transaction():
            # What the transaction itself creates is locked for nobody.
            names = {oid: name for oid, (name, _) in (await self._files()).items()}
            return [await self._observe(sql, names) for sql in statements]

    async def _observe(self, sql: str, names: dict[int, str]) -> Observed:
        before = await self._files()
        self.said.clear()
        await self.conn.execute("SET LOCAL client_min_messages = debug1")
        await self.conn.execute(sql)
        await self.conn.execute("SET LOCAL client_min_messages = notice")
        said = list(self.said)
        after = await self._files()
        return Observed(
            sql=sql,
            locks=await self._locks(names),
            read=await self._tables_read(said),
            rewritten=frozenset(
                name
                for oid, (name, file) in before.items()
                if after.get(oid, ("", file))[1] != file
            ),
        )

    async def _tables_read(self, said: Sequence[str]) -> frozenset[str]:
        found = {name for message in said for name in _named(message)}
        rows = await self.conn.execute(
            "SELECT conname, conrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
        )
        referring = {name: table.removeprefix("mdm_data.") async for name, table in rows}
        return frozenset({referring.get(name, name) for name in found} & WITH_ROWS)

    async def _files(self) -> dict[int, tuple[str, int]]:
        rows = await self.conn.execute(
            "SELECT oid, relname, pg_relation_filenode(oid) FROM pg_class"
            " WHERE relnamespace = 'mdm_data'::regnamespace AND relkind IN ('r', 'i')"
        )
        return {oid: (name, file) async for oid, name, file in rows}

    async def _locks(self, names: dict[int, str]) -> dict[str, Lock]:
        rows = await self.conn.execute(
            "SELECT relation, mode FROM pg_locks WHERE pid = pg_backend_pid()"
            " AND relation = ANY (%s) AND mode = ANY (%s)",
            [list(names), list(MODES)],
        )
        locks: dict[str, Lock] = {}
        async for oid, mode in rows:
            held = locks.get(names[oid], Lock.NONE)
            locks[names[oid]] = max(held, MODES[mode], key=STRENGTH.index)
        return locks


def _named(message: str) -> Iterator[str]:
    """Yield the table, or the foreign key, that the server said it goes through."""
    found = re.match(
        r'(?:verifying table|rewriting table|validating foreign key constraint) "(\w+)"'
        r'|building index "\w+" on table "(\w+)"',
        message,
    )
    if found:
        yield found[1] or found[2]


@asynccontextmanager
async def observing(url: str) -> AsyncIterator[Observer]:
    """Yield an observer of a database that gets ``TABLES``."""
    async with await connect(url, application_name="observed") as conn:
        await conn.execute(TABLES)
        yield Observer(conn)


def steps_of(*changes: Change) -> tuple[ScriptStep, ...]:
    assessment = Assessment(change_class=ChangeClass.SAFE)
    planned = tuple(
        PlannedChange(number=n, change=change, assessment=assessment)
        for n, change in enumerate(changes, start=1)
    )
    plan = Plan(
        project="p", base_commit=None, desired_hash="", live_fingerprint="", changes=planned
    )
    return build_script(plan, schemas=SCHEMAS, actor="test").steps
