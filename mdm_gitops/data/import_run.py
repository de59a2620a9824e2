"""Running the statements of an import in their order, inside the transaction of its staging table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.asking import StateMoved
from mdm_gitops.data.import_errors import first_errors
from mdm_gitops.data.import_faults import failure_statements, left_untold
from mdm_gitops.data.import_sql import ImportSql, Moment, What
from mdm_gitops.data.import_write import (
    changed_keys,
    insert_rows,
    keep_versions,
    lock_overwritten,
    lock_tables,
    record_events,
    save_proposals,
    update_rows,
)
from mdm_gitops.data.proposals import lock_proposals
from mdm_gitops.data.relink import relink
from mdm_gitops.warehouse.lock import lock_key

LOCK_TIMEOUT_S: Final = 10.0
Counts = Mapping[What, int]
_COUNT: Final = 'SELECT "_status", count(*) FROM pg_temp."next" GROUP BY 1'


class Raced(Exception):
    """Another writer changed what was judged; nothing is written that could not be undone."""


class ImportRun:
    """One attempt to write the staged rows. *batch* is the name of the proposals."""

    def __init__(self, conn: AsyncConnection[Any], sql: ImportSql, *, batch: str | None) -> None:
        self._conn = conn
        self._sql = sql
        self._values: dict[str, Any] = {"batch": batch}
        self.counts: Counts = {}  # of the rows by what becomes of them

    async def begin(self, *, alone: bool) -> None:
        """Wait for other imports into the entity, hold its definition, and look at the state.

        Raises:
            StateMoved: the statements were made for another one.
        """
        target = self._sql.target
        await self._conn.execute("SET LOCAL lock_timeout = 0")
        key = lock_key(f"import {target.stored.entity_id}", target.schemas.config)
        await self._conn.execute("SELECT pg_advisory_xact_lock(%s)", [key])
        await self._conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S:g}s'".encode())
        if self._sql.proposes:
            await lock_proposals(self._conn, target)
            if self._sql.upserts:
                await self._do(lock_overwritten(self._sql))
        await self._do(lock_tables(self._sql, alone=alone))
        await self._check_revision()
        cursor = await self._conn.execute("SELECT clock_timestamp()")
        now = await cursor.fetchone()
        assert now is not None, "a SELECT without FROM has one row"
        self._values |= Moment.now(now[0]).values

    async def judge(self, *, analyze: bool) -> None:
        """Fill ``next`` and decide what becomes of each row, as far as it is known before writing."""
        sql = self._sql
        for statement in sql.create_tables():
            await self._do(statement)
        await self._decide(analyze=analyze)

    async def _decide(self, *, analyze: bool) -> None:
        sql = self._sql
        await self._do(sql.fill_next())
        if analyze:
            await self._conn.execute('ANALYZE pg_temp."next"')
        # A row that cannot be written anyway must not stand in the way of a later one.
        for statement in sql.mark_taken():
            await self._do(statement)
        if sql.upserts:
            await self._do(sql.mark_repeated())
        later = 0
        for statement in sql.mark_later():
            later += await self._do(statement)
        while later and await self._do(sql.revive_later()):
            pass
        for statement in sql.follow_own_references():
            await self._do(statement)

    async def explain(self) -> tuple[list[dict[str, Any]], bool]:
        """Tell why rows will not be written: the first errors, and whether there are more.

        Raises:
            Raced: what stood against a row has gone meanwhile.
        """
        self.counts = await self._counted()
        if self.written + self.counts.get(What.UNCHANGED, 0) == sum(self.counts.values()):
            return [], False
        for statement in failure_statements(self._sql, self.counts):
            await self._do(statement)
        cursor = await self._conn.execute(left_untold().encode())
        if (await cursor.fetchone() or (False,))[0]:
            raise Raced
        return await first_errors(self._conn, self._sql.target.entity)

    @property
    def written(self) -> int:
        return self.counts.get(What.CREATE, 0) + self.counts.get(What.UPDATE, 0)

    async def write(self) -> None:
        """Write the good rows: into the approved table, or as proposals.

        Raises:
            Raced: a row is not any more as it was when it was judged.
            StateMoved: so is the store.
        """
        if self._sql.proposes:
            if self.written:
                await self._do(save_proposals(self._sql))
        else:
            if updates := self.counts.get(What.UPDATE):
                await self._update(updates)
            if self.counts.get(What.CREATE):
                await self._do(insert_rows(self._sql))
        await self._record()

    async def _update(self, expected: int) -> None:
        sql = self._sql
        question = changed_keys(sql)
        if question:
            await self._conn.execute("SET CONSTRAINTS ALL DEFERRED")
        if await self._do(self._change_rows()) < expected:
            raise Raced
        if sql.target.entity.history_enabled:
            await self._do(keep_versions(sql))
        if question:
            await self._relink(question)
            await self._conn.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _change_rows(self) -> str:
        return update_rows(self._sql)

    async def _relink(self, question: str) -> None:
        cursor = await self._conn.execute(question.encode(), self._sql.values(**self._values))
        for column, old, new in await cursor.fetchall():
            await relink(
                self._conn,
                asking=self._sql.asking,
                target=self._sql.target,
                changed={column: (old, new)},
            )

    async def _record(self) -> None:
        await self._check_revision()
        if not self.written:
            return
        key = self._sql.target.config_sql("change_set_key")
        cursor = await self._conn.execute("SELECT nextval(%s::regclass)", [key])
        self._values["change_set"] = (await cursor.fetchone() or (None,))[0]
        self._values["events"] = self.written
        for statement in record_events(self._sql):
            await self._do(statement)

    # --- statements ---

    async def _do(self, statement: str) -> int:
        cursor = await self._conn.execute(statement.encode(), self._sql.values(**self._values))
        return cursor.rowcount

    async def _counted(self) -> Counts:
        cursor = await self._conn.execute(_COUNT.encode())
        return {What(status): number for status, number in await cursor.fetchall()}

    async def _check_revision(self) -> None:
        table = self._sql.target.config_sql("revision")
        cursor = await self._conn.execute(f"SELECT value FROM {table}".encode())
        if await cursor.fetchone() != (self._sql.asking.state.revision,):
            raise StateMoved
