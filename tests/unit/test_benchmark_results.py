"""The committed figures: RESULTS.md is what was measured, each target has its figures, each miss its reason."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "benchmarks"
REMADE = "make it anew: python benchmarks/run.py --render"


@pytest.fixture(scope="module")
def told() -> Iterator[Any]:
    """The modules that tell: they import each other by their bare names, as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield importlib.import_module("rendering")


def test_the_page_is_what_the_data_give(told: Any) -> None:
    page = told.results_md(told.results.read(), told.reasons())
    assert told.RESULTS.read_text() == page, REMADE


def test_the_plots_are_what_the_data_give(told: Any) -> None:
    drawn = told.drawings(told.results.read())
    assert {file.name: file.read_text() for file in told.PLOTS.glob("*.svg")} == drawn, REMADE
    for text in drawn.values():
        assert ET.fromstring(text).tag.endswith("svg")


def test_each_target_has_its_figures(told: Any) -> None:
    entries = told.results.read()
    limited = [f for entry in entries.values() for f in entry.figures if f.limit is not None]
    patterns = [
        pattern for group in told.GROUPS for target in group.targets for pattern in target.cases
    ]
    missing = [p for p in patterns if not any(told.fnmatchcase(f.case, p) for f in limited)]
    assert missing == [], "measure these parts: python benchmarks/run.py PART"


def test_each_missed_target_has_a_reason(told: Any) -> None:
    assert told.unexplained() == []


def test_each_reason_has_a_missed_target(told: Any) -> None:
    assert told.stale() == []


def test_each_case_is_told_once(told: Any) -> None:
    cases = Counter(f.case for entry in told.results.read().values() for f in entry.figures)
    assert [case for case, count in cases.items() if count > 1] == []


def test_each_campaign_names_tests_that_are_there(told: Any) -> None:
    modules = {path.stem: path.read_text() for path in ROOT.glob("tests/*/test_*.py")}
    named = [name for each in told.campaigns.WANTED for name in (each.test, each.control)]
    missing = [
        each
        for each in named
        if f"def {each.partition('::')[2]}(" not in modules.get(each.partition("::")[0], "")
    ]
    assert missing == []


def test_a_campaign_is_met_when_it_held_with_all_its_cases(told: Any) -> None:
    wanted = told.campaigns.WANTED[0]
    run = {"held": True, "cases": dict(wanted.cases), "date": "", "seconds": 1, "told": ""}
    fewer = {**run, "cases": {kind: number - 1 for kind, number in wanted.cases.items()}}
    verdicts = [
        told.campaigns.is_met(wanted, each) for each in (run, fewer, {**run, "held": False})
    ]
    assert verdicts == [True, False, False]
    assert not told.campaigns.is_met(wanted, None)
    others = [each.name for each in told.campaigns.WANTED[1:]]
    assert told.campaigns.short({wanted.name: run}) == others


def test_a_small_run_does_not_replace_a_full_one(told: Any, tmp_path: Path) -> None:
    file, [entry, *_] = tmp_path / "results.json", told.results.read().values()
    results = told.results
    full, small = (_sized(told, entry, size) for size in (results.FULL, results.SMALL))
    assert results.keep(small, file=file)
    assert results.keep(full, file=file)
    assert not results.keep(small, file=file)
    assert results.read(file) == {entry.part: full}
    assert results.keep(small, file=file, replaces_full=True)
    assert results.read(file) == {entry.part: small}


def _sized(told: Any, entry: Any, size: str) -> Any:
    held = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    return told.results.Entry(**{**held, "size": size})
