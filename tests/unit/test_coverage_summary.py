"""What is kept of a measurement of the tests: lines by package, and the branches that are left."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def told() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield importlib.import_module("coverage_summary")


def test_what_was_measured_last_meets_the_targets(told: Any) -> None:
    kept = json.loads(told.FILE.read_text())
    assert kept["all"]["percent"] >= 95
    assert {package: each["missing"] for package, each in kept["branches"].items()} == {
        "mdm_gitops.plan": [],
        "mdm_gitops.filter": [],
        "mdm_gitops.access": [],
    }


def _file(lines: int, covered: int, branches: int = 0, missing: Any = ()) -> dict[str, Any]:
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": covered,
            "num_branches": branches,
            "covered_branches": branches - len(missing),
        },
        "missing_branches": list(missing),
    }


FILES = {
    "mdm_gitops/plan/text.py": _file(100, 99, 20, [[3, 7], [5, -1]]),
    "mdm_gitops/plan/words.py": _file(100, 100, 10),
    "mdm_gitops/filter/ast.py": _file(50, 50, 4),
    "mdm_gitops/errors.py": _file(10, 10),
    "api/mdm_api/parent.py": _file(20, 10, 6, [[1, 2]]),
    "api/mdm_api/imports/csv.py": _file(20, 20),
    "operator/mdm_operator/__init__.py": _file(0, 0),
}


def test_lines_are_counted_by_package(told: Any) -> None:
    found = told.summary(FILES)
    assert found["all"] == {"lines": 300, "covered": 289, "percent": 96.3}
    assert found["packages"] == {
        "mdm_api": {"lines": 40, "covered": 30, "percent": 75.0},
        "mdm_gitops.errors": {"lines": 10, "covered": 10, "percent": 100.0},
        "mdm_gitops.filter": {"lines": 50, "covered": 50, "percent": 100.0},
        "mdm_gitops.plan": {"lines": 200, "covered": 199, "percent": 99.5},
        "mdm_operator": {"lines": 0, "covered": 0, "percent": 100.0},
    }


def test_the_branches_that_are_left_are_named(told: Any) -> None:
    assert told.summary(FILES)["branches"] == {
        "mdm_gitops.plan": {
            "branches": 30,
            "covered": 28,
            "missing": [
                "mdm_gitops.plan.text: line 3 to line 7",
                "mdm_gitops.plan.text: line 5 to the end",
            ],
        },
        "mdm_gitops.filter": {"branches": 4, "covered": 4, "missing": []},
        "mdm_gitops.access": {"branches": 0, "covered": 0, "missing": []},
    }


def test_modules_with_few_of_their_lines_are_named(told: Any) -> None:
    low = told.summary(FILES)["low"]
    assert low == {"mdm_api.parent": {"lines": 20, "covered": 10, "percent": 50.0}}


def test_all_but_one_is_not_all(told: Any) -> None:
    found = told.summary({"mdm_gitops/plan/text.py": _file(100_000, 99_999)})
    assert found["all"]["percent"] == 99.9


def test_it_is_told_line_by_line(told: Any) -> None:
    lines = [" ".join(line.split()) for line in told.told(told.summary(FILES))]
    assert "mdm_gitops.plan 199 of 200 lines 99.5 %" in lines
    assert "mdm_api.parent 10 of 20 lines 50.0 %" in lines
    assert "all 289 of 300 lines 96.3 %" in lines
    assert "mdm_gitops.plan.text: line 3 to line 7" in lines
