"""From definitions to what is done about them now: one plan, and the judge's word on it.

What a person must decide is put down as a waiting plan; what a person has approved is applied if the
plan made now is that very plan. Whatever waits, what is deployed is kept as it was deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mdm_gitops.data.access_report import inspector
from mdm_gitops.errors import MdmError, PlanRefused, PlanStale, WarehouseLocked
from mdm_gitops.model import Definitions, fold
from mdm_gitops.model.project import ReconcileMode
from mdm_gitops.plan.build import ACCESS
from mdm_gitops.plan.changes import GrantPermission, RevokePermission
from mdm_gitops.plan.document import to_document
from mdm_gitops.plan.plan import DriftKind, Plan, RefusalCode
from mdm_gitops.plan.policy import Allowance
from mdm_gitops.plan.recorded import EntityState
from mdm_gitops.plan.windows import next_opening
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.apply import Applied, Tell, apply_plan, refuse_blocked, refuse_hazards
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.session import patience_of, schemas_of
from mdm_gitops.warehouse.store import StoreState
from mdm_gitops.warehouse.waiting_plans import (
    Offer,
    WaitingPlan,
    approved_plan,
    end_plans,
    offer_plan,
)
from mdm_operator.judge import Rules, Verdict, verdict_of
from mdm_operator.state import Outcome

_PRUNE_CAP: Final = Allowance(code=RefusalCode.PRUNE_CAP.value, subject="*")
_FOR_LATER: Final = (PlanRefused, PlanStale, WarehouseLocked)


@dataclass(frozen=True, slots=True)
class Found:
    """How a run ended, before it has a time."""

    outcome: Outcome
    message: str
    commit: str | None = None
    error: MdmError | None = None
    changes: int = 0
    drift: int | None = None
    verified: bool | None = None
    signer: str = ""
    healed: int = 0


@dataclass(frozen=True, kw_only=True)
class Deciding:
    conn: Connection
    settings: Settings
    actor: str
    applied_commit: str | None
    planned: Callable[[Plan, Definitions], None]
    tell: Tell

    async def decide(
        self, definitions: Definitions, rules: Rules, deployed: StoreState, *, is_first: bool
    ) -> Found:
        """Bring the warehouse to *definitions* as far as *rules* let it go.

        With *is_first*, all that goes into a warehouse that never held anything is approved.
        """
        plan = await self._plan(definitions)
        if plan.changes or plan.drift or plan.refusals:
            self.planned(plan, definitions)
        kept: Found | None = None
        if self._obstacle(definitions, plan, rules) and _is_altered(plan):
            # First, so that what a person is shown does not hold what needs nobody.
            kept = await self.keep(_in_sync(plan), deployed, rules)
            plan = await self._plan(definitions)
        found = await self._decide(definitions, plan, rules, deployed, is_first=is_first)
        return replace(found, healed=found.healed + kept.healed) if kept else found

    async def _decide(
        self,
        definitions: Definitions,
        plan: Plan,
        rules: Rules,
        deployed: StoreState,
        *,
        is_first: bool,
    ) -> Found:
        if plan.is_empty and not plan.is_blocked:
            await end_plans(self.conn, schemas=schemas_of(self.settings))
            return _in_sync(plan)
        if plan.is_empty:  # there is nothing to apply, and a test of access does not hold
            return await self.keep(_stuck(plan, rules.allowances(definitions)), deployed, rules)
        approved = await approved_plan(self.conn, schemas=schemas_of(self.settings))
        if approved is not None and approved.plan_id == plan.plan_id:
            return await self._apply_approved(definitions, plan, approved, rules)
        if is_first and not deployed.entities and not deployed.removed:
            return await self._apply(definitions, plan, rules, approved=True)
        held = rules.held(plan)
        if held:
            return await self._apply_rest(definitions, plan, rules, deployed, held)
        match verdict_of([rules.mode]):
            case Verdict.LEAVE:
                return await self._left(plan)
            case Verdict.WAIT:
                return await self._wait(definitions, plan, _every_plan_waits(plan), deployed)
            case Verdict.APPLY:
                found = await self._apply(definitions, plan, rules)
        if found.outcome is Outcome.APPROVAL_PENDING:
            return await self._wait(definitions, plan, found, deployed)
        return found

    async def keep(self, found: Found, deployed: StoreState, rules: Rules) -> Found:
        """Set right what was changed by hand past the deployed definitions, whatever else waits."""
        names = [
            name
            for name, entity in deployed.entities.items()
            if rules.mode_of(name) is ReconcileMode.HEAL and entity.state is EntityState.DEPLOYED
        ]
        if not names or not rules.window_is_open or len(names) < _in_heal(deployed, rules):
            return found
        definitions = replace(deployed.definitions, commit=self.applied_commit)
        plan = await self._plan(definitions, names)
        if plan.is_blocked or plan.is_empty:
            return replace(found, drift=len(plan.drift))
        try:
            applied = await self._carry_out(definitions, plan, target=names)
        except _FOR_LATER:  # why the commit waits is what must be told
            return replace(found, drift=len(plan.drift))
        return replace(found, healed=_healed(applied.plan), drift=_strange(applied.plan))

    # --- ways to end ---

    async def _apply(
        self,
        definitions: Definitions,
        plan: Plan,
        rules: Rules,
        *,
        approved: bool = False,
        target: Iterable[str] = (),
    ) -> Found:
        obstacle = self._obstacle(definitions, plan, rules, approved=approved)
        if obstacle is not None:
            return obstacle
        if not rules.window_is_open and not approved:
            return _closed(plan, rules)
        allowances = rules.allowances(definitions)
        applied = await self._carry_out(
            definitions, plan, approved=approved, allowances=allowances, target=target
        )
        if not tuple(target):
            await end_plans(self.conn, schemas=schemas_of(self.settings))
        return _applied(applied)

    def _obstacle(
        self, definitions: Definitions, plan: Plan, rules: Rules, *, approved: bool = False
    ) -> Found | None:
        """Return how it ends where *plan* must not go in as it is."""
        allowances = rules.allowances(definitions)
        try:
            refuse_blocked(plan, allowances)
        except PlanRefused as error:
            # A person who approves a plan allows no test of access that fails by the time of it.
            allowable = all(r.code is RefusalCode.PRUNE_CAP for r in plan.refusals)
            outcome = Outcome.APPROVAL_PENDING if allowable else Outcome.BLOCKED
            return _waiting(outcome, plan, error)
        try:
            if not approved:
                refuse_hazards(plan, definitions, allowances)
        except PlanRefused as error:
            return _waiting(Outcome.APPROVAL_PENDING, plan, error)
        return None

    async def _apply_approved(
        self, definitions: Definitions, plan: Plan, approved: WaitingPlan, rules: Rules
    ) -> Found:
        if not rules.window_is_open:
            return _closed(plan, rules)
        allowances = (*rules.allowances(definitions), _PRUNE_CAP)
        try:
            refuse_blocked(plan, allowances)
        except PlanRefused as error:
            return _waiting(Outcome.BLOCKED, plan, error)
        applied = await self._carry_out(
            definitions,
            plan,
            approved=True,
            allowances=allowances,
            actor=approved.decided_by or self.actor,
        )
        await end_plans(self.conn, schemas=schemas_of(self.settings), applied=plan.plan_id)
        return _applied(applied)

    async def _apply_rest(
        self,
        definitions: Definitions,
        plan: Plan,
        rules: Rules,
        deployed: StoreState,
        held: Mapping[str, ReconcileMode],
    ) -> Found:
        """Do for the other entities what is done for all; what is held waits or is left alone."""
        target = _without(held, plan, definitions, deployed)
        rest = await self._plan(definitions, target) if target else None
        done: Found | None = None
        if rest is not None and not rest.is_empty and rules.mode is ReconcileMode.HEAL:
            done = await self._apply(definitions, rest, rules, target=target)
            if done.outcome is not Outcome.APPLIED:
                if done.outcome is Outcome.APPROVAL_PENDING:
                    done = await self._wait(definitions, plan, done, deployed)
                return done
            plan = await self._plan(definitions)
        verdict = verdict_of([rules.mode, *held.values()])
        found = await self._left(plan)
        if verdict is Verdict.WAIT:
            found = await self._wait(definitions, plan, _every_plan_waits(plan), deployed)
        if done is None:
            return found
        return replace(found, changes=found.changes + done.changes, healed=done.healed)

    async def _left(self, plan: Plan) -> Found:
        await end_plans(self.conn, schemas=schemas_of(self.settings))
        return Found(
            Outcome.OUT_OF_SYNC,
            f"{_count(len(plan.changes), 'change')} left alone, as the mode says",
            commit=plan.base_commit,
            drift=len(plan.drift),
        )

    async def _wait(
        self, definitions: Definitions, plan: Plan, found: Found, deployed: StoreState
    ) -> Found:
        """Put *plan* down for a person."""
        names = {item.change.entity for item in plan.changes if item.change.entity}
        is_wider = any(_is_wider(item.change) for item in plan.changes)
        document = _without_samples(to_document(plan, policy=definitions.project.policy))
        if not is_wider:
            _only_tests_of(names, document)
        offer = Offer(
            plan_id=plan.plan_id,
            commit=plan.base_commit,
            reason=found.message,
            document=document,
            entities=names,
            domains=_domains(names, definitions, deployed),
            is_wider=is_wider,
            changes=len(plan.changes),
        )
        await offer_plan(self.conn, offer, schemas=schemas_of(self.settings))
        return replace(found, outcome=Outcome.APPROVAL_PENDING, changes=len(plan.changes))

    # --- plan and apply ---

    async def _plan(self, definitions: Definitions, target: Iterable[str] = ()) -> Plan:
        return await make_plan(
            self.conn,
            definitions,
            schemas=schemas_of(self.settings),
            target=tuple(target),
            statement_timeout_s=self.settings.Apply.StatementTimeoutSeconds,
            inspect=inspector(self.settings),
        )

    async def _carry_out(
        self,
        definitions: Definitions,
        plan: Plan,
        *,
        approved: bool = False,
        allowances: Iterable[Allowance] = (),
        target: Iterable[str] = (),
        actor: str = "",
    ) -> Applied:
        return await apply_plan(
            self.conn,
            definitions,
            plan,
            schemas=schemas_of(self.settings),
            actor=actor or self.actor,
            target=tuple(target),
            allowances=tuple(allowances),
            approved=approved,
            patience=patience_of(self.settings),
            tell=self.tell,
            inspect=inspector(self.settings, effects=False),
        )


def _is_altered(plan: Plan) -> bool:
    """Whether somebody has changed by hand what is ours."""
    return any(item.kind is not DriftKind.STRANGE for item in plan.drift)


def _in_heal(deployed: StoreState, rules: Rules) -> int:
    return sum(rules.mode_of(name) is ReconcileMode.HEAL for name in deployed.entities)


def _without(
    held: Mapping[str, ReconcileMode], plan: Plan, definitions: Definitions, deployed: StoreState
) -> tuple[str, ...]:
    names = {*definitions.entities, *deployed.entities} - held.keys()
    rights = any(
        isinstance(item.change, GrantPermission | RevokePermission) and item.change.entity in held
        for item in plan.changes
    )
    return tuple(sorted(names)) if rights else (*sorted(names), ACCESS)


def _is_wider(change: object) -> bool:
    """Whether *change* belongs to no entity, or gives rights: a domain's admin decides neither."""
    return not getattr(change, "entity", "") or isinstance(
        change, GrantPermission | RevokePermission
    )


