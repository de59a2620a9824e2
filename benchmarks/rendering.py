"""RESULTS.md and the plots, made of what was kept in this folder; nothing is measured here."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import campaigns
import plots
import results
from figures import Figure
from results import Entry
from targets import GROUPS, Group, Target

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "RESULTS.md"
REASONS: Final = HERE / "reasons.toml"
COVERAGE: Final = HERE / "coverage.json"
PLOTS: Final = HERE / "plots"
LEAST_LINES_PERCENT: Final = 95
_CAMPAIGN: Final = "campaign "  # so begins the case of a reason that belongs to one
_INTRODUCTION: Final = """\
# Measured figures

Made by `make bench` and `make bench-full` from what they measured ([results.json](results.json)), by `make soak` from
what its campaigns found ([campaigns.json](campaigns.json)), and by `make coverage` ([coverage.json](coverage.json)).

A ratio compares two things measured in the same run on the same machine; absolute figures stand beside it and
say as much about the machine as about us. Server, clients and database share its processors. Everything is on:
API key, permissions, validation, audit, history; only the rate limit is off. The limit is PostgreSQL itself:
`pgbench` with one prepared statement per request, `psql` with `COPY`, on an equal table without checks of ours,
audit and history. Times are the least of several rounds, where nothing else is said. How to measure and to read
this: [the guide](../docs/guides/benchmarks.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    case: str
    why: str
    tried: str = ""


def write() -> None:
    entries = results.read()
    RESULTS.write_text(results_md(entries, reasons()))
    PLOTS.mkdir(exist_ok=True)
    drawn = drawings(entries)
    for file in PLOTS.glob("*.svg"):
        if file.name not in drawn:
            file.unlink()
    for name, svg in drawn.items():
        (PLOTS / name).write_text(svg)


def reasons(file: Path = REASONS) -> list[Reason]:
    return [Reason(**each) for each in tomllib.loads(file.read_text()).get("missed", [])]


def reason_of(figure: Figure, told: Iterable[Reason]) -> Reason | None:
    return next((each for each in told if fnmatchcase(figure.case, each.case)), None)


def unexplained() -> list[str]:
    """Return the cases of missed targets without a reason."""
    told = reasons()
    missed = [each.case for each in _missed(results.read()) if not reason_of(each, told)]
    return missed + [
        f"{_CAMPAIGN}{name}"
        for name in campaigns.short(campaigns.read())
        if name not in _of_campaigns(told)
    ]


def stale() -> list[str]:
    """Return the cases of reasons without a missed target."""
    missed = [figure.case for figure in _missed(results.read())]
    missed += [f"{_CAMPAIGN}{wanted.name}" for wanted in campaigns.WANTED]
    return [each.case for each in reasons() if not any(fnmatchcase(m, each.case) for m in missed)]


def _of_campaigns(told: Iterable[Reason]) -> dict[str, str]:
    """Return why, by the names of campaigns."""
    return {
        each.case.removeprefix(_CAMPAIGN): f"{each.why} Tried: {each.tried}"
        if each.tried
        else each.why
        for each in told
        if each.case.startswith(_CAMPAIGN)
    }


def figures_of(target: Target, entries: Mapping[str, Entry]) -> list[Figure]:
    """Return the figures of *target*, in the order of its patterns."""
    found: dict[str, Figure] = {}
    for pattern in target.cases:
        for figure in _figures(entries.values()):
            if fnmatchcase(figure.case, pattern):
                found.setdefault(figure.case, figure)
    return list(found.values())


def drawings(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the plots by the names of their files."""
    return {
        f"{entry.part}.svg": plots.sheet(entry.curves) for entry in entries.values() if entry.curves
    }


def results_md(entries: Mapping[str, Entry], told: Iterable[Reason]) -> str:
    lines = [_INTRODUCTION, *_how(entries)]
    for group in GROUPS:
        lines += ["", f"## {group.title}", ""]
        lines += [*_targets(group, entries), *_others(group, entries)]
        lines += [*_drawn(group, entries), *_why(group, entries, list(told))]
    lines += ["", *campaigns.lines(campaigns.read(), _of_campaigns(told)), "", *_code()]
    return "\n".join(lines) + "\n"


def _code() -> Iterator[str]:
    """Tell what is wanted of the code, and what ``make coverage`` and the clock have found."""
    yield "## Code"
    yield ""
    yield "| target | measured | | beside it |"
    yield "|---|---:|---|---|"
    if COVERAGE.exists():
        yield from _coverage(json.loads(COVERAGE.read_text()))
    for each in tomllib.loads(REASONS.read_text()).get("by_hand", []):
        verdict = "met" if each["met"] else "**MISSED**"
        yield f"| {each['target']} | {each['measured']} | {verdict} | {each['told']} |"


def _coverage(found: Mapping[str, Any]) -> Iterator[str]:
    lines, branches = found["all"], found["branches"]
    verdict = "met" if lines["percent"] >= LEAST_LINES_PERCENT else "**MISSED**"
    how = found.get("told", "`make coverage`")  # what was joined by hand says so
    yield (
        f"| lines that tests run: >= {LEAST_LINES_PERCENT} % | {lines['percent']} % | {verdict} |"
        f" {lines['covered']:,} of {lines['lines']:,}, {found['date']}; {how} |"
    )
    all_there = sum(each["branches"] for each in branches.values())
    run = sum(each["covered"] for each in branches.values())
    verdict = "met" if run == all_there else "**MISSED**"
    told = "; ".join(
        f"{name} {e['covered']:,} of {e['branches']:,}" for name, e in branches.items()
    )
    percent = int(1000 * run / all_there) / 10
    yield (
        "| branches of `plan`, `filter` and `access` that tests run: 100 % |"
        f" {percent} % | {verdict} | {told} |"
    )


def _how(entries: Mapping[str, Entry]) -> Iterator[str]:
    met = [each for each in _figures(entries.values()) if each.limit is not None]
    missed = sum(not each.is_met for each in met)
    yield f"{len(met)} figures have a target: {len(met) - missed} meet it, {missed} do not."
    yield ""
    for text in sorted({_versions(entry) for entry in entries.values()}):
        yield f"- {text}"
    yield ""
    yield "| part | measured | size | took | processors busy before |"
    yield "|---|---|---|---:|---:|"
    order = [part for group in GROUPS for part in group.parts]
    for entry in sorted(entries.values(), key=lambda each: order.index(each.part)):
        size = "that of the targets" if entry.size == results.FULL else "smaller"
        busy = f"{entry.busy_before:.0%}"
        yield f"| {entry.part} | {entry.date} | {size} | {entry.seconds:.0f} s | {busy} |"


def _versions(entry: Entry) -> str:
    return "; ".join((entry.machine, *(f"{name} {text}" for name, text in entry.versions.items())))


def _targets(group: Group, entries: Mapping[str, Entry]) -> Iterator[str]:
    if not group.targets:
        return
    yield "| target | case | measured | wanted | | beside it |"
    yield "|---|---|---:|---:|---|---|"
    for target in group.targets:
        first = target.wanted
        found = [each for each in figures_of(target, entries) if each.limit is not None]
        if not found:
            yield f"| {first} | | not measured | | | |"
        for each in found:
            yield f"| {first} | {_cells(each)} |"
            first = ""


def _others(group: Group, entries: Mapping[str, Entry]) -> Iterator[str]:
    held = {
        each.case
        for every in GROUPS
        for target in every.targets
        for each in figures_of(target, entries)
        if each.limit is not None
    }
    own = [entries[part] for part in group.parts if part in entries]
    others = [each for each in _figures(own) if each.case not in held]
    if not others:
        return
    if group.targets:
        yield from ("", "Measured beside these:", "")
    yield "| case | measured | wanted | | beside it |"
    yield "|---|---:|---:|---|---|"
    for each in others:
        yield f"| {_cells(each)} |"


def _cells(figure: Figure) -> str:
    verdict = f"**{figure.verdict}**" if not figure.is_met else figure.verdict
    return f"{figure.case} | {figure.text} | {figure.limit_text} | {verdict} | {figure.note}"


def _drawn(group: Group, entries: Mapping[str, Entry]) -> Iterator[str]:
    for part in group.parts:
        if part in entries and entries[part].curves:
            titles = "; ".join(curve.title for curve in entries[part].curves)
            yield from ("", f"![{titles}](plots/{part}.svg)")


def _why(group: Group, entries: Mapping[str, Entry], told: list[Reason]) -> Iterator[str]:
    own = [entries[part] for part in group.parts if part in entries]
    missed = [each for each in _figures(own) if not each.is_met]
    if not missed:
        return
    yield from ("", "Missed, and why:", "")
    shown: dict[Reason | None, list[str]] = {}
    for each in missed:
        shown.setdefault(reason_of(each, told), []).append(each.case)
    for reason, cases in shown.items():
        yield f"- **{'; '.join(cases)}**: {_because(reason)}"


def _because(reason: Reason | None) -> str:
    if reason is None:
        return "no reason is told yet."
    return f"{reason.why.strip()}{' Tried: ' + reason.tried.strip() if reason.tried else ''}"


def _figures(entries: Iterable[Entry]) -> list[Figure]:
    return [figure for entry in entries for figure in entry.figures]


def _missed(entries: Mapping[str, Entry]) -> list[Figure]:
    return [figure for figure in _figures(entries.values()) if not figure.is_met]
