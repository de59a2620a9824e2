"""A row as a client sends it: a JSON object, taken apart into texts for the one judge of rows.

What JSON says beyond text is judged here: unknown and system columns, and values of a JSON kind that
the column's type does not have (a number for a text). Everything else is for ``data.judging``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.judging import RowError, row_error, told_value
from mdm_gitops.data.row_json import MASK
from mdm_gitops.model import Column, DataType, Entity, NotOfType, fold
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.warehouse.ddl.trees import json_text

SYSTEM_PREFIX: Final = "_sys_"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRow:
    """*texts* go by physical name; *given* has a 1 for each column that was given, in their order.

    *values* are what the client sent, for messages.
    """

    texts: Mapping[str, str | None]
    given: str
    values: Mapping[str, Any]
    errors: tuple[RowError, ...] = ()


def read_row(asking: Asking, entity: Entity, document: Mapping[str, Any]) -> GivenRow:
    """Return *document* as a row of *entity*; what is wrong with it so far is in its errors.

    A mask that comes back from a caller who is shown no more is not given: nobody overwrites a
    value with the stars that stand for it.
    """
    sees_restricted = asking.rights(entity).sees_restricted
    columns = entity.column_by_name
    texts: dict[str, str | None] = {}
    values: dict[str, Any] = {}
    errors: list[RowError] = []
    for name, value in document.items():
        folded, column = name, columns.get(name)
        if column is None:
            folded = fold(name)
            column = columns.get(folded)
        if column is None:
            errors.append(_no_column(entity, name, value))
        elif folded in texts:
            errors.append(_twice(column, value))
        elif value == MASK and column.restricted and not sees_restricted:
            continue
        elif type(value) is str and column.data_type is not DataType.JSON:
            texts[folded] = values[folded] = value
        else:
            try:
                texts[folded] = as_text(column, value)
            except NotOfType as refused:
                texts[folded] = None
                errors.append(_not_of_type(column, value, refused))
            values[folded] = value
    given = "".join(["1" if name in texts else "0" for name in columns])
    return GivenRow(texts=texts, given=given, values=values, errors=tuple(errors))


def as_text(column: Column, value: Any) -> str | None:
    """Return a JSON *value* as the text that the column's type is read from.

    Raises:
        NotOfType: no value of this JSON kind is one of the type.
    """
    if value is None or (isinstance(value, str) and column.data_type is not DataType.JSON):
        return value
    match column.data_type:
        case DataType.JSON:
            return json_text(value)
        case DataType.BOOL if isinstance(value, bool):
            return "true" if value else "false"
        case DataType.INT | DataType.LONG | DataType.DECIMAL if _is_number(value):
            return str(value if column.data_type is DataType.DECIMAL else column.typed(value))
    column.typed(value)  # says why not
    raise NotOfType("is no value of the column's type")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _not_of_type(column: Column, value: Any, refused: NotOfType) -> RowError:
    message = f"{column.name} {told_value(column, value)} {refused}"
    return RowError(code="ENTITY_VALIDATION_TYPE", column=column.name, message=message, value=value)


def _twice(column: Column, value: Any) -> RowError:
    return RowError(
        code="ENTITY_VALIDATION_UNKNOWN_COLUMN",
        column=column.name,
        message=f"{column.name} is given twice, in two spellings",
        value=value,
    )


def _no_column(entity: Entity, name: str, value: Any) -> RowError:
    if fold(name).startswith(SYSTEM_PREFIX):
        code, said = "ENTITY_VALIDATION_SYSTEM_COLUMN", "is written by the service alone"
    else:
        near = did_you_mean(name, (column.name for column in entity.columns))
        code = "ENTITY_VALIDATION_UNKNOWN_COLUMN"
        said = f"is no column of {entity.name}" + (f"; {near}" if near else "")
    return RowError(code=code, column=name[:60], message=f"{name[:60]} {said}", value=value)


def faults_of(entity: Entity, row: GivenRow, found: list[tuple[str, str]]) -> list[RowError]:
    """Return all errors of *row*: its own, and those the judge *found* (code, physical column)."""
    known = {(error.column, error.code) for error in row.errors}
    untyped = {error.column for error in row.errors}
    errors = list(row.errors)
    for code, name in found:
        column = entity.column_by_name[name]
        # A value that could not be read stands there as null.
        if column.name in untyped or (column.name, code) in known:
            continue
        errors.append(row_error(column, code, row.values.get(name)))
    return _one_reason_each(errors)


def _one_reason_each(errors: list[RowError]) -> list[RowError]:
    """A text that is no number is not also a missing value: the first reason of a column counts
    where the second only follows from it."""
    untyped = {error.column for error in errors if error.code == "ENTITY_VALIDATION_TYPE"}
    return [
        error
        for error in errors
        if error.column not in untyped or error.code != "ENTITY_VALIDATION_REQUIRED_FIELD"
    ]
