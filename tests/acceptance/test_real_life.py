"""A real life: a remote, a developer, the operator and the API as processes, and what goes wrong.

After each round the warehouse is what the last acceptable commit says, every row that was ever
written is there, and the status says why a commit was not taken.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.support.campaign_record import campaign
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
def test_five_hundred_kills(tmp_path: Path, database_url: str) -> None:
    seed = int(os.environ.get("MDM_LIFE_SEED") or secrets.randbits(32))
    print("seed", seed)
    with (
        campaign("operator") as record,
        Life(tmp_path / "life", database_url, seed=seed, kill_share=0.4) as life,
    ):
        while life.kills < 500:
            life.round()
            record(kills=life.kills, commits=len(life.did) - life.kills, told=f"seed {seed}")


def test_an_operator_that_does_nothing_is_found_out(tmp_path: Path, database_url: str) -> None:
    """The negative control: the same life with an operator that only looks."""
    with Life(tmp_path / "life", database_url, seed=SEED, mode="observe") as life:
        life.expected = dict(life.wanted)
        with pytest.raises(AssertionError, match="not as the last acceptable commit"):
            life.check()
