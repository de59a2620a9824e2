"""The plan as JSON: closed, complete, and as its schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mdm_gitops.model import ChangeClass, Policy
from mdm_gitops.plan.document import Reason, reason_of, to_document
from mdm_gitops.plan.document_schema import plan_schema, schema_text
from mdm_gitops.plan.plan import DriftItem, DriftKind, Refusal, RefusalCode
from mdm_gitops.plan.proof import Proof, ProofState
from tests.unit.plan_changes import CHANGES
from tests.unit.plan_samples import access_report, customer_hub_plan, plan

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/plan-json.md").read_text(encoding="utf-8")
VALIDATOR = Draft202012Validator(plan_schema())


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def test_the_schema_file_is_fresh() -> None:
    Draft202012Validator.check_schema(plan_schema())
    assert (ROOT / "schemas/plan.json").read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_fits_the_schema(name: str) -> None:
    document = through_json(to_document(plan([CHANGES[name]])))
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []
    assert document["changes"][0]["kind"] == CHANGES[name].kind


def test_a_whole_plan_fits_the_schema() -> None:
    document = through_json(to_document(customer_hub_plan()))
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []


def test_what_access_and_a_proof_come_to() -> None:
    proof = Proof(state=ProofState.FAILED, place="a copy", problems=("no",))
    document = through_json(to_document(plan([], access=access_report()), proof=proof))
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []
    gains, may = document["access"]["effects"]
    assert gains["rows"] == {"before": 5, "after": 8, "gained": 3, "lost": 0, "total": 9}
    assert (may["principal"], may["had"], may["has"], may["rows"]) == (
        "group:buyers",
        False,
        True,
        None,
    )
    verdicts = [each["verdict"] for each in document["access"]["tests"]]
    assert verdicts == ["passed", "failed", "unchecked"]
    assert (document["proof"]["state"], document["proof"]["problems"]) == ("failed", ["no"])


@pytest.mark.parametrize("place", ["", "changes/0", "checks/0", "drift/0", "summary"])
def test_the_schema_refuses_what_it_does_not_know(place: str) -> None:
    document = through_json(to_document(customer_hub_plan()))
    inner = document
    for step in filter(None, place.split("/")):
        inner = inner[int(step)] if step.isdigit() else inner[step]
    inner["surprise"] = 1
    assert not VALIDATOR.is_valid(document)


def test_an_empty_plan() -> None:
    counts = ["created", "changed", "restored", "archived", "permissions", "webhooks", "seeds"]
    assert to_document(plan([])) == {
        "format_version": 1,
        "plan_id": "0f3a6c1be2d4958817aa",
        "project": "customer-hub",
        "base_commit": "4f1c2ab9d0e7",
        "desired_hash": "d" * 64,
        "live_fingerprint": "9b3e1d0744aa",
        "is_empty": True,
        "is_blocked": False,
        "destructive": False,
        "worst_class": None,
        "summary": {
            "text": "no change",
            "entities_total": 6,
            **dict.fromkeys([*counts, "blocked", "refused"], 0),
            "by_class": {
                "safe": 0,
                "data-dependent": 0,
                "breaking": 0,
                "security-widening": 0,
                "destructive": 0,
            },
        },
        "changes": [],
        "checks": [],
        "drift": [],
        "refusals": [],
        "needs_allowance": [],
        "notes": [],
        "access": {"tests": [], "effects": [], "uncounted": 0},
    }


def test_a_destructive_change() -> None:
    document = to_document(plan([CHANGES["remove-column"]]))
    assert (document["destructive"], document["worst_class"]) == (True, "destructive")
    assert document["changes"] == [
        {
            "number": 1,
            "kind": "remove-column",
            "entity": "customer",
            "class": "destructive",
            "destructive": True,
            "reason": "definition",
            "headline": "notes",
            "detail": "kept as archive 3, comes back with git revert",
            "lock": "ACCESS EXCLUSIVE",
            "rewrites": False,
            "scans": False,
            "rows": 2_000,
            "size_bytes": 1_300_000,
            "blocked": False,
            "hazards": [
                {
                    "code": "REMOVES_COLUMN",
                    "message": (
                        "column notes of customer leaves the table; its values stay in the archive"
                    ),
                    "allow": "REMOVES_COLUMN:customer",
                }
            ],
            "details": {
                "column": "notes",
                "archived_as": "_arch_3_notes",
                "main_table": "customer",
                "tables": ["customer", "customer__edit", "customer__history"],
                "had_not_null": False,
                "had_default": False,
            },
        }
    ]


def test_a_failed_check_names_what_it_blocks() -> None:
    document = to_document(customer_hub_plan())
    failed, passed = document["checks"]
    assert failed["samples"][0] == {
        "_sys_id": "01937c5e-0000-7000-8000-000000000001",
        "email": None,
    }
    del failed["samples"]
    assert failed == {
        "violation": "is-null",
        "rule": None,
        "entity": "customer",
        "column": "email",
        "table": "customer",
        "violations": 167,
        "message": "167 rows are null",
        "find": "filter [email] IS NULL",
        "blocks": [9],
    }
    assert (passed["violations"], passed["blocks"]) == (0, [])
    assert [change["number"] for change in document["changes"] if change["blocked"]] == [9]


def test_drift_and_refusals_stand_apart_from_changes() -> None:
    document = to_document(
        plan(
            [],
            drift=(DriftItem(kind=DriftKind.MISSING, entity="a", object="view v", message="m"),),
            refusals=(Refusal(code=RefusalCode.PRUNE_CAP, entity="", message="m", hint="h"),),
        )
    )
    assert document["changes"] == []
    assert document["drift"] == [
        {"kind": "missing", "entity": "a", "object": "view v", "message": "m"}
    ]
    assert document["refusals"] == [
        {"code": "PRUNE_CAP", "entity": "", "message": "m", "hint": "h", "allowable": True}
    ]


def test_the_policy_decides_what_needs_an_allowance() -> None:
    value = plan([CHANGES["rename-column"]])
    assert to_document(value)["needs_allowance"] == [
        {
            "allow": "RENAMES_COLUMN:customer",
            "message": "programs that name column phone of customer must say telephone",
            "change": 1,
        }
    ]
    everything = Policy(auto_apply=tuple(ChangeClass))
    assert to_document(value, policy=everything)["needs_allowance"] == []


def test_seed_rows_are_counted_not_copied() -> None:
    details = to_document(plan([CHANGES["apply-seed"]]))["changes"][0]["details"]
    assert details["seed"].keys() == {"rows", "content_hash"}
    assert details["counts"]["left_alone_keys"] == ["DACH"]


REASONS = {
    "add-column": Reason.DEFINITION,
    "rename-column": Reason.RENAME_DECLARED,
    "rename-entity reverted": Reason.RENAME_WITHDRAWN,
    "restore-column": Reason.RETURNED,
    "restore-satellite history": Reason.RETURNED,
    "retype-column back": Reason.RETURNED,
    "retype-column": Reason.DEFINITION,
    "rename-object index": Reason.FOLLOWS,
    "create-view again": Reason.FOLLOWS,
    "create-view": Reason.DEFINITION,
    "drop-view": Reason.DEFINITION,
    "finish-entity": Reason.INTERRUPTED,
    "add-index rebuilt": Reason.INTERRUPTED,
    "add-index unique": Reason.DEFINITION,
    "apply-seed": Reason.SEED_FILE,
}


@pytest.mark.parametrize("name", REASONS)
def test_why_a_change_is_in_the_plan(name: str) -> None:
    assert reason_of(CHANGES[name]) is REASONS[name]


def _words(schema: Any) -> set[str]:
    """Every property and every word of a closed vocabulary in *schema*."""
    if isinstance(schema, list):
        return set().union(*map(_words, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = set(schema.get("properties", ())) | set(schema.get("enum", ()))
    return found.union(*(_words(each) for each in schema.values()))


@pytest.mark.parametrize("word", sorted(_words(plan_schema())))
def test_the_page_tells_every_word(word: str) -> None:
    assert f"`{word}`" in PAGE
