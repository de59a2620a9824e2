"""What a plan says of access, in words: the same for a terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mdm_gitops.plan.access_report import AccessEffect, AccessReport, Verdict, of_verdict
from mdm_gitops.plan.human import plural, visible

MOST_UNCHECKED: Final = 5
MOST_EFFECTS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectLine:
    """One principal and entity, with the actions that the same is true of."""

    principal: str
    entity: str
    actions: str
    words: str


def test_summary(report: AccessReport) -> str:
    """Return ``12 passed, 1 failed``; "" where there are no tests."""
    counts = {verdict: len(of_verdict(report.tests, verdict)) for verdict in Verdict}
    words = {
        Verdict.PASSED: "passed",
        Verdict.FAILED: "failed",
        Verdict.UNCHECKED: "not checkable before the apply",
    }
    return ", ".join(f"{counts[each]:,} {words[each]}" for each in Verdict if counts[each])


def test_lines(report: AccessReport) -> Iterator[tuple[Verdict, str]]:
    """Yield what is to be said of single tests: failed ones, unchecked ones, passed ones with a note."""
    for result in report.failed:
        yield Verdict.FAILED, visible(f"{result.name}: {result.message} ({result.place})")
    unchecked = of_verdict(report.tests, Verdict.UNCHECKED)
    for result in unchecked[:MOST_UNCHECKED]:
        yield Verdict.UNCHECKED, visible(f"{result.name}: {result.message}")
    if len(unchecked) > MOST_UNCHECKED:
        yield Verdict.UNCHECKED, f"and {len(unchecked) - MOST_UNCHECKED:,} more"
    for result in of_verdict(report.tests, Verdict.PASSED):
        if result.message:
            yield Verdict.PASSED, visible(f"{result.name}: {result.message}")


def effect_lines(report: AccessReport) -> list[EffectLine]:
    """Return the effects in their order, actions of equal effect together."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for effect in report.effects:
        key = (effect.principal, effect.entity, effect_words(effect))
        grouped.setdefault(key, []).append(effect.action.value)
    return [
        EffectLine(
            principal=visible(principal), entity=entity, actions=", ".join(actions), words=words
        )
        for (principal, entity, words), actions in grouped.items()
    ]


def effect_words(effect: AccessEffect) -> str:
    rows = effect.rows
    if effect.had == effect.has:
        change = "" if rows else "other rows"
    else:
        change = "may now" if effect.has else "may no longer"
    if rows is None:
        return f"{change} ({effect.reason})" if effect.reason else change
    total = plural(rows.total, "row")
    if effect.had != effect.has:
        reached = rows.after if effect.has else rows.before
        return f"{change}: {reached:,} of {total}"
    moves = [f"gains {rows.gained:,}"] if rows.gained else []
    moves += [f"loses {rows.lost:,}"] if rows.lost else []
    if not moves:
        return f"the same {rows.after:,} of {total}"
    return f"{', '.join(moves)} of {total} ({rows.before:,} before, {rows.after:,} after)"


def uncounted_words(report: AccessReport, *, hidden: int = 0) -> str:
    """Say what is not shown; "" where everything is."""
    parts = [f"{plural(hidden, 'line')} more, see --format json"] if hidden else []
    if report.uncounted:
        pairs = plural(report.uncounted, "further pair")
        parts.append(f"{pairs} of principal and entity or more: not counted")
    return "; ".join(parts)
