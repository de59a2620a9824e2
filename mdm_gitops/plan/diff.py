"""What must change in the rules and columns of one table: a pure comparison of two values.

The live table is first seen through the moves of the plan (``seen_through``): renamed columns
carry their final names, archived ones stand aside, so that a rule which only follows its column is
the same rule. Names before the flip are kept for what is dropped first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol, TypeVar

from mdm_gitops.plan.changes import (
    AddCheck,
    AddForeignKey,
    AddIndex,
    Change,
    DropCheck,
    DropDefault,
    DropForeignKey,
    DropIndex,
    DropRequired,
    ObjectKind,
    Rename,
    RenameObject,
    SetDefault,
    SetRequired,
    ValidateCheck,
    ValidateForeignKey,
)
from mdm_gitops.plan.live import LiveTable
from mdm_gitops.plan.physical import (
    Check,
    Index,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    relation_object_name,
)


class Specified(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> tuple[object, ...]: ...


T = TypeVar("T", bound=Specified)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A live table with final names; *present* maps them back to the names before the flip."""

    table: Table
    present_name: str
    present: Mapping[str, str]  # final column name -> present one
    altered: tuple[str, ...]
    has_rows: bool


def seen_through(
    live: LiveTable,
    *,
    name: str,
    columns: Mapping[str, str],
    arriving: Mapping[str, PhysicalColumn],
    tables: Mapping[str, str],
    columns_of: Mapping[str, Mapping[str, str]],
    has_rows: bool,
) -> Seen:
    """Return *live* as it will look once names have moved and before any rule has changed.

    *columns* maps present to final names in this table, *columns_of* the same for any table by
    its present name, *tables* present to final table names. *arriving* are columns that a retype
    brings in the flip.
    """
    table = live.table
    main = table.role is Role.MAIN
    moved = {
        _to(columns, old): _moved(column, _to(columns, old), old in columns)
        for old, column in table.columns.items()
    }
    for column in arriving.values():
        moved[column.name] = column if main else replace(column, not_null=False, default=None)
    seen = Table(
        name=name,
        role=table.role,
        columns=MappingProxyType(moved),
        primary_key=table.primary_key,
        primary_key_name=table.primary_key_name,
        checks=tuple(replace(c, column=_to(columns, c.column)) for c in table.checks),
        indexes=tuple(
            replace(i, columns=tuple(_to(columns, c) for c in i.columns)) for i in table.indexes
        ),
        foreign_keys=tuple(
            replace(
                key,
                column=_to(columns, key.column),
                target_table=_to(tables, key.target_table),
                target_column=_to(columns_of.get(key.target_table, {}), key.target_column),
            )
            for key in table.foreign_keys
        ),
    )
    present = {_to(columns, old): old for old in table.columns}
    return Seen(
        table=seen,
        present_name=table.name,
        present=MappingProxyType(present),
        altered=live.altered,
        has_rows=has_rows,
    )


def _to(mapping: Mapping[str, str], name: str) -> str:
    return mapping.get(name, name)


def _moved(column: PhysicalColumn, name: str, has_moved: bool) -> PhysicalColumn:
    archived = has_moved and name.startswith("_arch_")
    if archived:  # loses its rules in the flip, with the change that archives it
        return PhysicalColumn(name=name, type=column.type)
    return replace(column, name=name)


def missing_columns(seen: Table, desired: Table) -> tuple[PhysicalColumn, ...]:
    return tuple(c for c in desired.columns.values() if c.name not in seen.columns)


def diff_rules(
    seen: Seen, desired: Table, *, entity: str, widened: Collection[str] = ()
) -> Iterator[Change]:
    """Yield the changes of rules that lead from *seen* to *desired* (both main tables).

    *widened* columns are retyped in place: their checks, foreign keys and computed indexes are taken
    off and proven again online, because PostgreSQL would otherwise scan the table under its strongest
    lock.
    """
    again = set(widened) if seen.has_rows else set()
    yield from _diff_primary_key(seen, desired, entity)
    yield from _diff_required(seen, desired, entity)
    yield from _diff_defaults(seen, desired, entity)
    yield from _diff_checks(seen, desired, entity, again)
    yield from _diff_indexes(seen, desired, entity, again)
    yield from _diff_foreign_keys(seen, desired, entity, again)


def _diff_primary_key(seen: Seen, desired: Table, entity: str) -> Iterator[Change]:
    old, new = seen.table.primary_key_name, desired.primary_key_name
    if old and old != new:
        yield RenameObject(
            entity=entity,
            table=desired.name,
            object_kind=ObjectKind.CONSTRAINT,
            rename=Rename(old=old, new=new),
        )


def diff_satellite(seen: Seen, desired: Table, *, entity: str) -> Iterator[Change]:
    """Yield the changes of an edit or history table beside its columns."""
    yield from _diff_primary_key(seen, desired, entity)
    yield from _diff_indexes(seen, desired, entity, ())


def _diff_required(seen: Seen, desired: Table, entity: str) -> Iterator[Change]:
    helpers = {c.column for c in seen.table.checks if c.rule is RuleKind.REQUIRED}
    for name, column in desired.columns.items():
        live = seen.table.columns.get(name)
        if live is None or live.not_null == column.not_null:
            continue
        if column.not_null:
            yield SetRequired(
                entity=entity,
                table=desired.name,
                column=name,
                online=seen.has_rows,
                helper_exists=name in helpers,
            )
        else:
            present = seen.present[name]
            yield DropRequired(entity=entity, table=seen.present_name, column=present)


