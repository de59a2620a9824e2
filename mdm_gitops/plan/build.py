"""Build a plan: definitions and facts in, changes out. Pure.

Two halves, because the warehouse has to be asked in between: ``draft`` compares and says which
questions the live rows must answer (data checks, seed counts); ``complete`` takes the answers and
returns the plan. The road through ``draft``: who is who (``plan.identity``), what moves
(``plan.table_moves``, ``plan.column_moves``), which rules differ (``plan.diff``), then views,
definition, access and seeds. One class walks it, which makes the module long: each part asks what
the parts before it have found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from mdm_gitops.model import Definitions, fold
from mdm_gitops.model.values import canonical_json
from mdm_gitops.plan import guards, seeds
from mdm_gitops.plan.access import diff_access
from mdm_gitops.plan.access_report import NO_REPORT, AccessReport
from mdm_gitops.plan.changes import (
    AddSatellite,
    ApplySeed,
    Change,
    CreateView,
    FinishEntity,
    Rename,
    RenameColumn,
    RenameEntity,
    SeedCounts,
)
from mdm_gitops.plan.desired import DesiredEntity, desired_entities
from mdm_gitops.plan.diff import (
    Seen,
    archive_rules,
    diff_rules,
    diff_satellite,
    seen_through,
)
from mdm_gitops.plan.drift import missing_table
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.hazards import TableSize, assess
from mdm_gitops.plan.identity import resolve_columns, resolve_entities
from mdm_gitops.plan.live import LiveTable, interpret
from mdm_gitops.plan.moves import Moves, Numbers
from mdm_gitops.plan.order import linked_later, objects_aside, stepping_aside
from mdm_gitops.plan.physical import (
    PhysicalEntity,
    Role,
    Table,
    View,
    filling_object_name,
    physical_entity,
    satellite,
    with_table_name,
)
from mdm_gitops.plan.plan import (
    CheckResult,
    DataCheck,
    DriftItem,
    DriftKind,
    Plan,
    PlannedChange,
    Refusal,
)
from mdm_gitops.plan.questions import data_checks
from mdm_gitops.plan.recorded import Counters, EntityState, RecordedEntity
from mdm_gitops.plan.table_moves import archive_entity, created, move_entity
from mdm_gitops.plan.views import ViewPlanner
from mdm_gitops.plan.work import (
    Work,
    added_columns,
    creation,
    definition_changes,
    drift_of,
    expected_tables,
    notes_on_dependents,
    preparing,
    user_columns,
    with_fillings,
)

# As a target: permissions, webhooks and the project, and no entity. No entity can have this name.
ACCESS: Final = "@access"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A plan without the answers of the live rows; ``numbers`` of checks point into changes."""

    definitions: Definitions
    facts: Facts
    changes: tuple[Change, ...]
    checks: tuple[tuple[DataCheck, tuple[int, ...]], ...]  # with the numbers of blocked changes
    seed_questions: Mapping[str, seeds.SeedQuestion]
    drift: tuple[DriftItem, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]
    records: tuple[RecordedEntity, ...]
    preparing: tuple[tuple[int, RecordedEntity], ...]
    counters: Counters
    remembered: tuple[tuple[str, str], ...]
    forgotten: tuple[tuple[str, str], ...]
    strange: frozenset[tuple[str, str]]
    sizes: Mapping[str, TableSize]


def draft(definitions: Definitions, facts: Facts, *, target: Collection[str] = ()) -> Draft:
    """Compare *definitions* with *facts*; with *target*, only the entities of these names.

    Without entities' names it is everything; ``ACCESS`` stands for what belongs to no entity.
    """
    planner = _Planner(definitions, facts, frozenset(fold(name) for name in target))
    return planner.run()


def complete(
    draft: Draft,
    *,
    results: Sequence[CheckResult],
    seed_counts: Mapping[str, SeedCounts],
    access: AccessReport = NO_REPORT,
) -> Plan:
    """Return the plan of *draft* with the live rows' answers, *results* in the order of checks."""
    checks = tuple(
        replace(result, changes=numbers)
        for result, (_, numbers) in zip(results, draft.checks, strict=True)
    )
    changes = tuple(_with_counts(draft, seed_counts))
    planned = tuple(
        PlannedChange(number=n, change=c, assessment=assess(c, sizes=draft.sizes))
        for n, c in enumerate(changes, start=1)
    )
    plan = Plan(
        project=draft.definitions.project.name,
        base_commit=draft.definitions.commit,
        desired_hash=draft.definitions.content_hash,
        live_fingerprint=draft.facts.live_fingerprint,
        changes=planned,
        checks=checks,
        drift=draft.drift,
        refusals=(*draft.refusals, *guards.failed_checks(checks)),
        notes=draft.notes,
        entities_total=len(draft.definitions.entities),
        records=draft.records,
        preparing=draft.preparing,
        counters=draft.counters,
        remembered=draft.remembered,
        forgotten=draft.forgotten,
        strange=draft.strange,
    )
    return with_access(replace(plan, plan_id=_plan_id(plan)), access)


