"""A warehouse that is deployed to without a database: what the catalog would hold after each plan.

For tests of planning alone. That a real PostgreSQL comes to the same state is shown where there is
one; here only the road of names, identities and rules from plan to plan matters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from types import MappingProxyType
from typing import Any

from mdm_gitops.model import Definitions
from mdm_gitops.plan.build import Draft, complete, draft
from mdm_gitops.plan.changes import (
    AbandonFilling,
    AddColumn,
    AddSatellite,
    Change,
    CreateEntity,
    Filling,
    RemoveColumn,
    RemoveEntity,
    RemoveSatellite,
    Rename,
    RenameColumn,
    RenameEntity,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    RetypeColumn,
    SeedCounts,
    UserColumn,
)
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.live import LiveRelation
from mdm_gitops.plan.physical import Check, ForeignKey, Index, PhysicalColumn, Table, View
from mdm_gitops.plan.plan import CheckResult, Plan
from mdm_gitops.plan.recorded import ColumnState, EntityState, RecordedEntity
from mdm_gitops.plan.structural import deployed, table_objects
from mdm_gitops.plan.work import expected_tables

SCHEMA = "mdm_data"


class Warehouse:
    """Deploys definitions one after the other; *facts* may be edited between them."""

    def __init__(self, *steps: Definitions, rows: bool = True) -> None:
        self.rows = rows
        self.facts = Facts(data_schema=SCHEMA)
        for definitions in steps:
            self.deploy(definitions)

    def draft(self, definitions: Definitions, *, target: Collection[str] = ()) -> Draft:
        return draft(definitions, self.facts, target=target)

    def plan(self, definitions: Definitions, *, target: Collection[str] = ()) -> Plan:
        """Plan as if no row broke a rule and each seed brought one new row."""
        drafted = self.draft(definitions, target=target)
        return _completed(drafted, [0] * len(drafted.checks))

    def answered(self, definitions: Definitions, violations: Iterable[int]) -> Plan:
        """Plan with these numbers of rows that break a rule, one for each question."""
        return _completed(self.draft(definitions), violations)

    def told(self, definitions: Definitions, *, target: Collection[str] = ()) -> list[str]:
        return [told(item.change) for item in self.plan(definitions, target=target).changes]

    def deploy(self, definitions: Definitions, *, interrupted: bool = False) -> Plan:
        """Carry out the plan; *interrupted*: the flip came through, what follows did not."""
        plan = self.plan(definitions)
        assert not plan.refusals
        after = {record.entity_id: record for record in self.facts.records}
        for record in plan.records:
            after[record.entity_id] = record if interrupted else _done(record)
        columns = _columns_after(plan, self._columns())
        self._stand(tuple(after.values()), definitions, plan)
        assert columns == self._columns(), "the changes lead elsewhere than the records"
        return plan

    def _columns(self) -> dict[str, set[str]]:
        tables = [r for r in self.facts.relations.values() if r.is_table]
        return {table.name: set(table.part("columns")) for table in tables}

    @property
    def records(self) -> dict[str, RecordedEntity]:
        """The records of what is in use, by name."""
        used = (r for r in self.facts.records if r.state is not EntityState.REMOVED)
        return {record.name: record for record in used}

    def note(self, record: RecordedEntity, *others: RecordedEntity) -> None:
        """Put *record* in the place of the one with its id, and let its tables stand as it says."""
        changed = {item.entity_id: item for item in (record, *others)}
        records = tuple(changed.get(item.entity_id, item) for item in self.facts.records)
        views = {key: r for key, r in self.facts.relations.items() if key[0] != SCHEMA}
        self.facts = replace(self.facts, records=records)
        self._tables(views)

    def alter(
        self,
        table: str,
        part: str,
        name: str,
        facts: Mapping[str, Any] | None,
        *,
        recorded: bool = False,
    ) -> None:
        """Do by hand: give *table* the object *name* with these *facts*, or take it away.

        *recorded*: it was done by a deployment and stands in what was remembered of the table.
        """
        relation = self.facts.relations[SCHEMA, table]
        objects = {kind: dict(items) for kind, items in relation.objects.items()}
        if facts is None:
            del objects[part][name]
        else:
            objects[part][name] = {**objects[part].get(name, {}), **facts}
        known = objects if recorded else relation.recorded
        self.put(replace(relation, objects=objects, recorded=known))

    def leave_unread(self, name: str) -> None:
        """Take the entity as unchanged, so that nothing of it is read."""
        tables = {(SCHEMA, table) for table in self.records[name].table_names}
        relations = {k: r for k, r in self.facts.relations.items() if k not in tables}
        self._set(relations)
        self.facts = replace(self.facts, unchanged=self.facts.unchanged | {name})

    def drop(self, name: str, *, schema: str = SCHEMA) -> None:
        """Do by hand: drop the table or view."""
        relations = {k: r for k, r in self.facts.relations.items() if k != (schema, name)}
        self._set(relations, mismatched={(schema, name)})

    def put(self, relation: LiveRelation) -> None:
        """Do by hand: let *relation* stand under its name."""
        key = (relation.schema, relation.name)
        self._set({**self.facts.relations, key: relation}, mismatched={key})

    def _set(
        self,
        relations: Mapping[tuple[str, str], LiveRelation],
        *,
        mismatched: Collection[tuple[str, str]] = (),
    ) -> None:
        self.facts = replace(
            self.facts,
            relations=MappingProxyType(dict(relations)),
            mismatched=self.facts.mismatched | frozenset(mismatched),
        )

    def _stand(
        self, records: tuple[RecordedEntity, ...], definitions: Definitions, plan: Plan
    ) -> None:
        fresh = deployed(definitions, data_schema=SCHEMA)
        views = {key: r for key, r in fresh.relations.items() if key[0] != SCHEMA}
        self.facts = replace(fresh, records=records, counters=plan.counters, filled=frozenset())
        self._tables(views)

    def _tables(self, views: Mapping[tuple[str, str], LiveRelation]) -> None:
        relations = dict(views)
        for record in self.facts.records:
            relations |= _relations(record)
        self._set(relations)
        if self.rows:
            filled = frozenset(name for schema, name in relations if schema == SCHEMA)
            self.facts = replace(self.facts, filled=filled)


def _completed(drafted: Draft, violations: Iterable[int]) -> Plan:
    asked = zip((check for check, _ in drafted.checks), violations, strict=False)
    results = [CheckResult(check=check, violations=count) for check, count in asked]
    counts = {name: SeedCounts(inserted=1) for name in drafted.seed_questions}
    return complete(drafted, results=results, seed_counts=counts)


def _columns_after(plan: Plan, before: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Carry out what *plan* says of tables and columns; what two take, or nobody has, is an error."""
    changes = [item.change for item in plan.changes]
    tables = {name: set(columns) for name, columns in before.items()}
    for change in changes:
        match change:
            case AbandonFilling():
                for table in change.tables:
                    _rename(tables[table], {change.target: change.archived_as})
    for change in changes:
        if isinstance(change, RetypeColumn) and (filling := change.filling) and not filling.exists:
            for table in filling.tables:
                if filling.taken_from:
                    _rename(tables[table], {filling.taken_from: filling.target})
                else:
                    _add(tables[table], filling.target)
    moved = dict(_table_renames(changes))
    assert len({moved.get(name, name) for name in tables}) == len(tables)
    tables = {moved.get(name, name): columns for name, columns in tables.items()}
    for name, columns in tables.items():
        _rename(columns, dict(_column_renames(changes, name)))
    for change in changes:
        match change:
            case AddColumn():
                for name in (change.main_table, *change.satellite_tables):
                    if name is not None:
                        _add(tables[name], change.column.name)
            case RetypeColumn(filling=None, restored_from=None):
                for name in change.tables:
                    _add(tables[name], change.column)
            case CreateEntity():
                tables |= {table.name: set(table.columns) for table in change.tables}
            case AddSatellite():
                assert change.table.name not in tables
                tables[change.table.name] = set(change.table.columns)
    return tables


