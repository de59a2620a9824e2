"""The plan as a frozen value: what will change, what it costs, what blocks it, what has drifted.

Built in ``plan.build``, shown by ``plan.text``, ``plan.markdown`` and ``plan.document``, written as
SQL by ``warehouse.script`` and carried out by ``warehouse.apply``. It is bound to the definitions
and to the live state it was made for; ``plan_id`` is a hash over all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from mdm_gitops.model import ChangeClass
from mdm_gitops.plan.access_report import NO_REPORT, AccessReport
from mdm_gitops.plan.changes import Change
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.plan.recorded import Counters, RecordedEntity


class Lock(StrEnum):
    """PostgreSQL's table lock modes (manual, "Explicit Locking"), the strongest of a change."""

    NONE = "none"
    ROW_EXCLUSIVE = "ROW EXCLUSIVE"
    SHARE_UPDATE_EXCLUSIVE = "SHARE UPDATE EXCLUSIVE"  # writers go on
    SHARE = "SHARE"  # writers wait
    SHARE_ROW_EXCLUSIVE = "SHARE ROW EXCLUSIVE"  # writers wait
    ACCESS_EXCLUSIVE = "ACCESS EXCLUSIVE"  # readers wait; always brief here


class HazardCode(StrEnum):
    """Why a change wants a look. ``apply --allow CODE:entity`` names them; ``*`` is any entity."""

    REMOVES_ENTITY = "REMOVES_ENTITY"
    REMOVES_COLUMN = "REMOVES_COLUMN"
    REMOVES_HISTORY = "REMOVES_HISTORY"
    DELETES_ROWS = "DELETES_ROWS"  # that were deleted softly, for good
    SETS_PENDING_ASIDE = "SETS_PENDING_ASIDE"
    RENAMES_ENTITY = "RENAMES_ENTITY"
    RENAMES_COLUMN = "RENAMES_COLUMN"
    RETYPES_COLUMN = "RETYPES_COLUMN"
    TIGHTENS_RULE = "TIGHTENS_RULE"
    CHANGES_VIEW = "CHANGES_VIEW"
    WIDENS_ACCESS = "WIDENS_ACCESS"
    REVOKES_ACCESS = "REVOKES_ACCESS"
    SENDS_DATA_OUT = "SENDS_DATA_OUT"  # a webhook to a new address


class RefusalCode(StrEnum):
    """Why a plan cannot be applied at all, whatever is allowed (but see ``allowable``)."""

    DATA_CHECK_FAILED = "DATA_CHECK_FAILED"
    PREVENT_REMOVE = "PREVENT_REMOVE"
    LAST_ADMIN = "LAST_ADMIN"
    UNOWNED_OBJECT = "UNOWNED_OBJECT"
    PRUNE_CAP = "PRUNE_CAP"
    RENAME_UNMATCHED = "RENAME_UNMATCHED"
    RENAME_AMBIGUOUS = "RENAME_AMBIGUOUS"
    TARGET_INCOMPLETE = "TARGET_INCOMPLETE"
    ACCESS_TEST_FAILED = "ACCESS_TEST_FAILED"

    @property
    def allowable(self) -> bool:
        return self in (RefusalCode.PRUNE_CAP, RefusalCode.ACCESS_TEST_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    code: HazardCode
    message: str  # one sentence, no final period


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What one change costs. *rows* and *size_bytes* are PostgreSQL's estimates of the tables."""

    change_class: ChangeClass
    lock: Lock = Lock.NONE
    rewrites: bool = False  # writes each row again (online, in batches)
    scans: bool = False  # reads each row
    rows: int = 0
    size_bytes: int = 0
    hazards: tuple[Hazard, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    number: int  # from 1, in the order of the plan
    change: Change
    assessment: Assessment


class Violation(StrEnum):
    """What a data check counts."""

    IS_NULL = "is-null"
    BREAKS_RULE = "breaks-rule"
    IS_DUPLICATE = "is-duplicate"
    REFERS_TO_NOTHING = "refers-to-nothing"
    CANNOT_BE_CAST = "cannot-be-cast"
    NEEDS_DEFAULT = "needs-default"  # a new required column without a default, and rows exist


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCheck:
    """A question to the live rows, in live (pre-plan) names: how many break the new rule?

    *casts* maps a column to (old type, new type) where the rule is about the cast value.
    """

    violation: Violation
    entity: str  # final name, for the reader
    column: str  # final name(s), for the reader
    table: str
    columns: tuple[str, ...]
    rule: RuleKind | None = None
    argument: Any = None
    column_type: str = ""
    casts: Mapping[str, tuple[str, str]] = field(
        default_factory=lambda: MappingProxyType({}), hash=False
    )
    target_table: str | None = None  # None: the target is new and empty
    target_column: str | None = None
    target_cast: tuple[str, str] | None = None  # (old type, new type) of the target's values
    target_values: tuple[Any, ...] = ()  # values that the target's seed will bring
    fixed_count: int | None = None  # known without asking
    masked: bool = False  # about a restricted column: samples name rows, never values


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    check: DataCheck
    violations: int
    samples: tuple[Mapping[str, Any], ...] = ()  # at most 5: {"_sys_id": ..., column: value}
    changes: tuple[int, ...] = ()  # numbers of the planned changes that it blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    code: RefusalCode
    entity: str
    message: str
    hint: str = ""


class DriftKind(StrEnum):
    MISSING = "missing"  # ours, gone by hand; the plan brings it back
    ALTERED = "altered"  # ours, changed by hand; the plan sets it right
    STRANGE = "strange"  # not ours; left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftItem:
    """A difference between what was deployed and what is there, whatever Git says now."""

    kind: DriftKind
    entity: str
    object: str  # ``column vat_id``, ``index ...``
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    project: str
    base_commit: str | None
    desired_hash: str
    live_fingerprint: str
    # What is large is left out of the repr: asyncio prints the result of each task on its way out.
    changes: tuple[PlannedChange, ...] = field(repr=False)
    checks: tuple[CheckResult, ...] = field(default=(), repr=False)
    """All that were asked, also those that found nothing."""
    drift: tuple[DriftItem, ...] = field(default=(), repr=False)
    refusals: tuple[Refusal, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    """What a reviewer should know and nothing acts on."""
    access: AccessReport = field(default=NO_REPORT, repr=False)
    """Tests of access, and who gains and loses rows. Not in ``plan_id``: rows move all the time."""
    entities_total: int = 0
    records: tuple[RecordedEntity, ...] = field(default=(), repr=False)  # as the flip leaves them
    preparing: tuple[tuple[int, RecordedEntity], ...] = field(default=(), repr=False)
    """Per number of a retype that fills a column: the record as its first prepare step writes it."""
    counters: Counters = field(default_factory=Counters, repr=False)
    remembered: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """(schema, relation) whose look the flip must record."""
    forgotten: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """(schema, relation) names that no longer stand after the flip."""
    strange: frozenset[tuple[str, str]] = field(default=frozenset(), repr=False)
    """(schema, relation) that hold what is not ours, so that the next plan looks at them too."""
    plan_id: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.changes

    @property
    def failed_checks(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.checks if result.violations)

    @property
    def is_blocked(self) -> bool:
        return bool(self.refusals)

    @property
    def worst_class(self) -> ChangeClass | None:
        order = list(ChangeClass)
        classes = [item.assessment.change_class for item in self.changes]
        return max(classes, key=order.index) if classes else None
