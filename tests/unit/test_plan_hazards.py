"""What each class of change costs and why it wants a look."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model import Action, ChangeClass
from mdm_gitops.plan.changes import (
    ALL,
    ChangeDefinition,
    FieldChange,
    GrantPermission,
    RevokePermission,
)
from mdm_gitops.plan.hazards import assess, lets_more_through
from mdm_gitops.plan.physical import Check, RuleKind
from mdm_gitops.plan.plan import Lock
from tests.unit.plan_changes import CHANGES
from tests.unit.plan_samples import SIZES, grant, rule

COSTS = {
    "create-entity": ("safe", Lock.NONE, "", ""),
    "rename-entity": ("breaking", Lock.ACCESS_EXCLUSIVE, "", "RENAMES_ENTITY"),
    "rename-entity reverted": ("breaking", Lock.ACCESS_EXCLUSIVE, "", "RENAMES_ENTITY"),
    "remove-entity": ("destructive", Lock.ACCESS_EXCLUSIVE, "", "REMOVES_ENTITY"),
    "restore-entity": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-satellite approval": ("safe", Lock.NONE, "", ""),
    "add-satellite history": ("safe", Lock.NONE, "", ""),
    "remove-satellite approval": (
        "destructive",
        Lock.ACCESS_EXCLUSIVE,
        "",
        "WIDENS_ACCESS SETS_PENDING_ASIDE",
    ),
    "remove-satellite approval, nothing pending": (
        "security-widening",
        Lock.ACCESS_EXCLUSIVE,
        "",
        "WIDENS_ACCESS",
    ),
    "remove-satellite history": ("destructive", Lock.ACCESS_EXCLUSIVE, "", "REMOVES_HISTORY"),
    "remove-satellite history, of unknown size": ("destructive", Lock.NONE, "", "REMOVES_HISTORY"),
    "restore-satellite approval": ("safe", Lock.NONE, "", ""),
    "restore-satellite history": ("safe", Lock.NONE, "", ""),
    "add-column": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-column required with default": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-column required": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "", "TIGHTENS_RULE"),
    "add-column required, no rows": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-column to satellites only": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "rename-column": ("breaking", Lock.ACCESS_EXCLUSIVE, "", "RENAMES_COLUMN"),
    "rename-column reverted": ("breaking", Lock.ACCESS_EXCLUSIVE, "", "RENAMES_COLUMN"),
    "remove-column": ("destructive", Lock.ACCESS_EXCLUSIVE, "", "REMOVES_COLUMN"),
    "restore-column": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "widen-column": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "retype-column": ("breaking", Lock.ACCESS_EXCLUSIVE, "rewrites scans", "RETYPES_COLUMN"),
    "retype-column resumed": (
        "breaking",
        Lock.ACCESS_EXCLUSIVE,
        "rewrites scans",
        "RETYPES_COLUMN",
    ),
    "retype-column, no rows": ("breaking", Lock.ACCESS_EXCLUSIVE, "", "RETYPES_COLUMN"),
    "retype-column back": ("breaking", Lock.ACCESS_EXCLUSIVE, "rewrites scans", "RETYPES_COLUMN"),
    "retype-column onto a removed one": (
        "breaking",
        Lock.ACCESS_EXCLUSIVE,
        "rewrites scans",
        "RETYPES_COLUMN",
    ),
    "abandon-filling": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "set-required": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "set-required, no rows": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "drop-required": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "set-default": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "drop-default": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-check pattern": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check allowed": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check many allowed": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check at least": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check at most": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check range": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check length": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check, no rows": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-check wider": ("safe", Lock.ACCESS_EXCLUSIVE, "scans", ""),
    "add-check narrower": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-check one value more": ("safe", Lock.ACCESS_EXCLUSIVE, "scans", ""),
    "add-check one value less": ("data-dependent", Lock.ACCESS_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "drop-check": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "drop-check changed by hand": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "validate-check": ("data-dependent", Lock.SHARE_UPDATE_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-index unique": ("data-dependent", Lock.SHARE_UPDATE_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-index unique set": (
        "data-dependent",
        Lock.SHARE_UPDATE_EXCLUSIVE,
        "scans",
        "TIGHTENS_RULE",
    ),
    "add-index unique, no rows": ("safe", Lock.SHARE, "", ""),
    "add-index unique, new table": ("safe", Lock.NONE, "", ""),
    "add-index": ("safe", Lock.SHARE_UPDATE_EXCLUSIVE, "scans", ""),
    "add-index rebuilt": ("data-dependent", Lock.SHARE_UPDATE_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "drop-index unique": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "drop-index unique set": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "drop-index": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "add-foreign-key": ("data-dependent", Lock.SHARE_ROW_EXCLUSIVE, "scans", "TIGHTENS_RULE"),
    "add-foreign-key, new table": ("safe", Lock.SHARE_ROW_EXCLUSIVE, "", ""),
    "add-foreign-key, both new": ("safe", Lock.NONE, "", ""),
    "drop-foreign-key": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "validate-foreign-key": (
        "data-dependent",
        Lock.SHARE_UPDATE_EXCLUSIVE,
        "scans",
        "TIGHTENS_RULE",
    ),
    "rename-object constraint": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "rename-object index": ("safe", Lock.SHARE_UPDATE_EXCLUSIVE, "", ""),
    "create-view": ("safe", Lock.NONE, "", ""),
    "create-view again": ("safe", Lock.NONE, "", ""),
    "drop-view": ("breaking", Lock.ACCESS_EXCLUSIVE, "", "CHANGES_VIEW"),
    "drop-view again": ("safe", Lock.ACCESS_EXCLUSIVE, "", ""),
    "change-definition": ("safe", Lock.NONE, "", ""),
    "change-definition unmasked": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "change-definition opened": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "change-definition masked": ("safe", Lock.NONE, "", ""),
    "change-definition own changes approved": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "finish-entity": ("safe", Lock.NONE, "", ""),
    "change-project": ("safe", Lock.NONE, "", ""),
    "change-project first": ("safe", Lock.NONE, "", ""),
    "grant-permission": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "grant-permission domain": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "grant-permission everywhere": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "grant-permission filtered": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "grant-permission narrower": ("safe", Lock.NONE, "", ""),
    "grant-permission unfiltered": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "grant-permission other filter": ("security-widening", Lock.NONE, "", "WIDENS_ACCESS"),
    "revoke-permission": ("breaking", Lock.NONE, "", "REVOKES_ACCESS"),
    "revoke-permission filtered": (
        "security-widening",
        Lock.NONE,
        "",
        "REVOKES_ACCESS WIDENS_ACCESS",
    ),
    "add-webhook": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "add-webhook of a domain": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "add-webhook of everything": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "add-webhook switched off": ("safe", Lock.NONE, "", ""),
    "change-webhook address": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "change-webhook switched on": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "change-webhook switched off": ("safe", Lock.NONE, "", ""),
    "change-webhook wider": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "change-webhook all": ("security-widening", Lock.NONE, "", "SENDS_DATA_OUT"),
    "change-webhook narrower": ("safe", Lock.NONE, "", ""),
    "change-webhook narrower from some": ("safe", Lock.NONE, "", ""),
    "change-webhook described": ("safe", Lock.NONE, "", ""),
    "remove-webhook": ("breaking", Lock.NONE, "", ""),
    "apply-seed": ("safe", Lock.ROW_EXCLUSIVE, "", ""),
    "apply-seed enforced": ("safe", Lock.ROW_EXCLUSIVE, "", ""),
    "apply-seed many left alone": ("safe", Lock.ROW_EXCLUSIVE, "", ""),
    "apply-seed idle": ("safe", Lock.ROW_EXCLUSIVE, "", ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_change_costs(name: str) -> None:
    cost = assess(CHANGES[name], sizes=SIZES)
    online = " ".join(word for word in ("rewrites", "scans") if getattr(cost, word))
    codes = " ".join(hazard.code for hazard in cost.hazards)
    assert (cost.change_class.value, cost.lock, online, codes) == COSTS[name]


def test_every_class_is_assessed() -> None:
    assert {type(CHANGES[name]) for name in COSTS} == set(ALL)


@pytest.mark.parametrize("name", CHANGES)
def test_no_hazard_is_hidden_behind_a_safe_class(name: str) -> None:
    cost = assess(CHANGES[name], sizes=SIZES)
    assert not (cost.hazards and cost.change_class is ChangeClass.SAFE)


OF_NEW_TABLES = [
    "create-entity",
    "set-default",
    "set-required, no rows",
    "add-check, no rows",
    "add-column required with default",
    "add-index unique, new table",
    "add-foreign-key, both new",
    "create-view",
]


@pytest.mark.parametrize("name", OF_NEW_TABLES)
def test_nobody_waits_for_a_table_that_the_plan_creates(name: str) -> None:
    assert assess(CHANGES[name], sizes={}).lock is Lock.NONE


ESTIMATES = [
    ("remove-entity", 2_000, 3_700_000),
    ("rename-entity", 2_000, 1_398_304),
    ("add-column", 2_000, 1_300_000),
    ("retype-column", 5_100, 3_700_000),
    ("remove-satellite history", 3_100, 2_400_000),
    ("add-index unique", 2_000, 1_300_000),
]


@pytest.mark.parametrize(("name", "rows", "size_bytes"), ESTIMATES)
def test_estimates(name: str, rows: int, size_bytes: int) -> None:
    cost = assess(CHANGES[name], sizes=SIZES)
    assert (cost.rows, cost.size_bytes) == (rows, size_bytes)


MESSAGES = [
    ("remove-column", "column notes of customer leaves the table; its values stay in the archive"),
    ("remove-entity", "customer is no longer served; 2,000 rows stay in the archive"),
    ("rename-entity", "programs that name client must say customer"),
    ("rename-column", "programs that name column phone of customer must say telephone"),
    (
        "retype-column",
        "column weight of customer changes from long to int for all who read or write it",
    ),
    ("remove-satellite history", "earlier versions of customer (3,100 rows) move to the archive"),
    ("set-required", "each row of customer must fit: email is required"),
    ("add-index unique set", "each row of customer must fit: country, tax_id unique"),
    ("drop-view", "readers of view consumption.customer find it changed or gone"),
    (
        "change-definition unmasked",
        (
            "more people can see or do something with customer than before:"
            " columns.iban.classification"
        ),
    ),
    ("grant-permission everywhere", "group:mdm-admins gets more rights on all domains"),
    ("revoke-permission", "group:buyers loses rights on customer"),
    (
        "change-webhook switched on",
        "row values leave for https://hooks.example.com/crm (all event types)",
    ),
    ("add-webhook", "row values leave for https://hooks.example.com/crm (2 event types)"),
]


@pytest.mark.parametrize(("name", "message"), MESSAGES)
def test_the_first_hazard_in_a_sentence(name: str, message: str) -> None:
    assert assess(CHANGES[name], sizes=SIZES).hazards[0].message == message


def _range(low: Any, high: Any) -> Check:
    return rule("rating", RuleKind.RANGE, (low, high))


WIDER = [
    (_range(1, 5), _range(1, 5), True),
    (_range(1, 6), _range(1, 5), True),
    (_range(None, 5), _range(1, 5), True),
    (_range(None, None), _range(None, 5), True),
    (_range(2, 6), _range(1, 5), False),
    (_range(1, 5), _range(None, 5), False),
    (_range(1, 5), _range(1, None), False),
    (rule("a", RuleKind.LENGTH, 9), rule("a", RuleKind.LENGTH, 8), True),
    (rule("a", RuleKind.LENGTH, 7), rule("a", RuleKind.LENGTH, 8), False),
    (rule("a", RuleKind.ALLOWED, ("x", "y")), rule("a", RuleKind.ALLOWED, ("y",)), True),
    (rule("a", RuleKind.ALLOWED, ("x",)), rule("a", RuleKind.ALLOWED, ("y",)), False),
    (rule("a", RuleKind.PATTERN, "a*"), rule("a", RuleKind.PATTERN, "a"), False),
    (rule("a", RuleKind.LENGTH, 9), rule("a", RuleKind.ALLOWED, ("y",)), False),
]


@pytest.mark.parametrize(("new", "old", "wider"), WIDER)
def test_a_rule_that_lets_more_through(new: Check, old: Check, wider: bool) -> None:
    assert lets_more_through(new, old) is wider


@pytest.mark.parametrize(
    ("old", "new", "hazards"),
    [
        (None, 30, ["DELETES_ROWS"]),
        (60, 30, ["DELETES_ROWS"]),
        (30, 60, []),
        (30, None, []),
    ],
)
def test_deleted_rows_that_are_kept_for_less_long_are_destroyed(
    old: int | None, new: int | None, hazards: list[str]
) -> None:
    fields = (FieldChange(path="deletedRetentionDays", old=old, new=new),)
    cost = assess(ChangeDefinition(entity="a", fields=fields), sizes={})
    assert [hazard.code.value for hazard in cost.hazards] == hazards
    assert cost.change_class is (ChangeClass.DESTRUCTIVE if hazards else ChangeClass.SAFE)
    opened = FieldChange(path="columns.b.classification", old="restricted", new="public")
    cost = assess(ChangeDefinition(entity="a", fields=(*fields, opened)), sizes={})
    assert [hazard.code.value for hazard in cost.hazards] == ["WIDENS_ACCESS", *hazards]


def test_a_rule_that_was_never_proven_proves_nothing() -> None:
    old = Check(name="ck", column="a", rule=RuleKind.LENGTH, argument=8, validated=False)
    assert not lets_more_through(rule("a", RuleKind.LENGTH, 9), old)


# (actions, filter) before and after -> hazards of taking the old row and of giving the new one
REGRANTS = [
    ((Action.READ, "x"), (Action.READ, ""), "", "WIDENS_ACCESS"),
    ((Action.READ, ""), (Action.WRITE, ""), "", "WIDENS_ACCESS"),
    ((Action.WRITE, ""), (Action.READ, ""), "REVOKES_ACCESS", ""),
    ((Action.ADMIN, ""), (Action.READ, ""), "REVOKES_ACCESS", ""),
    ((Action.READ, ""), (Action.READ, "x"), "REVOKES_ACCESS", ""),
    ((Action.READ, "x"), (Action.READ, "y"), "REVOKES_ACCESS WIDENS_ACCESS", "WIDENS_ACCESS"),
    ((Action.WRITE, ""), (Action.APPROVE, ""), "REVOKES_ACCESS", "WIDENS_ACCESS"),
]


@pytest.mark.parametrize(("before", "after", "taken", "given"), REGRANTS)
def test_a_grant_in_the_place_of_another_is_told_by_what_it_gives_and_takes(
    before: tuple[Action, str], after: tuple[Action, str], taken: str, given: str
) -> None:
    old, new = (grant("group:x", action, row_filter=text) for action, text in (before, after))
    for change, expected in (
        (RevokePermission(entity="customer", grant=old, replaced_by=new), taken),
        (GrantPermission(entity="customer", grant=new, replaces=old), given),
    ):
        hazards = assess(change, sizes=SIZES).hazards
        assert " ".join(sorted(hazard.code for hazard in hazards)) == expected
