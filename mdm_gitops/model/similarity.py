"""What of two rows is compared to find out whether they mean the same thing, and how much it counts.

The rules are those of the entity's ``similarity``. An entity without has rules that follow from its
columns, so that ``similar`` answers for every entity:

- texts (``string``) are compared fuzzily and count 1, dates count 2.5, numbers 0.5, a reference 0.5;
- the key, other GUIDs, JSON, truth values, long texts (``text``), moments and columns with
  ``allowedValues`` are left out: they differ between duplicates, or are alike in rows that are none;
- of a table with many columns the first 16 of these are compared.

Columns that are compared also give the keys by which candidates are found (``match_columns``), except
restricted ones: what somebody finds must not depend on values that are masked for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mdm_gitops.model.entity import Column, Entity, MatchMode
from mdm_gitops.model.values import DataType

MAX_COMPARED: Final = 16
MAX_MATCH_COLUMNS: Final = 12
_MODES: Final = {
    DataType.STRING: (MatchMode.FUZZY, 1.0),
    DataType.DATE: (MatchMode.DATE, 2.5),
    DataType.INT: (MatchMode.NUMBER, 0.5),
    DataType.LONG: (MatchMode.NUMBER, 0.5),
    DataType.DECIMAL: (MatchMode.NUMBER, 0.5),
}
# How the store's function match_keys reads a column (migration 0014).
_KINDS: Final = {
    MatchMode.FUZZY: "t",
    MatchMode.PHONETIC: "t",
    MatchMode.DATE: "d",
    MatchMode.NUMBER: "n",
    MatchMode.EXACT: "e",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One column that is compared."""

    column: str  # folded
    name: str  # as the definition spells it
    mode: MatchMode
    weight: float
    restricted: bool
    telling: bool  # whether an equal value says much: few rows share it

    @property
    def kind(self) -> str:
        return _KINDS[self.mode]


def comparisons(entity: Entity) -> tuple[Comparison, ...]:
    """Return what is compared of *entity*: its own rules, or those that follow from its columns."""
    rules = entity.similarity
    if rules is None:
        return tuple(_derived(entity))[:MAX_COMPARED]
    found = []
    for rule in rules.columns:
        column = entity.column(rule.name)
        assert column is not None, "the checks of definitions know all columns"
        found.append(_comparison(column, rule.match_mode, rule.weight))
    return tuple(found)


def match_columns(entity: Entity) -> tuple[Comparison, ...]:
    """Return the comparisons whose columns give the keys of candidates, in their order."""
    open_ones = [each for each in comparisons(entity) if not each.restricted]
    telling = [each for each in open_ones if each.telling]
    return tuple((telling or open_ones)[:MAX_MATCH_COLUMNS])


def match_kinds(columns: tuple[Comparison, ...]) -> str:
    """Return the first argument of ``match_keys`` for these columns."""
    return "".join(each.kind for each in columns)


def indexed_for_match(entity: Entity) -> tuple[Comparison, ...]:
    """Return the columns of the index of keys; empty where rows are not to pay for one."""
    rules = entity.similarity
    return match_columns(entity) if rules is not None and rules.enabled else ()


def rules_hash(entity: Entity) -> str:
    """Return what two scans must have in common for their scores to be of one kind."""
    text = repr([(c.column, c.mode.value, c.weight, c.restricted) for c in comparisons(entity)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _derived(entity: Entity) -> Iterator[Comparison]:
    keys = {name.casefold() for name in entity.key_columns}
    for column in entity.columns:
        if column.folded in keys or column.allowed_values:
            continue
        if column.reference is not None:
            yield _comparison(column, MatchMode.EXACT, 0.5)
        elif column.data_type in _MODES:
            yield _comparison(column, *_MODES[column.data_type])


def _comparison(column: Column, mode: MatchMode, weight: float) -> Comparison:
    few = column.allowed_values or column.reference or column.data_type is DataType.BOOL
    return Comparison(
        column=column.folded,
        name=column.name,
        mode=mode,
        weight=weight,
        restricted=column.restricted,
        telling=not few,
    )
