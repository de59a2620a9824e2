"""The typed tree: what a filter means on the rows of one entity.

Names are physical, values are of their column's type. The tree holds no negation: NOT is pushed down to the conditions, each of which has an exact
opposite under SQL's three-valued logic. So every condition stands where only "true" counts, and one
on a referenced row may be asked as "is there such a row" without changing the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from mdm_gitops.filter.ast import Function, Operator
from mdm_gitops.model.values import DataType

SYSTEM_COLUMNS: Final[Mapping[str, DataType]] = {
    "_sys_id": DataType.GUID,
    "_sys_version": DataType.INT,
    "_sys_created_at": DataType.DATETIME,
    "_sys_created_by": DataType.TEXT,
    "_sys_last_modified_at": DataType.DATETIME,
    "_sys_last_modified_by": DataType.TEXT,
    "_sys_is_deleted": DataType.BOOL,
    "_sys_deleted_at": DataType.DATETIME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Via:
    """How a referenced row is found: ``target.key = <this row>.column``; names are physical."""

    column: str
    target: str
    key: str
    visible: TypedExpr | None = None  # which rows of the target count as being there


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedColumn:
    entity: str  # that owns the column
    name: str
    data_type: DataType
    via: Via | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    data_type: DataType
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextValue:
    """A value that the caller's context gives when the query runs."""

    data_type: DataType
    function: Function


TypedValue = Value | ContextValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    operator: Operator
    left: TypedColumn
    right: TypedColumn | TypedValue


class Likeness(StrEnum):
    """What a pattern means: wildcards, or a literal part at a place."""

    PATTERN = "pattern"
    PART = "part"
    HEAD = "head"
    TAIL = "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemble:
    likeness: Likeness
    ignore_case: bool
    negated: bool
    column: TypedColumn
    pattern: TypedValue


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf:
    negated: bool
    column: TypedColumn
    values: tuple[TypedValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    negated: bool
    column: TypedColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class All:
    items: tuple[TypedExpr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    items: tuple[TypedExpr, ...]


Condition = Compare | Resemble | AnyOf | IsNull
TypedExpr = Condition | All | Some


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedFilter:
    entity: str  # folded name
    root: TypedExpr


def columns_used(typed: TypedFilter) -> frozenset[tuple[str, str]]:
    """Return the (entity, column) pairs, folded, whose values decide which rows pass.

    A followed reference counts with its own column and with the one it leads to.
    """
    return frozenset(pair for column in _columns(typed.root) for pair in _pairs(typed, column))


def _pairs(typed: TypedFilter, column: TypedColumn) -> Iterator[tuple[str, str]]:
    yield column.entity, column.name
    if column.via is not None:
        yield typed.entity, column.via.column


def _columns(expr: TypedExpr) -> Iterator[TypedColumn]:
    match expr:
        case All(items=items) | Some(items=items):
            for item in items:
                yield from _columns(item)
        case Compare(left=left, right=right):
            yield left
            if isinstance(right, TypedColumn):
                yield right
        case _:
            yield expr.column


def see_through(typed: TypedFilter, visible: Mapping[str, TypedFilter]) -> TypedFilter:
    """Return *typed* following references only to rows that *visible* (by entity) lets through.

    A row that its filter hides counts as absent, so a caller cannot ask for its values. A stored
    row filter is the administrator's own and is left as it is.
    """
    return replace(typed, root=_restricted(typed.root, visible))


def only_found(typed: TypedFilter) -> TypedFilter:
    """Return *typed*, true of a followed reference only where the row it leads to is there.

    ``[ref].[column] IS NULL`` is true also where the reference leads to no row. A filter that keeps
    rows from somebody must not let one through for want of what it asks about.
    """
    return replace(typed, root=_found(typed.root, typed.entity))


def _found(expr: TypedExpr, entity: str) -> TypedExpr:
    match expr:
        case All(items=items) | Some(items=items):
            return replace(expr, items=tuple(_found(item, entity) for item in items))
        case IsNull(negated=False, column=TypedColumn(via=Via() as via) as column):
            # What IS NULL is asked of has any type.
            refers = TypedColumn(entity=entity, name=via.column, data_type=column.data_type)
            key = replace(column, name=via.key)
            there = IsNull(column=key, negated=True)
            return Some(items=(IsNull(column=refers, negated=False), All(items=(expr, there))))
        case _:
            return expr


def _restricted(expr: TypedExpr, visible: Mapping[str, TypedFilter]) -> TypedExpr:
    match expr:
        case All(items=items) | Some(items=items):
            return replace(expr, items=tuple(_restricted(item, visible) for item in items))
        case Compare(left=left, right=right):
            other = _through(right, visible) if isinstance(right, TypedColumn) else right
            return replace(expr, left=_through(left, visible), right=other)
        case _:
            return replace(expr, column=_through(expr.column, visible))


def _through(column: TypedColumn, visible: Mapping[str, TypedFilter]) -> TypedColumn:
    if column.via is None or column.via.target not in visible:
        return column
    return replace(column, via=replace(column.via, visible=visible[column.via.target].root))