def with_access(plan: Plan, access: AccessReport) -> Plan:
    """Return *plan* with what is said of access, and refused where a test of it fails."""
    refusals = (*plan.refusals, *guards.failed_access_tests(access))
    return replace(plan, access=access, refusals=refusals)


def _with_counts(draft: Draft, counts: Mapping[str, SeedCounts]) -> Iterator[Change]:
    """Yield the changes; seeds stand last, so leaving out an idle one renumbers nothing."""
    for change in draft.changes:
        if not isinstance(change, ApplySeed):
            yield change
            continue
        counted = replace(change, counts=counts[change.entity])
        if draft.seed_questions[change.entity].is_needed(counted.counts):
            yield counted


def _plan_id(plan: Plan) -> str:
    parts = [
        plan.desired_hash,
        plan.live_fingerprint,
        *(repr(item.change) for item in plan.changes),
    ]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:20]


class _Planner:
    def __init__(self, definitions: Definitions, facts: Facts, target: frozenset[str]) -> None:
        self.definitions = definitions
        self.facts = facts
        self.target = target
        self.desired = desired_entities(definitions)
        self.numbers = Numbers(entity=facts.counters.entity, archive=facts.counters.archive)
        self.works: list[Work] = []
        self.created: list[tuple[DesiredEntity, RecordedEntity]] = []
        self.creations: dict[str, list[Change]] = {}
        self.drift: list[DriftItem] = []
        self.strange: set[str] = set()  # present names of tables that hold what is not ours
        self.refusals: list[Refusal] = []
        self.notes: list[str] = []
        self.tables: dict[str, str] = {}
        self.columns_of: dict[str, Mapping[str, str]] = {}
        self.views = ViewPlanner(facts)

    def run(self) -> Draft:
        resolution = resolve_entities(
            self.facts.records, {name: d.entity for name, d in self.desired.items()}
        )
        self.refusals += [r for r in resolution.refusals if self._is_meant(r.entity)]
        self.refusals += guards.incomplete_target(self.target, self.desired, self.facts)
        for name, desired in self.desired.items():
            if name not in self.facts.unchanged and self._is_meant(name):
                self._take_up(name, desired, resolution.records.get(name))
        removed = [r for r in resolution.removed if r.name not in self.facts.unchanged]
        removed = [r for r in removed if self._is_meant(r.name)]
        for record in removed:
            if self.facts.table(record.main) is None:
                self.drift.append(missing_table(record.name, record.main))
            self._remove(record)
        self._step_aside()
        for work in self.works:
            self._compare(work)
        entity_changes = self._entity_changes()
        self.refusals += guards.removals(removed, self.facts, self.definitions)
        self.refusals += guards.unowned(
            self._new_names(), self._new_views(entity_changes), self.facts
        )
        return self._draft(entity_changes)

    def _is_meant(self, name: str) -> bool:
        return not self.target or name in self.target

    # --- taking up ---

    def _take_up(self, name: str, desired: DesiredEntity, record: RecordedEntity | None) -> None:
        if record is None:
            self._create(name, desired, self.numbers.next_entity())
            return
        live, expected = self._read(record)
        if record.main not in live:
            self.drift.append(missing_table(name, record.main))
            self._create_again(name, desired, record)
            return
        resolution = resolve_columns(record, desired.entity, user_columns(desired))
        self.refusals += resolution.refusals
        moves = move_entity(
            record,
            desired,
            resolution,
            live={table: item.table for table, item in live.items()},
            has_rows=any(table in self.facts.filled for table in live),
            numbers=self.numbers,
        )
        if record.state is not EntityState.REMOVED:
            self._note_drift(record, live, expected)
        work = Work(name=name, record=record, desired=desired, live=live, moves=moves)
        self._add(work)

    def _add(self, work: Work) -> None:
        self.works.append(work)
        self.tables.update(work.moves.tables)
        for table in work.moves.tables:
            self.columns_of[table] = work.moves.columns

    def _create_again(self, name: str, desired: DesiredEntity, record: RecordedEntity) -> None:
        """The main table was dropped by hand: what is left of the entity is archived as it is."""
        if any(self.facts.table(table) is not None for table in record.table_names):
            self._remove(record)
            self._create(name, desired, self.numbers.next_entity())
        else:
            self._create(name, desired, record.entity_id)

    def _create(self, name: str, desired: DesiredEntity, entity_id: int) -> None:
        record = created(desired, entity_id=entity_id)
        changes = [*creation(desired), *self.views.create(name, desired.physical)]
        self.creations[name] = changes
        self.created.append((desired, record))

    def _remove(self, record: RecordedEntity) -> None:
        live, expected = self._read(record)
        self._note_drift(record, live, expected)
        moves = archive_entity(
            record, live={table: item.table for table, item in live.items()}, numbers=self.numbers
        )
        work = Work(name=record.name, record=record, desired=None, live=live, moves=moves)
        self._add(work)

    def _read(self, record: RecordedEntity) -> tuple[dict[str, LiveTable], dict[str, Table]]:
        """Interpret the entity's tables that exist; return them with what was deployed."""
        expected = expected_tables(record)
        live = {}
        for name, table in expected.items():
            relation = self.facts.table(name)
            if relation is not None:
                filling = [c.physical for c in record.filling_columns.values()]
                live[name] = interpret(
                    relation,
                    expected=table,
                    role=table.role,
                    triggers=[filling_object_name(name, target) for target in filling],
                )
        return live, expected

    def _note_drift(
        self, record: RecordedEntity, live: Mapping[str, LiveTable], expected: Mapping[str, Table]
    ) -> None:
        """What is strange is shown at any time; what is ours, unless a deployment is under way."""
        settled = record.state is EntityState.DEPLOYED
        for name in record.active_table_names:
            if (self.facts.data_schema, name) not in self.facts.mismatched:
                continue
            if name in live:
                found = list(drift_of(record, live[name], expected[name]))
                strange = [item for item in found if item.kind is DriftKind.STRANGE]
                if strange:
                    self.strange.add(name)
                self.drift += found if settled else strange
            elif settled and name != record.main:
                self.drift.append(missing_table(record.name, name))

    # --- renames that meet ---

    def _step_aside(self) -> None:
        tables = self._aside_tables()
        for work in self.works:
            work.moves.changes = [
                replace(c, tables=tuple(tables[r.old] for r in c.tables))
                if isinstance(c, RenameEntity)
                else c
                for c in work.moves.changes
            ]
            columns = [c.column for c in work.moves.changes if isinstance(c, RenameColumn)]
            aside = stepping_aside(columns)
            work.moves.changes = [
                replace(c, column=aside[c.column.old]) if isinstance(c, RenameColumn) else c
                for c in work.moves.changes
            ]

    def _aside_tables(self) -> Mapping[str, Rename]:
        renames = [
            rename
            for work in self.works
            for change in work.moves.changes
            if isinstance(change, RenameEntity)
            for rename in change.tables
        ]
        return stepping_aside(renames)

    # --- comparing ---

    def _compare(self, work: Work) -> None:
        for present, item in work.live.items():
            if present in work.moves.tables:
                work.seen[present] = self._see(work, item)
        work.changes += work.moves.changes
        if work.desired is None:
            self._compare_archived(work)
        else:
            self._compare_desired(work, work.desired)

    def _see(self, work: Work, item: LiveTable) -> Seen:
        present = item.table.name
        return seen_through(
            with_fillings(item, work.moves),
            name=work.moves.tables[present],
            columns=work.moves.columns,
            arriving=work.moves.arriving,
            tables=self.tables,
            columns_of=self.columns_of,
            has_rows=present in self.facts.filled,
        )

    def _compare_archived(self, work: Work) -> None:
        for present, item in work.live.items():
            if present in work.moves.tables:
                name = work.moves.tables[present]
                work.changes += archive_rules(item, entity=work.name, name=name)
        base = physical_entity(work.record.definition, work.record.targets)
        work.changes += self.views.drop_all(work.name, base)

    def _compare_desired(self, work: Work, desired: DesiredEntity) -> None:
        main = desired.physical.main
        work.changes += added_columns(work, main)
        for present, seen in work.seen.items():
            if seen.table.role is Role.MAIN:
                work.changes += diff_rules(seen, main, entity=work.name, widened=work.moves.widened)
            else:
                wanted = with_table_name(satellite(main, seen.table.role), seen.table.name)
                if seen.table.role not in desired.physical.tables:
                    wanted = replace(wanted, indexes=())  # in the archive nothing is looked up
                archived = work.moves.tables[present] == present and present not in {
                    t.name for t in desired.physical.tables.values()
                }
                if not archived:
                    work.changes += diff_satellite(seen, wanted, entity=work.name)
        base = physical_entity(work.record.definition, work.record.targets)
        removed = work.record.state is EntityState.REMOVED
        work.changes += self.views.change(
            work.name,
            PhysicalEntity(tables=base.tables) if removed else base,
            desired.physical,
            restructured=work.moves.restructures,
        )
        work.changes += definition_changes(work, desired)
        if work.moves.restructures:
            self.notes += notes_on_dependents(work, self.facts)
        self.drift += self.views.take_drift()
        if not work.changes and work.record.state is EntityState.DEPLOYING:
            work.changes.append(FinishEntity(entity=work.name))

    # --- putting together ---

    def _entity_changes(self) -> list[Change]:
        by_entity = dict(self.creations)
        for work in self.works:
            by_entity[work.name] = [*by_entity.get(work.name, ()), *work.changes]
        changes = [change for name in sorted(by_entity) for change in by_entity[name]]
        changes = objects_aside(changes)
        return list(linked_later(changes))

    def _new_names(self) -> Iterator[tuple[str, str]]:
        for desired, _ in self.created:
            for table in desired.physical.tables.values():
                yield desired.name, table.name
        for work in self.works:
            live = set(work.live)
            for old, new in work.moves.tables.items():
                if old != new and new not in live:
                    yield work.name, new
            for change in work.moves.changes:
                if isinstance(change, AddSatellite):
                    yield work.name, change.table.name

    def _new_views(self, changes: Iterable[Change]) -> Iterator[tuple[str, View]]:
        return ((c.entity, c.view) for c in changes if isinstance(c, CreateView))

    def _draft(self, entity_changes: list[Change]) -> Draft:
        changes = list(entity_changes)
        if not self.target or ACCESS in self.target:
            access = diff_access(self.definitions, self.facts)
            changes += access.changes
            self.refusals += access.refusals
        questions = {
            change.entity: question
            for change, question in seeds.plan_seeds(
                self.definitions,
                self.facts,
                self.desired,
                self._moves_by_name(),
                self.target,
                created={desired.name for desired, _ in self.created},
            )
        }
        changes += [question.change for question in questions.values()]
        checks = self._checks(changes)
        touched = [work for work in self.works if work.changes]
        return Draft(
            definitions=self.definitions,
            facts=self.facts,
            changes=tuple(changes),
            checks=checks,
            seed_questions=MappingProxyType(questions),
            drift=tuple(self.drift),
            refusals=tuple(self.refusals),
            notes=tuple(self.notes),
            records=(*(record for _, record in self.created), *(w.moves.after for w in touched)),
            preparing=tuple(preparing(touched, changes)),
            counters=Counters(entity=self.numbers.entity, archive=self.numbers.archive),
            remembered=tuple(sorted(self._remembered(touched))),
            forgotten=tuple(sorted(self._forgotten(touched))),
            strange=frozenset(self._strange()),
            sizes=self._sizes(),
        )

    def _moves_by_name(self) -> Mapping[str, Moves]:
        return {work.name: work.moves for work in self.works if work.desired is not None}

    def _checks(self, changes: list[Change]) -> tuple[tuple[DataCheck, tuple[int, ...]], ...]:
        asked: list[tuple[DataCheck, tuple[int, ...]]] = []
        seen = {s.table.name: s for work in self.works for s in work.seen.values()}
        for number, change in enumerate(changes, start=1):
            for check in data_checks(
                change, changes=changes, seen=seen, facts=self.facts, definitions=self.definitions
            ):
                asked.append((check, (number,)))
        return tuple(asked)

    def _remembered(self, touched: list[Work]) -> Iterator[tuple[str, str]]:
        schema = self.facts.data_schema
        for _, record in self.created:
            yield from ((schema, name) for name in record.table_names)
            yield from (view.key for view in self.desired[record.name].physical.views)
        for work in touched:
            yield from ((schema, name) for name in work.moves.after.table_names)
            if work.desired is not None:
                yield from (view.key for view in work.desired.physical.views)

    def _forgotten(self, touched: list[Work]) -> Iterator[tuple[str, str]]:
        kept = set(self._remembered(touched))
        for work in touched:
            for old, new in work.moves.tables.items():
                if old != new and (self.facts.data_schema, old) not in kept:
                    yield (self.facts.data_schema, old)
        yield from (key for key in self.views.dropped if key not in kept)

    def _strange(self) -> Iterator[tuple[str, str]]:
        for name in self.strange:
            yield (self.facts.data_schema, name)
            yield (self.facts.data_schema, self.tables.get(name, name))

    def _sizes(self) -> Mapping[str, TableSize]:
        sizes = dict(self.facts.sizes)
        for old, new in self.tables.items():
            if old in self.facts.sizes:
                sizes.setdefault(new, self.facts.sizes[old])
        return MappingProxyType(sizes)
