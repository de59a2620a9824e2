"""One reconcile: read what the source says, plan it, apply what may be applied, say how it ended.

It decides nothing about changes: the plan does, the project's policy says what goes in without a
person, and apply's own lock sees to it that one program works at a time, however many run. What is
not allowed stays undone, and what was deployed last is kept as it is: its drift is set right while
something newer waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mdm_gitops.errors import (
    DefinitionError,
    InputError,
    MdmError,
    NotFound,
    SourceError,
    WarehouseError,
)
from mdm_gitops.model import Definitions
from mdm_gitops.model.environments import in_environment
from mdm_gitops.model.project import ReconcileMode
from mdm_gitops.plan.plan import Plan
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.apply import Progress
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.reconciliation import (
    Control,
    accept_commit,
    beat,
    note_event,
    read_control,
    read_reconciliation,
    write_reconciliation,
)
from mdm_gitops.warehouse.session import open_connection, reserved_schemas, schemas_of
from mdm_gitops.warehouse.store import StoreState, read_state
from mdm_operator.deciding import Deciding, Found
from mdm_operator.judge import Rules
from mdm_operator.leader import Leadership, name_of_this_operator
from mdm_operator.sources import Source, Taken, source_of
from mdm_operator.state import Outcome, Run, State

ACTOR: Final = "system:operator"
_NOT_TO_BE_TAKEN: Final = ("SOURCE_NOT_VERIFIED", "SOURCE_REWOUND")


class Listener:
    """Told what happens; the default listens to nothing."""

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        """A plan with changes or drift was made."""

    def progressed(self, progress: Progress) -> None:
        """A step of apply begins, or has done more rows."""

    def finished(self, run: Run) -> None:
        """A run ended; runs that find nothing new since the last one are not told."""


class Listeners(Listener):
    """Tells several."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        for each in self._listeners:
            each.planned(plan, definitions)

    def progressed(self, progress: Progress) -> None:
        for each in self._listeners:
            each.progressed(progress)

    def finished(self, run: Run) -> None:
        for each in self._listeners:
            each.finished(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settled:
    """What the last run saw. While all of it holds there is nothing to do."""

    stamp: str
    control: Control
    until: float  # on the monotonic clock


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """Keeps one warehouse what one source says; ``state`` tells how far it has come.

    Args:
        folder: Where the settings are, and the definitions unless the settings name another source.
        url: The warehouse of *folder*, as ``warehouse.locate`` gives it.
        stop: Ends an apply before its next step.
        approve_first: What goes into an untouched warehouse needs nobody's consent.
        among_several: Work only while no other operator does.
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
        among_several: bool = False,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.folder = folder
        self.state = State()
        self.url = url
        self.schemas = schemas_of(settings)
        self.source: Source = source_of(folder, settings)
        self.leadership = Leadership(schemas=self.schemas, lease_s=settings.Operator.LeaseSeconds)
        self._settings = settings
        self._stop = stop or asyncio.Event()
        self._listener = listener or Listener()
        self._approve_first = approve_first
        self._among_several = among_several
        self._now = now
        self._conn: Connection | None = None
        self._settled: _Settled | None = None
        self._restored = False
        self._control: Control | None = None
        self._deployed: StoreState | None = None

    @property
    def connection(self) -> Connection | None:
        return self._conn

    @property
    def is_standing_by(self) -> bool:
        """Whether another operator works."""
        return self._among_several and not self.leadership.leads(self._conn)

    async def aclose(self) -> None:
        if self._conn is not None:
            await self._conn.close()

    async def step(self) -> Run | None:
        """Reconcile once; None when nothing is new since the last run, or another operator works.

        What waits for a person is an outcome. What may pass by itself is raised, and to be tried
        again: SourceError, WarehouseError, WarehouseLocked, PlanStale, PartlyApplied.
        """
        begun = self._now(), time.perf_counter()
        requested = await self._requested()
        # Looked at before it is read: what changes in between is seen by the next step. And while
        # nobody uses the connection: a fetch may take longer than a leader may be silent.
        taken = await self._take()
        async with self.leadership.busy:
            try:
                ready = await self._ready()
                if ready is None:
                    return None
                conn, control = ready
                return await self._step(conn, replace(control, requested=requested), taken, begun)
            except Exception as error:
                lost = self._lost_connection(error)
                await self._end(begun, _failed(lost or error))
                if lost is not None:
                    raise lost from error
                raise

    async def _requested(self) -> int:
        """Return the number of the last run that was asked for until now.

        Who asks for a run wants the source looked at after that, so it is read before the source is.
        """
        async with self.leadership.busy:
            try:
                conn = await self._connection()
                return (await read_control(conn, schemas=self.schemas)).requested
            except Exception:  # noqa: BLE001 - the run meets it, too, and tells it
                return 0

    async def _ready(self) -> tuple[Connection, Control] | None:
        """Return what a run needs, None where another operator works; a dead connection is replaced."""
        before = self._conn
        conn = await self._connection()
        try:
            return await self._asked(conn)
        except WarehouseError:
            if not conn.closed or conn is not before:
                raise
        return await self._asked(await self._connection())

    async def _asked(self, conn: Connection) -> tuple[Connection, Control] | None:
        if self._among_several and not await self._lead(conn):
            return None
        return conn, await read_control(conn, schemas=self.schemas)

    async def _lead(self, conn: Connection) -> bool:
        if self.leadership.leads(conn):
            return True
        if not await self.leadership.take(conn):
            return False
        # Another operator may have worked since we did: what it wrote down is what holds.
        self.state, self._restored, self._settled = State(), False, None
        return True

    async def _take(self) -> Taken | MdmError:
        try:
            return await asyncio.to_thread(self.source.take)
        except MdmError as error:
            return error

    async def _step(
        self,
        conn: Connection,
        control: Control,
        taken: Taken | MdmError,
        begun: tuple[datetime, float],
    ) -> Run | None:
        await self._restore(conn)
        if isinstance(taken, Taken) and self._nothing_is_new(taken, control):
            await beat(conn, schemas=self.schemas, operator=name_of_this_operator())
            return None
        self._settled, self._control = None, control
        self.state = self.state.reconciling(begun[0])
        if isinstance(taken, MdmError):
            if not isinstance(taken, NotFound | InputError):
                raise taken
            found = await self._kept(conn, Found(Outcome.INVALID, str(taken), error=taken))
        elif control.is_suspended:
            found = Found(Outcome.SUSPENDED, "suspended by a person", commit=taken.commit)
        else:
            found = await self._reconcile(conn, taken, control)
        if isinstance(taken, Taken):
            self._settle(taken, found.outcome)
        return await self._end(begun, found)

    async def _end(self, begun: tuple[datetime, float], found: Found) -> Run:
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
            verified=found.verified,
            signer=found.signer,
            healed=found.healed,
        )
        last = self.state.last
        self.state = self.state.after(run, now=self._now())
        await self._write_down(run, last)
        self._listener.finished(run)
        return run

    # --- is there anything to do? ---

    def _nothing_is_new(self, taken: Taken, control: Control) -> bool:
        settled = self._settled
        return (
            settled is not None
            and (settled.stamp, settled.control) == (taken.stamp, control)
            and time.monotonic() < settled.until
        )

    def _settle(self, taken: Taken, outcome: Outcome) -> None:
        """Remember what this run has seen. What came after it looked, it has not seen."""
        # After an apply the next step looks once more: it must find nothing to do.
        if outcome is not Outcome.APPLIED and self._control is not None:
            self._settled = _Settled(
                stamp=taken.stamp,
                control=self._control,
                until=time.monotonic() + self._settings.Operator.CheckIntervalSeconds,
            )

    # --- the work ---

    async def _reconcile(self, conn: Connection, taken: Taken, control: Control) -> Found:
        try:
            judging = asyncio.to_thread(self.source.judge, taken, accepted=control.accepted_commit)
            signer = await self.leadership.while_speaking(conn, judging)
        except SourceError as error:
            if error.kind_code not in _NOT_TO_BE_TAKEN:
                raise
            refused = Found(Outcome.REFUSED, str(error), commit=taken.commit, error=error)
            rewound = error.kind_code == "SOURCE_REWOUND"
            return replace(await self._kept(conn, refused), verified=None if rewound else False)
        if taken.commit is not None and taken.commit != control.accepted_commit:
            await accept_commit(conn, taken.commit, schemas=self.schemas)
            self._control = replace(control, accepted_commit=taken.commit)
        found = await self._read_and_decide(conn, taken, control)
        verified = True if signer else None
        return replace(found, commit=found.commit or taken.commit, signer=signer, verified=verified)

    async def _read_and_decide(self, conn: Connection, taken: Taken, control: Control) -> Found:
        deployed = await self._read_deployed(conn)
        try:
            reading = asyncio.to_thread(
                self.source.read,
                taken,
                deployed.definitions.entities,
                reserved=reserved_schemas(self._settings),
            )
            definitions, findings = await self.leadership.while_speaking(conn, reading)
            definitions = in_environment(definitions, self._settings.Environment)
        except (DefinitionError, InputError, NotFound) as error:
            return await self._kept(conn, Found(Outcome.INVALID, message=str(error), error=error))
        deciding = self._deciding(conn)
        rules = Rules(
            reconcile=definitions.project.reconcile,
            limit=ReconcileMode(self._settings.Operator.Mode),
            suspended=control.suspended,
            now=self._now(),
        )
        found = await deciding.decide(definitions, rules, deployed, is_first=self._approve_first)
        if not findings:
            return found
        bad = DefinitionError(findings)
        return replace(found, outcome=Outcome.INVALID, message=str(bad), error=bad)

    async def _kept(self, conn: Connection, found: Found) -> Found:
        """Keep what is deployed as it is, since what is newer cannot be used."""
        deployed = await self._read_deployed(conn)
        rules = Rules(
            reconcile=deployed.definitions.project.reconcile,
            limit=ReconcileMode(self._settings.Operator.Mode),
            suspended=self._control.suspended if self._control else frozenset(),
            now=self._now(),
        )
        return await self._deciding(conn).keep(found, deployed, rules)

    async def _read_deployed(self, conn: Connection) -> StoreState:
        self._deployed = await read_state(conn, schemas=self.schemas, previous=self._deployed)
        return self._deployed

    def _deciding(self, conn: Connection) -> Deciding:
        return Deciding(
            conn=conn,
            settings=self._settings,
            actor=ACTOR,
            applied_commit=self.state.applied_commit,
            planned=self._listener.planned,
            tell=self._tell,
        )

    def _tell(self, progress: Progress) -> None:
        if self._stop.is_set():
            raise MdmError(
                f"the operator was asked to stop before step {progress.number} of {progress.total}",
                hint="The next run goes on from there",
                code="INTERRUPTED",
            )
        self._listener.progressed(progress)

    # --- what is written down ---

    async def _restore(self, conn: Connection) -> None:
        """Go on from what the operator before us, or the one we were, has written down."""
        if self._restored:
            return
        known = await read_reconciliation(conn, schemas=self.schemas, events=0)
        if self.state == State():
            self.state = State.from_document(known.state)
        self._restored = True

    async def _write_down(self, run: Run, last: Run | None) -> None:
        """Write how it stands, where that is possible: the connection may be the trouble."""
        conn = self._conn
        if conn is None or conn.closed:
            return
        control = self._control
        with suppress(MdmError):
            if last is None or (last.outcome, last.commit, last.message) != (
                run.outcome,
                run.commit,
                run.message,
            ):
                await note_event(
                    conn,
                    schemas=self.schemas,
                    kind=run.outcome.value,
                    actor=ACTOR,
                    commit=run.commit,
                    message=run.message,
                )
            await write_reconciliation(
                conn,
                schemas=self.schemas,
                state=self.state.to_document(),
                source=str(self.source),
                mode=self._settings.Operator.Mode,
                operator=name_of_this_operator(),
                handled=control.requested if control else 0,
            )

    # --- the connection ---

    async def _connection(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = self._settled = None
            self._conn = await open_connection(
                self.url, self._settings, application_name="mdm-gitops operator"
            )
        return self._conn

    def _lost_connection(self, error: Exception) -> WarehouseError | None:
        """A driver's error on a dead connection is an outage, not a bug."""
        if isinstance(error, MdmError) or self._conn is None or not self._conn.closed:
            return None
        return WarehouseError("the connection to the warehouse was lost")


def _failed(error: Exception) -> Found:
    if isinstance(error, MdmError):
        return Found(Outcome.FAILED, message=str(error), error=error)
    return Found(Outcome.FAILED, message=f"unexpected {type(error).__name__}")