def _table_renames(changes: Iterable[Change]) -> Iterator[tuple[str, str]]:
    for change in changes:
        match change:
            case RenameEntity() | RemoveEntity() | RestoreEntity():
                yield from ((rename.old, rename.new) for rename in change.tables)
            case RemoveSatellite() | RestoreSatellite():
                yield change.table.old, change.table.new


def _column_renames(changes: Iterable[Change], table: str) -> Iterator[tuple[str, str]]:
    for change in changes:
        match change:
            case RenameColumn() if table in change.tables:
                yield change.column.old, change.column.new
            case RemoveColumn() if table in change.tables:
                yield change.column, change.archived_as
            case RestoreColumn() if table in change.tables:
                yield change.archived_as, change.column
            case RetypeColumn() if table in change.tables:
                yield change.source, change.archived_as
                arrives = change.filling.target if change.filling else change.restored_from
                if arrives is not None:
                    yield arrives, change.column


def _rename(columns: set[str], renames: Mapping[str, str]) -> None:
    assert renames.keys() <= columns, f"{renames.keys() - columns} is not there"
    after = [renames.get(name, name) for name in columns]
    assert len(set(after)) == len(after), f"two columns would have one name: {after}"
    columns.clear()
    columns.update(after)


def _add(columns: set[str], name: str) -> None:
    assert name not in columns, f"{name} is there already"
    columns.add(name)


