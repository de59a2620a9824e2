"""Which seed files a plan looks at, in which order, and what it does with the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.build import complete
from mdm_gitops.plan.changes import ApplySeed, SeedCounts
from tests.support.scenario import Documents, column, definitions, entity
from tests.support.simulated import Warehouse

ROWS = [{"code": "x", "A": 1}]
ENFORCED = {"seed": {"mode": "enforce"}}


def seeded(*columns: Documents, rows: list[Documents] = ROWS, **fields: Any) -> Definitions:
    columns = columns or (column("a", "int"),)
    return definitions(entity("item", *columns, **fields), seeds={"item": rows})


def seeds(warehouse: Warehouse, wanted: Definitions, counts: SeedCounts) -> list[ApplySeed]:
    drafted = warehouse.draft(wanted)
    answers = dict.fromkeys(drafted.seed_questions, counts)
    plan = complete(drafted, results=[], seed_counts=answers)
    changes = [item.change for item in plan.changes]
    return [change for change in changes if isinstance(change, ApplySeed)]


@pytest.mark.parametrize(
    ("before", "wanted", "counts", "is_planned"),
    [
        (seeded(), seeded(), SeedCounts(inserted=1), False),
        (seeded(), seeded(rows=[]), SeedCounts(), True),
        (seeded(**ENFORCED), seeded(**ENFORCED), SeedCounts(unchanged=1), False),
        (seeded(**ENFORCED), seeded(**ENFORCED), SeedCounts(inserted=1), True),
        (seeded(**ENFORCED), seeded(**ENFORCED), SeedCounts(updated=1), True),
        (seeded(**ENFORCED), seeded(rows=[], **ENFORCED), SeedCounts(), True),
    ],
    ids=["applied", "new", "enforced-at-rest", "row-gone", "row-changed", "enforced-new"],
)
def test_which_file_is_applied(
    before: Definitions, wanted: Definitions, counts: SeedCounts, is_planned: bool
) -> None:
    found = seeds(Warehouse(before), wanted, counts)
    assert [change.counts for change in found] == [counts] * is_planned


@pytest.mark.parametrize(
    ("before", "wanted", "table", "present"),
    [
        pytest.param(definitions(entity("b")), seeded(), None, None, id="new-entity"),
        pytest.param(
            definitions(entity("item", column("a", "int"))),
            seeded(),
            "item",
            {"code": "code", "a": "a"},
            id="as-it-stands",
        ),
        pytest.param(
            definitions(entity("item", column("z", "int"))),
            seeded(column("a", "int", renamedFrom="z")),
            "item",
            {"code": "code", "a": "z"},
            id="renamed-column",
        ),
        pytest.param(
            definitions(entity("item")), seeded(), "item", {"code": "code"}, id="new-column"
        ),
        pytest.param(
            definitions(entity("thing", column("a", "int"))),
            seeded(renamedFrom="thing"),
            "thing",
            {"code": "code", "a": "a"},
            id="renamed-entity",
        ),
    ],
)
def test_the_live_rows_are_asked_in_their_present_names(
    before: Definitions, wanted: Definitions, table: str | None, present: dict[str, str] | None
) -> None:
    warehouse = Warehouse(before)
    warehouse.facts = replace(warehouse.facts, filled=frozenset())
    question = warehouse.draft(wanted).seed_questions["item"]
    assert question.live_table == table
    if present is not None:
        assert question.present == present


def test_an_entity_that_was_not_read_is_as_it_is_defined() -> None:
    warehouse = Warehouse(seeded())
    warehouse.leave_unread("item")
    question = warehouse.draft(seeded(rows=[{"code": "y", "a": 2}])).seed_questions["item"]
    assert (question.live_table, question.present) == ("item", {"code": "code", "a": "a"})


def test_targets_come_first_and_circles_share_a_group() -> None:
    def refers(to: str) -> Documents:
        return column(f"to_{to}", reference={"entity": to})

    wanted = definitions(
        entity("a", refers("b")),
        entity("b", refers("c"), refers("d")),
        entity("c", refers("b")),
        entity("d", historyEnabled=True),
        entity("unseeded"),
        seeds={name: [{"code": "x"}] for name in "abcd"},
    )
    found = seeds(Warehouse(), wanted, SeedCounts(inserted=1))
    assert [(change.entity, change.group, change.history_table) for change in found] == [
        ("d", 1, "d__history"),
        ("b", 2, None),
        ("c", 2, None),
        ("a", 3, None),
    ]