def _diff_defaults(seen: Seen, desired: Table, entity: str) -> Iterator[Change]:
    for name, column in desired.columns.items():
        live = seen.table.columns.get(name)
        if live is None or live.default == column.default:
            continue
        if column.default is None:
            present = seen.present[name]
            yield DropDefault(entity=entity, table=seen.present_name, column=present)
        else:
            yield SetDefault(entity=entity, table=desired.name, column=column)


def _diff_checks(
    seen: Seen, desired: Table, entity: str, again: Collection[str]
) -> Iterator[Change]:
    required = {n for n, c in desired.columns.items() if c.not_null}
    not_null_live = {n for n, c in seen.table.columns.items() if c.not_null}
    for name in seen.altered:
        yield DropCheck(entity=entity, table=seen.present_name, check=name)
    kept, gone, new = _match(seen.table.checks, desired.checks, again, lambda c: c.column)
    for check in gone:
        pending = check.column in required and check.column not in not_null_live
        if check.rule is RuleKind.CASTABLE or (check.rule is RuleKind.REQUIRED and pending):
            continue  # belongs to a recipe that is still under way
        yield DropCheck(
            entity=entity,
            table=seen.present_name,
            check=check.name,
            column=check.column,
            rule=check.rule.value,
        )
    for live, check in kept:
        yield from _follow(ObjectKind.CONSTRAINT, desired.name, live.name, check.name, entity)
        if not live.validated:
            yield ValidateCheck(
                entity=entity,
                table=desired.name,
                check=check.name,
                rule=check,
                column_type=desired.columns[check.column].type,
            )
    for check in new:
        yield AddCheck(
            entity=entity,
            table=desired.name,
            check=check,
            column_type=desired.columns[check.column].type,
            online=seen.has_rows,
            replaces=_replaced(check, gone),
        )


def _replaced(check: Check, gone: Collection[Check]) -> Check | None:
    """Return the proven check that *check* takes the place of, on a column that keeps its values."""
    same = (g for g in gone if (g.column, g.rule) == (check.column, check.rule) and g.validated)
    return next(same, None)


def _diff_indexes(
    seen: Seen, desired: Table, entity: str, again: Collection[str]
) -> Iterator[Change]:
    def computed_from(index: Index) -> str:
        return next((c for c in index.columns if index.computed and c in again), "")

    kept, gone, new = _match(seen.table.indexes, desired.indexes, again, computed_from)
    for index in gone:
        yield DropIndex(entity=entity, table=seen.present_name, index=index)
    for live, index in kept:
        if not live.valid:
            # A build that failed or was killed is dropped, under its final name, and built again.
            yield AddIndex(
                entity=entity, table=desired.name, index=index, online=True, rebuild=True
            )
        yield from _follow(ObjectKind.INDEX, desired.name, live.name, index.name, entity)
    for index in new:
        yield AddIndex(entity=entity, table=desired.name, index=index, online=seen.has_rows)


def _diff_foreign_keys(
    seen: Seen, desired: Table, entity: str, again: Collection[str]
) -> Iterator[Change]:
    live_keys, desired_keys = seen.table.foreign_keys, desired.foreign_keys
    kept, gone, new = _match(live_keys, desired_keys, again, lambda k: k.column)
    for key in gone:
        yield DropForeignKey(entity=entity, table=seen.present_name, foreign_key=key)
    for live, key in kept:
        yield from _follow(ObjectKind.CONSTRAINT, desired.name, live.name, key.name, entity)
        if not live.validated:
            yield ValidateForeignKey(
                entity=entity, table=desired.name, foreign_key=key.name, rule=key
            )
    for key in new:
        yield AddForeignKey(
            entity=entity, table=desired.name, foreign_key=key, online=seen.has_rows
        )


def _follow(kind: ObjectKind, table: str, old: str, new: str, entity: str) -> Iterator[Change]:
    if old != new:
        rename = Rename(old=old, new=new)
        yield RenameObject(entity=entity, table=table, object_kind=kind, rename=rename)


def _match(
    live: Collection[T],
    desired: Collection[T],
    again: Collection[str],
    column_of: Callable[[T], str],
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Pair objects of equal specification; return (kept pairs, gone, new), in stable order."""
    by_spec: dict[tuple[object, ...], T] = {}
    gone = []
    for item in sorted(live, key=lambda item: item.name):
        if item.spec in by_spec or column_of(item) in again:
            gone.append(item)
        else:
            by_spec[item.spec] = item
    kept, new = [], []
    for item in desired:
        match = by_spec.pop(item.spec, None)
        if match is None:
            new.append(item)
        else:
            kept.append((match, item))
    return kept, [*gone, *by_spec.values()], new


def archive_rules(live: LiveTable, *, entity: str, name: str) -> Iterator[Change]:
    """Yield what happens to the rules of a table that goes into the archive under *name*.

    Its foreign keys go, so that it holds nothing else back; its indexes follow its name, so that
    the old names are free.
    """
    table = live.table
    for key in table.foreign_keys:
        yield DropForeignKey(entity=entity, table=table.name, foreign_key=key)
    old, new = table.primary_key_name, relation_object_name(name, "pk")
    yield from _follow(ObjectKind.CONSTRAINT, name, old, new, entity)
    for index in table.indexes:
        new = relation_object_name(name, index.suffix) if index.suffix else index.name
        yield from _follow(ObjectKind.INDEX, name, index.name, new, entity)
