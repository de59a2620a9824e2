"""What the operator knows of itself, as one frozen value: conditions, commits, the last runs.

Pure: a run goes in, the next state comes out, and the clock is an argument. The conditions are those
that operators of clusters have, so that people and tools can read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from mdm_gitops.errors import MdmError
from mdm_gitops.model.values import to_json_value

HISTORY_LENGTH: Final = 5


class Outcome(StrEnum):
    """How one run ended. Only ``FAILED`` is tried again before something has changed."""

    IN_SYNC = "in-sync"
    APPLIED = "applied"
    APPROVAL_PENDING = "approval-pending"  # a person must allow what the policy does not
    BLOCKED = "blocked"  # rows, guards or strangers stand in the way
    INVALID = "invalid"  # definitions cannot be used; what is sound of them has been applied
    REFUSED = "refused"  # the commit must not be taken: unsigned, or of a rewritten past
    WINDOW_CLOSED = "window-closed"  # it may be applied, at another time
    OUT_OF_SYNC = "out-of-sync"  # seen, and left alone as the mode says
    SUSPENDED = "suspended"
    FAILED = "failed"  # an outage, a lock, a bug

    @property
    def is_good(self) -> bool:
        return self in (Outcome.IN_SYNC, Outcome.APPLIED)

    @property
    def waits_for_somebody(self) -> bool:
        return self in (
            Outcome.APPROVAL_PENDING,
            Outcome.BLOCKED,
            Outcome.INVALID,
            Outcome.REFUSED,
        )


_STALLED: Final = frozenset({Outcome.BLOCKED, Outcome.INVALID, Outcome.REFUSED})
_NOT_READ: Final = frozenset({Outcome.FAILED, Outcome.SUSPENDED})
_NOT_PLANNED: Final = frozenset({*_NOT_READ, Outcome.INVALID, Outcome.REFUSED})


class ConditionType(StrEnum):
    READY = "Ready"  # the warehouse is what the folder says
    RECONCILING = "Reconciling"
    STALLED = "Stalled"  # nothing will happen before a file or a row changes
    DRIFT_DETECTED = "DriftDetected"
    APPROVAL_PENDING = "ApprovalPending"
    SOURCE_VERIFIED = "SourceVerified"  # the commit is signed by somebody who may


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    status: bool
    reason: str  # the outcome that decided it
    message: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One look at the folder that ended in *outcome*."""

    outcome: Outcome
    commit: str | None
    started_at: datetime
    duration_s: float
    message: str
    error: MdmError | None = None  # what stands in the way, where something does
    changes: int = 0
    drift: int | None = None  # differences made by hand that remain; None: nobody could look
    verified: bool | None = None  # None: nobody has to sign, or nobody could look
    signer: str = ""
    healed: int = 0  # differences made by hand that were set right
    code: str = ""  # of *error*; kept where the error itself is not
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class State:
    observed_commit: str | None = None  # last read
    attempted_commit: str | None = None  # last planned
    applied_commit: str | None = None  # the warehouse is what it says
    conditions: Mapping[ConditionType, Condition] = field(
        default_factory=lambda: MappingProxyType({})
    )
    history: tuple[Run, ...] = ()  # newest first

    @property
    def last(self) -> Run | None:
        return self.history[0] if self.history else None

    def is_true(self, condition: ConditionType) -> bool:
        found = self.conditions.get(condition)
        return found is not None and found.status

    def reconciling(self, now: datetime) -> State:
        return self._with({ConditionType.RECONCILING: True}, "Started", "a run is under way", now)

    def after(self, run: Run, *, now: datetime) -> State:
        outcome = run.outcome
        decided = {
            ConditionType.READY: outcome.is_good,
            ConditionType.RECONCILING: outcome is Outcome.FAILED,
            ConditionType.STALLED: outcome in _STALLED,
            ConditionType.APPROVAL_PENDING: outcome is Outcome.APPROVAL_PENDING,
        }
        if run.drift is not None:
            decided[ConditionType.DRIFT_DETECTED] = run.drift > 0
        if run.verified is not None:
            decided[ConditionType.SOURCE_VERIFIED] = run.verified
        planned = outcome not in _NOT_PLANNED
        noted = replace(
            self,
            observed_commit=run.commit if outcome not in _NOT_READ else self.observed_commit,
            attempted_commit=run.commit if planned else self.attempted_commit,
            applied_commit=run.commit if outcome.is_good else self.applied_commit,
            history=self._history(run),
        )
        return noted._with(decided, _reason(outcome), run.message, now)

    def to_document(self) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        return {
            "observedCommit": self.observed_commit,
            "attemptedCommit": self.attempted_commit,
            "appliedCommit": self.applied_commit,
            "conditions": [
                {
                    "type": kind.value,
                    "status": condition.status,
                    "reason": condition.reason,
                    "message": condition.message,
                    "sinceUtc": to_json_value(condition.since),
                }
                for kind, condition in self.conditions.items()
            ],
            "history": [run_document(run) for run in self.history],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> State:
        """Read back what ``to_document`` wrote; of anything else, as much as can be used."""
        try:
            conditions = {
                ConditionType(each["type"]): Condition(
                    status=each["status"],
                    reason=each["reason"],
                    message=each["message"],
                    since=datetime.fromisoformat(each["sinceUtc"]),
                )
                for each in document.get("conditions", ())
            }
            return cls(
                observed_commit=document.get("observedCommit"),
                attempted_commit=document.get("attemptedCommit"),
                applied_commit=document.get("appliedCommit"),
                conditions=MappingProxyType(conditions),
                history=tuple(_run_of(each) for each in document.get("history", ())),
            )
        except (KeyError, ValueError, TypeError):  # of another version
            return cls()

    def _with(
        self, decided: Mapping[ConditionType, bool], reason: str, message: str, now: datetime
    ) -> State:
        conditions = dict(self.conditions)
        for kind, status in decided.items():
            known = conditions.get(kind)
            since = known.since if known is not None and known.status == status else now
            conditions[kind] = Condition(status=status, reason=reason, message=message, since=since)
        return replace(self, conditions=MappingProxyType(conditions))

    def _history(self, run: Run) -> tuple[Run, ...]:
        """A run that ended like the one before, on the same commit, takes its place."""
        last = self.last
        same = last is not None and (last.outcome, last.commit) == (run.outcome, run.commit)
        return (run, *self.history[1 if same else 0 :])[:HISTORY_LENGTH]


def _reason(outcome: Outcome) -> str:
    return "".join(part.capitalize() for part in outcome.value.split("-"))


def run_document(run: Run) -> dict[str, Any]:
    return {
        "outcome": run.outcome.value,
        "commit": run.commit,
        "startedUtc": to_json_value(run.started_at),
        "durationMs": round(run.duration_s * 1000),
        "message": run.message,
        "code": (run.error.kind_code if run.error else run.code) or None,
        "hint": run.error.hint if run.error else run.hint,
        "changes": run.changes,
        "drift": run.drift,
        "healed": run.healed,
        "signer": run.signer or None,
    }


def _run_of(document: Mapping[str, Any]) -> Run:
    return Run(
        outcome=Outcome(document["outcome"]),
        commit=document["commit"],
        started_at=datetime.fromisoformat(document["startedUtc"]),
        duration_s=document["durationMs"] / 1000,
        message=document["message"],
        changes=document["changes"],
        drift=document["drift"],
        signer=document.get("signer") or "",
        healed=document.get("healed", 0),
        code=document["code"] or "",
        hint=document["hint"],
    )
