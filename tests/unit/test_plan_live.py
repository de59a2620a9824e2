"""One thing changed by hand at a time: what the plan calls it, and what it does about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.scenario import column, definitions, entity
from tests.support.simulated import SCHEMA, Warehouse

VIEW = {"schema": "lab_views", "name": "item_v"}
DEPLOYED = definitions(
    entity(
        "item",
        column("a", maxLength=3, nullable=False, default="x", unique=True),
        column("o", reference={"entity": "item"}),
        historyEnabled=True,
        consumption={"views": [VIEW]},
    )
)
PLAIN_KEY = {
    "kind": "f",
    "columns": ["a"],
    "validated": True,
    "deferrable": True,
    "deferred": False,
    "actions": "aas",
    "target_schema": SCHEMA,
    "target_table": "item",
    "target_columns": ["code"],
}
NEW_KEY = [
    "drop-foreign-key item table=item foreign_key=(o to item.code)",
    "add-foreign-key item table=item foreign_key=(o to item.code) online=True",
]
PROOF = "validate-check item table=item check=ck_a_length rule=(ck_a_length 3) column_type=text"
NEW_INDEX = "add-index item table=item index=(unique item__uq_a on a) online=True"


@pytest.mark.parametrize(
    ("part", "name", "facts", "drift", "changes"),
    [
        (
            "columns",
            "a",
            None,
            "missing column item.a was dropped by hand",
            ["add-column item column=(a text not null default x) main_table=item"],
        ),
        (
            "columns",
            "a",
            {"not_null": False},
            "altered column item.a accepts null",
            ["set-required item table=item column=a online=True"],
        ),
        (
            "columns",
            "o",
            {"not_null": True},
            "altered column item.o refuses null",
            ["drop-required item table=item column=o"],
        ),
        (
            "columns",
            "a",
            {"default": None},
            "altered column item.a has lost its default",
            ["set-default item table=item column=(a text not null default x)"],
        ),
        (
            "columns",
            "a",
            {"default": "'y'::text"},
            "altered column item.a has the default 'y'::text",
            ["set-default item table=item column=(a text not null default x)"],
        ),
        (
            "columns",
            "o",
            {"default": "'y'::text"},
            "altered column item.o has the default 'y'::text",
            ["drop-default item table=item column=o"],
        ),
        (
            "columns",
            "z",
            {"type": "text", "not_null": False, "default": None},
            "strange column item.z was added by hand",
            [],
        ),
        (
            "constraints",
            "ck_a_length",
            None,
            "missing check ck_a_length was dropped by hand",
            ["add-check item table=item check=(ck_a_length 3) column_type=text online=True"],
        ),
        (
            "constraints",
            "ck_a_length",
            {"definition": "CHECK (true)"},
            "altered check ck_a_length was changed by hand",
            [
                "drop-check item table=item check=ck_a_length",
                "add-check item table=item check=(ck_a_length 3) column_type=text online=True",
            ],
        ),
        (
            "constraints",
            "ck_a_length",
            {"validated": False},
            "altered check ck_a_length has not been validated",
            [
                (
                    "validate-check item table=item check=ck_a_length rule=(ck_a_length 3)"
                    " column_type=text"
                )
            ],
        ),
        (
            "constraints",
            "mine",
            {"kind": "c", "columns": ["a"], "validated": True, "definition": "x"},
            "strange check mine on item was added by hand",
            [],
        ),
        (
            "constraints",
            "fk_o",
            None,
            "missing foreign key fk_o was dropped by hand",
            NEW_KEY[1:],
        ),
        (
            "constraints",
            "fk_o",
            {"validated": False},
            "altered foreign key fk_o has not been validated",
            ["validate-foreign-key item table=item foreign_key=fk_o rule=(o to item.code)"],
        ),
        *(
            (
                "constraints",
                "fk_o",
                facts,
                "altered foreign key fk_o was changed by hand",
                NEW_KEY,
            )
            for facts in (
                {"deferrable": False},
                {"deferred": True},
                {"actions": "cas"},
                {"target_schema": "public"},
                {"columns": ["o", "a"], "target_columns": ["code", "a"]},
            )
        ),
        (
            "constraints",
            "fk_o",
            {"target_columns": ["a"]},
            "altered foreign key fk_o was changed by hand",
            ["drop-foreign-key item table=item foreign_key=(o to item.a)", NEW_KEY[1]],
        ),
        (
            "constraints",
            "mine",
            PLAIN_KEY,
            "strange foreign key mine on item was added by hand",
            [],
        ),
        (
            "constraints",
            "mine",
            {"kind": "u", "columns": ["a"]},
            "strange constraint mine on item was added by hand",
            [],
        ),
        (
            "constraints",
            "item__pk",
            None,
            "strange primary key item__pk was dropped; only a person can put it back",
            [],
        ),
        (
            "constraints",
            "item__pk",
            {"columns": ["code"]},
            "strange primary key item__pk has other columns",
            [],
        ),
        (
            "indexes",
            "item__uq_a",
            None,
            "missing index item__uq_a was dropped by hand",
            [NEW_INDEX],
        ),
        (
            "indexes",
            "item__uq_a",
            {"valid": False},
            "altered index item__uq_a is marked invalid by PostgreSQL",
            [f"{NEW_INDEX} rebuild=True"],
        ),
        (
            "indexes",
            "item__uq_a",
            {"unique": False},
            "altered index item__uq_a was changed by hand",
            ["drop-index item table=item index=(item__uq_a on a)", NEW_INDEX],
        ),
        (
            "indexes",
            "item__uq_a",
            {"plain": False, "columns": None},
            "altered index item__uq_a was changed by hand",
            ["drop-index item table=item index=(unique item__uq_a on )", NEW_INDEX],
        ),
        (
            "indexes",
            "mine",
            {"unique": False, "valid": True, "plain": True, "columns": ["a"]},
            "strange index mine on item was added by hand",
            [],
        ),
        ("triggers", "mine", {}, "strange trigger mine on item was added by hand", []),
    ],
)
def test_by_hand(
    part: str, name: str, facts: dict[str, Any] | None, drift: str, changes: list[str]
) -> None:
    warehouse = Warehouse(DEPLOYED)
    warehouse.alter("item", part, name, facts)
    found = warehouse.plan(DEPLOYED).drift
    assert [f"{item.kind} {item.object} {item.message}" for item in found] == [drift]
    assert warehouse.told(DEPLOYED) == changes


SEARCHED = definitions(
    entity("item", column("a"), column("n", dataType="int"), search={"enabled": True})
)
SEARCH = "add-index item table=item index=(item__search on code,a) online=True"
BY_HAND: dict[str, tuple[Any, str, list[str]]] = {
    "dropped": (None, "missing index item__search was dropped by hand", [SEARCH]),
    "over another expression": (
        {"definition": "CREATE INDEX ... (lower(a))"},
        "altered index item__search was changed by hand",
        ["drop-index item table=item index=(item__search on code,a)", SEARCH],
    ),
    "left behind by a build that failed, never recorded": (
        {"definition": "CREATE INDEX ... (a)", "valid": False},
        "altered index item__search is marked invalid by PostgreSQL",
        [f"{SEARCH} rebuild=True"],
    ),
}


@pytest.mark.parametrize(("facts", "drift", "changes"), BY_HAND.values(), ids=list(BY_HAND))
def test_an_index_over_an_expression_by_hand(
    facts: dict[str, Any] | None, drift: str, changes: list[str]
) -> None:
    warehouse = Warehouse(SEARCHED)
    warehouse.alter("item", "indexes", "item__search", facts)
    found = warehouse.plan(SEARCHED).drift
    assert [f"{item.kind} {item.object} {item.message}" for item in found] == [drift]
    assert warehouse.told(SEARCHED) == changes


def test_a_key_that_was_renamed_by_hand_gets_its_name_back() -> None:
    warehouse = Warehouse(DEPLOYED)
    warehouse.alter("item", "constraints", "item__pk", None)
    warehouse.alter("item", "constraints", "pk", {"kind": "p", "columns": ["_sys_id"]})
    assert [item.message for item in warehouse.plan(DEPLOYED).drift] == ["is called pk"]
    assert warehouse.told(DEPLOYED) == [
        "rename-object item table=item object_kind=constraint rename=pk>item__pk"
    ]


def test_another_type_by_hand_is_taken_back_without_loss() -> None:
    warehouse = Warehouse(DEPLOYED)
    warehouse.alter("item", "columns", "o", {"type": "integer"})
    [item] = warehouse.plan(DEPLOYED).drift
    assert item.message == "has type integer instead of text"
    assert warehouse.told(DEPLOYED)[0] == (
        "retype-column item column=o source=o archived_as=_arch_1_o old_type=integer"
        " new=(o text) main_table=item tables=item,item__history"
        " filling=(o into _new_o in item: item,item__history)"
    )


def test_columns_aside_are_there_on_purpose() -> None:
    warehouse = Warehouse(
        definitions(entity("item", column("gone"))), definitions(entity("item", column("b")))
    )
    wanted = definitions(entity("item", column("b")))
    warehouse.alter("item", "columns", "mine", {"type": "text", "not_null": False, "default": None})
    drift = warehouse.plan(wanted).drift
    assert [item.object for item in drift] == ["column item.mine"]


@pytest.mark.parametrize(
    ("text", "drift", "changes"),
    [
        (
            "SELECT 1",
            "altered view lab_views.item_v was changed by hand",
            [
                "drop-view item schema=lab_views name=item_v",
                "create-view item view=lab_views.item_v",
            ],
        ),
        (
            None,
            "missing view lab_views.item_v was dropped by hand",
            ["create-view item view=lab_views.item_v"],
        ),
    ],
)
def test_views_by_hand(text: str | None, drift: str, changes: list[str]) -> None:
    warehouse = Warehouse(DEPLOYED)
    if text is None:
        warehouse.drop("item_v", schema="lab_views")
    else:
        relation = warehouse.facts.relations["lab_views", "item_v"]
        warehouse.put(replace(relation, objects={"view": text}))
    found = warehouse.plan(DEPLOYED).drift
    assert [f"{item.kind} {item.object} {item.message}" for item in found] == [drift]
    assert warehouse.told(DEPLOYED) == changes


def test_a_view_that_is_gone_need_not_be_dropped() -> None:
    warehouse = Warehouse(DEPLOYED)
    warehouse.drop("item_v", schema="lab_views")
    without = definitions(
        entity(
            "item",
            column("a", maxLength=3, nullable=False, default="x", unique=True),
            column("o", reference={"entity": "item"}),
            historyEnabled=True,
        )
    )
    assert warehouse.told(without) == ["change-definition item fields="]


@pytest.mark.parametrize(
    ("name", "facts", "changes"),
    [
        pytest.param(
            "ck_note_required",
            {"columns": ["note"], "definition": "note IS NOT NULL"},
            ["set-required item table=item column=note online=True helper_exists=True"],
            id="the-helper-of-a-rule-under-way-is-used-again",
        ),
        pytest.param(
            "ck_o_required",
            {"columns": ["o"], "definition": "o IS NOT NULL"},
            [
                "set-required item table=item column=note online=True",
                "drop-check item table=item check=ck_o_required column=o rule=required",
            ],
            id="one-that-nobody-needs-is-dropped",
        ),
        pytest.param(
            "ck_o_castable",
            {"columns": None, "definition": "true"},
            ["set-required item table=item column=note online=True"],
            id="the-guard-of-a-retype-belongs-to-its-recipe",
        ),
    ],
)
def test_helpers_of_a_run_that_was_interrupted(
    name: str, facts: dict[str, Any], changes: list[str]
) -> None:
    warehouse = Warehouse(definitions(entity("item", column("note"), column("o"))))
    facts = {"kind": "c", "validated": False, **facts}
    warehouse.alter("item", "constraints", name, facts, recorded=True)
    wanted = definitions(entity("item", column("note", nullable=False), column("o")))
    assert warehouse.told(wanted) == changes


def test_a_check_with_our_prefix_that_no_run_made_is_strange() -> None:
    warehouse = Warehouse(definitions(entity("item", column("note"))))
    facts = {"kind": "c", "validated": True, "columns": ["note"], "definition": "mine"}
    warehouse.alter("item", "constraints", "ck_note_other", facts, recorded=True)
    [item] = warehouse.plan(definitions(entity("item", column("note")))).drift
    assert item.object == "check ck_note_other on item"
