"""From an edit of the definitions to the lines that a reviewer reads: nothing said twice or lost."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.markdown import render_markdown
from mdm_gitops.plan.structural import structural_plan
from mdm_gitops.plan.text import render_text
from tests.support.scenario import Documents, column, definitions, entity
from tests.support.simulated import Warehouse

SELF = {"reference": {"entity": "item"}}
RENAMED = "  » a → b  renamed in 1 table, data kept · breaking"


def item(*columns: Documents, **fields: Any) -> Definitions:
    return definitions(entity("item", *columns, **fields))


def price(precision: int, low: int) -> Documents:
    return column("p", "decimal", precision=precision, scale=2, minValue=low)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        pytest.param(
            item(column("o", unique=True, **SELF)),
            item(column("o", **SELF)),
            ["  ~ o no longer unique"],
            id="the-plain-index-of-a-reference-goes-without-saying",
        ),
        pytest.param(
            item(column("a", maxLength=9)),
            item(column("b", renamedFrom="a", maxLength=3)),
            [RENAMED, "  ~ b at most 9 characters → at most 3 characters"],
            id="renamed-with-another-limit",
        ),
        pytest.param(
            item(column("a", nullable=False, default="1")),
            item(column("a", "int", nullable=False, default=1)),
            [
                (
                    "  ~ a text → int  each value is converted into a new column;"
                    " the old column is kept as archive 1 · breaking"
                )
            ],
            id="what-a-retyped-column-keeps-is-not-told",
        ),
        pytest.param(
            item(column("a")),
            item(column("a", "int", nullable=False, default=1, unique=True)),
            [
                (
                    "  ~ a text → int  each value is converted into a new column;"
                    " the old column is kept as archive 1, required, default 1, unique · breaking"
                )
            ],
            id="what-it-gains-is",
        ),
        pytest.param(
            item(price(8, 0)),
            item(price(12, 0)),
            ["  ~ p decimal(8,2) → decimal(12,2)  in place, no row is touched"],
            id="a-rule-that-is-only-proven-again-goes-without-saying",
        ),
        pytest.param(
            item(price(8, 0)),
            item(price(12, 5)),
            ["  ~ p decimal(8,2) → decimal(12,2)  in place, no row is touched, at least 5"],
            id="another-rule-does-not",
        ),
        pytest.param(
            item(column("a", **SELF)),
            item(column("a", "int")),
            [
                (
                    "  ~ a text → int  each value is converted into a new column;"
                    " the old column is kept as archive 1, no longer refers to item.code"
                    " · breaking"
                )
            ],
            id="and-what-it-loses",
        ),
        pytest.param(
            item(column("a", unique=True, maxLength=9, default="x", nullable=False)),
            item(),
            ["  - a  kept as archive 1, comes back with git revert · destructive"],
            id="the-rules-of-a-removed-column-go-without-saying",
        ),
        pytest.param(
            item(column("a")),
            item(column("b", renamedFrom="a", displayName="B")),
            [
                RENAMED,
                "  ~ b.displayName none → B",
            ],
            id="renamed-and-described",
        ),
    ],
)
def test_lines(old: Definitions, new: Definitions, lines: list[str]) -> None:
    text = render_text(structural_plan(old, new), colour=False, width=200)
    shown = [
        line for line in text.splitlines()[2:] if line.startswith("  ") and "--allow" not in line
    ]
    assert [" ".join(line.split()) for line in shown] == [" ".join(line.split()) for line in lines]


def test_a_check_that_nothing_more_can_be_said_of() -> None:
    warehouse = Warehouse(item())
    plan = warehouse.answered(item(column("a", nullable=False)), [3])
    text = render_text(plan, colour=False, width=100)
    assert "\n  + a  BLOCKED: 3 rows would have no value · text, required\n\nRefused" in text
    assert "- `item` `a`: **3 rows would have no value**\n\n#### Refused" in render_markdown(plan)


def test_an_entity_that_comes_back_with_other_rules_says_so() -> None:
    policy = {"maxRemovedEntities": 9, "maxRemovedPercent": 100}

    def having(*entities: Documents) -> Definitions:
        return definitions(entity("other"), *entities, policy=policy)

    refers = column("o", reference={"entity": "other"})
    warehouse = Warehouse(having(entity("item", column("a", maxLength=9), refers)), having())
    after = having(entity("item", column("a", maxLength=3, nullable=False), refers))
    text = render_text(warehouse.plan(after), colour=False, width=100)
    assert [line.partition("  ·")[0].split("  ")[1] for line in text.splitlines()[3:6]] == [
        "↺ 0 rows",
        "~ a required",
        "~ a at most 9 characters → at most 3 characters · no row is in the way",
    ]


def test_an_index_that_was_altered_by_hand_is_built_again() -> None:
    wanted = item(column("a", unique=True))
    warehouse = Warehouse(wanted)
    warehouse.alter("item", "indexes", "item__uq_a", {"plain": False})
    text = render_text(warehouse.plan(wanted), colour=False, width=100)
    assert "\n  ~ a unique  built again · " in text


def test_a_view_that_only_gains_columns() -> None:
    view = {"views": [{"schema": "lab_views", "name": "v", "columns": ["code"]}]}
    wider = {"views": [{"schema": "lab_views", "name": "v"}]}
    plan = structural_plan(
        item(column("a"), consumption=view), item(column("a"), consumption=wider)
    )
    text = render_text(plan, colour=False, width=100)
    assert "\n  ~ view lab_views.v  has more columns: code, a\n" in text
