"""How a row looks as JSON, written as a select list: PostgreSQL builds the text.

Names are spelt as in the definition. Numbers are JSON numbers with all their digits; a client that
reads them into floating point chooses to lose some. Moments are ISO 8601 in UTC with ``Z``. A masked
value is ``"***"`` whether or not there is one. Followed references stand in ``_expanded``, a name no
column can have, so the row's own values keep their types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.time_travel import row_by_key
from mdm_gitops.errors import InputError
from mdm_gitops.model import Column, DataType, Entity, fold
from mdm_gitops.model.suggest import did_you_mean

MASK: Final = "***"
EXPANDED: Final = "_expanded"


class RowState(StrEnum):
    """Which rows: approved ones by deletion, or the proposals that wait for approval."""

    ACTIVE = "active"
    DELETED = "deleted"
    ALL = "all"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Output:
    """One member of a row's object: its name and its expression over the row ``t``."""

    name: str
    sql: str


def moment_sql(value: str) -> str:
    """Seconds keep their fraction without trailing zeros; independent of the session's zone."""
    return f"replace(({value} AT TIME ZONE 'UTC')::text, ' ', 'T') || 'Z'"


def _moment(alias: str, column: str) -> str:
    return moment_sql(f'{alias}."{column}"')


_MOMENTS: Final = frozenset(
    {"_sys_created_at", "_sys_last_modified_at", "_sys_deleted_at", "_sys_submitted_at"}
)
_APPROVED: Final = (
    "_sys_version",
    "_sys_created_at",
    "_sys_created_by",
    "_sys_last_modified_at",
    "_sys_last_modified_by",
    "_sys_is_deleted",
    "_sys_deleted_at",
)
_PENDING: Final = (
    "_sys_operation",
    "_sys_batch_name",
    "_sys_comment",
    "_sys_submitted_at",
    "_sys_submitted_by",
)


def outputs(
    entity: Entity, *, sees_restricted: bool, state: RowState, alias: str = "t"
) -> tuple[Output, ...]:
    """Return all members of a row of *entity*, in their order."""
    user = (_user_column(column, sees_restricted, alias) for column in entity.columns)
    names = (*_APPROVED, *_PENDING) if state is RowState.PENDING else _APPROVED
    system = (Output(name, _system_column(name, alias)) for name in names)
    first = Output("_sys_id", f'{alias}."_sys_id"')
    return (first, *user, *system, Output("_sys_state", _state_sql(state, alias)))


def _user_column(column: Column, sees_restricted: bool, alias: str) -> Output:
    if column.restricted and not sees_restricted:
        return Output(column.name, f"'{MASK}'::text")
    return Output(column.name, column_sql(column, alias))


def column_sql(column: Column, alias: str) -> str:
    """Return the unmasked value of *column* as its member is made of it."""
    if column.data_type is DataType.DATETIME:
        return _moment(alias, column.folded)
    return f'{alias}."{column.folded}"'


def _system_column(name: str, alias: str) -> str:
    return _moment(alias, name) if name in _MOMENTS else f'{alias}."{name}"'


def _state_sql(state: RowState, alias: str) -> str:
    match state:
        case RowState.PENDING:
            return f'{alias}."_sys_state"'
        case RowState.ACTIVE | RowState.DELETED:
            return f"'{state.value}'::text"
        case RowState.ALL:
            return f"CASE WHEN {alias}.\"_sys_is_deleted\" THEN 'deleted' ELSE 'active' END"


def chosen(all_outputs: Sequence[Output], fields: str, entity: Entity) -> tuple[Output, ...]:
    """Return the members that *fields* (``code,name``) names, in that order; empty means all.

    Raises:
        InputError: a name is no member of the row, or is there twice.
    """
    names = [part.strip() for part in fields.split(",") if part.strip()]
    if not names:
        return tuple(all_outputs)
    by_name = {fold(output.name): output for output in all_outputs}
    found: dict[str, Output] = {}
    for name in names:
        output = by_name.get(fold(name))
        if output is None:
            raise InputError(
                f"fields names column {name[:60]!r}, which {entity.name} does not have",
                hint=did_you_mean(name, (each.name for each in all_outputs)),
                parameter="fields",
            )
        if output.name in found:
            raise InputError(f"fields names column {output.name!r} twice", parameter="fields")
        found[output.name] = output
    return tuple(found.values())


def reference_columns(names: str, entity: Entity) -> tuple[Column, ...]:
    """Return the columns of ``expand=country,currency``.

    Raises:
        InputError: one is no reference column of *entity*.
    """
    found: dict[str, Column] = {}
    for name in (part.strip() for part in names.split(",") if part.strip()):
        column = entity.column(name)
        if column is None or column.reference is None:
            known = [each.name for each in entity.columns if each.reference]
            raise InputError(
                f"expand names {name[:60]!r}, which is no reference column of {entity.name}",
                hint=did_you_mean(name, known),
                parameter="expand",
            )
        found[column.folded] = column
    return tuple(found.values())


def expanded_row(
    asking: Asking, column: Column, *, alias: str, visible: str, past: bool = False
) -> str:
    """Return the expression of the row that *column* of ``t`` refers to, as JSON or null.

    Null also stands for a row that the caller may not see. *visible* is the condition on *alias*
    that its row filter gives, "" for none. In a read of the *past* the row is that of then.
    """
    target, key = asking.state.definitions.reference_target(column)
    rights = asking.rights(target)
    if not rights.may_read:
        return "NULL::json"
    members = outputs(
        target, sees_restricted=rights.sees_restricted, state=RowState.ALL, alias=alias
    )
    value = f't."{column.folded}"'
    if past:
        source = f"({row_by_key(asking, target.folded, key.folded, value)}) {alias}"
        conditions = []
    else:
        source = f'"{asking.schemas.data}"."{target.folded}" {alias}'
        conditions = [f'{alias}."{key.folded}" = {value}']
    conditions += [f"({visible})"] if visible else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    row = f"{alias}_row"
    return f"(SELECT row_to_json({row}) FROM (SELECT {select_list(members)} FROM {source}{where}) {row})"


def select_list(members: Sequence[Output]) -> str:
    return ", ".join(f'{output.sql} AS "{output.name}"' for output in members)
