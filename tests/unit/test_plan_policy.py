"""What a person must still allow, and how an allowance is written."""

from __future__ import annotations

from datetime import date

import pytest

from mdm_gitops.errors import InputError
from mdm_gitops.model import ChangeClass, Policy
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.plan import Plan, Refusal, RefusalCode
from mdm_gitops.plan.policy import (
    Allowance,
    committed_allowances,
    refused_hazards,
    standing_refusals,
    unused,
)
from tests.unit.plan_changes import CHANGES
from tests.unit.plan_samples import plan

NAMES = ("set-required", "rename-column", "remove-column", "remove-webhook", "add-webhook")
EVERYTHING = tuple(ChangeClass)


def _plan(*names: str) -> Plan:
    return plan([CHANGES[name] for name in names or NAMES])


def _allowed(*texts: str) -> tuple[Allowance, ...]:
    return tuple(Allowance.parse(text) for text in texts)


def _refused(policy: Policy, *texts: str) -> list[str]:
    return [
        each.flag for each in refused_hazards(_plan(), policy=policy, allowances=_allowed(*texts))
    ]


ALL_FOUR = [
    "--allow RENAMES_COLUMN:customer",
    "--allow REMOVES_COLUMN:customer",
    "--allow BREAKING:webhooks.yaml",
    "--allow SENDS_DATA_OUT:webhooks.yaml",
]


def test_the_default_policy_lets_in_what_data_alone_can_stop() -> None:
    assert _refused(Policy()) == ALL_FOUR


def test_a_strict_policy_wants_a_yes_for_tightened_rules_too() -> None:
    strict = Policy(auto_apply=(ChangeClass.SAFE,))
    assert _refused(strict) == ["--allow TIGHTENS_RULE:customer", *ALL_FOUR]


def test_a_policy_that_lets_everything_in() -> None:
    assert _refused(Policy(auto_apply=EVERYTHING)) == []


ALLOWED = [
    (("RENAMES_COLUMN:customer",), ALL_FOUR[1:]),
    (("RENAMES_COLUMN:*", "REMOVES_COLUMN:Customer"), ALL_FOUR[2:]),
    (("RENAMES_COLUMN:product",), ALL_FOUR),
    (("BREAKING:*",), [ALL_FOUR[0], ALL_FOUR[1], ALL_FOUR[3]]),  # a hazard wants its own yes
    (("BREAKING:webhooks.yaml", "SENDS_DATA_OUT:webhooks.yaml"), ALL_FOUR[:2]),
]


@pytest.mark.parametrize(("texts", "left"), ALLOWED)
def test_an_allowance_covers_what_it_names(texts: tuple[str, ...], left: list[str]) -> None:
    assert _refused(Policy(), *texts) == left


def test_each_hazard_of_a_change_is_asked_for() -> None:
    refused = refused_hazards(_plan("remove-satellite approval"), policy=Policy())
    assert [each.flag for each in refused] == [
        "--allow WIDENS_ACCESS:customer",
        "--allow SETS_PENDING_ASIDE:customer",
    ]


SUBJECTS = [
    ("grant-permission", "WIDENS_ACCESS:customer"),
    ("grant-permission domain", "WIDENS_ACCESS:permissions.yaml"),
    ("revoke-permission", "REVOKES_ACCESS:customer"),
    ("change-webhook address", "SENDS_DATA_OUT:webhooks.yaml"),
    ("rename-entity", "RENAMES_ENTITY:customer"),
]


@pytest.mark.parametrize(("name", "allowance"), SUBJECTS)
def test_what_an_allowance_is_for(name: str, allowance: str) -> None:
    (refused,) = refused_hazards(_plan(name), policy=Policy())
    assert str(refused.allowance) == allowance
    parsed = (Allowance.parse(allowance),)
    assert refused_hazards(_plan(name), policy=Policy(), allowances=parsed) == ()


def test_the_project_file_goes_by_its_name() -> None:
    strict = Policy(auto_apply=())
    (refused,) = refused_hazards(_plan("change-project"), policy=strict)
    assert str(refused.allowance) == "SAFE:mdm.yaml"


WRONG = [
    ("REMOVE_COLUMN:customer", "'REMOVE_COLUMN:customer' names no hazard", "did you mean 'REMOVES_COLUMN'?"),
    ("REMOVES_COLUMN", "'REMOVES_COLUMN' does not say for what", "write REMOVES_COLUMN:<entity>, or REMOVES_COLUMN:* for any"),
    ("REMOVES_COLUMN: ", "'REMOVES_COLUMN: ' does not say for what", "write REMOVES_COLUMN:<entity>, or REMOVES_COLUMN:* for any"),
    ("REMOVES_COLUMN:custmer", "'REMOVES_COLUMN:custmer' names no entity of this plan", "did you mean 'customer'?"),
    ("LAST_ADMIN:*", "'LAST_ADMIN:*' names no hazard", "the plan names what to allow"),
    ("", "'' names no hazard", "the plan names what to allow"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), WRONG)
def test_a_wrong_allowance_says_what_would_be_right(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        Allowance.parse(text, entities=["customer", "product"])
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize("text", ["removes_column:Customer", "REMOVES-COLUMN : customer"])
def test_spelling_is_forgiven(text: str) -> None:
    allowance = Allowance.parse(text, entities=["Customer"])
    assert allowance == Allowance(code="REMOVES_COLUMN", subject="customer")


@pytest.mark.parametrize("subject", ["*", "webhooks.yaml"])
def test_a_file_and_any_are_subjects_whatever_the_entities(subject: str) -> None:
    text = f"SENDS_DATA_OUT:{subject}"
    assert str(Allowance.parse(text, entities=["customer"])) == text


def test_only_the_prune_cap_can_be_lifted() -> None:
    refusals = tuple(Refusal(code=code, entity="", message="no") for code in (*RefusalCode,))
    refused = plan([CHANGES["remove-entity"]], refusals=refusals)
    left = standing_refusals(refused, allowances=_allowed("PRUNE_CAP:*"))
    assert {refusal.code for refusal in refusals} - {refusal.code for refusal in left} == {
        RefusalCode.PRUNE_CAP
    }
    assert standing_refusals(refused) == refusals


def test_allowances_that_nothing_asks_for_are_told() -> None:
    allowances = _allowed("REMOVES_COLUMN:customer", "REMOVES_ENTITY:customer", "PRUNE_CAP:*")
    assert [str(each) for each in unused(_plan(), allowances)] == [
        "REMOVES_ENTITY:customer",
        "PRUNE_CAP:*",
    ]


def test_an_empty_plan_asks_for_nothing() -> None:
    empty: list[c.Change] = []
    assert refused_hazards(plan(empty), policy=Policy(auto_apply=())) == ()


def test_what_the_definitions_allow_ends_with_its_last_day() -> None:
    allowances = [
        {"allow": "RENAMES_COLUMN:Customer", "until": "2026-03-31", "reason": "the new form"},
        {"allow": "BREAKING:product", "until": "2026-04-01"},
    ]
    policy = Policy.model_validate({"allowances": allowances})
    days = [date(2026, 3, 31), date(2026, 4, 1), date(2026, 4, 2)]
    assert [tuple(map(str, committed_allowances(policy, today=day))) for day in days] == [
        ("RENAMES_COLUMN:customer", "BREAKING:product"),
        ("BREAKING:product",),
        (),
    ]
