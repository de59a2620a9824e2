"""One line of a plan as a person reads it, and what all renderers ask of it.

Which changes are in a line is decided in ``plan.fold``, how it looks in ``plan.text`` and its siblings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mdm_gitops.model import ChangeClass
from mdm_gitops.plan.plan import CheckResult, PlannedChange
from mdm_gitops.plan.verdicts import cost_words
from mdm_gitops.plan.words import Symbol

_CLASSES: Final = list(ChangeClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One logical change. *items* are all planned changes in it, the telling one first."""

    symbol: Symbol
    headline: str
    detail: str = ""
    items: tuple[PlannedChange, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    is_quiet: bool = False  # its class comes from another line of the same change

    @property
    def change_class(self) -> ChangeClass:
        classes = (item.assessment.change_class for item in self.items)
        return ChangeClass.SAFE if self.is_quiet else worst(classes)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.checks if result.violations)

    @property
    def is_blocked(self) -> bool:
        return bool(self.failed)

    @property
    def is_proven(self) -> bool:
        """Whether the live rows were asked and none is in the way."""
        return bool(self.checks) and not self.failed

    @property
    def cost(self) -> str:
        return cost_words([item.assessment for item in self.items])


def worst(classes: Iterable[ChangeClass]) -> ChangeClass:
    return max(classes, key=_CLASSES.index, default=ChangeClass.SAFE)
