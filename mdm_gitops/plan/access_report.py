"""What a plan says of access beyond its grants: the tests of the repository, and who gains which rows.

Values only. They are worked out above, where permissions are evaluated and rows are read
(``data.access_report``), because there must be one evaluation of permissions and not two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mdm_gitops.model import Action

MAX_PAIRS: Final = 200  # of principal and entity whose rows are counted


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "unchecked"  # it asks for rows that are only there after the apply


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """How one test of ``access-tests.yaml`` came out under the permissions that are asked for."""

    __test__ = False  # no class of pytest's

    name: str
    place: str  # ``access-tests.yaml:12:5``
    principal: str
    entity: str
    action: Action
    verdict: Verdict
    message: str = ""  # why it failed or cannot be judged; of a passed one what to know of it


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """Rows of now that somebody reaches before and after; active rows, under both permissions."""

    before: int
    after: int
    gained: int
    lost: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessEffect:
    """What a change of permissions does to one principal, entity and action."""

    principal: str  # as permissions spell it
    entity: str
    action: Action
    had: bool  # the action, before
    has: bool
    rows: RowChange | None = None  # None for actions without rows, and where nobody counted
    reason: str = ""  # why nobody counted


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessReport:
    tests: tuple[TestResult, ...] = ()
    effects: tuple[AccessEffect, ...] = field(default=(), repr=False)
    uncounted: int = 0  # pairs of principal and entity beyond what a plan looks at

    @property
    def failed(self) -> tuple[TestResult, ...]:
        return of_verdict(self.tests, Verdict.FAILED)


def of_verdict(results: Sequence[TestResult], verdict: Verdict) -> tuple[TestResult, ...]:
    return tuple(result for result in results if result.verdict is verdict)


NO_REPORT = AccessReport()
