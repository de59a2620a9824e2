"""The questions that a change puts to the live rows: how many of them break the new rule?

Asked in the names that stand before the plan, because the answer decides whether it runs at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import (
    AddCheck,
    AddColumn,
    AddForeignKey,
    AddIndex,
    Change,
    RetypeColumn,
    SetRequired,
    ValidateCheck,
    ValidateForeignKey,
)
from mdm_gitops.plan.diff import Seen
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.physical import Check, ForeignKey
from mdm_gitops.plan.plan import DataCheck, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where a column's values are now, and the cast that will bring them to their new type."""

    column: str
    cast: tuple[str, str] | None = None

    @property
    def casts(self) -> Mapping[str, tuple[str, str]]:
        return MappingProxyType({self.column: self.cast} if self.cast else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A main table as the questions see it: its present name and where each column is now."""

    name: str
    sources: Mapping[str, _Source]


def data_checks(
    change: Change,
    *,
    changes: Sequence[Change],
    seen: Mapping[str, Seen],
    facts: Facts,
    definitions: Definitions,
) -> Iterator[DataCheck]:
    """Yield the checks of *change*. *seen* goes by final table name."""
    match change:
        case RetypeColumn():
            yield from _castable(change, seen, facts, definitions)
        case AddColumn() if change.main_table and change.column.not_null:
            yield from _needs_default(change, seen)
        case SetRequired(online=True):
            yield from _required(change, changes, seen)
        case AddCheck(online=True):
            yield from _rule(change, changes, seen, definitions)
        case AddIndex(online=True) if change.index.unique:
            yield from _unique(change, changes, seen, definitions)
        case AddForeignKey(online=True):
            yield from _reference(change, changes, seen, facts, definitions)
        # Rows may have come between the count and the rule: it holds for new rows only.
        case ValidateCheck(rule=Check() as check):
            begun = AddCheck(
                entity=change.entity,
                table=change.table,
                check=check,
                column_type=change.column_type,
                online=True,
            )
            yield from _rule(begun, changes, seen, definitions)
        case ValidateForeignKey(rule=ForeignKey() as key):
            link = AddForeignKey(
                entity=change.entity, table=change.table, foreign_key=key, online=True
            )
            yield from _reference(link, changes, seen, facts, definitions)
        case _:
            return


def _table(name: str, changes: Sequence[Change], seen: Mapping[str, Seen]) -> _Table | None:
    there = seen.get(name)
    if there is None or not there.has_rows:
        return None
    sources = {final: _Source(column=present) for final, present in there.present.items()}
    for change in changes:
        if isinstance(change, RetypeColumn) and change.main_table == name:
            cast = (change.old_type, change.new.type)
            sources[change.column] = _Source(column=change.source, cast=cast)
    return _Table(name=there.present_name, sources=sources)


def _castable(
    change: RetypeColumn, seen: Mapping[str, Seen], facts: Facts, definitions: Definitions
) -> Iterator[DataCheck]:
    for name in change.tables:
        there = seen.get(name)
        if there is not None and there.present_name in facts.filled:
            yield DataCheck(
                violation=Violation.CANNOT_BE_CAST,
                entity=change.entity,
                column=change.column,
                table=there.present_name,
                columns=(change.source,),
                column_type=change.old_type,
                casts=MappingProxyType({change.source: (change.old_type, change.new.type)}),
                masked=_masked(change.entity, (change.column,), definitions),
            )


def _needs_default(change: AddColumn, seen: Mapping[str, Seen]) -> Iterator[DataCheck]:
    there = seen.get(change.main_table or "")
    if there is not None and there.has_rows and change.column.default is None:
        yield DataCheck(
            violation=Violation.NEEDS_DEFAULT,
            entity=change.entity,
            column=change.column.name,
            table=there.present_name,
            columns=(),
        )


def _required(
    change: SetRequired, changes: Sequence[Change], seen: Mapping[str, Seen]
) -> Iterator[DataCheck]:
    table = _table(change.table, changes, seen)
    assert table is not None, "where there are no rows, nothing is proven online"
    yield DataCheck(
        violation=Violation.IS_NULL,
        entity=change.entity,
        column=change.column,
        table=table.name,
        columns=(table.sources[change.column].column,),
    )


def _rule(
    change: AddCheck,
    changes: Sequence[Change],
    seen: Mapping[str, Seen],
    definitions: Definitions,
) -> Iterator[DataCheck]:
    table = _table(change.table, changes, seen)
    column = change.check.column
    if table is not None and column in table.sources:
        source = table.sources[column]
        yield DataCheck(
            violation=Violation.BREAKS_RULE,
            entity=change.entity,
            column=column,
            table=table.name,
            columns=(source.column,),
            rule=change.check.rule,
            argument=change.check.argument,
            column_type=change.column_type,
            casts=source.casts,
            masked=_masked(change.entity, (column,), definitions),
        )


def _unique(
    change: AddIndex,
    changes: Sequence[Change],
    seen: Mapping[str, Seen],
    definitions: Definitions,
) -> Iterator[DataCheck]:
    table = _table(change.table, changes, seen)
    if table is None:
        return
    new = [name for name in change.index.columns if name not in table.sources]
    if any(_default_of(change.table, name, changes) is None for name in new):
        return  # all null in a new column: nulls are distinct
    sources = [table.sources[name] for name in change.index.columns if name in table.sources]
    yield DataCheck(
        violation=Violation.IS_DUPLICATE,
        entity=change.entity,
        column=", ".join(change.index.columns),
        table=table.name,
        columns=tuple(source.column for source in sources),
        casts=MappingProxyType({s.column: s.cast for s in sources if s.cast}),
        masked=_masked(change.entity, change.index.columns, definitions),
    )


def _default_of(table: str, column: str, changes: Sequence[Change]) -> object:
    added = (c for c in changes if isinstance(c, AddColumn) and c.main_table == table)
    return next((c.column.default for c in added if c.column.name == column), None)


def _reference(
    change: AddForeignKey,
    changes: Sequence[Change],
    seen: Mapping[str, Seen],
    facts: Facts,
    definitions: Definitions,
) -> Iterator[DataCheck]:
    table = _table(change.table, changes, seen)
    key = change.foreign_key
    if table is None or key.column not in table.sources:
        return
    source = table.sources[key.column]
    target = seen.get(key.target_table)
    target_table: str | None = None
    target_column: str | None = None
    target_cast: tuple[str, str] | None = None
    if target is not None and key.target_column in target.present:
        sources = _table(key.target_table, changes, seen)
        target_table = target.present_name
        target_column = target.present[key.target_column]
        if sources is not None:
            target_column = sources.sources[key.target_column].column
            target_cast = sources.sources[key.target_column].cast
    elif target is None and _stands(key.target_table, facts):
        target_table, target_column = key.target_table, key.target_column
    yield DataCheck(
        violation=Violation.REFERS_TO_NOTHING,
        entity=change.entity,
        column=key.column,
        table=table.name,
        columns=(source.column,),
        casts=source.casts,
        target_table=target_table,
        target_column=target_column,
        target_cast=target_cast,
        target_values=_seeded(key.target_table, key.target_column, definitions),
        masked=_masked(change.entity, (key.column,), definitions),
    )


def _stands(table: str, facts: Facts) -> bool:
    """Whether a main table that this plan does not look at is there."""
    return table in facts.unchanged or facts.table(table) is not None


def _seeded(entity: str, column: str, definitions: Definitions) -> tuple[object, ...]:
    """Return the values that the target's seed file will bring."""
    seed, target = definitions.seeds.get(entity), definitions.entity(entity)
    definition = target.column(column) if target else None
    if seed is None or definition is None:
        return ()
    values = (row.get(definition.name) for row in seed.rows)
    return tuple(definition.typed(value) for value in values if value is not None)


def _masked(entity: str, columns: Sequence[str], definitions: Definitions) -> bool:
    definition = definitions.entities[entity]
    found = (definition.column(name) for name in columns)
    return any(column is not None and column.restricted for column in found)
