"""The order of rows, and the cursor that goes on in it.

The order is total: it ends in ``_sys_id``. Nulls stand where PostgreSQL puts them and its indexes
have them: last when ascending, first when descending. A cursor holds the sort values of the last
row that was sent, and is bound to entity, state, sort and moment; it is opaque, not secret: whoever
makes one up starts somewhere else in rows that the same checks have passed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn

from mdm_gitops.errors import InputError
from mdm_gitops.filter import SYSTEM_COLUMNS
from mdm_gitops.model import DataType, Direction, Entity, NotOfType, coerce, fold
from mdm_gitops.model.suggest import did_you_mean

MAX_SORT_COLUMNS: Final = 16
MAX_CURSOR_LENGTH: Final = 16_384
ROW_ID: Final = "_sys_id"
_NULLABLE_SYSTEM: Final = frozenset({"_sys_deleted_at"})
_SQL_TYPE: Final = {
    DataType.STRING: "text",
    DataType.TEXT: "text",
    DataType.INT: "integer",
    DataType.LONG: "bigint",
    DataType.DECIMAL: "numeric",
    DataType.BOOL: "boolean",
    DataType.DATE: "date",
    DataType.DATETIME: "timestamptz",
    DataType.GUID: "uuid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SortKey:
    column: str  # physical name
    output: str  # the definition's spelling
    data_type: DataType
    descending: bool
    nullable: bool

    @property
    def sql(self) -> str:
        return f't."{self.column}"'


def parse_sort(text: str, entity: Entity, *, refuse: Callable[[str], None]) -> tuple[SortKey, ...]:
    """Return the keys of ``name,-code``; *refuse* raises for a column that may not sort.

    Raises:
        InputError: a column does not exist, has no order or is there twice.
    """
    keys: list[SortKey] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        descending = part.startswith("-")
        key = _key(part.lstrip("+-").strip(), entity, descending=descending)
        refuse(key.column)
        if key.column in (known.column for known in keys):
            raise InputError(f"sort names column {key.output!r} twice", parameter="sort")
        keys.append(key)
    if len(keys) > MAX_SORT_COLUMNS:
        raise InputError(f"sort names more than {MAX_SORT_COLUMNS} columns", parameter="sort")
    return total_order(keys)


def default_sort(entity: Entity, *, is_masked: Callable[[str], bool]) -> tuple[SortKey, ...]:
    """Return the order of the definition, without columns whose order would tell a masked value."""
    keys = [
        _key(sort.column, entity, descending=sort.direction is Direction.DESC)
        for sort in entity.sort_columns
        if not is_masked(fold(sort.column)) and _has_order(entity, sort.column)
    ]
    return total_order(keys)


def _has_order(entity: Entity, name: str) -> bool:
    column = entity.column(name)
    return column is not None and column.data_type is not DataType.JSON


def total_order(keys: Sequence[SortKey]) -> tuple[SortKey, ...]:
    """Return *keys* up to ``_sys_id``, which is appended in the direction of the last of them."""
    for position, key in enumerate(keys):
        if key.column == ROW_ID:
            return tuple(keys[: position + 1])
    descending = keys[-1].descending if keys else False
    last = SortKey(
        column=ROW_ID,
        output=ROW_ID,
        data_type=DataType.GUID,
        descending=descending,
        nullable=False,
    )
    return (*keys, last)


def _key(name: str, entity: Entity, *, descending: bool) -> SortKey:
    folded = fold(name)
    column = entity.column(folded)
    data_type = column.data_type if column else SYSTEM_COLUMNS.get(folded)
    if data_type is None:
        known = [*(each.name for each in entity.columns), *SYSTEM_COLUMNS]
        raise InputError(
            f"sort names column {name[:60]!r}, which {entity.name} does not have",
            hint=did_you_mean(name, known),
            parameter="sort",
        )
    if data_type is DataType.JSON:
        raise InputError(f"column {name!r} is json, which has no order", parameter="sort")
    return SortKey(
        column=folded,
        output=column.name if column else folded,
        data_type=data_type,
        descending=descending,
        nullable=column.nullable if column else folded in _NULLABLE_SYSTEM,
    )


def order_by(keys: Sequence[SortKey]) -> str:
    return ", ".join(f"{key.sql} DESC" if key.descending else key.sql for key in keys)


# --- the cursor ---------------------------------------------------------------------------------


def encode_cursor(keys: Sequence[SortKey], values: Sequence[Any], *, scope: str) -> str:
    """Return the cursor after a row with these sort *values* (as JSON has them)."""
    content = [_signature(keys, scope), *values]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, default=str)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(text: str, keys: Sequence[SortKey], *, scope: str) -> tuple[Any, ...]:
    """Return the typed values of a cursor.

    Raises:
        InputError: it is none of ours, or was made for another entity, state, sort or moment.
    """
    if len(text) > MAX_CURSOR_LENGTH:
        _no_cursor()
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
        content = json.loads(data.decode(), parse_float=Decimal)
    except (UnicodeError, binascii.Error, ValueError, RecursionError):
        _no_cursor()
    if not isinstance(content, list) or not content or not isinstance(content[0], str):
        _no_cursor()
    signature, *values = content
    if signature != _signature(keys, scope) or len(values) != len(keys):
        raise InputError(
            "after was made for another entity, state or sort, or another moment",
            hint="leave it out to start again",
            parameter="after",
        )
    return tuple(_value(key, value) for key, value in zip(keys, values, strict=True))


def _value(key: SortKey, raw: Any) -> Any:
    if raw is None and not key.nullable:
        _no_cursor()
    try:
        # Numbers beyond a float's reach travel as text.
        return coerce(key.data_type, raw)
    except NotOfType:
        _no_cursor()


def _signature(keys: Sequence[SortKey], scope: str) -> str:
    parts = [scope, *(f"{'-' if key.descending else ''}{key.column}" for key in keys)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _no_cursor() -> NoReturn:
    raise InputError(
        "after is not a cursor of this service",
        hint="send back nextAfter of the page before as it is, or leave it out",
        parameter="after",
    )


# --- rows after a cursor ------------------------------------------------------------------------


def after_predicate(keys: Sequence[SortKey], is_null: Sequence[bool]) -> str:
    """Return the condition "comes after the cursor", whose values are ``%(k0)s``, ``%(k1)s``, ...

    One row comparison, which starts an index scan at the right place, where order and nulls allow
    it; else the comparisons written out, with a bound on the first column before them.
    """
    one_way = len({key.descending for key in keys}) == 1
    if one_way and not any(key.nullable for key in keys):
        columns = ", ".join(key.sql for key in keys)
        values = ", ".join(_parameter(key, index) for index, key in enumerate(keys))
        return f"({columns}) {'<' if keys[0].descending else '>'} ({values})"
    alternatives = []
    for index, key in enumerate(keys):
        beyond = _beyond(key, index, is_null=is_null[index])
        if beyond:
            same = [_same(keys[n], n, is_null=is_null[n]) for n in range(index)]
            alternatives.append("(" + " AND ".join([*same, beyond]) + ")")
    either = "(" + " OR ".join(alternatives) + ")"
    bound = _bound(keys[0], is_null=is_null[0])
    return f"{bound} AND {either}" if bound else either


def after_parameters(values: Sequence[Any]) -> dict[str, Any]:
    return {f"k{index}": value for index, value in enumerate(values)}


def _parameter(key: SortKey, index: int) -> str:
    return f"%(k{index})s::{_SQL_TYPE[key.data_type]}"


def _same(key: SortKey, index: int, *, is_null: bool) -> str:
    return f"{key.sql} IS NULL" if is_null else f"{key.sql} = {_parameter(key, index)}"


def _beyond(key: SortKey, index: int, *, is_null: bool) -> str:
    """Return the condition that *key* alone stands after the cursor's value; "" if nothing does."""
    if is_null:
        return f"{key.sql} IS NOT NULL" if key.descending else ""
    if key.descending:
        return f"{key.sql} < {_parameter(key, index)}"
    later = f"{key.sql} > {_parameter(key, index)}"
    return f"({later} OR {key.sql} IS NULL)" if key.nullable else later


def _bound(key: SortKey, *, is_null: bool) -> str:
    """Return what holds for all rows after the cursor, as a range of the first column."""
    if is_null:
        return "" if key.descending else f"{key.sql} IS NULL"
    if key.descending:
        return f"{key.sql} <= {_parameter(key, 0)}"
    at_or_after = f"{key.sql} >= {_parameter(key, 0)}"
    return f"({at_or_after} OR {key.sql} IS NULL)" if key.nullable else at_or_after