def _domains(names: Iterable[str], definitions: Definitions, deployed: StoreState) -> set[str]:
    found = set()
    for name in names:
        folded = fold(name)
        if folded in definitions.entities:
            found.add(definitions.entities[folded].domain)
        if folded in deployed.entities:
            found.add(deployed.entities[folded].definition.domain)
    for entity in definitions.entities.values():
        former = fold(entity.renamed_from or "")
        if entity.folded in names and former in deployed.entities:
            found.add(deployed.entities[former].definition.domain)
    return found


def _without_samples(document: dict[str, Any]) -> dict[str, Any]:
    """Rows have no place in what is kept for readers: some of them may not see these."""
    checks = document.get("checks")
    for check in checks if isinstance(checks, list) else ():
        check.pop("samples", None)
    return document


def _only_tests_of(entities: Collection[str], document: dict[str, Any]) -> None:
    """Leave out tests of access to other entities, of which a domain's admin need not know."""
    access = document["access"]
    known = {fold(name) for name in entities}
    access["tests"] = [each for each in access["tests"] if fold(each["entity"]) in known]


def _every_plan_waits(plan: Plan) -> Found:
    return Found(
        Outcome.APPROVAL_PENDING,
        f"{_count(len(plan.changes), 'change')} wait for a person, as the mode says",
        commit=plan.base_commit,
        changes=len(plan.changes),
        drift=len(plan.drift),
    )


