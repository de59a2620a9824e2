"""What of a plan the operator may do now, by itself: mode, suspensions, policy, windows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from mdm_gitops.model import Definitions, fold
from mdm_gitops.model.project import Reconcile, ReconcileMode
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.policy import Allowance, committed_allowances
from mdm_gitops.plan.windows import is_open

_ORDER = list(ReconcileMode)


class Verdict(StrEnum):
    APPLY = "apply"
    WAIT = "wait"  # for a person
    LEAVE = "leave"  # tell, and do nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds at one moment. *limit* is the setting's mode, which definitions cannot exceed."""

    reconcile: Reconcile
    limit: ReconcileMode
    suspended: frozenset[str]  # folded names of entities
    now: datetime

    @property
    def mode(self) -> ReconcileMode:
        return least(self.reconcile.mode, self.limit)

    @property
    def window_is_open(self) -> bool:
        return is_open(self.reconcile.windows, self.now)

    def mode_of(self, entity: str) -> ReconcileMode:
        """Return the mode for an entity, by its folded name; "" is what belongs to none."""
        if entity in self.suspended:
            return ReconcileMode.OBSERVE
        modes = [
            override.mode
            for override in self.reconcile.overrides
            if entity in {fold(name) for name in override.entities}
        ]
        return least(self.mode, *modes)

    def held(self, plan: Plan) -> Mapping[str, ReconcileMode]:
        """Return the entities of *plan* for which less is done than for all."""
        names = {item.change.entity for item in plan.changes if item.change.entity}
        return {name: mode for name in names if (mode := self.mode_of(name)) is not self.mode}

    def allowances(self, definitions: Definitions) -> tuple[Allowance, ...]:
        today = self.now.astimezone(UTC).date()
        return committed_allowances(definitions.project.policy, today=today)


def least(*modes: ReconcileMode) -> ReconcileMode:
    return max(modes, key=_ORDER.index)


def verdict_of(modes: Collection[ReconcileMode]) -> Verdict:
    """Return what is done for changes under *modes*: a person is asked where one of them wants it."""
    if ReconcileMode.PLAN_ONLY in modes:
        return Verdict.WAIT
    return Verdict.LEAVE if ReconcileMode.OBSERVE in modes else Verdict.APPLY