def _done(record: RecordedEntity) -> RecordedEntity:
    deploying = record.state is EntityState.DEPLOYING
    return replace(record, state=EntityState.DEPLOYED) if deploying else record


def _relations(record: RecordedEntity) -> dict[tuple[str, str], LiveRelation]:
    """Return the tables of *record*, with the columns that stand beside the defined ones."""
    aside = [column for column in record.columns if column.state is not ColumnState.ACTIVE]
    more = {c.physical: PhysicalColumn(name=c.physical, type=c.type) for c in aside}
    found = {}
    for name, table in expected_tables(record).items():
        keys = () if record.state is EntityState.REMOVED else table.foreign_keys
        columns = MappingProxyType({**table.columns, **more})
        objects = table_objects(replace(table, columns=columns, foreign_keys=keys), SCHEMA)
        found[SCHEMA, name] = LiveRelation(
            schema=SCHEMA, name=name, kind="r", objects=objects, recorded=objects
        )
    return found


def told(change: Change) -> str:
    """Return *change* on one line: its kind, its entity, and what is not as usual in it."""
    words = [change.kind, change.entity]
    for item in fields(change):
        value = getattr(change, item.name)
        usual = item.default is not MISSING and value == item.default
        if item.name not in ("entity", "seed") and not usual:
            words.append(f"{item.name}={_short(value)}")
    return " ".join(word for word in words if word)


def _short(value: Any) -> str:
    match value:
        case Rename():
            return f"{value.old}>{f'{value.aside}>' if value.aside else ''}{value.new}"
        case UserColumn():
            return value.name
        case PhysicalColumn():
            null = " not null" if value.not_null else ""
            default = "" if value.default is None else f" default {value.default}"
            return f"({value.name} {value.type}{null}{default})"
        case Check():
            return f"({value.name} {value.argument})"
        case Index():
            return f"({'unique ' if value.unique else ''}{value.name} on {_short(value.columns)})"
        case ForeignKey():
            return f"({value.column} to {value.target_table}.{value.target_column})"
        case Filling():
            taken = f" taken from {value.taken_from}" if value.taken_from else ""
            begun = " begun" if value.exists else ""
            tables = _short(value.tables)
            return f"({value.source} into {value.target}{taken}{begun} in {value.entity}: {tables})"
        case Table():
            return value.name
        case View():
            return f"{value.schema}.{value.name}"
        case SeedCounts():
            return f"+{value.inserted} ~{value.updated} ={value.unchanged}"
        case tuple():
            return ",".join(_short(item) for item in value)
        case _:
            return str(value)
