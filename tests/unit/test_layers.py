"""The shape of the repository that a tool can hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ["mdm_gitops", "operator", "api", "tests", "docs", "examples", "benchmarks"]
MODULES = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
PROGRAM = [path for path in MODULES if path.parts[len(ROOT.parts)] in SOURCES[:3]]


def test_imports_point_down() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", ["operator", "api", "schemas", "examples", "tests"])
def test_folders_that_must_not_be_packages(folder: str) -> None:
    """``operator`` as a package at the root would shadow the standard library's."""
    assert not (ROOT / folder / "__init__.py").exists()
    assert not (ROOT / "tests" / folder / "__init__.py").exists()


def test_the_standard_library_is_not_shadowed() -> None:
    code = "import operator; assert operator.add(1, 2) == 3; print(operator.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert str(ROOT / "operator") not in done.stdout


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module starts with its header"
