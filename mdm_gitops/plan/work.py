"""One entity under way in a plan: what is known of it, and what follows from it alone.

Nothing here looks at another entity; ``plan.build`` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mdm_gitops.plan.changes import (
    AbandonFilling,
    AddColumn,
    AddForeignKey,
    AddIndex,
    Change,
    ChangeDefinition,
    CreateEntity,
    RetypeColumn,
)
from mdm_gitops.plan.column_moves import begin_filling, give_up_filling
from mdm_gitops.plan.desired import DesiredEntity
from mdm_gitops.plan.diff import (
    Seen,
    missing_columns,
)
from mdm_gitops.plan.drift import table_drift
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.fields import entity_fields, widens_access
from mdm_gitops.plan.live import LiveTable
from mdm_gitops.plan.moves import Moves
from mdm_gitops.plan.physical import (
    PhysicalColumn,
    Role,
    Table,
    physical_entity,
    satellite,
    with_table_name,
)
from mdm_gitops.plan.plan import (
    DriftItem,
)
from mdm_gitops.plan.recorded import ColumnState, EntityState, RecordedEntity


@dataclass(slots=True)
class Work:
    """One entity under way: its tables as they are, and what has been found to do."""

    name: str
    record: RecordedEntity
    desired: DesiredEntity | None
    live: dict[str, LiveTable]
    moves: Moves
    seen: dict[str, Seen] = field(default_factory=dict)  # by present name
    changes: list[Change] = field(default_factory=list)


def expected_tables(record: RecordedEntity) -> dict[str, Table]:
    """Return what was last deployed for *record*, by the names the tables have now."""
    base = physical_entity(record.definition, record.targets)
    tables = {record.main: with_table_name(base.main, record.main)}
    deployed = DesiredEntity(entity=record.definition, targets=record.targets)
    for role, item in record.satellites.items():
        table = with_table_name(satellite(base.main, role), item.physical)
        if item.archived or deployed.desired_hash != record.desired_hash:
            table = replace(table, indexes=())  # or deployed before such tables had indexes
        tables[item.physical] = table
    return tables


def creation(desired: DesiredEntity) -> Iterator[Change]:
    """Yield the changes that make the tables of an entity which is not there."""
    main = desired.physical.main
    yield CreateEntity(entity=desired.name, tables=tuple(desired.physical.tables.values()))
    for table in desired.physical.tables.values():
        for index in table.indexes:
            yield AddIndex(entity=desired.name, table=table.name, index=index, online=False)
    for key in main.foreign_keys:
        yield AddForeignKey(entity=desired.name, table=main.name, foreign_key=key, online=False)


def drift_of(record: RecordedEntity, live: LiveTable, expected: Table) -> Iterator[DriftItem]:
    known = {c.physical for c in record.columns if c.state is not ColumnState.ACTIVE}
    return table_drift(live, expected, entity=record.name, known_columns=known)


def user_columns(desired: DesiredEntity) -> dict[str, PhysicalColumn]:
    columns = desired.physical.main.columns
    return {column.folded: columns[column.folded] for column in desired.entity.columns}


def with_fillings(item: LiveTable, moves: Moves) -> LiveTable:
    """Return *item* as the prepare phase will leave it: fillings given up first, others begun."""
    columns = dict(item.table.columns)
    for change in moves.changes:
        if isinstance(change, AbandonFilling) and change.target in columns:
            given_up = replace(columns.pop(change.target), name=change.archived_as)
            columns[change.archived_as] = given_up
    for change in moves.changes:
        if isinstance(change, RetypeColumn) and change.filling and not change.filling.exists:
            filling = change.filling
            columns.pop(filling.taken_from or "", None)
            columns[filling.target] = PhysicalColumn(name=filling.target, type=change.new.type)
    return replace(item, table=replace(item.table, columns=MappingProxyType(columns)))


def added_columns(work: Work, main: Table) -> Iterator[Change]:
    missing: dict[str, list[str]] = {}
    columns: dict[str, PhysicalColumn] = {}
    main_missing = set()
    for seen in work.seen.values():
        role = seen.table.role
        wanted = main if role is Role.MAIN else satellite(main, role)
        for column in missing_columns(seen.table, wanted):
            columns.setdefault(column.name, column)
            if role is Role.MAIN:
                main_missing.add(column.name)
                columns[column.name] = column
            else:
                missing.setdefault(column.name, []).append(seen.table.name)
    for name, column in columns.items():
        yield AddColumn(
            entity=work.name,
            column=column,
            main_table=main.name if name in main_missing else None,
            satellite_tables=tuple(missing.get(name, ())),
        )


def definition_changes(work: Work, desired: DesiredEntity) -> Iterator[Change]:
    record = work.record
    if record.state is EntityState.REMOVED or record.desired_hash == desired.desired_hash:
        return
    old_names = {c.key: c.name for c in record.columns if c.state is ColumnState.ACTIVE}
    identities = {
        c.name: old_names[c.key]
        for c in work.moves.after.columns
        if c.state is ColumnState.ACTIVE and c.key in old_names
    }
    fields = tuple(entity_fields(record.definition, desired.entity, identities=identities))
    if fields or not work.changes:
        yield ChangeDefinition(
            entity=work.name,
            fields=fields,
            widens_access=widens_access(record.definition, desired.entity, identities=identities),
        )


def notes_on_dependents(work: Work, facts: Facts) -> Iterator[str]:
    for table in work.live:
        for view in facts.dependents.get(table, ()):
            yield (
                f"view {view}, which is not ours, reads {table}; PostgreSQL keeps it on the columns "
                f"it was made for, also when they are renamed or archived"
            )


def preparing(touched: list[Work], changes: list[Change]) -> Iterator[tuple[int, RecordedEntity]]:
    """Yield, per change that the prepare phase begins with, the record that its first step writes.

    What is given up comes first, as it does in the script: it may hold a name that is needed next.
    """
    records = {work.name: work.moves.before for work in touched}
    after = {work.name: work.moves.after for work in touched}
    for number, change in enumerate(changes, start=1):
        if isinstance(change, AbandonFilling):
            name = change.entity
            records[name] = give_up_filling(records[name], change, after[name])
            yield number, records[name]
    for number, change in enumerate(changes, start=1):
        if isinstance(change, RetypeColumn) and change.filling:
            records[change.entity] = begin_filling(records[change.entity], change)
            yield number, records[change.entity]
