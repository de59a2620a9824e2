"""What a plan says of access, in words."""

from __future__ import annotations

import pytest

from mdm_gitops.model import Action
from mdm_gitops.plan.access_report import (
    AccessEffect,
    AccessReport,
    RowChange,
    TestResult,
    Verdict,
)
from mdm_gitops.plan.access_words import (
    MOST_UNCHECKED,
    effect_lines,
    effect_words,
    test_lines,
    test_summary,
    uncounted_words,
)

# Functions of the product, and no tests.
lines_of_tests, summary_of_tests = test_lines, test_summary
del test_lines, test_summary


def effect(
    had: bool,
    has: bool,
    *rows: int,
    reason: str = "",
    action: Action = Action.READ,
    principal: str = "ana",
) -> AccessEffect:
    names = ("before", "after", "gained", "lost", "total")
    return AccessEffect(
        principal=principal,
        entity="customer",
        action=action,
        had=had,
        has=has,
        rows=RowChange(**dict(zip(names, rows, strict=True))) if rows else None,
        reason=reason,
    )


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (effect(True, True, 5, 7, 3, 1, 9), "gains 3, loses 1 of 9 rows (5 before, 7 after)"),
        (effect(True, True, 5, 8, 3, 0, 9), "gains 3 of 9 rows (5 before, 8 after)"),
        (effect(True, True, 5, 5, 0, 0, 1_234), "the same 5 of 1,234 rows"),
        (effect(False, True, 0, 1, 1, 0, 1), "may now: 1 of 1 row"),
        (effect(True, False, 4, 0, 0, 4, 9), "may no longer: 4 of 9 rows"),
        (effect(False, True), "may now"),
        (effect(True, False, reason="because"), "may no longer (because)"),
        (effect(True, True, reason="because"), "other rows (because)"),
    ],
)
def test_what_an_effect_is(what: AccessEffect, words: str) -> None:
    assert effect_words(what) == words


def test_actions_of_equal_effect_share_a_line_and_nobody_draws_on_the_screen() -> None:
    report = AccessReport(
        effects=(
            effect(True, True, 5, 5, 0, 0, 9),
            effect(True, True, 5, 5, 0, 0, 9, action=Action.WRITE),
            effect(False, True, action=Action.ADMIN),
            effect(False, True, principal="x\x1b[2J"),
        )
    )
    assert [(line.principal, line.actions) for line in effect_lines(report)] == [
        ("ana", "read, write"),
        ("ana", "admin"),
        ("x\\x1b[2J", "read"),
    ]


def result(verdict: Verdict, message: str = "", name: str = "t") -> TestResult:
    return TestResult(
        name=name,
        place="access-tests.yaml:2:5",
        principal="ana",
        entity="customer",
        action=Action.READ,
        verdict=verdict,
        message=message,
    )


def test_tests_are_counted_and_told_where_there_is_something_to_say() -> None:
    report = AccessReport(
        tests=(
            result(Verdict.PASSED),
            result(Verdict.PASSED, "of note"),
            result(Verdict.FAILED, "why"),
            *(result(Verdict.UNCHECKED, "later", name=f"u{n}") for n in range(MOST_UNCHECKED + 2)),
        )
    )
    assert summary_of_tests(report) == (
        f"2 passed, 1 failed, {MOST_UNCHECKED + 2} not checkable before the apply"
    )
    told = list(lines_of_tests(report))
    assert told[0] == (Verdict.FAILED, "t: why (access-tests.yaml:2:5)")
    assert told[1:-1] == [
        *((Verdict.UNCHECKED, f"u{n}: later") for n in range(MOST_UNCHECKED)),
        (Verdict.UNCHECKED, "and 2 more"),
    ]
    assert told[-1] == (Verdict.PASSED, "t: of note")
    assert summary_of_tests(AccessReport()) == "" and not list(lines_of_tests(AccessReport()))


def test_what_is_not_shown_is_said() -> None:
    assert uncounted_words(AccessReport()) == ""
    assert uncounted_words(AccessReport(uncounted=1), hidden=2) == (
        "2 lines more, see --format json;"
        " 1 further pair of principal and entity or more: not counted"
    )
