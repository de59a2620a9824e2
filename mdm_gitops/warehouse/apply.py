"""Carry out a plan: one writer, the plan made again under the lock, then step by step.

Each step is journaled. There is no undo and none is needed: the flip is one transaction, what comes
before it is invisible, what comes after it is idempotent, and the next run plans from the live
catalog whatever was or was not done. So the process may die at any moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, errors

from mdm_gitops.errors import (
    MdmError,
    PartlyApplied,
    PlanRefused,
    PlanStale,
    WarehouseError,
    WarehouseLocked,
)
from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.human import plural
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.policy import Allowance, refused_hazards, standing_refusals
from mdm_gitops.warehouse import fault
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.journal import Journal
from mdm_gitops.warehouse.lock import alone
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import Inspect, make_plan
from mdm_gitops.warehouse.script import Script, ScriptStep, build_script

LOCK_PURPOSE: Final = "apply"
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0
# The table is held by somebody, or PostgreSQL chose us as the victim: trying again may well work.
_WORTH_A_RETRY: Final = (errors.LockNotAvailable, errors.DeadlockDetected)
_MAX_ROUND_TRIPS: Final = 200  # of one transaction: waiting for answers takes as long as the work
_ROWS_IN_THE_WAY: Final = (errors.IntegrityError, errors.DataError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an apply waits for what; see the settings ``Mdm__Apply__*``."""

    writer_lock_s: float = 0.0  # for another program that is applying
    table_lock_s: float = 2.0  # readers queue behind a waiting ALTER: keep it short
    concurrently_lock_s: float = 600.0  # for old transactions; blocks nobody
    statement_s: float = 3_600.0
    lock_retries: int = 10
    batch_rows: int = 10_000


DEFAULT_PATIENCE: Final = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Told at the start of each step and after each batch of a long one."""

    number: int
    total: int
    phase: Phase
    title: str
    rows_done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    plan: Plan
    steps: int  # how many ran; 0 when there was nothing to do
    deployment_id: int | None


Tell = Callable[[Progress], None]


def _tell_nobody(progress: Progress) -> None:
    """The default listener."""


async def apply_plan(
    conn: AsyncConnection[Any],
    definitions: Definitions,
    plan: Plan | None,
    *,
    schemas: Schemas,
    actor: str,
    target: Collection[str] = (),
    allowances: Collection[Allowance] = (),
    approved: bool = False,
    patience: Patience = DEFAULT_PATIENCE,
    tell: Tell = _tell_nobody,
    inspect: Inspect | None = None,
) -> Applied:
    """Apply *definitions*; with *plan*, only if the plan made under the lock is that very plan.

    *approved* says that a person has seen the plan and agreed; otherwise hazards beyond the
    project's policy need *allowances*. *conn* must be in autocommit mode, straight to the server.
    *inspect* judges the tests of access under the lock, as ``make_plan`` says.

    Raises:
        WarehouseLocked: another program is applying, or a table stayed locked; nothing changed.
        PlanStale: definitions or warehouse moved since *plan* was made; nothing changed.
        PlanRefused: a guard, a data check or a hazard that nobody allowed; nothing changed.
        PartlyApplied: some steps ran; run again to go on.
        WarehouseError: the connection was lost; run again to go on.
    """
    try:
        async with alone(
            conn,
            purpose=LOCK_PURPOSE,
            schema=schemas.config,
            timeout_s=patience.writer_lock_s,
            doing="applying a plan to",
        ):
            fresh = await make_plan(
                conn,
                definitions,
                schemas=schemas,
                target=target,
                statement_timeout_s=patience.statement_s,
                inspect=inspect,
            )
            _refuse_stale(plan, fresh)
            refuse_blocked(fresh, allowances)
            if not approved:
                refuse_hazards(fresh, definitions, allowances)
            journal = Journal(conn, schemas)
            await journal.close_interrupted()
            if fresh.is_empty:
                return Applied(plan=fresh, steps=0, deployment_id=None)
            return await _carry_out(conn, fresh, journal, schemas, actor, patience, tell)
    except psycopg.Error as error:
        if not conn.closed:
            raise
        raise WarehouseError(
            "the connection to the warehouse was lost before the first step",
            hint="Nothing was changed; run again",
        ) from error


async def rehearse(
    conn: AsyncConnection[Any],
    plan: Plan,
    *,
    schemas: Schemas,
    actor: str,
    patience: Patience = DEFAULT_PATIENCE,
) -> tuple[int, int]:
    """Run the statements of *plan* on a copy of the warehouse that nobody else uses.

    It is not made again, as the copy holds no rows; returns how many steps and statements ran.

    Raises:
        MdmError: as ``apply_plan``, of a plan that does not run through.
    """
    journal = Journal(conn, schemas)
    applied = await _carry_out(conn, plan, journal, schemas, actor, patience, _tell_nobody)
    steps = build_script(plan, schemas=schemas, actor=actor).steps
    return applied.steps, sum(len(step.statements) for step in steps)


def _refuse_stale(plan: Plan | None, fresh: Plan) -> None:
    if plan is None or plan.plan_id == fresh.plan_id:
        return
    if plan.desired_hash != fresh.desired_hash:
        moved = "the definitions have changed"
    elif plan.live_fingerprint != fresh.live_fingerprint:
        moved = "the warehouse has changed"
    else:
        moved = "the rows that it counted have changed"
    raise PlanStale(
        f"plan {plan.plan_id} is out of date: {moved} since it was made",
        hint="Make a new plan and review it",
    )


def refuse_blocked(plan: Plan, allowances: Collection[Allowance] = ()) -> None:
    """Raise PlanRefused if something stands in the way that nobody can allow."""
    refusals = standing_refusals(plan, allowances=allowances)
    if refusals:
        first, more = refusals[0], len(refusals) - 1
        raise PlanRefused(
            first.message + (f" (and {more} more)" if more else ""),
            hint=first.hint,
            refusals=[
                {"code": r.code.value, "entity": r.entity, "message": r.message, "hint": r.hint}
                for r in refusals
            ],
        )


def refuse_hazards(
    plan: Plan, definitions: Definitions, allowances: Collection[Allowance] = ()
) -> None:
    """Raise PlanRefused if the project's policy and *allowances* do not let all of *plan* in."""
    policy = definitions.project.policy
    missing = refused_hazards(plan, policy=policy, allowances=allowances)
    if missing:
        consents = "1 thing needs" if len(missing) == 1 else f"{len(missing)} things need"
        flags = " ".join(dict.fromkeys(item.flag for item in missing))
        raise PlanRefused(
            f"{consents} a person's consent, the first: {missing[0].message}",
            hint=f"Review the plan, then pass {flags}",
        )


