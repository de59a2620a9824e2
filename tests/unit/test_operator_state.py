"""What the operator says of itself after each kind of run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mdm_gitops.errors import PlanRefused
from mdm_operator.state import HISTORY_LENGTH, ConditionType, Outcome, Run, State

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
READY, RECONCILING, STALLED, DRIFT, APPROVAL = (
    ConditionType.READY,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
    ConditionType.DRIFT_DETECTED,
    ConditionType.APPROVAL_PENDING,
)


def a_run(outcome: Outcome, commit: str | None = "a1", drift: int | None = 0) -> Run:
    return Run(
        outcome=outcome,
        commit=commit,
        started_at=NOON,
        duration_s=0.25,
        message=f"it is {outcome.value}",
        drift=drift,
    )


@pytest.mark.parametrize(
    ("outcome", "true"),
    [
        (Outcome.IN_SYNC, {READY}),
        (Outcome.APPLIED, {READY}),
        (Outcome.APPROVAL_PENDING, {APPROVAL}),
        (Outcome.BLOCKED, {STALLED}),
        (Outcome.INVALID, {STALLED}),
        (Outcome.REFUSED, {STALLED}),
        (Outcome.WINDOW_CLOSED, set()),
        (Outcome.OUT_OF_SYNC, set()),
        (Outcome.SUSPENDED, set()),
        (Outcome.FAILED, {RECONCILING}),
    ],
)
def test_conditions(outcome: Outcome, true: set[ConditionType]) -> None:
    state = State().reconciling(NOON).after(a_run(outcome), now=NOON)
    assert {kind for kind in ConditionType if state.is_true(kind)} == true
    assert state.conditions[READY].message == f"it is {outcome.value}"


def test_reasons_are_single_words() -> None:
    state = State().after(a_run(Outcome.APPROVAL_PENDING), now=NOON)
    assert state.conditions[READY].reason == "ApprovalPending"


@pytest.mark.parametrize(
    ("outcome", "commits"),
    [
        (Outcome.IN_SYNC, ("b2", "b2", "b2")),
        (Outcome.APPLIED, ("b2", "b2", "b2")),
        (Outcome.APPROVAL_PENDING, ("b2", "b2", "a1")),
        (Outcome.BLOCKED, ("b2", "b2", "a1")),
        (Outcome.INVALID, ("b2", "a1", "a1")),
        (Outcome.REFUSED, ("b2", "a1", "a1")),
        (Outcome.WINDOW_CLOSED, ("b2", "b2", "a1")),
        (Outcome.SUSPENDED, ("a1", "a1", "a1")),
        (Outcome.FAILED, ("a1", "a1", "a1")),
    ],
)
def test_commits(outcome: Outcome, commits: tuple[str, str, str]) -> None:
    state = State().after(a_run(Outcome.IN_SYNC), now=NOON)
    state = state.after(a_run(outcome, "b2"), now=NOON)
    assert (state.observed_commit, state.attempted_commit, state.applied_commit) == commits


def test_drift_stays_known_while_nobody_can_look() -> None:
    state = State().after(a_run(Outcome.IN_SYNC, drift=2), now=NOON)
    assert state.is_true(DRIFT)
    state = state.after(a_run(Outcome.FAILED, drift=None), now=NOON)
    assert state.is_true(DRIFT)
    state = state.after(a_run(Outcome.IN_SYNC, drift=0), now=NOON)
    assert not state.is_true(DRIFT)


def test_since_moves_with_the_status_only() -> None:
    later = NOON + timedelta(minutes=5)
    state = State().after(a_run(Outcome.IN_SYNC), now=NOON)
    state = state.after(a_run(Outcome.APPLIED), now=later)
    assert state.conditions[READY].since == NOON
    state = state.after(a_run(Outcome.BLOCKED), now=later)
    assert state.conditions[READY].since == later


def test_history_is_short_and_folds_what_repeats() -> None:
    state = State()
    for number in range(HISTORY_LENGTH + 3):
        for _ in range(2):
            state = state.after(a_run(Outcome.IN_SYNC, f"c{number}"), now=NOON)
    assert [run.commit for run in state.history] == ["c7", "c6", "c5", "c4", "c3"]
    assert state.last is state.history[0]


def test_document() -> None:
    error = PlanRefused("two rows are in the way", hint="correct them")
    run = replace(a_run(Outcome.BLOCKED), error=error, changes=3)
    document = State().after(run, now=NOON).to_document()
    assert document["attemptedCommit"] == "a1"
    assert State.from_document(document).to_document() == document
    assert State.from_document({"history": 3}) == State.from_document({}) == State()
    assert document["conditions"][0] == {
        "type": "Ready",
        "status": False,
        "reason": "Blocked",
        "message": "it is blocked",
        "sinceUtc": "2026-05-01T12:00:00Z",
    }
    assert document["history"] == [
        {
            "outcome": "blocked",
            "commit": "a1",
            "startedUtc": "2026-05-01T12:00:00Z",
            "durationMs": 250,
            "message": "it is blocked",
            "code": "PLAN_REFUSED",
            "hint": "correct them",
            "changes": 3,
            "drift": 0,
            "healed": 0,
            "signer": None,
        }
    ]
