"""Writing single rows: what a request asks for, done together with others that arrive meanwhile.

One writer per server process. A request becomes an ``Intent``; intents of one kind share a statement
(``warehouse.coalesce``, ``data.write_sql``), and each gets what it would have got alone: where the statement
fails as a whole (a race for a unique value, a row referred to that goes away, a deadlock), every
intent is tried again by itself. Where an entity needs approval, the same intents become proposals
(``data.proposals``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import errors

from mdm_gitops.data.asking import Asking, StateMoved, changeable_entity, row_filter
from mdm_gitops.data.conflicts import Holder, taken_by
from mdm_gitops.data.failures import translated
from mdm_gitops.data.proposals import run_proposals
from mdm_gitops.data.proposals_sql import proposal_statement
from mdm_gitops.data.refusals import reason, refuse_standing, taken_error
from mdm_gitops.data.relink import update_and_relink
from mdm_gitops.data.row_id import new_row_id
from mdm_gitops.data.row_input import GivenRow, faults_of, read_row
from mdm_gitops.data.rows import no_such_row
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.versions import version_values
from mdm_gitops.data.write_run import Line, run_write
from mdm_gitops.data.write_sql import (
    Operation,
    Status,
    WriteStatement,
    json_source,
    write_statement,
)
from mdm_gitops.errors import MdmError, RowRefused, WarehouseLocked
from mdm_gitops.model import Action
from mdm_gitops.warehouse.coalesce import Coalescer
from mdm_gitops.warehouse.connect import Connection, ConnectionPool, borrow_checked

_ATTEMPTS: Final = 5
_GOOD: Final = (Status.DONE, Status.UNCHANGED, Status.WITHDRAWN)
# One statement serves many callers: what one of them runs into must not be the others' answer.
_RACES: Final = (
    errors.IntegrityError,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRow:
    """The row as the caller may see it, or what is proposed for it; *body* is None when it is gone."""

    row_id: UUID
    version: int
    body: bytes | None
    is_pending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One change that a caller asks for. *base* is the version that must still hold, None for any."""

    asking: Asking
    target: Target
    operation: Operation
    row_id: UUID
    base: int | None = None
    row: GivenRow | None = None
    detail: Mapping[str, Any] | None = None  # for the event

    @property
    def proposes(self) -> bool:
        """Whether the change waits for an approver."""
        return self.target.entity.approval_required

    @property
    def document(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "_id": str(self.row_id),
            "_base": self.base,
            "_actor": self.asking.principal.actor,
        }
        if self.detail is not None:
            given["_detail"] = self.detail
        if self.row is not None:
            given |= self.row.texts
            given["_given"] = self.row.given
        return given