async def _carry_out(
    conn: AsyncConnection[Any],
    plan: Plan,
    journal: Journal,
    schemas: Schemas,
    actor: str,
    patience: Patience,
    tell: Tell,
) -> Applied:
    script = build_script(plan, schemas=schemas, actor=actor)
    deployment_id = await journal.begin(plan, actor=actor)
    fault.reach("begin")
    run = _Run(conn, script, journal, patience, tell)
    try:
        steps = await run.all_steps()
        await journal.succeed()
    except (MdmError, psycopg.Error) as error:
        problem = _translated(error, run)
        await journal.fail(problem)
        raise problem from error
    fault.reach("end")
    return Applied(plan=plan, steps=steps, deployment_id=deployment_id)


class _Run:
    def __init__(
        self,
        conn: AsyncConnection[Any],
        script: Script,
        journal: Journal,
        patience: Patience,
        tell: Tell,
    ) -> None:
        self.conn = conn
        self.script = script
        self.journal = journal
        self.patience = patience
        self.tell = tell
        self.done = 0
        self.step: ScriptStep | None = None

    async def all_steps(self) -> int:
        for step in self.script.steps:
            self.step = step
            self._say(step)
            await self.journal.start(step.number, step.phase, step.title)
            fault.reach(f"before-{step.number}")
            await self._one_step(step)
            self.done += 1
            fault.reach(f"after-{step.number}")
        return self.done

    def _say(self, step: ScriptStep, rows_done: int = 0) -> None:
        self.tell(
            Progress(
                number=step.number,
                total=len(self.script.steps),
                phase=step.phase,
                title=step.title,
                rows_done=rows_done,
            )
        )

    async def _one_step(self, step: ScriptStep) -> None:
        batched = [statement for statement in step.statements if statement.batch]
        if batched:
            for statement in batched:
                await self._in_batches(step, statement)
            await self.journal.finish(step.number)
        elif step.transactional:
            await self._retrying(partial(self._in_one_transaction, step))
        else:
            for statement in step.statements:
                await self._retrying(partial(self._concurrently, statement))
            await self.journal.finish(step.number)

    async def _in_one_transaction(self, step: ScriptStep) -> None:
        async with self.conn.transaction():
            await self._limits(self.patience.table_lock_s, local=True)
            for text in _messages(step.statements):
                await self.conn.execute(text)
                fault.reach(f"inside-{step.number}")
            await self.journal.finish(step.number)

    async def _concurrently(self, statement: Statement) -> None:
        """Run what refuses a transaction. It waits for old snapshots of any table, hence longer."""
        await self._limits(self.patience.concurrently_lock_s, local=False)
        try:
            if statement.leftover is not None:
                await self._drop_leftover(
                    statement.leftover.exists_sql, statement.leftover.drop_sql
                )
            await self.conn.execute(statement.sql.encode())
        finally:
            if not self.conn.broken:
                await self.conn.execute("RESET lock_timeout; RESET statement_timeout")

    async def _drop_leftover(self, exists_sql: str, drop_sql: str) -> None:
        found = await (await self.conn.execute(exists_sql.encode())).fetchone()
        if found is not None and found[0]:
            await self.conn.execute(drop_sql.encode())

    async def _in_batches(self, step: ScriptStep, statement: Statement) -> None:
        batch, after, rows = statement.batch, None, 0
        assert batch is not None
        while True:
            query = batch.next_bound_sql(after, self.patience.batch_rows)
            found = await (await self.conn.execute(query.encode())).fetchone()
            bound = found[0] if found else None
            rows += await self._piece(batch.update_sql(after, bound))
            await self.journal.rows_done(step.number, rows)
            self._say(step, rows)
            fault.reach(f"batch-{step.number}")
            if bound is None:
                return
            after = bound

    async def _piece(self, update_sql: str) -> int:
        changed = 0

        async def run() -> None:
            nonlocal changed
            async with self.conn.transaction():
                await self._limits(self.patience.table_lock_s, local=True)
                cursor = await self.conn.execute(update_sql.encode())
                changed = max(cursor.rowcount, 0)

        await self._retrying(run)
        return changed

    async def _limits(self, lock_timeout_s: float, *, local: bool) -> None:
        scope = "LOCAL" if local else "SESSION"
        lock_ms, statement_ms = (
            round(lock_timeout_s * 1000),
            round(self.patience.statement_s * 1000),
        )
        await self.conn.execute(
            f"SET {scope} lock_timeout = {lock_ms}; SET {scope} statement_timeout = {statement_ms}"
        )

    async def _retrying(self, action: Callable[[], Awaitable[None]]) -> None:
        """Try again while a table is locked: waiting long would make its readers queue behind us."""
        for attempt in range(self.patience.lock_retries + 1):
            try:
                return await action()
            except _WORTH_A_RETRY as error:
                if attempt == self.patience.lock_retries:
                    raise self._still_locked(error) from error
                pause = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        return None

    def _still_locked(self, error: psycopg.Error) -> WarehouseLocked:
        title = self.step.title if self.step else "a step"
        attempts = self.patience.lock_retries + 1
        return WarehouseLocked(
            f"{title}: a table stayed locked through {plural(attempts, 'attempt')}",
            hint="Look for long transactions in pg_stat_activity, then run again",
        )


