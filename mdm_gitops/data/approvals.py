"""Deciding on proposals, one or many: approve, reject, withdraw.

A decision holds the proposal's row while it is made, so of several at the same moment exactly one has
an effect. A batch is decided in pieces, each a transaction: what has been decided stays, also when
the caller goes away. Each row of a batch is judged by itself; the outcome lists them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from psycopg import errors

from mdm_gitops.data.applying import Applying
from mdm_gitops.data.approval_refusals import refused_approval, refused_line
from mdm_gitops.data.approvals_sql import REFERENCE_PENDING, Ending, ending_statement
from mdm_gitops.data.asking import Asking, StateMoved, changeable_entity, readable_entity
from mdm_gitops.data.claims import (
    PENDING_OR_REJECTED,
    Claim,
    claim,
    no_such_proposal,
    not_yours_to_decide,
    refers_to_itself,
)
from mdm_gitops.data.failures import translated
from mdm_gitops.data.pending import ids_of_batch
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.write_run import Line, run_write
from mdm_gitops.data.write_sql import Status
from mdm_gitops.data.writing import WrittenRow
from mdm_gitops.errors import Conflict, MdmError, WarehouseLocked
from mdm_gitops.model import Action
from mdm_gitops.warehouse.connect import Connection, ConnectionPool, borrow_checked
from mdm_gitops.warehouse.store import StoredEntity

PIECE: Final = 500
MAX_IDS: Final = 10_000
MAX_RESULTS: Final = 10_000
_CIRCLE_ACROSS_PIECES: Final = 2_000
_MOST_WAITING: Final = 100_000
_ATTEMPTS: Final = 5
_RACES: Final = (
    errors.IntegrityError,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)
_WAIT_FOR_OTHERS: Final = (REFERENCE_PENDING, "ROW_REFERENCED")

Outcome: TypeAlias = Line | MdmError
Outcomes: TypeAlias = dict[UUID, Outcome]
_Decide: TypeAlias = Callable[[Connection, Sequence[UUID]], Awaitable[Outcomes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows of a batch by its name, or these rows; *ids* are as the caller sent them."""

    batch_name: str | None = None
    ids: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the rows of a batch so far. It survives a decision that has to start over.

    Of a batch that is selected *by_name*, rows that others decide on meanwhile are no part any more.
    """

    word: str
    by_name: bool
    done: int = 0
    failed: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)

    def note(self, row_id: object, outcome: Outcome) -> None:
        result = {"id": str(row_id), "status": self.word}
        if isinstance(outcome, MdmError):
            if self.by_name and outcome.kind_code == "PENDING_NOT_FOUND":
                return
            self.failed += 1
            result |= {"status": "failed", "code": outcome.kind_code, "message": str(outcome)}
            self.finished.add(str(row_id))
        else:
            self.done += 1
            if not self.by_name:  # else it is selected no more
                self.finished.add(str(row_id))
        if len(self.results) < MAX_RESULTS:
            self.results.append(result)

    @property
    def is_truncated(self) -> bool:
        return self.done + self.failed > len(self.results)


class Approver:
    """Decides through connections of *pool*."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def approve(
        self,
        asking: Asking,
        entity: str,
        row_id: UUID,
        *,
        comment: str | None = None,
        seen_at: str | None = None,
    ) -> WrittenRow:
        """Apply a proposal; with *seen_at* only the one that was submitted then.

        Raises:
            NotFound: there is none that the caller may see.
            AccessDenied: the caller may not approve it, or has proposed it.
            Conflict, RowRefused: it does not fit what is there now.
            StateMoved: ask again with a newer state.
        """
        target = _target(asking, changeable_entity(asking, entity, action=Action.APPROVE))
        return await self._one(target, row_id, _approving(asking, target, comment, seen_at))

    async def reject(
        self, asking: Asking, entity: str, row_id: UUID, *, comment: str | None = None
    ) -> WrittenRow:
        """Reject a proposal; it is kept until its author writes again. Errors as ``approve``."""
        target = _target(asking, changeable_entity(asking, entity, action=Action.APPROVE))
        return await self._one(target, row_id, _ending(asking, target, Ending.REJECTED, comment))

    async def withdraw(self, asking: Asking, entity: str, row_id: UUID) -> None:
        """Remove a proposal, pending or rejected: its author may, and who may approve it."""
        target = _target(asking, readable_entity(asking, entity))
        await self._one(target, row_id, _ending(asking, target, Ending.WITHDRAWN, None))

    async def approve_batch(
        self,
        asking: Asking,
        entity: str,
        selection: Selection,
        tally: Tally,
        *,
        comment: str | None = None,
    ) -> None:
        """Approve the rows of *selection*, each by itself, and note in *tally* what became of them.

        A row that refers to another one of the batch is approved after it.
        """
        target = _target(asking, changeable_entity(asking, entity, action=Action.APPROVE))
        decide = _approving(asking, target, comment)
        rest: list[UUID] = []
        async for ids in self._selected(asking, target, selection, tally):
            may_wait = refers_to_itself(target) and len(rest) < _MOST_WAITING
            rest += await self._noted(ids, tally, decide, may_wait=may_wait)
        before = -1
        while rest and tally.done > before:
            before = tally.done
            again, rest = rest, []
            for ids in _cut(again, PIECE):
                rest += await self._noted(ids, tally, decide, may_wait=True)
        for ids in _cut(rest, _CIRCLE_ACROSS_PIECES):
            await self._noted(ids, tally, decide)

    async def reject_batch(
        self,
        asking: Asking,
        entity: str,
        selection: Selection,
        tally: Tally,
        *,
        comment: str | None = None,
    ) -> None:
        """Reject the rows of *selection*, each by itself."""
        target = _target(asking, changeable_entity(asking, entity, action=Action.APPROVE))
        decide = _ending(asking, target, Ending.REJECTED, comment)
        async for ids in self._selected(asking, target, selection, tally):
            await self._noted(ids, tally, decide)

    # --- one ---

    async def _one(self, target: Target, row_id: UUID, decide: _Decide) -> WrittenRow:
        outcome = await self._alone(row_id, decide)
        if isinstance(outcome, MdmError):
            raise outcome
        return WrittenRow(row_id=row_id, version=outcome.version, body=outcome.body)

    async def _alone(self, row_id: UUID, decide: _Decide) -> Outcome:
        with translated():
            async with borrow_checked(self._pool) as conn:
                for _ in range(_ATTEMPTS):
                    try:
                        async with conn.transaction():
                            return (await decide(conn, [row_id]))[row_id]
                    except _RACES:
                        continue  # the next look sees what the other has written
        raise _busy()

    # --- many ---

    async def _noted(
        self, ids: Sequence[UUID], tally: Tally, decide: _Decide, *, may_wait: bool = False
    ) -> list[UUID]:
        """Decide on a piece and note the outcomes; return the rows that wait for others, if any *may*."""
        waiting: list[UUID] = []
        for row_id, outcome in (await self._piece(ids, decide)).items():
            code = outcome.kind_code if isinstance(outcome, MdmError) else ""
            if may_wait and code in _WAIT_FOR_OTHERS:
                waiting.append(row_id)
            else:
                tally.note(row_id, outcome)
        return waiting

    async def _piece(self, ids: Sequence[UUID], decide: _Decide) -> Outcomes:
        if not ids:
            return {}
        with translated():
            async with borrow_checked(self._pool) as conn:
                try:
                    async with conn.transaction():
                        return await decide(conn, ids)
                except _RACES:
                    pass
                except errors.LockNotAvailable:
                    return dict.fromkeys(ids, _busy())
        found: Outcomes = {}
        for row_id in ids:
            try:
                found[row_id] = await self._alone(row_id, decide)
            except MdmError as error:
                found[row_id] = error
        return found

    async def _selected(
        self, asking: Asking, target: Target, selection: Selection, tally: Tally
    ) -> AsyncIterator[list[UUID]]:
        if selection.batch_name is None:
            for piece in _cut(_row_ids(target, selection.ids, tally), PIECE):
                yield piece
            return
        after = UUID(int=0)
        while True:
            with translated():
                async with borrow_checked(self._pool) as conn:
                    ids = await ids_of_batch(
                        conn,
                        asking=asking,
                        target=target,
                        batch_name=selection.batch_name,
                        after=after,
                        take=PIECE,
                    )
            if not ids:
                return
            after = ids[-1]
            yield [row_id for row_id in ids if str(row_id) not in tally.finished]


