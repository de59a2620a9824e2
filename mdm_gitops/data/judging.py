"""What can be wrong with a row, as conditions in SQL: the one judge of all rows that are written.

One row of a request and a million rows of a file are judged by the same conditions over a relation
whose columns are named as the physical ones: first over the text that was given (is it of the
type?), then over the typed row. No condition raises, whatever the value, and none is NULL.

Unique values are not judged here: whether a value is free is only known when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mdm_gitops.data.row_json import MASK
from mdm_gitops.data.target import Target
from mdm_gitops.model import Column, DataType
from mdm_gitops.model.column_checks import ValueJudge, shown
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.warehouse.ddl.conditions import cast_sql, castable_sql, literal_sql, rule_sql

MAX_VALUE_BYTES: Final = 1_048_576
# PostgreSQL's btree takes entries of 2,704 bytes (a third of a page), all columns together.
MAX_KEY_BYTES: Final = 2_000

_CODES: Final = {
    RuleKind.PATTERN: "ENTITY_VALIDATION_PATTERN",
    RuleKind.ALLOWED: "ENTITY_VALIDATION_ALLOWED_VALUE",
    RuleKind.RANGE: "ENTITY_VALIDATION_RANGE",
    RuleKind.LENGTH: "ENTITY_VALIDATION_LENGTH",
}
_RULES_BY_CODE: Final = {
    "ENTITY_VALIDATION_REQUIRED_FIELD": "is required",
    "ENTITY_VALIDATION_TYPE": "is no value of the column's type",
    "ENTITY_VALIDATION_PATTERN": "does not match the pattern of the column",
    "ENTITY_VALIDATION_ALLOWED_VALUE": "is not one of the allowed values",
    "ENTITY_VALIDATION_RANGE": "is outside the range of the column",
    "ENTITY_VALIDATION_LENGTH": "is too long",
    "ENTITY_VALIDATION_REFERENCE": "refers to no row",
    "ENTITY_VALIDATION_UNIQUE": "is taken by another row",
}

_NO_RULE: Final[Mapping[str, Any]] = {
    "max_length": None,
    "pattern": None,
    "precision": None,
    "scale": None,
    "min_value": None,
    "max_value": None,
    "allowed_values": (),
}
_FIELDS_BY_CODE: Final = {
    "ENTITY_VALIDATION_TYPE": ("precision", "scale"),
    "ENTITY_VALIDATION_PATTERN": ("pattern",),
    "ENTITY_VALIDATION_ALLOWED_VALUE": ("allowed_values",),
    "ENTITY_VALIDATION_RANGE": ("min_value", "max_value"),
    "ENTITY_VALIDATION_LENGTH": ("max_length",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to be wrong. *violated* is SQL: true of the rows that are, false of the others."""

    code: str
    column: str  # physical name
    violated: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """What is wrong with one value of one row, in words. *row* counts from 1, 0 for a single row."""

    code: str
    column: str  # the definition's spelling
    message: str
    row: int = 0
    value: Any = None


def type_faults(target: Target, columns: Iterable[str], *, alias: str) -> Iterator[Fault]:
    """Yield what can be wrong with the texts of *columns* in the relation *alias*."""
    for name in columns:
        condition = castable_sql(alias, name, target.type_of(name))
        if condition != "TRUE":
            yield Fault(code="ENTITY_VALIDATION_TYPE", column=name, violated=f"NOT ({condition})")


def typed_sql(target: Target, column: str, *, alias: str) -> str:
    """Return the text ``alias.column`` in the type of the column; NULL where it is not of it."""
    return cast_sql(alias, column, target.type_of(column))


def default_sql(target: Target, column: str) -> str:
    """Return the value of a column that was not given."""
    physical = target.main.columns[column]
    if physical.default is None:
        return f"NULL::{physical.type}"
    return f"{literal_sql(physical.default, physical.type)}::{physical.type}"


def value_faults(target: Target, columns: Iterable[str], *, alias: str) -> Iterator[Fault]:
    """Yield what can be wrong with the typed values of *columns* in the relation *alias*."""
    wanted = frozenset(columns)
    for column in target.entity.columns:
        name = column.folded
        if name not in wanted:
            continue
        value = f'{alias}."{name}"'
        if not column.nullable:
            yield Fault(
                code="ENTITY_VALIDATION_REQUIRED_FIELD", column=name, violated=f"{value} IS NULL"
            )
        if column.data_type.is_text or column.data_type is DataType.JSON:
            size = (
                f"octet_length({value}::text)"
                if not column.data_type.is_text
                else f"octet_length({value})"
            )
            yield Fault(
                code="ENTITY_VALIDATION_LENGTH",
                column=name,
                violated=f"coalesce({size} > {_max_bytes(target, name)}, false)",
            )
    for check in target.main.checks:
        if check.column in wanted:
            condition = rule_sql(alias, check, target.type_of(check.column))
            yield Fault(
                code=_CODES[check.rule], column=check.column, violated=f"({condition}) IS FALSE"
            )