def _in_sync(plan: Plan) -> Found:
    return Found(
        Outcome.IN_SYNC,
        f"the warehouse is what {_count(plan.entities_total, 'entity', 'entities')} ask for",
        commit=plan.base_commit,
        drift=len(plan.drift),
    )


def _stuck(plan: Plan, allowances: Collection[Allowance]) -> Found:
    try:
        refuse_blocked(plan, allowances)
    except PlanRefused as error:
        return _waiting(Outcome.BLOCKED, plan, error)
    return _in_sync(plan)


def _waiting(outcome: Outcome, plan: Plan, error: PlanRefused) -> Found:
    return Found(
        outcome,
        str(error),
        commit=plan.base_commit,
        error=error,
        changes=len(plan.changes),
        drift=len(plan.drift),
    )


def _closed(plan: Plan, rules: Rules) -> Found:
    opens = next_opening(rules.reconcile.windows, rules.now)
    when = f"{opens:%Y-%m-%d %H:%M} UTC" if opens else "at no time that is set"
    return Found(
        Outcome.WINDOW_CLOSED,
        f"{_count(len(plan.changes), 'change')} wait for the next window: {when}",
        commit=plan.base_commit,
        changes=len(plan.changes),
        drift=len(plan.drift),
    )


def _applied(applied: Applied) -> Found:
    plan = applied.plan
    changes, steps = _count(len(plan.changes), "change"), _count(applied.steps, "step")
    return Found(
        Outcome.APPLIED,
        f"{changes} applied in {steps}",
        commit=plan.base_commit,
        changes=len(plan.changes),
        drift=_strange(plan),
        healed=_healed(plan),
    )


def _strange(plan: Plan) -> int:
    """What is ours has been set right; what is not ours is left alone and still there."""
    return sum(item.kind is DriftKind.STRANGE for item in plan.drift)


def _healed(plan: Plan) -> int:
    return len(plan.drift) - _strange(plan)


def _count(number: int, noun: str, many: str = "") -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
