"""What a write is refused with, in words and codes: the one place for all ways to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mdm_gitops.data.conflicts import Holder
from mdm_gitops.data.judging import RowError, told_value
from mdm_gitops.data.row_input import GivenRow
from mdm_gitops.data.write_run import Line
from mdm_gitops.data.write_sql import Status
from mdm_gitops.errors import AccessDenied, Conflict, RowRefused
from mdm_gitops.model import Entity


def reason(error: RowError) -> dict[str, Any]:
    """Return *error* as an item of a problem's ``errors``."""
    found: dict[str, Any] = {"row": error.row} if error.row else {}
    return {**found, "column": error.column, "code": error.code, "message": error.message}


def refuse_standing(entity: Entity, line: Line) -> None:
    """Raise if the row is not in a state, or not in a place, for what was asked."""
    match line.status:
        case Status.STALE:
            raise Conflict(
                f"the row has version {line.version} by now",
                hint="read it again and decide on what is there",
                code="ROW_VERSION_CONFLICT",
                currentVersion=line.version,
            )
        case Status.DELETED:
            raise Conflict(
                f"the row of {entity.name} is deleted",
                hint="restore it first",
                code="ROW_DELETED",
            )
        case Status.NOT_DELETED:
            raise Conflict(f"the row of {entity.name} is not deleted", code="ROW_NOT_DELETED")
        case Status.REFERENCED:
            raise Conflict(
                f"other rows refer to the row of {entity.name}",
                hint="delete or change them first, or delete the row with soft=true",
                code="ROW_REFERENCED",
            )
        case Status.OUTSIDE:
            raise AccessDenied(f"the row is outside of what you may write in {entity.name}")


def taken_error(entity: Entity, holders: Sequence[Holder], row: GivenRow) -> RowRefused:
    """Return the error for unique values that *holders* have. A row that the caller may not see is
    not named, and neither is that it is deleted."""
    reasons = [reason(_taken(entity, holder, row)) for holder in holders]
    first = holders[0]
    details: dict[str, Any] = {"rowId": str(first.row_id)} if first.row_id else {}
    hint = f"restore row {first.row_id}, or delete it for good" if first.is_deleted else ""
    return RowRefused(reasons, hint=hint, **details)


def _taken(entity: Entity, holder: Holder, row: GivenRow) -> RowError:
    columns = [entity.column_by_name[name] for name in holder.columns]
    names = ", ".join(column.name for column in columns)
    values = ", ".join(
        told_value(column, row.values.get(name))
        for column, name in zip(columns, holder.columns, strict=True)
    )
    if holder.is_deleted:
        code, said = "ROW_KEY_DELETED", f"belongs to a deleted row of {entity.name}"
    else:
        taken_by = "a row that is pending" if holder.is_pending else "another row"
        code, said = "ENTITY_VALIDATION_UNIQUE", f"is taken by {taken_by}"
    return RowError(code=code, column=columns[0].name, message=f"{names} {values} {said}")
