"""A saved plan comes back as it was written; anything else is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mdm_gitops.errors import InputError, PlanStale
from mdm_gitops.plan import saved
from mdm_gitops.plan.saved import SavedPlan
from mdm_gitops.plan.structural import structural_plan
from tests.support.scenario import a, b


@pytest.fixture
def plan(tmp_path: Path) -> SavedPlan:
    return SavedPlan.of(
        structural_plan(a(), b()),
        directory=tmp_path,
        target=("client",),
        environment="staging",
        database="7/5",
    )


def test_it_comes_back_as_it_was(plan: SavedPlan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_text(), encoding="utf-8")
    assert SavedPlan.read(file) == plan
    assert plan.target == ("client",)
    assert plan.plan_id == structural_plan(a(), b()).plan_id


def without(key: str) -> Any:
    return lambda document: {k: v for k, v in document.items() if k != key}


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: [document],
        lambda document: {**document, "format": "mdm-gitops/saved-plan/v0"},
        lambda document: {**document, "target": 1},
        lambda document: {**document, "plan": "x"},
        without("format"),
        without("planId"),
        without("environment"),
        without("database"),
    ],
)
def test_another_document_is_refused(plan: SavedPlan, tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(damage(json.loads(plan.to_text()))), encoding="utf-8")
    with pytest.raises(InputError, match=r"plan\.json is not a saved plan$"):
        SavedPlan.read(file)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"entities:"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match="is not a saved plan"):
        SavedPlan.read(file)


def test_a_file_that_no_plan_is_as_large_as_is_not_read(
    plan: SavedPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_text(), encoding="utf-8")
    monkeypatch.setattr(saved, "MAX_BYTES", file.stat().st_size - 1)
    with pytest.raises(InputError, match="is not a saved plan"):
        SavedPlan.read(file)


@pytest.mark.parametrize(
    ("environment", "database", "words"),
    [
        (
            "production",
            None,
            "made for environment staging, and this is for environment production",
        ),
        ("", "7/5", "made for environment staging, and this is for no environment"),
        ("staging", "7/6", "made for another database"),
        ("staging", "8/5", "made for another database"),
    ],
)
def test_it_is_for_one_environment_and_one_database(
    plan: SavedPlan, environment: str, database: str | None, words: str
) -> None:
    plan.refuse_elsewhere(environment="staging", database="7/5")
    plan.refuse_elsewhere(environment="staging")
    with pytest.raises(PlanStale, match=words) as caught:
        plan.refuse_elsewhere(environment=environment, database=database)
    assert caught.value.hint
