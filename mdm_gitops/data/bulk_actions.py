"""Bulk actions: one change of all rows that a filter finds, looked at first and then carried out.

``preview`` says how many rows there are, shows some, and gives a token for exactly these rows as they are.
``BulkActor.execute`` takes the token, locks the rows, and refuses if they are not the same any more. Then all is
done in one transaction: each row is judged by itself as any write is, valid ones are changed, the others told.
Whatever ends it early (a client that goes away, a kill) leaves nothing.

All rows are meant only if that is said: an empty filter alone is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection, errors

from mdm_gitops.data import audit
from mdm_gitops.data.asking import Asking, changeable_entity
from mdm_gitops.data.bulk_matched import Found, Matching, look, what_is_asked
from mdm_gitops.data.bulk_run import SHOWN_ERRORS, BulkRun, Tell, judge_values
from mdm_gitops.data.bulk_sql import ROW_KEY, BulkSql
from mdm_gitops.data.failures import translated
from mdm_gitops.data.import_run import Raced
from mdm_gitops.data.import_sql import What
from mdm_gitops.data.imports import Importer
from mdm_gitops.data.refusals import reason
from mdm_gitops.data.row_id import new_row_id
from mdm_gitops.data.row_input import GivenRow, read_row
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.write_sql import Operation, Source
from mdm_gitops.errors import InputError, RowRefused, WarehouseLocked

_ATTEMPTS: Final = 4
_RACES: Final = (
    Raced,
    errors.IntegrityError,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """What a caller asks for. *set* holds the new values by column, for an update."""

    entity: str
    change: Operation
    filter: str
    set: Mapping[str, Any] = field(default_factory=dict)
    batch_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    found: Found
    sample: bytes  # a JSON array


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOutcome:
    """What became of the rows: *changed*, *unchanged*, *pending* and *rejected* add up to *matched*."""

    change: Operation
    matched: int
    changed: int = 0
    unchanged: int = 0
    pending: int = 0
    batch_name: str | None = None
    errors: tuple[Mapping[str, Any], ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        updates = self.change is Operation.UPDATE
        return {
            "matchCount": self.matched,
            "updated": self.changed if updates else 0,
            "deleted": 0 if updates else self.changed,
            "unchanged": self.unchanged,
            "pending": self.pending,
            "rejected": self.matched - self.changed - self.unchanged - self.pending,
        }

    @property
    def document(self) -> dict[str, Any]:
        return {
            **self.counts,
            "batchName": self.batch_name,
            "errors": self.errors[:SHOWN_ERRORS],
            "errorsTruncated": len(self.errors) > SHOWN_ERRORS,
        }


@dataclass(frozen=True, kw_only=True)
class _Task:
    """An action, checked for the entity and the caller."""

    asking: Asking
    action: BulkAction
    target: Target
    row: GivenRow | None
    matching: Matching

    @staticmethod
    def of(asking: Asking, action: BulkAction) -> _Task:
        """Return the task, or raise NotFound, AccessDenied, FilterError, InputError or RowRefused."""
        target = target_of(asking, changeable_entity(asking, action.entity))
        row = None
        if action.change is Operation.UPDATE:
            row = read_row(asking, target.entity, action.set)
            if row.errors:
                raise RowRefused([reason(error) for error in row.errors])
            if not row.texts:
                raise InputError("set names no column whose value is given", parameter="set")
        matching = Matching.of(asking, target, action.filter)
        return _Task(asking=asking, action=action, target=target, row=row, matching=matching)

    @property
    def what(self) -> str:
        texts = self.row.texts if self.row else {}
        change, filter = self.action.change, self.action.filter
        return what_is_asked(self.asking, self.target, change=change, filter=filter, texts=texts)

    def sql(self) -> BulkSql:
        texts = self.row.texts if self.row else {}
        staged = tuple(name for name in self.target.columns if name in texts)
        return BulkSql(
            asking=self.asking,
            target=self.target,
            source=Source(sql="", columns=staged, typed=True, marked=True),
            key=ROW_KEY,
            staged=staged,
            doing=self.action.change,
        )


async def preview(conn: AsyncConnection[Any], *, asking: Asking, action: BulkAction) -> Preview:
    """Return how many rows *action* would be for, some of them, and the token to carry it out.

    Raises:
        NotFound, AccessDenied: the caller may not write to the entity.
        FilterError, InputError, RowRefused: the filter or the values are not valid.
        StateMoved: ask again with a newer state.
    """
    task = _Task.of(asking, action)
    if task.row is not None:
        sql = task.sql()
        values = {f"set{n}": task.row.texts[name] for n, name in enumerate(sql.staged)}
        with translated():
            await judge_values(conn, sql, task.row, values)
    found, sample = await look(conn, task.matching, what=task.what)
    return Preview(found=found, sample=sample)


class BulkActor:
    """Carries bulk actions out, on the connections of imports: both take long and hold much."""

    def __init__(self, importer: Importer) -> None:
        self._importer = importer

    async def execute(
        self, asking: Asking, action: BulkAction, token: str, tell: Tell
    ) -> BulkOutcome:
        """Do *action* to the rows that *token* stands for, and *tell* how far it is.

        Raises:
            NotFound, AccessDenied, FilterError, InputError, RowRefused: as ``preview``.
            Conflict: the rows are not those of the preview.
            StateMoved: ask again with a newer state; nothing is written.
        """
        task = _Task.of(asking, action)
        async with self._importer.connection("bulk action") as conn:
            with translated():
                for attempt in range(_ATTEMPTS):
                    try:
                        async with conn.transaction():
                            return await _done(conn, task, token, tell, alone=attempt > 0)
                    except _RACES:
                        continue
        raise WarehouseLocked("others are writing the same rows", hint="try again in a moment")


async def _done(
    conn: AsyncConnection[Any], task: _Task, token: str, tell: Tell, *, alone: bool
) -> BulkOutcome:
    sql, action_id = task.sql(), new_row_id()
    batch = None
    if sql.proposes:
        batch = task.action.batch_name or f"bulk-action-{action_id}"
    run = BulkRun(conn, sql, task.matching, what=task.what, row=task.row, batch=batch)
    found = await run.hold(token, alone=alone)
    await tell(0, found.rows)
    await run.run(found.rows, tell)
    written = run.total[What.UPDATE]
    outcome = BulkOutcome(
        change=task.action.change,
        matched=found.rows,
        changed=0 if sql.proposes else written,
        unchanged=run.total[What.UNCHANGED],
        pending=written if sql.proposes else 0,
        batch_name=batch,
        errors=tuple(run.errors),
    )
    await _keep(conn, task, action_id, outcome)
    return outcome


async def _keep(
    conn: AsyncConnection[Any], task: _Task, action_id: UUID, outcome: BulkOutcome
) -> None:
    columns = task.target.entity.column_by_name
    given = task.row.texts if task.row else ()
    await audit.record(
        conn,
        schemas=task.asking.schemas,
        actor=task.asking.principal.actor,
        action="bulk_action",
        entities=[task.target.entity.name],
        details={
            "bulkActionId": str(action_id),
            "change": task.action.change.value,
            "filter": task.action.filter,
            "columns": [columns[name].name for name in given],
            "batchName": outcome.batch_name,
            **outcome.counts,
        },
    )
