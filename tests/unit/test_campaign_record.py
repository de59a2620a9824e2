"""What campaigns leave behind: the last run of each, also one that did not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.campaign_record import campaign


def test_the_last_run_of_each_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "campaigns.json"
    monkeypatch.setenv("MDM_CAMPAIGNS", str(file))
    for kills in (3, 5):
        with campaign("workers") as record:
            record(kills=kills)
            record(told="all of them random", writes=10)
    with campaign("events") as record:
        record(events=7)
    kept = json.loads(file.read_text())
    assert list(kept) == ["events", "workers"]
    assert kept["workers"]["cases"] == {"kills": 5, "writes": 10}
    assert kept["workers"]["told"] == "all of them random"
    assert kept["workers"]["held"] is True


def test_a_failed_run_takes_the_place_of_one_that_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "campaigns.json"
    monkeypatch.setenv("MDM_CAMPAIGNS", str(file))
    with campaign("workers") as record:
        record(kills=5)
    with pytest.raises(AssertionError), campaign("workers") as record:
        record(kills=2)
        raise AssertionError("a write is lost")
    assert json.loads(file.read_text())["workers"]["held"] is False


def test_without_a_file_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MDM_CAMPAIGNS", raising=False)
    monkeypatch.chdir(tmp_path)
    with campaign("workers") as record:
        record(kills=5)
    assert list(tmp_path.iterdir()) == []
