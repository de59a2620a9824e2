"""A plan as a list of numbered steps, and as a text that ``psql`` can run.

A step is what succeeds or fails as one: a transaction, or a single statement that refuses to be in
one. ``warehouse.apply`` runs the same steps that ``to_psql`` prints.

Steps need not be repeated by hand after a crash: a new plan finds what has been done. Each step
that PostgreSQL can take back whole is one transaction with the records that describe it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.plan import Lock, Plan
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.names import Schemas

_STRENGTH = {lock: strength for strength, lock in enumerate(Lock)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptStep:
    number: int  # from 1
    phase: Phase
    title: str
    statements: tuple[Statement, ...]
    transactional: bool  # False: each statement alone, outside of any transaction

    @property
    def lock(self) -> Lock:
        """The strongest lock that the step takes on a table of rows."""
        return max((each.lock for each in self.statements), key=_STRENGTH.__getitem__)

    @property
    def scans(self) -> bool:
        return any(each.scans for each in self.statements)

    @property
    def changes(self) -> tuple[int, ...]:
        """The numbers of the planned changes that the step belongs to."""
        return tuple(sorted({each.change for each in self.statements if each.change}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    plan_id: str
    project: str
    commit: str | None
    actor: str
    entities: tuple[str, ...] = field(repr=False)
    schemas: Schemas
    steps: tuple[ScriptStep, ...] = field(repr=False)

    def of(self, phase: Phase) -> tuple[ScriptStep, ...]:
        return tuple(step for step in self.steps if step.phase is phase)


def build_script(plan: Plan, *, schemas: Schemas, actor: str) -> Script:
    """Return the steps of *plan*; an empty plan has none."""
    steps = _steps(plan, schemas) if plan.changes else ()
    entities = {item.change.entity for item in plan.changes if item.change.entity}
    return Script(
        plan_id=plan.plan_id,
        project=plan.project,
        commit=plan.base_commit,
        actor=actor,
        entities=tuple(sorted(entities)),
        schemas=schemas,
        steps=steps,
    )


def _steps(plan: Plan, schemas: Schemas) -> tuple[ScriptStep, ...]:
    from mdm_gitops.warehouse.script_steps import StepBuilder  # imports sqlglot, which takes 0.1 s

    drafts = StepBuilder(plan, schemas).steps()
    return tuple(replace(step, number=number) for number, step in enumerate(drafts, start=1))
