"""The tables of an entity: names that fit and never meet, each rule once."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.plan.physical import (
    MAX_IDENTIFIER,
    PhysicalEntity,
    Role,
    archive_column_name,
    archive_table_name,
    physical_entity,
    relation_object_name,
    table_name,
)
from tests.support.scenario import Documents, column, definitions, entity

LONGEST = "n" * 48
OTHER = column("o", reference={"entity": "item"})


def physical(*columns: Documents, **fields: Any) -> PhysicalEntity:
    found = definitions(entity("item", *columns, **fields)).entities["item"]
    return physical_entity(
        found, {c.folded: ("item", "code") for c in found.columns if c.reference}
    )


@pytest.mark.parametrize(
    ("columns", "fields", "indexes"),
    [
        ([], {}, ["unique item__uq_code code"]),
        ([], {"keyColumns": []}, []),
        (
            [column("a", nullable=False)],
            {"keyColumns": ["code", "A"]},
            ["unique item__uqs__key code,a"],
        ),
        (
            [column("a", unique=True)],
            {"uniqueConstraints": [{"name": "only_a", "columns": ["a"]}]},
            ["unique item__uq_code code", "unique item__uq_a a"],
        ),
        (
            [column("a"), column("b")],
            {"uniqueConstraints": [{"name": "Both", "columns": ["A", "b"]}]},
            ["unique item__uq_code code", "unique item__uqs_both a,b"],
        ),
        ([OTHER], {}, ["unique item__uq_code code", "item__ix_o o"]),
        (
            [column("a", dataType="text"), column("s"), column("n", dataType="int")],
            {"search": {"enabled": True}},
            ["unique item__uq_code code", "item__search code,s,a"],  # short texts first
        ),
        (
            [column("A", classification="restricted"), column("b")],
            {"search": {"enabled": True}},
            ["unique item__uq_code code", "item__search code,b"],
        ),
        (
            [column("A"), column("b")],
            {"search": {"enabled": True, "columns": ["B"]}},
            ["unique item__uq_code code", "item__search b"],
        ),
        ([column("a")], {"search": {"columns": ["a"]}}, ["unique item__uq_code code"]),
        (
            [column("a"), column("b")],
            {"similarity": {"enabled": True, "columns": [{"name": "B"}]}},
            ["unique item__uq_code code", "item__match b"],
        ),
        (
            [column("a")],
            {"similarity": {"enabled": False, "columns": [{"name": "a"}]}},
            ["unique item__uq_code code"],
        ),
        ([{**OTHER, "unique": True}], {}, ["unique item__uq_code code", "unique item__uq_o o"]),
        (
            [OTHER, column("b")],
            {"uniqueConstraints": [{"name": "both", "columns": ["o", "b"]}]},
            ["unique item__uq_code code", "unique item__uqs_both o,b"],
        ),
        (
            [OTHER, column("b")],
            {"uniqueConstraints": [{"name": "both", "columns": ["b", "o"]}]},
            ["unique item__uq_code code", "unique item__uqs_both b,o", "item__ix_o o"],
        ),
    ],
)
def test_indexes(columns: list[Documents], fields: dict[str, Any], indexes: list[str]) -> None:
    found = physical(*columns, **fields).main.indexes
    words = [f"{'unique ' if i.unique else ''}{i.name} {','.join(i.columns)}" for i in found]
    assert words == indexes


@pytest.mark.parametrize(
    ("fields", "roles"),
    [
        ({}, [Role.MAIN]),
        ({"approvalRequired": True}, [Role.MAIN, Role.EDIT]),
        ({"historyEnabled": True}, [Role.MAIN, Role.HISTORY]),
        ({"approvalRequired": True, "historyEnabled": True}, list(Role)),
    ],
)
def test_tables(fields: dict[str, Any], roles: list[Role]) -> None:
    found = physical(column("a", nullable=False, default="x", maxLength=3), OTHER, **fields)
    assert list(found.tables) == roles
    for role in roles[1:]:
        table = found.tables[role]
        assert (table.checks, table.foreign_keys) == ((), ())
        assert bool(table.indexes)
        assert (table.columns["a"].not_null, table.columns["a"].default) == (False, None)


@pytest.mark.parametrize(
    ("role", "more"),
    [
        (Role.EDIT, ["item__edit__ix__sys_batch_name _sys_batch_name,_sys_id"]),
        (Role.HISTORY, []),
    ],
)
def test_proposals_and_versions_are_looked_up_as_approved_rows_are(
    role: Role, more: list[str]
) -> None:
    both = {"name": "both", "columns": ["b", "o"]}
    found = physical(
        OTHER,
        column("b", unique=True),
        column("c", reference={"entity": "item", "column": "code"}),
        approvalRequired=True,
        historyEnabled=True,
        uniqueConstraints=[both],
    )
    indexes = found.tables[role].indexes
    assert not any(index.unique for index in indexes)
    name = f"item__{role.value}"
    assert [f"{i.name} {','.join(i.columns)}" for i in indexes] == [
        f"{name}__ix_code code",
        f"{name}__ix_b b",
        f"{name}__ixs_both b,o",
        f"{name}__ix_o o",
        f"{name}__ix_c c",
        *more,
    ]


def test_system_columns_of_a_view_stand_around_the_others() -> None:
    view = {"schema": "V", "name": "W", "columns": ["a"], "includeSystemColumns": True}
    [found] = physical(column("A"), consumption={"views": [view]}).views
    names = [output for output, _ in found.columns]
    assert (found.key, names[:3], names[-1]) == (
        ("v", "w"),
        ["_sys_id", "a", "_sys_version"],
        "_sys_deleted_at",
    )


def test_the_longest_names_fit() -> None:
    names = [
        table_name(LONGEST, Role.HISTORY),
        archive_table_name(LONGEST, Role.HISTORY, 999),
        archive_column_name(LONGEST, 99_999_999),
        relation_object_name(table_name(LONGEST, Role.HISTORY), "pk"),
        relation_object_name(LONGEST, f"uq_{LONGEST}"),
    ]
    assert max(map(len, names)) <= MAX_IDENTIFIER


def test_names_that_are_cut_stay_apart() -> None:
    one, two = (relation_object_name(LONGEST, f"uq_{LONGEST}{end}") for end in "ab")
    assert one != two
    assert {len(one), len(two)} == {MAX_IDENTIFIER}
    assert one.startswith(LONGEST)
