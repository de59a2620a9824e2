"""One reconcile: read what the folder says, plan it, apply what may be applied, say how it ended.

It decides nothing about changes: the plan does, the project's policy says what goes in without a
person, and apply's own lock sees to it that one program works at a time, however many run. What is
not allowed stays undone, and what was deployed last goes on serving.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mdm_gitops.errors import DefinitionError, InputError, MdmError, PlanRefused, WarehouseError
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import DriftKind, Plan
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.apply import (
    Applied,
    Progress,
    apply_plan,
    refuse_blocked,
    refuse_hazards,
)
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.session import (
    open_connection,
    patience_of,
    reserved_schemas,
    schemas_of,
)
from mdm_gitops.warehouse.status import is_untouched, read_revision
from mdm_operator.stamp import take_stamp
from mdm_operator.state import Outcome, Run, State

ACTOR: Final = "system:operator"


class Listener:
    """Told what happens; the default listens to nothing."""

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        """A plan with changes or drift was made."""

    def progressed(self, progress: Progress) -> None:
        """A step of apply begins, or has done more rows."""

    def finished(self, run: Run) -> None:
        """A run ended; runs that find nothing new since the last one are not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settled:
    """What the last run saw. While all of it holds there is nothing to do."""

    stamp: str
    revision: int
    until: float  # on the monotonic clock


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """Keeps one warehouse what one folder says; ``state`` tells how far it has come.

    Args:
        url: The warehouse of *folder*, as ``warehouse.locate`` gives it.
        stop: Ends an apply before its next step.
        approve_first: What goes into an untouched warehouse needs nobody's consent.
    """

    def __init__(
        self,
        folder: Path,
        *,
        url: str,
        settings: Settings,
        stop: asyncio.Event | None = None,
        listener: Listener | None = None,
        approve_first: bool = False,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.folder = folder
        self.state = State()
        self._url = url
        self._settings = settings
        self._schemas = schemas_of(settings)
        self._stop = stop or asyncio.Event()
        self._listener = listener or Listener()
        self._approve_first = approve_first
        self._now = now
        self._conn: Connection | None = None
        self._settled: _Settled | None = None

    async def aclose(self) -> None:
        if self._conn is not None:
            await self._conn.close()

    async def step(self) -> Run | None:
        """Reconcile once; None when nothing is new since the last run.

        What waits for a person is an outcome. What may pass by itself is raised, and to be tried
        again: WarehouseError, WarehouseLocked, PlanStale, PartlyApplied.
        """
        begun = self._now(), time.perf_counter()
        # Looked at before it is read: what changes in between is seen by the next step.
        stamp = await asyncio.to_thread(self._stamp)
        if await self._nothing_is_new(stamp):
            return None
        self._settled = None
        self.state = self.state.reconciling(begun[0])
        try:
            conn = await self._connection()
            found = await self._reconcile(conn)
            await self._settle(conn, stamp, found.outcome)
        except Exception as error:
            lost = self._lost_connection(error)
            self._end(begun, _failed(lost or error))
            if lost is not None:
                raise lost from error
            raise
        return self._end(begun, found)

    def _end(self, begun: tuple[datetime, float], found: _Found) -> Run:
        started_at, started = begun
        run = Run(
            outcome=found.outcome,
            commit=found.commit,
            started_at=started_at,
            duration_s=time.perf_counter() - started,
            message=found.message,
            error=found.error,
            changes=found.changes,
            drift=found.drift,
        )
        self.state = self.state.after(run, now=self._now())
        self._listener.finished(run)
        return run

    # --- is there anything to do? ---

    def _stamp(self) -> str:
        try:
            return take_stamp(self.folder)
        except MdmError as error:  # git refuses the repository; reading it says why
            return str(error)

    async def _nothing_is_new(self, stamp: str) -> bool:
        settled, conn = self._settled, self._conn
        if settled is None or settled.stamp != stamp or time.monotonic() >= settled.until:
            return False
        if conn is None or conn.closed:
            return False
        try:
            return await read_revision(conn, schemas=self._schemas) == settled.revision
        except Exception:
            if conn.closed:  # the run that follows connects again
                return False
            raise

    async def _settle(self, conn: Connection, stamp: str, outcome: Outcome) -> None:
        # After an apply the next step looks once more: it must find nothing to do.
        if outcome is not Outcome.APPLIED:
            self._settled = _Settled(
                stamp=stamp,
                revision=await read_revision(conn, schemas=self._schemas),
                until=time.monotonic() + self._settings.Operator.CheckIntervalSeconds,
            )

    # --- the work ---

    async def _reconcile(self, conn: Connection) -> _Found:
        try:
            definitions = await asyncio.to_thread(
                read_folder, self.folder, reserved_schemas=reserved_schemas(self._settings)
            )
        except (DefinitionError, InputError) as error:
            return _Found(Outcome.INVALID, message=str(error), error=error)
        plan = await make_plan(
            conn,
            definitions,
            schemas=self._schemas,
            statement_timeout_s=self._settings.Apply.StatementTimeoutSeconds,
        )
        if plan.changes or plan.drift or plan.refusals:
            self._listener.planned(plan, definitions)
        if plan.is_empty and not plan.is_blocked:
            return _in_sync(plan)
        return await self._apply(conn, definitions, plan)

    async def _apply(self, conn: Connection, definitions: Definitions, plan: Plan) -> _Found:
        approved = self._approve_first and await is_untouched(conn, schemas=self._schemas)
        try:
            refuse_blocked(plan)
        except PlanRefused as error:
            return _waiting(Outcome.BLOCKED, plan, error)
        try:
            if not approved:
                refuse_hazards(plan, definitions)
        except PlanRefused as error:
            return _waiting(Outcome.APPROVAL_PENDING, plan, error)
        applied = await apply_plan(
            conn,
            definitions,
            plan,
            schemas=self._schemas,
            actor=ACTOR,
            approved=approved,
            patience=patience_of(self._settings),
            tell=self._tell,
        )
        return _applied(applied)

    def _tell(self, progress: Progress) -> None:
        if self._stop.is_set():
            raise MdmError(
                f"the operator was asked to stop before step {progress.number} of {progress.total}",
                hint="The next run goes on from there",
                code="INTERRUPTED",
            )
        self._listener.progressed(progress)

    # --- the connection ---

    async def _connection(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = None
            self._conn = await open_connection(
                self._url, self._settings, application_name="mdm-gitops operator"
            )
        return self._conn

    def _lost_connection(self, error: Exception) -> WarehouseError | None:
        """A driver's error on a dead connection is an outage, not a bug."""
        if isinstance(error, MdmError) or self._conn is None or not self._conn.closed:
            return None
        return WarehouseError("the connection to the warehouse was lost")


@dataclass(frozen=True, slots=True)
class _Found:
    outcome: Outcome
    message: str
    commit: str | None = None
    error: MdmError | None = None
    changes: int = 0
    drift: int | None = None


def _failed(error: Exception) -> _Found:
    if isinstance(error, MdmError):
        return _Found(Outcome.FAILED, message=str(error), error=error)
    return _Found(Outcome.FAILED, message=f"unexpected {type(error).__name__}")


def _in_sync(plan: Plan) -> _Found:
    return _Found(
        Outcome.IN_SYNC,
        f"the warehouse is what {_count(plan.entities_total, 'entity', 'entities')} ask for",
        commit=plan.base_commit,
        drift=len(plan.drift),
    )


def _waiting(outcome: Outcome, plan: Plan, error: PlanRefused) -> _Found:
    return _Found(
        outcome,
        str(error),
        commit=plan.base_commit,
        error=error,
        changes=len(plan.changes),
        drift=len(plan.drift),
    )


def _applied(applied: Applied) -> _Found:
    plan = applied.plan
    # What is ours has been set right; what is not ours is left alone and still there.
    left = sum(item.kind is DriftKind.STRANGE for item in plan.drift)
    changes, steps = _count(len(plan.changes), "change"), _count(applied.steps, "step")
    return _Found(
        Outcome.APPLIED,
        f"{changes} applied in {steps}",
        commit=plan.base_commit,
        changes=len(plan.changes),
        drift=left,
    )


def _count(number: int, noun: str, many: str = "") -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
