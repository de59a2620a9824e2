"""Which lines and branches the tests ran, by package: printed, and with ``--keep`` into ``coverage.json``.

Reads what ``make coverage`` has measured; how and of what, ``pyproject.toml`` says. Not a judge: it
tells what was found, and which branches of the strictest packages are left.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import coverage

FILE: Final = Path(__file__).with_name("coverage.json")
EVERY_BRANCH: Final = ("mdm_gitops.plan", "mdm_gitops.filter", "mdm_gitops.access")
LEAST_PERCENT: Final = 90.0  # of a module that is not named one by one
_ROOTS: Final = ("api", "operator")

Files = Mapping[str, Mapping[str, Any]]


def main(arguments: Sequence[str]) -> None:
    files = _measured()
    found = summary(files)
    for line in told(found):
        print(line)
    if "--keep" in arguments:
        kept = {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "versions": _versions(), **found}
        FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def summary(files: Files) -> dict[str, Any]:
    """Return what is kept of *files*, the part of that name in the JSON report of coverage.py."""
    modules = sorted((_module(path), each) for path, each in files.items())
    of_package = {
        package: [each for _, each in held]
        for package, held in groupby(modules, key=lambda each: _package(each[0]))
    }
    return {
        "all": _lines(files.values()),
        "packages": {package: _lines(held) for package, held in of_package.items()},
        "branches": {
            package: _branches([each for each in modules if _package(each[0]) == package])
            for package in EVERY_BRANCH
        },
        "low": {
            module: lines
            for module, each in modules
            if (lines := _lines([each]))["percent"] < LEAST_PERCENT
        },
    }


def told(found: Mapping[str, Any]) -> Iterable[str]:
    """Yield *found* as lines for people."""
    for name, lines in [*found["packages"].items(), *found["low"].items(), ("all", found["all"])]:
        yield f"{name:40} {lines['covered']:6,} of {lines['lines']:6,} lines {lines['percent']:6.1f} %"
    for name, branches in found["branches"].items():
        yield f"{name:40} {branches['covered']:6,} of {branches['branches']:6,} branches"
        yield from (f"    {each}" for each in branches["missing"])


def _measured() -> Files:
    data = coverage.Coverage()
    data.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        data.json_report(outfile=str(report))
        files: Files = json.loads(report.read_text())["files"]
    return files


def _versions() -> dict[str, str]:
    return {"Python": platform.python_version(), "coverage": coverage.__version__}


def _module(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    named = parts[1:] if parts[0] in _ROOTS else parts
    return ".".join(named).removesuffix(".__init__")


def _package(module: str) -> str:
    """Return the part of the program that *module* belongs to: one level below ``mdm_gitops``."""
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == "mdm_gitops" and rest else first


def _lines(files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    summaries = [each["summary"] for each in files]
    lines = sum(each["num_statements"] for each in summaries)
    covered = sum(each["covered_lines"] for each in summaries)
    # Cut, not rounded: 100 means all.
    percent = int(1000 * covered / lines) / 10 if lines else 100.0
    return {"lines": lines, "covered": covered, "percent": percent}


def _branches(modules: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    held = list(modules)
    return {
        "branches": sum(each["summary"]["num_branches"] for _, each in held),
        "covered": sum(each["summary"]["covered_branches"] for _, each in held),
        "missing": [
            f"{module}: line {start} to {'the end' if end < 0 else f'line {end}'}"
            for module, each in held
            for start, end in each["missing_branches"]
        ],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