def _target(asking: Asking, stored: StoredEntity) -> Target:
    if not stored.definition.approval_required:
        raise Conflict(
            f"{stored.definition.name} needs no approval, so nothing is pending",
            code="APPROVAL_NOT_REQUIRED",
        )
    return target_of(asking, stored)


def _row_ids(target: Target, texts: Sequence[str], tally: Tally) -> list[UUID]:
    """Return the rows, each once; what cannot be the identifier of one is noted."""
    found: dict[UUID, None] = {}
    for text in texts:
        try:
            row_id = UUID(text)
        except ValueError:
            if text not in tally.finished:
                tally.note(text, no_such_proposal(target.entity, text))
            continue
        if str(row_id) not in tally.finished:
            found[row_id] = None
    return list(found)


def _cut(ids: Sequence[UUID], size: int) -> list[list[UUID]]:
    return [list(ids[n : n + size]) for n in range(0, len(ids), size)]


def _busy() -> WarehouseLocked:
    return WarehouseLocked("others are writing the same values", hint="try again in a moment")


# --- what is decided, inside of a transaction -----------------------------------------------------


def _approving(
    asking: Asking, target: Target, comment: str | None, seen_at: str | None = None
) -> _Decide:
    async def decide(conn: Connection, ids: Sequence[UUID]) -> Outcomes:
        claims = await claim(conn, asking=asking, target=target, row_ids=ids)
        refused = {
            row_id: refused_approval(asking, target, claims[row_id], seen_at)
            if row_id in claims
            else no_such_proposal(target.entity, row_id)
            for row_id in ids
        }
        good = {i: claims[i] for i, refusal in refused.items() if refusal is None}
        work = Applying(conn=conn, asking=asking, target=target, claims=good, comment=comment)
        await work.run()
        outcomes: Outcomes = {i: error for i, error in refused.items() if error is not None}
        for row_id, line in work.lines.items():
            outcomes[row_id] = line
            if line.status is not Status.DONE:
                outcomes[row_id] = await refused_line(
                    conn, asking=asking, target=target, row_id=row_id, line=line
                )
        return outcomes

    return decide