def _max_bytes(target: Target, column: str) -> int:
    sizes = [MAX_VALUE_BYTES]
    for index in target.main.indexes:
        if column in index.columns:
            sizes.append(MAX_KEY_BYTES // len(index.columns))
    return min(sizes)


def reference_faults(
    target: Target,
    columns: Iterable[str],
    *,
    alias: str,
    visible: Callable[[str, str], str],
    also: Callable[[str, str, str], str] = lambda entity, key, value: "",
) -> Iterator[Fault]:
    """Yield the references of *columns* that lead to no row.

    *visible* gives the condition on an alias (second) of the rows of an entity (first) that the
    caller may see, "" for all: a row that is hidden is as absent as one that is not there. *also*
    gives a further condition under which a value is good, "" for none.
    """
    wanted = frozenset(columns)
    for number, (name, (entity, key)) in enumerate(target.references.items()):
        if name not in wanted:
            continue
        value, other = f'{alias}."{name}"', f"ref{number}"
        table = f'"{target.schemas.data}"."{entity}"'
        seen = visible(entity, other)
        where = f'{other}."{key}" = {value}' + (f" AND ({seen})" if seen else "")
        good = [f"EXISTS (SELECT FROM {table} {other} WHERE {where})"]
        if entity == target.name:  # a row may refer to itself
            good.append(f'coalesce({alias}."{key}" = {value}, false)')
        if further := also(entity, key, value):
            good.append(further)
        violated = f"{value} IS NOT NULL AND NOT ({' OR '.join(good)})"
        yield Fault(code="ENTITY_VALIDATION_REFERENCE", column=name, violated=violated)


def numbers_sql(faults: Sequence[Fault], *, start: int = 0) -> str:
    """Return the numbers of the faults of a row as text, each followed by a comma; '' for none."""
    if not faults:
        return "''"
    cases = (
        f"CASE WHEN {fault.violated} THEN '{number},' END"
        for number, fault in enumerate(faults, start=start)
    )
    # A function takes at most 100 arguments (PostgreSQL: FUNC_MAX_ARGS).
    return "concat(" + ", ".join(_in_groups(list(cases))) + ")"


def _in_groups(items: list[str], size: int = 90) -> list[str]:
    if len(items) <= size:
        return items
    groups = [items[n : n + size] for n in range(0, len(items), size)]
    return _in_groups([f"concat({', '.join(group)})" for group in groups], size)


def any_sql(faults: Sequence[Fault]) -> str:
    """Return the condition that something is wrong: cheaper than to say what."""
    return "(" + " OR ".join(f"({fault.violated})" for fault in faults) + ")" if faults else "false"


def row_error(column: Column, code: str, value: Any, *, row: int = 0) -> RowError:
    """Say in words what *code* means for this *value* (as it was given)."""
    return RowError(
        code=code,
        column=column.name,
        message=_message(column, code, value),
        row=row,
        value=MASK if column.restricted else value,
    )


def _message(column: Column, code: str, value: Any) -> str:
    if code == "ENTITY_VALIDATION_REQUIRED_FIELD":
        return f"{column.name} is required"
    said = _RULES_BY_CODE.get(code, "is not valid")
    if code == "ENTITY_VALIDATION_REFERENCE" and column.reference is not None:
        said = f"is no {column.reference.entity}"
    elif code in _FIELDS_BY_CODE:
        said = _only(column, _FIELDS_BY_CODE[code]).why_refused(value) or said
    return f"{column.name} {told_value(column, value)} {said}"


def told_value(column: Column, value: Any) -> str:
    """Return *value* as errors tell it.

    A restricted one is not told to its sender either: answers are kept by clients and by what stands between.
    """
    return MASK if column.restricted else shown(value)


def _only(column: Column, kept: tuple[str, ...]) -> ValueJudge:
    """Return a judge of these rules alone: of two that are broken each has its own words."""
    dropped = {name: none for name, none in _NO_RULE.items() if name not in kept}
    return ValueJudge.of(column.model_copy(update=dropped))
