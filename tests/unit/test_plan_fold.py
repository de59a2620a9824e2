"""What PostgreSQL needs and nobody asked for is folded into the lines that people read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mdm_gitops.model import Action, ChangeClass
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.fold import fold
from mdm_gitops.plan.outline import outline, summary
from mdm_gitops.plan.physical import IndexKind, Role, RuleKind, computed_index, satellite
from mdm_gitops.plan.plan import CheckResult, DataCheck, Refusal, RefusalCode, Violation
from tests.unit.plan_changes import CHANGES, FILTER, check
from tests.unit.plan_samples import (
    column,
    grant,
    key,
    plain_index,
    plan,
    planned,
    rule,
    seed_change,
    table,
    unique,
    view,
)


def _on(kind: type[c.Change], **facts: Any) -> Any:
    return kind(entity="customer", **facts)


def _lines(*every: c.Change, everything: bool = False) -> list[str]:
    lines = fold(planned(*every), (), everything=everything)
    return [f"{x.symbol} {x.headline} | {x.detail}".removesuffix(" | ") for x in lines]


def _add(index: Any, *, online: bool = True) -> c.AddIndex:
    return c.AddIndex(entity="customer", table="customer", index=index, online=online)


def _drop(index: Any) -> c.DropIndex:
    return c.DropIndex(entity="customer", table="customer", index=index)


def _refer(target: str, *, online: bool = True) -> c.AddForeignKey:
    return c.AddForeignKey(
        entity="customer",
        table="customer",
        foreign_key=key("region", target, "code"),
        online=online,
    )


def _unrefer(target: str) -> c.DropForeignKey:
    return c.DropForeignKey(
        entity="customer", table="customer", foreign_key=key("region", target, "code")
    )


def _drop_check(name: str, kind: RuleKind) -> c.DropCheck:
    return c.DropCheck(
        entity="customer", table="customer", check=f"ck_{name}_{kind}", column=name, rule=kind.value
    )


SEARCH = computed_index("customer", IndexKind.SEARCH, ("code", "region"))
MATCH = computed_index("customer", IndexKind.MATCH, ("code",), "exact")
RETYPE = CHANGES["retype-column"]
AT_LEAST_0 = check(rule("weight", RuleKind.RANGE, (0, None)))
KEPT = "each value is converted into a new column; the old column is kept as archive 4"
_NEW = _on(c.AddColumn, column=column("region"), main_table="customer")

FOLDED: list[tuple[str, tuple[c.Change, ...], list[str]]] = [
    (
        "a new column takes in its rules, its reference and the index of that",
        (
            _NEW,
            check(rule("region", RuleKind.LENGTH, 10)),
            _add(plain_index("customer", "region")),
            _refer("sales_region"),
        ),
        ["+ region | text, at most 10 characters, refers to sales_region.code"],
    ),
    (
        "a restored column takes in its rules",
        (
            CHANGES["restore-column"],
            _on(c.SetRequired, table="customer", column="notes", online=True),
            _on(c.SetDefault, table="customer", column=column("notes", default="-")),
            _add(unique("customer", "notes")),
        ),
        ["↺ notes | comes back from archive 3 with its values, required, default -, unique"],
    ),
    (
        "a removed column takes its rules along",
        (
            CHANGES["remove-column"],
            _drop_check("_arch_3_notes", RuleKind.LENGTH),
            _drop(unique("customer", "notes")),
        ),
        ["- notes | kept as archive 3, comes back with git revert"],
    ),
    (
        "a retyped column keeps its rules without a word",
        (RETYPE, _drop_check("_arch_4_weight", RuleKind.RANGE), AT_LEAST_0),
        [f"~ weight long → int | {KEPT}"],
    ),
    (
        "a retyped column says which rules are new and which are gone",
        (RETYPE, _drop_check("weight", RuleKind.ALLOWED), AT_LEAST_0),
        [f"~ weight long → int | {KEPT}, takes any value, the list is gone, at least 0"],
    ),
    (
        "a column that goes and another of its name that comes",
        (
            CHANGES["remove-column"],
            _drop_check("notes", RuleKind.LENGTH),
            _on(c.AddColumn, column=column("notes", "jsonb"), main_table="customer"),
        ),
        ["+ notes | json", "- notes | kept as archive 3, comes back with git revert"],
    ),
    (
        "a rule that changes is one line",
        (
            _drop_check("rating", RuleKind.RANGE),
            check(
                rule("rating", RuleKind.RANGE, (1, 10)),
                replaces=rule("rating", RuleKind.RANGE, (1, 5)),
            ),
        ),
        ["~ rating from 1 to 5 → from 1 to 10 | lets more through than before"],
    ),
    (
        "rules of an old column each have a line",
        (
            CHANGES["set-required"],
            check(rule("email", RuleKind.LENGTH, 99)),
            CHANGES["set-default"],
        ),
        ["~ email required", "~ email at most 99 characters", "~ status default prospect"],
    ),
    (
        "a reference brings its index",
        (_add(plain_index("customer", "region")), _refer("sales_region")),
        ["~ region refers to sales_region.code"],
    ),
    (
        "a reference that goes takes its index",
        (_unrefer("sales_region"), _drop(plain_index("customer", "region"))),
        ["~ region no longer refers to sales_region.code"],
    ),
    (
        "a reference that points elsewhere",
        (_unrefer("sales_region"), _refer("area")),
        ["~ region refers to sales_region.code → area.code"],
    ),
    (
        "a reference that is only built again",
        (_unrefer("sales_region"), _refer("sales_region")),
        ["~ region refers to sales_region.code | built again"],
    ),
    (
        "unique takes the place of the plain index",
        (_drop(plain_index("customer", "region")), _add(unique("customer", "region"))),
        ["~ region unique"],
    ),
    (
        "the plain index takes the place of unique",
        (_drop(unique("customer", "region")), _add(plain_index("customer", "region"))),
        ["~ region no longer unique"],
    ),
    (
        "a set that loses a column",
        (
            CHANGES["remove-column"],
            _drop(unique("customer", "country", "notes")),
            _add(unique("customer", "country", "code")),
        ),
        [
            "~ country, notes no longer unique together",
            "~ country, code unique together",
            "- notes | kept as archive 3, comes back with git revert",
        ],
    ),
    (
        "views and rules that only follow are left out",
        (
            CHANGES["drop-view again"],
            CHANGES["rename-column"],
            CHANGES["rename-object constraint"],
            CHANGES["create-view again"],
        ),
        ["» phone → telephone | renamed in 3 tables, data kept"],
    ),
    (
        "a view that changes is one line",
        (CHANGES["drop-view"], CHANGES["create-view"]),
        ["~ view consumption.customer | now code, name"],
    ),
    (
        "an entity that goes takes rules and views along",
        (
            CHANGES["remove-entity"],
            _drop_check("name", RuleKind.LENGTH),
            _drop(unique("customer", "code")),
            CHANGES["drop-view"],
        ),
        [
            (
                "- 2,000 rows | kept as archive 3, comes back with git revert,"
                " its view goes: consumption.customer"
            )
        ],
    ),
    (
        "an entity that comes back brings references and views; what is new about it has its lines",
        (
            CHANGES["restore-entity"],
            CHANGES["set-required"],
            _add(unique("customer", "code")),
            _refer("sales_region"),
            CHANGES["create-view"],
        ),
        [
            "+ view consumption.customer | code, name",
            "↺ 2,000 rows | comes back from archive 3 with its rows",
            "~ email required",
            "~ code unique",
        ],
    ),
    (
        "an index of search beside a new column",
        (_add(SEARCH), _on(c.AddColumn, column=column("region"), main_table="customer")),
        ["+ region | text", "~ code, region indexed for search"],
    ),
    (
        "an index of search over other columns is built again",
        (_drop(replace(SEARCH, columns=("code",))), _add(SEARCH)),
        ["~ code, region indexed for search | built again"],
    ),
    (
        "an index of search that goes, also with its column",
        (_drop(SEARCH), _drop(replace(MATCH, columns=("region",)))),
        ["~ code, region no longer indexed for search", "~ region no longer indexed for matching"],
    ),
    (
        "properties each have a line",
        (CHANGES["change-definition"],),
        [
            "~ displayName | Customer → Client",
            "~ code.ui | none → message: Six digits",
            "~ similarity.topN | 10 → 5",
            "~ aliases | [client] → none",
            "~ similarity.columns | without phone, with mobile",
        ],
    ),
    (
        "a definition that means the same",
        (_on(c.ChangeDefinition, fields=()),),
        ["~ definition | recorded anew, nothing visible changes"],
    ),
    (
        "an interrupted run",
        (CHANGES["finish-entity"],),
        ["~ deployment | stands already; an interrupted run is marked as done"],
    ),
    (
        "a renamed entity",
        (CHANGES["rename-entity"],),
        ["» entity | renamed in 2 tables, rows kept"],
    ),
]


@pytest.mark.parametrize(
    ("every", "lines"), [case[1:] for case in FOLDED], ids=[case[0] for case in FOLDED]
)
def test_folding(every: tuple[c.Change, ...], lines: list[str]) -> None:
    assert _lines(*every) == lines


def test_nothing_is_lost_in_folding() -> None:
    for name, every, _ in FOLDED:
        items = planned(*every)
        told = {item.number for line in fold(items, (), everything=True) for item in line.items}
        assert told == {item.number for item in items}, name


def test_explaining_shows_what_only_follows() -> None:
    assert _lines(CHANGES["rename-object constraint"], everything=True) == [
        "» constraint ck_a_length → ck_b_length | follows the rename"
    ]


def test_a_new_entity() -> None:
    names = [f"c{n}" for n in range(1, 33)]
    main = table("customer", *(column(name) for name in names))
    every = (
        _on(
            c.CreateEntity,
            tables=(main, satellite(main, Role.EDIT), satellite(main, Role.HISTORY)),
        ),
        _add(unique("customer", "c1"), online=False),
        _add(unique("customer", "c2", "c3"), online=False),
        _add(plain_index("customer", "region"), online=False),
        _add(SEARCH, online=False),
        _refer("sales_region", online=False),
        _on(c.CreateView, view=view("customer", "c1")),
    )
    assert _lines(*every) == [
        f"+ 32 columns | {', '.join(names[:30])}, and 2 more",
        "+ unique | c1; c2, c3",
        "+ search | code, region",
        "+ refers to | sales_region by region",
        "+ history | each version of a row is kept",
        "+ approval | changes wait for an approver",
        "+ view consumption.customer | c1",
    ]


def _result(column_name: str, violations: int, *numbers: int) -> CheckResult:
    asked = DataCheck(
        violation=Violation.IS_NULL,
        entity="customer",
        column=column_name,
        table="customer",
        columns=(column_name,),
    )
    return CheckResult(check=asked, violations=violations, changes=numbers)


def test_a_check_stands_on_the_line_that_it_blocks() -> None:
    items = planned(CHANGES["restore-column"], CHANGES["rename-column"], CHANGES["drop-default"])
    required = _on(c.SetRequired, table="customer", column="notes", online=True)
    items = planned(CHANGES["restore-column"], required, CHANGES["rename-column"])
    rename, restore = fold(items, [_result("notes", 3, 2)])
    assert (restore.is_blocked, rename.is_blocked) == (True, False)
    assert restore.change_class is ChangeClass.DATA_DEPENDENT
    rename, restore = fold(items, [_result("notes", 0, 2)])
    assert (restore.is_blocked, restore.is_proven, rename.is_proven) == (False, True, False)


def test_only_the_property_that_opens_something_is_marked() -> None:
    change = _on(
        c.ChangeDefinition,
        fields=(
            c.FieldChange(path="displayName", old="A", new="B"),
            c.FieldChange(path="columns.a.classification", old="restricted", new="public"),
        ),
        widens_access=True,
    )
    lines = fold(planned(change), ())
    assert [line.change_class for line in lines] == [
        ChangeClass.SAFE,
        ChangeClass.SECURITY_WIDENING,
    ]


def test_an_entity_that_goes_and_comes_anew_has_two_blocks() -> None:
    main = table("customer", column("code"))
    content = outline(plan([_on(c.CreateEntity, tables=(main,)), CHANGES["remove-entity"]]))
    assert [(block.symbol, block.title) for block in content.blocks] == [
        ("-", "customer"),
        ("+", "customer"),
    ]


def test_grants_that_replace_each_other_are_one_line() -> None:
    every = (
        c.RevokePermission(grant=grant("group:dach", Action.READ)),
        c.RevokePermission(grant=grant("group:x", Action.READ)),
        c.RevokePermission(grant=grant("group:x", Action.WRITE)),
        c.GrantPermission(grant=grant("group:dach", Action.READ, row_filter=FILTER)),
        c.GrantPermission(grant=grant("group:x", Action.APPROVE)),
    )
    lines = outline(plan(every)).permissions
    assert [(line.headline, line.detail) for line in lines] == [
        ("group:dach on customer", "row filter added: only rows where [region] = 'DACH'"),
        ("group:x may approve customer", ""),
        ("group:x may no longer read customer", ""),
        ("group:x may no longer write customer", ""),
    ]


SUMMARIES: list[tuple[tuple[c.Change, ...], str]] = [
    ((), "no change"),
    ((CHANGES["create-entity"],), "1 to create"),
    ((CHANGES["rename-entity"],), "1 to change"),
    ((CHANGES["remove-entity"],), "1 to archive"),
    ((CHANGES["restore-entity"],), "1 to restore"),
    ((CHANGES["set-required"], CHANGES["remove-column"]), "1 to change"),
    (
        (CHANGES["grant-permission"], CHANGES["remove-webhook"], CHANGES["apply-seed"]),
        "1 permission, 1 webhook, 1 seed",
    ),
    (
        (CHANGES["change-project"], CHANGES["apply-seed"], seed_change("b", c.SeedCounts())),
        "2 seeds, project settings",
    ),
]


@pytest.mark.parametrize(("every", "words"), SUMMARIES)
def test_the_counts_at_the_end(every: tuple[c.Change, ...], words: str) -> None:
    assert summary(outline(plan(every))) == words


def test_what_stops_the_plan_is_counted_apart() -> None:
    refusals = (
        Refusal(code=RefusalCode.DATA_CHECK_FAILED, entity="customer", message="3 rows"),
        Refusal(code=RefusalCode.LAST_ADMIN, entity="", message="last"),
    )
    blocked = plan([CHANGES["set-required"]], checks=(_result("email", 3, 1),), refusals=refusals)
    assert summary(outline(blocked)) == "1 to change; 1 blocked, 1 refused"