def _ending(asking: Asking, target: Target, ending: Ending, comment: str | None) -> _Decide:
    statement = asking.state.remember(
        ("end", target.name, ending, asking.rights(target.entity).sees_restricted),
        lambda: ending_statement(asking, target, ending),
    )

    async def decide(conn: Connection, ids: Sequence[UUID]) -> Outcomes:
        states = PENDING_OR_REJECTED if ending is Ending.WITHDRAWN else ("pending",)
        claims = await claim(conn, asking=asking, target=target, row_ids=ids, states=states)
        good = [i for i in ids if i in claims and _may_end(asking, claims[i], ending)]
        lines: dict[int, Line] = {}
        if good:
            values = {"ids": good, "comment": comment}
            lines = await run_write(conn, asking=asking, statement=statement, values=values)
        if any(line.status is Status.MOVED for line in lines.values()):
            raise StateMoved
        outcomes: Outcomes = {good[n - 1]: line for n, line in lines.items()}
        for row_id in ids:
            if row_id not in outcomes:
                entity = target.entity
                hidden = row_id not in claims
                outcomes[row_id] = (
                    no_such_proposal(entity, row_id) if hidden else not_yours_to_decide(entity)
                )
        return outcomes

    return decide


def _may_end(asking: Asking, held: Claim, ending: Ending) -> bool:
    is_author = held.author == asking.principal.actor
    return held.may_decide or (ending is Ending.WITHDRAWN and is_author)
