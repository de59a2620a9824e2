"""The steps of a plan's script: which statements share a transaction, and in what order they come.

``warehouse.script`` says what a step is and numbers them. Loaded where there is something to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from mdm_gitops.plan.changes import AbandonFilling, ApplySeed, Phase
from mdm_gitops.plan.human import plural
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.recorded import EntityState, RecordedEntity
from mdm_gitops.warehouse.ddl import Statement, metadata, statements
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.script import ScriptStep


class StepBuilder:
    """Drafts the steps of one plan; they have no numbers yet."""

    def __init__(self, plan: Plan, schemas: Schemas) -> None:
        self.plan = plan
        self.schemas = schemas
        written = [
            (item.change, replace(statement, change=item.number))
            for item in plan.changes
            for statement in statements(item.change, schemas=schemas)
        ]
        self.statements = [statement for _, statement in written]
        later = (Phase.ENFORCE, Phase.SEED, Phase.LINK)
        self.unfinished = {change.entity for change, s in written if s.phase in later}

    def steps(self) -> Iterator[ScriptStep]:
        yield from self._prepare()
        yield self._flip()
        yield from self._online(Phase.ENFORCE)
        yield from self._seed()
        yield from self._online(Phase.LINK)
        yield from self._finish()

    def _of(self, phase: Phase) -> list[Statement]:
        return [statement for statement in self.statements if statement.phase is phase]

    def _prepare(self) -> Iterator[ScriptStep]:
        """What is given up comes first: it may hold a name that is needed next."""
        abandoned = {
            item.number for item in self.plan.changes if isinstance(item.change, AbandonFilling)
        }
        records = dict(self.plan.preparing)
        ordered = sorted(self._of(Phase.PREPARE), key=lambda s: s.change not in abandoned)
        for group in _grouped(ordered):
            noted: list[Statement] = []
            number = group[0].change
            if group[0].group == metadata.BEGIN:
                # A column under way is recorded together with its coming into being.
                noted.extend(self._begun(records.get(number), number))
            yield self._step(group, noted)

    def _begun(self, record: RecordedEntity | None, number: int) -> Iterator[Statement]:
        counters = metadata.save_counters(self.plan.counters, self.schemas, phase=Phase.PREPARE)
        if record is not None:
            if record.state is EntityState.DEPLOYED:
                # So that the next plan looks at it, also when the definition is as before again.
                record = replace(record, state=EntityState.DEPLOYING)
            yield replace(
                metadata.save_record(record, self.schemas, commit=None, phase=Phase.PREPARE),
                change=number,
            )
        yield from counters

    def _flip(self) -> ScriptStep:
        moves = [*self._of(Phase.FLIP), *self._metadata()]
        ordered = sorted(moves, key=lambda s: s.step or 0)
        count = len(self._of(Phase.FLIP))
        title = (
            f"change tables, rules and records in one transaction ({plural(count, 'statement')})"
        )
        return self._draft(Phase.FLIP, title, ordered)

    def _metadata(self) -> Iterator[Statement]:
        """The last statements of the flip; the looks are noted when everything has moved."""
        plan, schemas = self.plan, self.schemas
        if plan.records:
            yield metadata.free_names((r.entity_id for r in plan.records), schemas)
        for record in plan.records:
            state = self._state(record)
            yield metadata.save_record(
                replace(record, state=state), schemas, commit=plan.base_commit
            )
        yield from metadata.save_counters(plan.counters, schemas)
        yield metadata.project_commit(plan.base_commit, schemas)
        if plan.forgotten:
            yield metadata.forget(plan.forgotten, schemas)
        if plan.remembered:
            yield from self._looks(plan.remembered, Phase.FLIP)

    def _state(self, record: RecordedEntity) -> EntityState:
        if record.state is EntityState.DEPLOYING and record.name not in self.unfinished:
            return EntityState.DEPLOYED
        return record.state

    def _online(self, phase: Phase) -> Iterator[ScriptStep]:
        for group in _grouped(self._of(phase)):
            yield self._step(group, [])

    def _seed(self) -> Iterator[ScriptStep]:
        names: dict[str, list[str]] = {}
        for item in self.plan.changes:
            if isinstance(item.change, ApplySeed):
                names.setdefault(f"seed {item.change.group}", []).append(item.change.entity)
        # Groups ascend: an entity comes after those it refers to.
        by_group = sorted(self._of(Phase.SEED), key=lambda s: int(s.group.split()[1]))
        for group, members in groupby(by_group, key=lambda s: s.group):
            title = f"seed {', '.join(names[group])}"
            yield self._draft(Phase.SEED, title, list(members))

    def _finish(self) -> Iterator[ScriptStep]:
        ids = [
            record.entity_id
            for record in self.plan.records
            if record.state is EntityState.DEPLOYING and record.name in self.unfinished
        ]
        if ids:
            statement = metadata.finish_entities(ids, self.schemas)
            yield self._draft(Phase.FINISH, statement.title, [statement])

    def _step(self, group: list[Statement], noted: list[Statement]) -> ScriptStep:
        """Return the step of *group*, which also notes how the relations look after it."""
        relations = tuple(dict.fromkeys(pair for each in group for pair in each.remembers))
        phase = group[0].phase
        last = self._looks(relations, phase) if relations else []
        return self._draft(phase, group[0].title, [*group, *noted, *last])

    def _looks(self, relations: tuple[tuple[str, str], ...], phase: Phase) -> Iterator[Statement]:
        yield metadata.remember(relations, self.schemas, phase=phase)
        strange = tuple(pair for pair in relations if pair in self.plan.strange)
        if strange:
            yield metadata.look_again(strange, self.schemas, phase=phase)

    def _draft(self, phase: Phase, title: str, members: list[Statement]) -> ScriptStep:
        return ScriptStep(
            number=0,
            phase=phase,
            title=title,
            statements=tuple(members),
            transactional=all(each.transactional for each in members),
        )


def _grouped(ordered: Iterable[Statement]) -> Iterator[list[Statement]]:
    """Yield the statements that share a transaction; without a group each stands alone."""
    for (_, word), members in groupby(ordered, key=lambda s: (s.change, s.group)):
        if word:
            yield list(members)
        else:
            yield from ([member] for member in members)
