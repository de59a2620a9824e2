"""What has been changed by hand since the last deployment, whatever Git says now."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from mdm_gitops.plan.live import ByHand, LiveTable
from mdm_gitops.plan.physical import Check, ForeignKey, Index, Table
from mdm_gitops.plan.plan import DriftItem, DriftKind


def missing_table(entity: str, table: str) -> DriftItem:
    return DriftItem(
        kind=DriftKind.MISSING,
        entity=entity,
        object=f"table {table}",
        message="was dropped by hand",
    )


def missing_view(entity: str, view: str) -> DriftItem:
    return DriftItem(
        kind=DriftKind.MISSING, entity=entity, object=f"view {view}", message="was dropped by hand"
    )


def altered_view(entity: str, view: str) -> DriftItem:
    return DriftItem(
        kind=DriftKind.ALTERED, entity=entity, object=f"view {view}", message="was changed by hand"
    )


def table_drift(
    live: LiveTable, expected: Table, *, entity: str, known_columns: Collection[str]
) -> Iterator[DriftItem]:
    """Yield how *live* differs from *expected*, what was last deployed under its name.

    *known_columns* are physical columns that stand there on purpose beside the expected ones:
    archived and half-filled ones.
    """

    def item(kind: DriftKind, what: str, message: str) -> DriftItem:
        return DriftItem(kind=kind, entity=entity, object=what, message=message)

    for what, message in _column_drift(live.table, expected):
        kind = DriftKind.MISSING if message == "was dropped by hand" else DriftKind.ALTERED
        yield item(kind, f"column {expected.name}.{what}", message)
    for name in live.table.columns:
        if name not in expected.columns and name not in known_columns:
            yield item(DriftKind.STRANGE, f"column {expected.name}.{name}", "was added by hand")
    for name in live.altered:
        yield item(DriftKind.ALTERED, f"check {name}", "was changed by hand")
    for kind, what, message in _rule_drift(live, expected):
        yield item(kind, what, message)
    for what in live.strange:
        yield item(DriftKind.STRANGE, f"{what} on {expected.name}", "was added by hand")


def _column_drift(live: Table, expected: Table) -> Iterator[tuple[str, str]]:
    for name, column in expected.columns.items():
        found = live.columns.get(name)
        if found is None:
            yield name, "was dropped by hand"
        elif found.type != column.type:
            yield name, f"has type {found.type} instead of {column.type}"
        elif found.not_null != column.not_null:
            yield name, "accepts null" if column.not_null else "refuses null"
        elif isinstance(found.default, ByHand):
            yield name, f"has the default {found.default.text}"
        elif found.default != column.default:
            yield name, "has lost its default"


def _rule_drift(live: LiveTable, expected: Table) -> Iterator[tuple[DriftKind, str, str]]:
    found = {rule.spec: rule for rule in _rules(live.table)}
    standing = {rule.name for rule in found.values()}
    yield from _primary_key_drift(live.table, expected)
    for rule in _rules(expected):
        what = f"{_WORDS[type(rule)]} {rule.name}"
        there = found.get(rule.spec)
        if rule.name in live.altered:
            continue
        if there is None and rule.name in standing:
            yield DriftKind.ALTERED, what, "was changed by hand"
        elif there is None:
            yield DriftKind.MISSING, what, "was dropped by hand"
        elif isinstance(there, Index) and not there.valid:
            yield DriftKind.ALTERED, what, "is marked invalid by PostgreSQL"
        elif isinstance(there, Check | ForeignKey) and not there.validated:
            yield DriftKind.ALTERED, what, "has not been validated"


def _primary_key_drift(live: Table, expected: Table) -> Iterator[tuple[DriftKind, str, str]]:
    """Only its name is ever set right: no plan of ours makes or drops the key of a table."""
    old, new, what = live.primary_key_name, expected.primary_key_name, "primary key"
    if live.primary_key != expected.primary_key:
        message = "has other columns" if old else "was dropped; only a person can put it back"
        yield DriftKind.STRANGE, f"{what} {new}", message
    elif old != new:
        yield DriftKind.ALTERED, f"{what} {new}", f"is called {old}"


def _rules(table: Table) -> tuple[Check | Index | ForeignKey, ...]:
    return (*table.checks, *table.indexes, *table.foreign_keys)


_WORDS: Final = {Check: "check", Index: "index", ForeignKey: "foreign key"}