class RowWriter:
    """Writes rows through *pool*. ``aclose`` waits for what is under way."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._coalescer: Coalescer[Intent, Line] = Coalescer(
            self._flush, subject=lambda intent: intent.row_id
        )

    async def aclose(self) -> None:
        await self._coalescer.aclose()

    async def create(self, asking: Asking, entity: str, document: Mapping[str, Any]) -> WrittenRow:
        """Write a new row.

        Raises:
            RowRefused: it breaks rules.
            NotFound, AccessDenied: the caller may not.
            StateMoved: ask again with a newer state.
        """
        target = self._target(asking, entity)
        row = read_row(asking, target.entity, document)
        intent = Intent(
            asking=asking,
            target=target,
            operation=Operation.CREATE,
            row_id=new_row_id(),
            row=row,
        )
        return await self._do(intent)

    async def update(
        self,
        asking: Asking,
        entity: str,
        row_id: UUID,
        document: Mapping[str, Any],
        *,
        base: int | None = None,
    ) -> WrittenRow:
        """Write the given columns of a row; the others keep their values. Errors as ``create``."""
        target = self._target(asking, entity)
        row = read_row(asking, target.entity, document)
        intent = Intent(
            asking=asking,
            target=target,
            operation=Operation.UPDATE,
            row_id=row_id,
            base=base,
            row=row,
        )
        return await self._do(intent)

    async def change_state(
        self,
        asking: Asking,
        entity: str,
        row_id: UUID,
        operation: Operation,
        *,
        base: int | None = None,
    ) -> WrittenRow:
        """Delete or restore a row. Errors as ``create``."""
        target = self._target(asking, entity)
        return await self._do(
            Intent(asking=asking, target=target, operation=operation, row_id=row_id, base=base)
        )

    async def restore_version(
        self, asking: Asking, entity: str, row_id: UUID, version: int, *, base: int | None = None
    ) -> WrittenRow:
        """Write the values that the row had in *version* as a new version. Errors as ``create``."""
        target = self._target(asking, entity)
        async with borrow_checked(self._pool) as conn:
            past = await version_values(
                conn, asking=asking, entity=entity, row_id=row_id, version=version
            )
        row = GivenRow(texts=past.texts, given="1" * len(target.columns), values=past.texts)
        intent = Intent(
            asking=asking,
            target=target,
            operation=Operation.UPDATE,
            row_id=row_id,
            base=base,
            row=row,
            detail={"restoredVersion": version},
        )
        return await self._do(intent)

    def _target(self, asking: Asking, entity: str) -> Target:
        return target_of(asking, changeable_entity(asking, entity))

    async def _do(self, intent: Intent) -> WrittenRow:
        if intent.row is not None and intent.row.errors:
            # It will not be written; the judge says what else is wrong.
            return _written(intent, await self._alone(intent, only_judge=True))
        line = await self._coalescer.submit(_kind(intent), intent)
        for _ in range(_ATTEMPTS):
            if line.status is Status.KEY:
                line = await self._relinking(intent)
            elif line.status is Status.TAKEN:
                line = await self._looked_at_again(intent)
            else:
                return _written(intent, line)
        raise WarehouseLocked("others are writing the same values", hint="try again in a moment")

    # --- the statements ---

    async def _flush(
        self, kind: Hashable, intents: Sequence[Intent]
    ) -> Sequence[Line | BaseException]:
        first = intents[0]
        statement = _statement(first)
        rows = [intent.document for intent in intents]
        with translated():
            async with borrow_checked(self._pool) as conn:
                try:
                    lines = await _run(conn, first, statement, rows)
                    return [lines[n] for n in range(len(intents))]
                except _RACES:
                    pass
        return [await self._alone_or_error(intent) for intent in intents]

    async def _alone_or_error(self, intent: Intent) -> Line | BaseException:
        try:
            return await self._alone(intent)
        except (MdmError, StateMoved) as error:
            return error

    async def _alone(self, intent: Intent, *, only_judge: bool = False) -> Line:
        with translated():
            async with borrow_checked(self._pool) as conn:
                for _ in range(_ATTEMPTS):
                    try:
                        statement, rows = _statement(intent), [intent.document]
                        lines = await _run(conn, intent, statement, rows, only_judge=only_judge)
                        return lines[0]
                    except _RACES:
                        continue  # the next look sees what the other has written
        raise WarehouseLocked("others are writing the same values", hint="try again in a moment")

    async def _relinking(self, intent: Intent) -> Line:
        statement = _statement(intent, relink=True)
        with translated():
            async with borrow_checked(self._pool) as conn:
                for _ in range(_ATTEMPTS):
                    try:
                        async with conn.transaction():
                            return await update_and_relink(
                                conn,
                                asking=intent.asking,
                                target=intent.target,
                                statement=statement,
                                row_id=intent.row_id,
                                rows=[intent.document],
                            )
                    except _RACES:
                        continue
        raise WarehouseLocked("others are writing the same values", hint="try again in a moment")

    async def _looked_at_again(self, intent: Intent) -> Line:
        """Raise what says whose the values are, or return what else stands against the row by now.

        Judged in one snapshot with who holds the values: an answer is never put together from
        different moments. If nothing stands against the row any more, it is written.
        """
        assert intent.row is not None, "only given values can be taken"
        with translated():
            async with borrow_checked(self._pool) as conn:
                for _ in range(_ATTEMPTS):
                    try:
                        line, holders = await _judged_with_holders(conn, intent)
                        break
                    except _RACES:
                        continue
                else:
                    return Line(status=Status.TAKEN)
        if line.status not in (Status.TAKEN, Status.MOVED):
            return line
        if holders:
            raise taken_error(intent.target.entity, holders, intent.row)
        return await self._alone(intent)


async def _judged_with_holders(conn: Connection, intent: Intent) -> tuple[Line, list[Holder]]:
    """Judge the row, and return whose its unique values are. A new row is never TAKEN to the judge,
    which writes nothing."""
    assert intent.row is not None, "only given values can be taken"
    statement, rows = _statement(intent, relink=True), [intent.document]
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        lines = await _run(conn, intent, statement, rows, only_judge=True)
        holders = await taken_by(
            conn,
            asking=intent.asking,
            target=intent.target,
            row_id=intent.row_id,
            row=intent.row,
            with_pending=intent.proposes,
        )
    return lines[0], holders


async def _run(
    conn: Connection,
    first: Intent,
    statement: WriteStatement,
    rows: Sequence[Mapping[str, Any]],
    *,
    only_judge: bool = False,
) -> dict[int, Line]:
    if first.proposes and not only_judge:
        return await run_proposals(
            conn,
            asking=first.asking,
            target=first.target,
            statement=statement,
            rows=rows,
            with_values=first.row is not None,
        )
    return await run_write(
        conn, asking=first.asking, statement=statement, rows=rows, only_judge=only_judge
    )


def _kind(intent: Intent) -> tuple[Hashable, ...]:
    """Return what intents must have in common to share a statement and its parameters."""
    asking = intent.asking
    key = ("kind", intent.operation, intent.target.name, asking.cache_key)
    return asking.state.remember(key, lambda: _work_out_kind(intent))


def _work_out_kind(intent: Intent) -> tuple[Hashable, ...]:
    asking, entity = intent.asking, intent.target.entity
    rights = asking.rights(entity)
    # A row filter may name the caller or the moment.
    is_filtered = row_filter(asking, entity, Action.WRITE) or row_filter(asking, entity)
    who = asking.cache_key if is_filtered or _references_filtered(intent) else None
    return (
        intent.operation,
        intent.target.name,
        asking.state.revision,
        rights.sees_restricted,
        who,
    )


def _references_filtered(intent: Intent) -> bool:
    asking = intent.asking
    entities = {entity for entity, _ in intent.target.references.values()}
    return any(
        row_filter(asking, other) is not None
        for other in (asking.state.entities[name].definition for name in entities)
        if asking.rights(other).may_read
    )


def _statement(intent: Intent, *, relink: bool = False) -> WriteStatement:
    operation, name, _, *others = _kind(intent)
    key = ("write", operation, name, *others, relink)
    return intent.asking.state.remember(key, lambda: _build(intent, relink))


def _build(intent: Intent, relink: bool) -> WriteStatement:
    asking, target, source = intent.asking, intent.target, json_source(intent.target)
    if intent.proposes:
        return proposal_statement(asking, target, intent.operation, source)
    return write_statement(asking, target, intent.operation, source, relink=relink)


def _written(intent: Intent, line: Line) -> WrittenRow:
    """Return what was written, or raise why nothing was."""
    entity, row = intent.target.entity, intent.row
    if line.status is Status.MISSING:
        raise no_such_row(entity, intent.row_id)
    errors_found = (
        faults_of(entity, row, list(line.faults)) if row and (row.errors or line.faults) else []
    )
    if line.status in _GOOD and not errors_found:
        return WrittenRow(
            row_id=intent.row_id,
            version=line.version,
            body=line.body,
            is_pending=intent.proposes and line.status is Status.DONE,
        )
    refuse_standing(entity, line)
    if errors_found:
        raise RowRefused([reason(error) for error in errors_found])
    if line.status is Status.MOVED:
        raise StateMoved
    raise AssertionError(f"no answer for {line.status}")
