"""``examples/demo.py`` does what it says, in a clone that has nothing but the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"


def run_demo(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.fixture
def leftovers() -> set[Path]:
    return set((ROOT / ".work").glob("demo-*"))


def test_demo(pg_major: int, leftovers: set[Path]) -> None:
    done = run_demo(
        Mdm__Database__EmbeddedMajor=str(pg_major),
        # It must never reach a database that the caller's settings name.
        Mdm__Database__Url="postgresql://127.0.0.1:1/nobody",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    titles = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    assert [line.split(".")[0] for line in titles] == [f"== {n}" for n in range(1, 9)]
    assert done.stdout.count("  ok: ") >= 14
    assert set((ROOT / ".work").glob("demo-*")) <= leftovers


def test_a_demo_that_lies_fails(leftovers: set[Path]) -> None:
    """The control: with a server that cannot start, the first expectation does not hold."""
    done = run_demo(Mdm__Database__EmbeddedMajor="17")
    assert done.returncode == 1
    assert "The demo failed" in done.stdout
    assert set((ROOT / ".work").glob("demo-*")) <= leftovers
