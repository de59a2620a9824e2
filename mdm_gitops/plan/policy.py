"""What a person must still allow before a plan may be applied. Pure.

The project's policy names the classes that go in by themselves. Any other change needs an allowance
for each of its hazards, or for its class where it has none. An allowance names what it is for:
``REMOVES_COLUMN:customer`` lets columns of one entity go, ``REMOVES_COLUMN:*`` those of any. What
belongs to no entity goes by the file it is written in (``SENDS_DATA_OUT:webhooks.yaml``).

Somebody who is shown the plan and says yes to it allows all that was shown; then nothing of this
is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from mdm_gitops.errors import InputError
from mdm_gitops.model import ChangeClass, Policy, fold
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.plan.changes import (
    AddWebhook,
    Change,
    ChangeProject,
    ChangeWebhook,
    GrantPermission,
    RemoveWebhook,
    RevokePermission,
)
from mdm_gitops.plan.plan import HazardCode, Plan, PlannedChange, Refusal, RefusalCode
from mdm_gitops.plan.verdicts import CLASS_MEANING

ANY: Final = "*"
_FILES: Final = ("permissions.yaml", "webhooks.yaml", "mdm.yaml")


def class_code(change_class: ChangeClass) -> str:
    """Return the class as an allowance spells it: ``SECURITY_WIDENING``."""
    return change_class.value.replace("-", "_").upper()


CODES: Final = (
    *(code.value for code in HazardCode),
    *(class_code(change_class) for change_class in ChangeClass),
    *(code.value for code in RefusalCode if code.allowable),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One ``--allow``: a hazard, a class or an allowable refusal, for one subject or for any."""

    code: str
    subject: str  # folded entity name, a file's name, or ``*``

    @classmethod
    def parse(cls, text: str, *, entities: Collection[str] = ()) -> Allowance:
        """Read ``CODE:entity`` or ``CODE:*``; with *entities*, the name must be one of them.

        Raises:
            InputError: *text* has another form, or names no code or no entity there is.
        """
        code, colon, subject = (part.strip() for part in text.partition(":"))
        code = code.upper().replace("-", "_")
        if code not in CODES:
            hint = did_you_mean(code, CODES) or "the plan names what to allow"
            raise InputError(f"{text[:80]!r} names no hazard", hint=hint)
        if not colon or not subject:
            hint = f"write {code}:<entity>, or {code}:* for any"
            raise InputError(f"{text[:80]!r} does not say for what", hint=hint)
        known = {fold(name) for name in entities} | {ANY, *_FILES}
        if entities and fold(subject) not in known:
            raise InputError(
                f"{text[:80]!r} names no entity of this plan", hint=did_you_mean(subject, known)
            )
        return cls(code=code, subject=fold(subject))

    def covers(self, code: str, subject: str) -> bool:
        return self.code == code and self.subject in (ANY, subject)

    def __str__(self) -> str:
        return f"{self.code}:{self.subject}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unallowed:
    """One thing that nobody has allowed yet."""

    code: str
    subject: str
    message: str
    item: PlannedChange | None  # None for the plan as a whole

    @property
    def allowance(self) -> Allowance:
        return Allowance(code=self.code, subject=self.subject)

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--allow {self.allowance}"


def committed_allowances(policy: Policy, *, today: date) -> tuple[Allowance, ...]:
    """Return what the definitions themselves allow on *today* (UTC); no allowance is for everything."""
    return tuple(
        Allowance(code=code, subject=fold(subject))
        for each in policy.allowances
        if date.fromisoformat(each.until) >= today
        for code, _, subject in [each.allow.partition(":")]
        if code in CODES
    )


def subject_of(change: Change) -> str:
    """Return what an allowance for *change* is for: its entity, or the file it is written in."""
    match change:
        case GrantPermission() | RevokePermission():
            return change.grant.entity or "permissions.yaml"
        case AddWebhook() | ChangeWebhook() | RemoveWebhook():
            return "webhooks.yaml"
        case ChangeProject():
            return "mdm.yaml"
        case _:
            return change.entity or ANY


def needed(item: PlannedChange) -> Iterator[tuple[str, str]]:
    """Yield (code, message) of what *item* must be allowed for, where its class needs it."""
    for hazard in item.assessment.hazards:
        yield hazard.code.value, hazard.message
    if not item.assessment.hazards:
        change_class = item.assessment.change_class
        yield class_code(change_class), CLASS_MEANING[change_class]


def refused_hazards(
    plan: Plan, *, policy: Policy, allowances: Collection[Allowance] = ()
) -> tuple[Unallowed, ...]:
    """Return what a person must still allow, in the order of the plan."""
    refused = []
    for item in plan.changes:
        if item.assessment.change_class in policy.auto_apply:
            continue
        subject = subject_of(item.change)
        for code, message in needed(item):
            if not any(allowance.covers(code, subject) for allowance in allowances):
                refused.append(Unallowed(code=code, subject=subject, message=message, item=item))
    return tuple(refused)


def standing_refusals(plan: Plan, *, allowances: Collection[Allowance] = ()) -> tuple[Refusal, ...]:
    """Return the refusals that no allowance lifts; only a few codes can be lifted at all."""
    return tuple(
        refusal
        for refusal in plan.refusals
        if not refusal.code.allowable
        or not any(a.covers(refusal.code.value, refusal.entity or ANY) for a in allowances)
    )


def unused(plan: Plan, allowances: Iterable[Allowance]) -> tuple[Allowance, ...]:
    """Return the allowances that nothing in *plan* asks for: out of date, or misspelt."""
    asked = {(code, subject_of(item.change)) for item in plan.changes for code, _ in needed(item)}
    asked |= {(refusal.code.value, refusal.entity or ANY) for refusal in plan.refusals}
    return tuple(
        allowance
        for allowance in allowances
        if not any(allowance.covers(code, subject) for code, subject in asked)
    )
