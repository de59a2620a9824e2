"""A real life: a remote, a developer, the operator and the API as processes, and what goes wrong.

After each round the warehouse is what the last acceptable commit says, every row that was ever
written is there, and the status says why a commit was not taken.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.life import Life

SEED = int(os.environ.get("MDM_LIFE_SEED") or 20261121)


def test_fifty_commits(tmp_path: Path, database_url: str) -> None:
    with Life(tmp_path / "life", database_url, seed=SEED) as life:
        for _ in range(50):
            life.round()
        assert {
            "good",
            "person_needed",
            "break_file",
            "revert",
            "unsigned",
            "rewrite",
            "drift",
        } <= set(life.did), life.summary()
        assert life.kills, life.summary()


@pytest.mark.soak
def test_two_thousand_commits(tmp_path: Path, database_url: str) -> None:
    with Life(tmp_path / "life", database_url, seed=SEED + 1) as life:
        for _ in range(2_000):
            life.round()
        assert life.kills > 50, life.summary()


def test_an_operator_that_does_nothing_is_found_out(tmp_path: Path, database_url: str) -> None:
    """The negative control: the same life with an operator that only looks."""
    with Life(tmp_path / "life", database_url, seed=SEED, mode="observe") as life:
        life.expected = dict(life.wanted)
        with pytest.raises(AssertionError, match="not as the last acceptable commit"):
            life.check()
