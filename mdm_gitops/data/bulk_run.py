"""Running a bulk action inside of its transaction: piece by piece, each a few statements over some
thousand rows, so that memory stays flat and progress can be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.bulk_matched import Found, Matching, hold
from mdm_gitops.data.bulk_sql import (
    BulkSql,
    delete_rows,
    mark_blocked,
    refers_to_itself,
    tell_referenced,
)
from mdm_gitops.data.import_errors import FAILED, RowFailure
from mdm_gitops.data.import_faults import failure_statements, left_untold
from mdm_gitops.data.import_run import LOCK_TIMEOUT_S, ImportRun, Raced
from mdm_gitops.data.import_sql import Moment, What
from mdm_gitops.data.import_write import lock_tables, update_rows
from mdm_gitops.data.proposals import lock_proposals
from mdm_gitops.data.refusals import reason
from mdm_gitops.data.row_input import GivenRow, faults_of
from mdm_gitops.data.write_sql import Operation
from mdm_gitops.errors import Conflict, RowRefused
from mdm_gitops.plan.physical import Role
from mdm_gitops.warehouse.lock import lock_key

PIECE: Final = 10_000
SHOWN_ERRORS: Final = 1_000

Tell = Callable[[int, int], Awaitable[None]]  # rows done, of how many


async def judge_values(
    conn: AsyncConnection[Any], sql: BulkSql, row: GivenRow, values: Mapping[str, Any]
) -> None:
    """Refuse values that no row may have; *values* are the parameters that hold them.

    Raises:
        RowRefused: they break rules.
    """
    question, meaning = sql.constant_faults()
    cursor = await conn.execute(question.encode(), sql.values(**values))
    [numbers] = await cursor.fetchone() or ("",)
    found = [meaning[int(number)] for number in numbers.split(",") if number]
    told = faults_of(sql.target.entity, row, [(each.code, each.column) for each in found])
    if told:
        raise RowRefused([reason(each) for each in told])


class BulkRun(ImportRun):
    """One attempt. ``total`` counts the rows by what became of them, ``errors`` are the first ones."""

    def __init__(
        self,
        conn: AsyncConnection[Any],
        sql: BulkSql,
        matching: Matching,
        *,
        what: str,
        row: GivenRow | None,
        batch: str | None,
    ) -> None:
        super().__init__(conn, sql, batch=batch)
        self._bulk = sql
        self._matching = matching
        self._what = what
        self._row = row
        texts = row.texts if row else {}
        self._values |= {f"set{n}": texts[name] for n, name in enumerate(sql.staged)}
        self.total: Counter[What] = Counter()
        self.errors: list[dict[str, Any]] = []

    async def hold(self, token: str, *, alone: bool) -> Found:
        """Lock what will be written, in the order of imports, and compare it with *token*.

        Raises:
            StateMoved: the statements were made for another state.
            Conflict: the rows are not those that were previewed.
            RowRefused: the values break rules.
        """
        sql, target = self._bulk, self._bulk.target
        await self._conn.execute("SET LOCAL lock_timeout = 0")
        key = lock_key(f"import {target.stored.entity_id}", target.schemas.config)
        await self._conn.execute("SELECT pg_advisory_xact_lock(%s)", [key])
        await self._conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S:g}s'".encode())
        if sql.proposes:
            await lock_proposals(self._conn, target)
        for statement in sql.hold_references():
            await self._do(statement)
        if sql.proposes:
            await self._hold_proposals()
        await self._do(lock_tables(sql, alone=alone))
        await self._check_revision()
        if self._row is not None:
            await judge_values(self._conn, sql, self._row, self._values)
        strength = None if sql.proposes else sql.strength
        found = await hold(self._conn, self._matching, what=self._what, strength=strength)
        if found.token != token:
            raise Conflict(
                f"the rows of {target.entity.name} that the filter finds have changed since the preview",
                hint="make a new preview and look at it",
                code="BULK_ACTION_STALE",
                matchCount=found.rows,
            )
        return found

    async def _hold_proposals(self) -> None:
        """Wait for decisions on proposals that will be written over (``import_write.lock_overwritten``)."""
        matching = self._matching
        rows = f'SELECT t."_sys_id" FROM {matching.source}{matching.where}'
        await self._conn.execute(
            f'SELECT FROM {self._bulk.target.table_sql(Role.EDIT)} p WHERE p."_sys_id" IN ({rows})'
            ' ORDER BY p."_sys_id" FOR UPDATE OF p'.encode(),
            matching.values,
        )

    async def run(self, rows: int, tell: Tell) -> None:
        """Change all *rows* that were found, and *tell* how far it is after each piece."""
        sql = self._bulk
        cursor = await self._conn.execute("SELECT clock_timestamp()")
        now = await cursor.fetchone()
        assert now is not None, "a SELECT without FROM has one row"
        self._values |= Moment.now(now[0]).values
        deferred = sql.doing is Operation.HARD_DELETE and refers_to_itself(sql)
        if deferred:  # a piece may hold what rows of a later one refer to
            await self._conn.execute("SET CONSTRAINTS ALL DEFERRED")
        for statement in (*mark_blocked(sql), *sql.create_tables()):
            await self._do(statement)
        _ = sql.value_faults  # shared by all pieces, so its filters are kept
        kept = len(sql.predicates)
        for after in range(0, rows, PIECE):
            until = min(after + PIECE, rows)
            await self._piece(after, until)
            del sql.predicates[kept:]  # the next piece makes its statements anew
            await tell(until, rows)
        if deferred:
            await self._conn.execute("SET CONSTRAINTS ALL IMMEDIATE")

    async def _piece(self, after: int, until: int) -> None:
        if after:
            await self._conn.execute(
                'TRUNCATE pg_temp."next", pg_temp."failed"; DROP TABLE IF EXISTS pg_temp."leads"'
            )
        self._values |= {"after": after, "until": until}
        await self._decide(analyze=bool(self._bulk.unique_sets or self._bulk.own_references))
        self.counts = await self._counted()
        self.total.update(self.counts)
        await self._tell_errors()
        await self.write()

    async def _tell_errors(self) -> None:
        good = self.written + self.counts.get(What.UNCHANGED, 0)
        if good == sum(self.counts.values()) or len(self.errors) > SHOWN_ERRORS:
            return
        for statement in failure_statements(self._sql, self.counts):
            await self._do(statement)
        if What.REFERENCED in self.counts:
            await self._do(tell_referenced(self._bulk))
        cursor = await self._conn.execute(left_untold().encode())
        if (await cursor.fetchone() or (False,))[0]:
            raise Raced
        entity = self._bulk.target.entity
        cursor = await self._conn.execute(
            'SELECT n."_id", f."_pos", f."column", f.code, f.message, f.value'
            f' FROM ({FAILED}) f JOIN pg_temp."next" n USING ("_pos") ORDER BY f.ordinal'
            f" LIMIT {SHOWN_ERRORS + 1}".encode(),
            {"names": [column.name for column in entity.columns]},
        )
        for row_id, number, column, code, message, value in await cursor.fetchall():
            failure = RowFailure(row=number, column=column, code=code, message=message, value=value)
            document = failure.document(entity)
            del document["row"]
            self.errors.append({"id": str(row_id), **document})

    def _change_rows(self) -> str:
        return update_rows(self._sql) if self._bulk.sets else delete_rows(self._bulk)
