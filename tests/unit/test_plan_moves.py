"""Where tables and columns go from deployment to deployment: nothing is lost, all comes back."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.recorded import RecordedEntity
from tests.support.scenario import Documents, column, definitions, entity
from tests.support.simulated import Warehouse

ANY_NUMBER = {"maxRemovedEntities": 9, "maxRemovedPercent": 100}


def item(*columns: Documents, **fields: Any) -> Definitions:
    return definitions(entity("item", *columns, **fields))


def several(*entities: Documents) -> Definitions:
    """Return entities of which one is always there, so that the others may go."""
    return definitions(entity("other"), *entities, policy=ANY_NUMBER)


def digits(precision: int) -> Documents:
    return column("a", "decimal", precision=precision, scale=2)


TEXT, INT, LONG = column("a"), column("a", "int"), column("a", "long")
ONE, UNO = entity("one"), entity("uno", renamedFrom="one")


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        pytest.param(
            [item(TEXT), item(), item(TEXT)],
            ["restore-column item column=a archived_as=_arch_1_a type=text tables=item"],
            id="a-column-that-comes-back-is-the-one-that-went",
        ),
        pytest.param(
            [item(TEXT), item(), item(TEXT), item(), item(TEXT)],
            ["restore-column item column=a archived_as=_arch_2_a type=text tables=item"],
            id="and-again",
        ),
        pytest.param(
            [item(TEXT), item(), item(INT)],
            ["add-column item column=(a integer) main_table=item"],
            id="of-another-type-it-is-a-new-one",
        ),
        pytest.param(
            [item(TEXT), item(column("b", renamedFrom="a")), item(TEXT)],
            ["rename-column item column=b>a tables=item reverted=True"],
            id="a-withdrawn-rename-goes-back",
        ),
        pytest.param(
            [item(TEXT), item(column("b", renamedFrom="a")), item(column("b"))],
            ["change-definition item fields="],
            id="a-rename-that-has-been-made-needs-no-directive",
        ),
        pytest.param(
            [item(TEXT), item(INT), item(TEXT)],
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_2_a old_type=integer"
                    " new=(a text) main_table=item tables=item restored_from=_arch_1_a"
                    " chain=text,integer filling=(a into _new_a taken from _arch_1_a in item: item)"
                )
            ],
            id="a-type-goes-back",
        ),
        pytest.param(
            [item(TEXT), item(INT), item(LONG), item(TEXT)],
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_3_a old_type=bigint"
                    " new=(a text) main_table=item tables=item restored_from=_arch_1_a"
                    " chain=text,integer,bigint"
                    " filling=(a into _new_a taken from _arch_1_a in item: item)"
                )
            ],
            id="by-way-of-each-type-between",
        ),
        pytest.param(
            [item(TEXT), item(column("b", "int", renamedFrom="a")), item(TEXT)],
            [
                (
                    "retype-column item column=a source=b archived_as=_arch_2_a old_type=integer"
                    " new=(a text) main_table=item tables=item restored_from=_arch_1_b"
                    " chain=text,integer filling=(b into _new_a taken from _arch_1_b in item: item)"
                )
            ],
            id="type-and-name-go-back-together",
        ),
        pytest.param(
            [item(digits(8)), item(digits(12)), item(digits(8))],
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_1_a"
                    " old_type=numeric(12,2) new=(a numeric(8,2)) main_table=item tables=item"
                    " filling=(a into _new_a in item: item)"
                )
            ],
            id="digits-that-were-added-in-place-leave-no-archive",
        ),
        pytest.param(
            [item(digits(8)), item(column("b", "decimal", renamedFrom="a"))],
            [
                "rename-column item column=a>b tables=item",
                "widen-column item column=b old_type=numeric(8,2) new_type=numeric tables=item",
            ],
            id="renamed-and-widened",
        ),
        pytest.param(
            [item(TEXT, historyEnabled=True), item(TEXT), item(), item(historyEnabled=True)],
            [
                "restore-satellite item role=history table=item__archive_1_h>item__history",
                (
                    "rename-object item table=item__history object_kind=constraint"
                    " rename=item__archive_1_h__pk>item__history__pk"
                ),
                "add-index item table=item__history index=(item__history__ix_code on code) online=True",
            ],
            id="the-history-comes-back",
        ),
        pytest.param(
            [item(TEXT), item(), item(historyEnabled=True), item(TEXT, historyEnabled=True)],
            [
                (
                    "restore-column item column=a archived_as=_arch_1_a type=text"
                    " tables=item,item__history"
                )
            ],
            id="a-new-history-has-the-archives-too",
        ),
        pytest.param(
            [item(historyEnabled=True), item(), item(TEXT)],
            ["add-column item column=(a text) main_table=item satellite_tables=item__archive_1_h"],
            id="an-archived-history-gets-new-columns",
        ),
        pytest.param(
            [several(ONE), several(), several(ONE)],
            [
                "restore-entity one archive_number=1 tables=one__archive_1>one",
                (
                    "rename-object one table=one object_kind=constraint"
                    " rename=one__archive_1__pk>one__pk"
                ),
                (
                    "rename-object one table=one object_kind=index"
                    " rename=one__archive_1__uq_code>one__uq_code"
                ),
            ],
            id="an-entity-comes-back",
        ),
        pytest.param(
            [several(ONE), several(), several(UNO)],
            [
                "restore-entity uno archive_number=1 tables=one__archive_1>uno",
                (
                    "rename-object uno table=uno object_kind=constraint"
                    " rename=one__archive_1__pk>uno__pk"
                ),
                (
                    "rename-object uno table=uno object_kind=index"
                    " rename=one__archive_1__uq_code>uno__uq_code"
                ),
            ],
            id="under-another-name",
        ),
        pytest.param(
            [several(ONE), several(UNO), several(ONE)],
            [
                "rename-entity one old_entity=uno tables=uno>one reverted=True",
                "rename-object one table=one object_kind=constraint rename=uno__pk>one__pk",
                "rename-object one table=one object_kind=index rename=uno__uq_code>one__uq_code",
            ],
            id="a-withdrawn-rename-of-an-entity-goes-back",
        ),
        pytest.param(
            [several(ONE), several(UNO), several(entity("eins", renamedFrom="uno")), several(ONE)],
            [
                "rename-entity one old_entity=eins tables=eins>one reverted=True",
                "rename-object one table=one object_kind=constraint rename=eins__pk>one__pk",
                "rename-object one table=one object_kind=index rename=eins__uq_code>one__uq_code",
            ],
            id="two-renames-back-at-once",
        ),
        pytest.param(
            [
                several(entity("one", historyEnabled=True)),
                several(ONE),
                several(),
                several(entity("one", historyEnabled=True)),
            ],
            [
                "restore-satellite one role=history table=one__archive_1_h>one__history",
                "restore-entity one archive_number=2 tables=one__archive_2>one",
                (
                    "rename-object one table=one object_kind=constraint"
                    " rename=one__archive_2__pk>one__pk"
                ),
                (
                    "rename-object one table=one object_kind=index"
                    " rename=one__archive_2__uq_code>one__uq_code"
                ),
                (
                    "rename-object one table=one__history object_kind=constraint"
                    " rename=one__archive_1_h__pk>one__history__pk"
                ),
                "add-index one table=one__history index=(one__history__ix_code on code) online=True",
            ],
            id="an-entity-with-a-history-archived-before-it",
        ),
        pytest.param(
            [several(ONE), several(), several(ONE), several()],
            [
                "remove-entity one archive_number=2 tables=one>one__archive_2",
                (
                    "rename-object one table=one__archive_2 object_kind=constraint"
                    " rename=one__pk>one__archive_2__pk"
                ),
                (
                    "rename-object one table=one__archive_2 object_kind=index"
                    " rename=one__uq_code>one__archive_2__uq_code"
                ),
            ],
            id="each-archive-has-its-own-number",
        ),
    ],
)
def test_from_deployment_to_deployment(steps: list[Definitions], changes: list[str]) -> None:
    warehouse = Warehouse(*steps[:-1])
    assert warehouse.told(steps[-1]) == changes
    warehouse.deploy(steps[-1])
    assert warehouse.told(steps[-1]) == []


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        pytest.param(
            [item(TEXT)],
            item(
                column("a", "int", unique=True, maxValue=3),
                column("o", reference={"entity": "item"}),
            ),
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_1_a old_type=text"
                    " new=(a integer) main_table=item tables=item"
                ),
                "add-column item column=(o text) main_table=item",
                (
                    "add-check item table=item check=(ck_a_range (None, 3)) column_type=integer"
                    " online=False"
                ),
                "add-index item table=item index=(unique item__uq_a on a) online=False",
                "add-index item table=item index=(item__ix_o on o) online=False",
                "add-foreign-key item table=item foreign_key=(o to item.code) online=False",
            ],
            id="nothing-to-fill-or-to-prove",
        ),
        pytest.param(
            [item(TEXT), item(INT)],
            item(TEXT),
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_2_a old_type=integer"
                    " new=(a text) main_table=item tables=item restored_from=_arch_1_a"
                    " chain=text,integer"
                )
            ],
            id="the-archive-itself-comes-back",
        ),
        pytest.param(
            [item(column("a", "decimal", precision=8, scale=2, minValue=0))],
            item(column("a", "decimal", precision=9, scale=2, minValue=0)),
            [
                (
                    "widen-column item column=a old_type=numeric(8,2) new_type=numeric(9,2)"
                    " tables=item"
                )
            ],
            id="a-rule-stays-while-its-column-widens",
        ),
    ],
)
def test_tables_without_rows(
    before: list[Definitions], after: Definitions, changes: list[str]
) -> None:
    warehouse = Warehouse(*before, rows=False)
    assert warehouse.told(after) == changes
    warehouse.deploy(after)
    assert warehouse.told(after) == []


def columns(record: RecordedEntity) -> list[str]:
    """Return the columns with another state than usual, as ``physical state number``."""
    return [
        f"{c.physical} {c.state.value} {c.archive_number}"
        for c in record.columns
        if c.state.value != "active"
    ]


BOTH = item(TEXT, column("b"))


@pytest.mark.parametrize(
    ("deployed", "begun", "wanted", "changes", "noted"),
    [
        pytest.param(
            [item(TEXT)],
            item(INT),
            item(INT),
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_1_a old_type=text"
                    " new=(a integer) main_table=item tables=item"
                    " filling=(a into _new_a begun in item: item)"
                )
            ],
            [["_new_a filling 0"]],
            id="goes-on",
        ),
        pytest.param(
            [item(TEXT)],
            item(INT),
            item(TEXT),
            ["abandon-filling item column=a target=_new_a archived_as=_arch_1_a tables=item"],
            [["_arch_1_a archived 1"]],
            id="is-withdrawn",
        ),
        pytest.param(
            [item(TEXT)],
            item(INT),
            item(column("a", "date")),
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_1_a old_type=text"
                    " new=(a date) main_table=item tables=item"
                    " filling=(a into _new_a in item: item)"
                ),
                "abandon-filling item column=a target=_new_a archived_as=_arch_2_a tables=item",
            ],
            [["_arch_2_a archived 2"], ["_arch_2_a archived 2", "_new_a filling 0"]],
            id="gives-way-to-another",
        ),
        pytest.param(
            [item(TEXT)],
            item(INT),
            item(),
            [
                "remove-column item column=a archived_as=_arch_1_a main_table=item tables=item",
                "abandon-filling item column=a target=_new_a archived_as=_arch_2_a tables=item",
            ],
            [["_arch_2_a archived 2"]],
            id="ends-with-its-column",
        ),
        pytest.param(
            [item(TEXT), item(INT)],
            item(TEXT),
            item(TEXT),
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_2_a old_type=integer"
                    " new=(a text) main_table=item tables=item restored_from=_new_a"
                    " chain=text,integer filling=(a into _new_a begun in item: item)"
                )
            ],
            [["_new_a filling 1"]],
            id="the-way-back-goes-on",
        ),
        pytest.param(
            [item(TEXT), item(INT)],
            item(TEXT),
            item(INT),
            ["abandon-filling item column=a target=_new_a archived_as=_arch_2_a tables=item"],
            [["_arch_2_a archived 2"]],
            id="the-way-back-is-withdrawn",
        ),
        pytest.param(
            [BOTH],
            item(INT, column("b", "int")),
            item(INT, column("b")),
            [
                (
                    "retype-column item column=a source=a archived_as=_arch_1_a old_type=text"
                    " new=(a integer) main_table=item tables=item"
                    " filling=(a into _new_a begun in item: item)"
                ),
                "abandon-filling item column=b target=_new_b archived_as=_arch_2_b tables=item",
            ],
            [["_new_a filling 0", "_arch_2_b archived 2"]] * 2,
            id="one-of-two",
        ),
        pytest.param(
            [BOTH],
            item(INT, column("b", "int")),
            BOTH,
            [
                "abandon-filling item column=a target=_new_a archived_as=_arch_1_a tables=item",
                "abandon-filling item column=b target=_new_b archived_as=_arch_2_b tables=item",
            ],
            [
                ["_arch_1_a archived 1", "_new_b filling 0"],
                ["_arch_1_a archived 1", "_arch_2_b archived 2"],
            ],
            id="both-of-two",
        ),
    ],
)
def test_a_retype_that_was_begun(
    deployed: list[Definitions],
    begun: Definitions,
    wanted: Definitions,
    changes: list[str],
    noted: list[list[str]],
) -> None:
    """*noted* is what the prepare phase writes into the record, step by step."""
    warehouse = Warehouse(*deployed)
    for _, record in warehouse.plan(begun).preparing:
        warehouse.note(record)
    assert warehouse.told(wanted) == changes
    assert [columns(record) for _, record in warehouse.plan(wanted).preparing] == noted
    warehouse.deploy(wanted)
    assert warehouse.told(wanted) == []


def test_the_guard_of_a_retype_that_was_begun_goes_with_it() -> None:
    warehouse = Warehouse(item(TEXT))
    for _, record in warehouse.plan(item(INT)).preparing:
        warehouse.note(record)
    guard = {"kind": "c", "columns": ["a"], "validated": False, "definition": "castable"}
    warehouse.alter("item", "constraints", "ck_a_castable", guard, recorded=True)
    assert warehouse.told(item(TEXT)) == [
        "abandon-filling item column=a target=_new_a archived_as=_arch_1_a tables=item source=a"
    ]


INDEX_OF_VERSIONS = (
    "add-index item table=item__history index=(item__history__ix_code on code) online=False"
)


def test_what_was_dropped_by_hand_is_made_again() -> None:
    wanted = item(TEXT, column("b"), historyEnabled=True)
    warehouse = Warehouse(wanted)
    warehouse.alter("item", "columns", "a", None)
    warehouse.drop("item__history")
    assert warehouse.told(wanted) == [
        "add-satellite item role=history table=item__history",
        INDEX_OF_VERSIONS,
        "add-column item column=(a text) main_table=item",
    ]
    assert warehouse.told(item(column("b"), historyEnabled=True)) == [
        "add-satellite item role=history table=item__history",
        INDEX_OF_VERSIONS,
    ]


def test_a_table_that_was_dropped_by_hand_is_made_again_under_its_old_identity() -> None:
    warehouse = Warehouse(several(ONE))
    warehouse.drop("one")
    plan = warehouse.plan(several(ONE))
    assert [item.change.kind for item in plan.changes] == ["create-entity", "add-index"]
    assert [item.message for item in plan.drift] == ["was dropped by hand"]
    [record] = plan.records
    assert record.entity_id == warehouse.records["one"].entity_id