def _messages(statements: Sequence[Statement]) -> Iterator[bytes]:
    """Yield the text of *statements*, several in one where they are many; PostgreSQL runs them one
    by one in this order, stops at the first that fails and answers with its error alone."""
    size = 1 + len(statements) // _MAX_ROUND_TRIPS
    for start in range(0, len(statements), size):
        yield ";\n".join(each.sql for each in statements[start : start + size]).encode()


def _translated(error: MdmError | psycopg.Error, run: _Run) -> MdmError:
    """Say what happened in our own words: nothing changed, or where the next run goes on."""
    step = run.step
    title = step.title if step else "the first step"
    flipped = _has_flipped(run)
    if not flipped and run.conn.closed:
        # Perhaps the commit came through and only its answer did not: nothing can be promised.
        return WarehouseError(
            f"the connection to the warehouse was lost at this step: {title}",
            hint="Run again; it goes on from whatever was done",
        )
    if isinstance(error, MdmError):
        if not flipped:
            return error
        failed = str(error)
    elif _needs_more_locks(error) and not flipped:
        return WarehouseError(
            f"{title} failed: the server cannot lock so many tables in one transaction",
            hint="Nothing was changed; set max_locks_per_transaction of the server to 512 and"
            " restart it, or apply in parts with --target",
        )
    else:
        failed = f"{title} failed: {_reason(error)}"
    if not flipped and not isinstance(error, _ROWS_IN_THE_WAY):
        return PlanRefused(failed, hint="Nothing was changed; plan again")
    if not flipped:
        return PlanStale(failed, hint="Rows have changed meanwhile; plan again")
    return PartlyApplied(
        f"{run.done} of {len(run.script.steps)} steps ran, then {failed}",
        hint="Nothing is lost; correct the cause and apply again to go on from there",
        steps_done=run.done,
        steps_total=len(run.script.steps),
    )


def _has_flipped(run: _Run) -> bool:
    return any(step.phase is Phase.FLIP for step in _finished(run))


def _finished(run: _Run) -> Iterable[ScriptStep]:
    return run.script.steps[: run.done]


def _needs_more_locks(error: psycopg.Error) -> bool:
    """PostgreSQL says it in the language of the server, but names its setting."""
    advice = error.diag.message_hint or ""
    return isinstance(error, errors.OutOfMemory) and "max_locks_per_transaction" in advice


def _reason(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).strip().rstrip(".")
