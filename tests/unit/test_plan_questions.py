"""What a plan asks the live rows, in the names that stand before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.plan.plan import DataCheck, Violation
from tests.support.scenario import Documents, column, definitions, entity
from tests.support.simulated import Warehouse

OTHER = entity("other")
TO_INT = ("text", "integer")


def item(*columns: Documents, **fields: Any) -> Definitions:
    return definitions(entity("item", *columns, **fields))


def refers(to: str = "other", data_type: str = "string", **more: Any) -> Documents:
    return entity("item", column("o", data_type, reference={"entity": to, **more}))


def check(violation: Violation, name: str, *columns: str, **more: Any) -> DataCheck:
    return DataCheck(
        **{"entity": "item", "table": "item", **more},
        violation=violation,
        column=name,
        columns=columns,
    )


@pytest.mark.parametrize(
    ("before", "after", "asked"),
    [
        pytest.param(
            item(column("a"), historyEnabled=True),
            item(column("a", "int", nullable=False, minValue=1, unique=True), historyEnabled=True),
            [
                check(Violation.CANNOT_BE_CAST, "a", "a", column_type="text", casts={"a": TO_INT}),
                check(
                    Violation.CANNOT_BE_CAST,
                    "a",
                    "a",
                    table="item__history",
                    column_type="text",
                    casts={"a": TO_INT},
                ),
                check(Violation.IS_NULL, "a", "a"),
                check(
                    Violation.BREAKS_RULE,
                    "a",
                    "a",
                    rule=RuleKind.RANGE,
                    argument=(1, None),
                    column_type="integer",
                    casts={"a": TO_INT},
                ),
                check(Violation.IS_DUPLICATE, "a", "a", casts={"a": TO_INT}),
            ],
            id="rules-of-the-cast-values",
        ),
        pytest.param(
            item(column("a")),
            item(column("b", renamedFrom="a", nullable=False, maxLength=3, unique=True)),
            [
                check(Violation.IS_NULL, "b", "a"),
                check(
                    Violation.BREAKS_RULE,
                    "b",
                    "a",
                    rule=RuleKind.LENGTH,
                    argument=3,
                    column_type="text",
                ),
                check(Violation.IS_DUPLICATE, "b", "a"),
            ],
            id="rules-of-a-renamed-column",
        ),
        pytest.param(
            item(),
            item(column("a", nullable=False)),
            [check(Violation.NEEDS_DEFAULT, "a")],
            id="a-new-required-column-needs-a-default",
        ),
        pytest.param(
            item(), item(column("a", nullable=False, default="x")), [], id="and-this-one-has-it"
        ),
        pytest.param(item(), item(column("a", maxLength=3)), [], id="null-breaks-no-rule"),
        pytest.param(item(), item(column("a", unique=True)), [], id="nulls-are-distinct"),
        pytest.param(
            item(),
            item(column("a", unique=True, default="x")),
            [check(Violation.IS_DUPLICATE, "a")],
            id="all-rows-share-a-default",
        ),
        pytest.param(
            item(column("b")),
            item(
                column("a", default="x"),
                column("b"),
                uniqueConstraints=[{"name": "both", "columns": ["a", "b"]}],
            ),
            [check(Violation.IS_DUPLICATE, "a, b", "b")],
            id="a-shared-default-tells-nothing-apart",
        ),
        pytest.param(
            item(column("a", classification="restricted"), column("b")),
            item(column("a", classification="restricted", unique=True), column("b", unique=True)),
            [
                check(Violation.IS_DUPLICATE, "a", "a", masked=True),
                check(Violation.IS_DUPLICATE, "b", "b"),
            ],
            id="restricted-values-are-not-shown",
        ),
        pytest.param(
            definitions(entity("item", column("o")), OTHER),
            definitions(refers(), OTHER),
            [
                check(
                    Violation.REFERS_TO_NOTHING,
                    "o",
                    "o",
                    target_table="other",
                    target_column="code",
                )
            ],
            id="a-reference",
        ),
        pytest.param(
            definitions(entity("item", column("o")), OTHER),
            definitions(refers(), OTHER, seeds={"other": [{"code": "x"}, {"code": "y"}]}),
            [
                check(
                    Violation.REFERS_TO_NOTHING,
                    "o",
                    "o",
                    target_table="other",
                    target_column="code",
                    target_values=("x", "y"),
                )
            ],
            id="to-what-a-seed-brings",
        ),
        pytest.param(
            definitions(entity("item", column("o"))),
            definitions(refers(), OTHER, seeds={"other": [{"code": "x"}]}),
            [check(Violation.REFERS_TO_NOTHING, "o", "o", target_values=("x",))],
            id="to-an-entity-that-is-new",
        ),
        pytest.param(
            definitions(entity("item", column("o")), OTHER),
            definitions(refers("andere"), entity("andere", renamedFrom="other")),
            [
                check(
                    Violation.REFERS_TO_NOTHING,
                    "o",
                    "o",
                    target_table="other",
                    target_column="code",
                )
            ],
            id="to-a-renamed-entity",
        ),
        pytest.param(
            definitions(entity("item", column("o")), OTHER),
            definitions(refers(column="k"), entity("other", column("k", unique=True))),
            [check(Violation.REFERS_TO_NOTHING, "o", "o")],
            id="to-a-column-that-is-new",
        ),
        pytest.param(
            definitions(entity("item", column("o")), entity("other", column("k"))),
            definitions(
                refers(data_type="int", column="k"),
                entity("other", column("k", "int", unique=True)),
            ),
            [
                check(Violation.CANNOT_BE_CAST, "o", "o", column_type="text", casts={"o": TO_INT}),
                check(
                    Violation.REFERS_TO_NOTHING,
                    "o",
                    "o",
                    casts={"o": TO_INT},
                    target_table="other",
                    target_column="k",
                    target_cast=TO_INT,
                ),
                check(
                    Violation.CANNOT_BE_CAST,
                    "k",
                    "k",
                    entity="other",
                    table="other",
                    column_type="text",
                    casts={"k": TO_INT},
                ),
                check(
                    Violation.IS_DUPLICATE,
                    "k",
                    "k",
                    entity="other",
                    table="other",
                    casts={"k": TO_INT},
                ),
            ],
            id="to-a-column-of-another-type",
        ),
        pytest.param(
            definitions(entity("item"), OTHER),
            definitions(refers(), OTHER),
            [],
            id="nulls-refer-to-nothing",
        ),
        pytest.param(
            item(column("a", maxLength=9, nullable=False, unique=True)),
            item(column("a")),
            [],
            id="what-is-loosened-asks-nothing",
        ),
    ],
)
def test_questions(before: Definitions, after: Definitions, asked: list[DataCheck]) -> None:
    assert [question for question, _ in Warehouse(before).draft(after).checks] == asked
    assert Warehouse(before, rows=False).draft(after).checks == ()


def test_a_target_that_is_not_part_of_the_plan_is_asked_as_it_stands() -> None:
    warehouse = Warehouse(definitions(entity("item", column("o")), OTHER))
    after = definitions(refers(), OTHER)
    asked = [question for question, _ in warehouse.draft(after, target=["item"]).checks]
    assert [(q.target_table, q.target_column) for q in asked] == [("other", "code")]


def test_a_target_that_was_not_even_read_is_asked_as_it_is_defined() -> None:
    warehouse = Warehouse(definitions(entity("item", column("o")), OTHER))
    warehouse.leave_unread("other")
    asked = [question for question, _ in warehouse.draft(definitions(refers(), OTHER)).checks]
    assert [(q.target_table, q.target_column) for q in asked] == [("other", "code")]
    assert warehouse.told(definitions(refers(), OTHER))[-1].startswith("add-foreign-key item")


def test_an_answer_goes_with_the_change_that_it_blocks() -> None:
    warehouse = Warehouse(item(column("a"), column("b")))
    after = item(column("a", nullable=False), column("b", maxLength=2))
    drafted = warehouse.draft(after)
    assert [numbers for _, numbers in drafted.checks] == [(1,), (2,)]
    plan = warehouse.answered(after, [3, 0])
    assert [(result.violations, result.changes) for result in plan.checks] == [(3, (1,)), (0, (2,))]
    assert [refusal.message for refusal in plan.refusals] == ["item: 3 rows are null in a"]
    with pytest.raises(ValueError, match="zip"):
        warehouse.answered(after, [3])


@pytest.mark.parametrize(
    ("part", "name", "facts", "violation"),
    [
        ("constraints", "ck_a_length", {"validated": False}, Violation.BREAKS_RULE),
        ("constraints", "fk_o", {"validated": False}, Violation.REFERS_TO_NOTHING),
        ("indexes", "item__uq_a", {"valid": False}, Violation.IS_DUPLICATE),
        ("indexes", "item__ix_o", {"valid": False}, None),
    ],
)
def test_what_an_interrupted_run_left_unproven(
    part: str, name: str, facts: dict[str, Any], violation: Violation | None
) -> None:
    wanted = definitions(
        entity(
            "item",
            column("a", unique=True, maxLength=3),
            column("o", reference={"entity": "item"}),
        )
    )
    for rows in (True, False):
        warehouse = Warehouse(wanted, rows=rows)
        warehouse.alter("item", part, name, facts)
        asked = [question.violation for question, _ in warehouse.draft(wanted).checks]
        assert asked == ([violation] if rows and violation else [])


@pytest.mark.parametrize(
    ("key", "new_key", "asked_of"),
    [
        (column("k"), column("k", unique=True), ("other", "k")),
        (column("k", "int"), column("k", unique=True), (None, None)),
    ],
    ids=["as-it-stands", "it-comes-in-the-flip"],
)
def test_a_target_without_rows(
    key: Documents, new_key: Documents, asked_of: tuple[str | None, str | None]
) -> None:
    warehouse = Warehouse(definitions(entity("item", column("o")), entity("other", key)))
    warehouse.facts = replace(warehouse.facts, filled=frozenset({"item"}))
    drafted = warehouse.draft(definitions(refers(column="k"), entity("other", new_key)))
    [(asked, _)] = drafted.checks
    assert asked.violation is Violation.REFERS_TO_NOTHING
    assert (asked.target_table, asked.target_column) == asked_of
    assert asked.target_cast is None
