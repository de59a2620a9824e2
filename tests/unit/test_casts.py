"""The table of casts: which pairs it has, and that each entry prints as it was meant."""

from __future__ import annotations

import pytest
from sqlglot import exp

from mdm_gitops.model import DataType
from mdm_gitops.plan.physical import _TYPES
from mdm_gitops.warehouse.ddl import casts
from mdm_gitops.warehouse.ddl.trees import column, render

ALL = tuple(dict.fromkeys(_TYPES.values()))
MOMENT = "timestamp with time zone"

POSSIBLE = {
    "text": {"integer", "bigint", "numeric", "boolean", "date", MOMENT, "uuid", "jsonb"},
    "integer": {"text", "bigint", "numeric"},
    "bigint": {"text", "integer", "numeric"},
    "numeric": {"text", "integer", "bigint"},
    "boolean": {"text"},
    "date": {"text", MOMENT},
    MOMENT: {"text", "date"},
    "uuid": {"text"},
    "jsonb": {"text"},
}


def shown(tree: exp.Expr) -> str:
    return render(exp.select(tree)).removeprefix("SELECT ")


def test_every_type_of_ours_is_in_the_table() -> None:
    assert set(ALL) == set(POSSIBLE)
    assert len(DataType) == len(_TYPES)


@pytest.mark.parametrize("old", ALL)
def test_the_table_is_closed(old: str) -> None:
    assert {new for new in ALL if new != old and casts.is_possible(old, new)} == POSSIBLE[old]
    assert casts.is_possible(old, old)


@pytest.mark.parametrize("old", ALL)
@pytest.mark.parametrize("new", ALL)
def test_each_entry_prints_and_reads_back(old: str, new: str) -> None:
    value = column("v")
    there = casts.cast_value(value, old, new)
    assert '"v"' in shown(there) or not casts.is_possible(old, new)
    assert '"v"' in shown(casts.castable(value, old, new)) or shown(
        casts.castable(value, old, new)
    ) == ("TRUE")
    assert shown(casts.castable(there, new, old))


def test_a_pair_without_a_cast_passes_only_where_no_value_is() -> None:
    assert shown(casts.castable(column("v"), "date", "boolean")) == '"v" IS NULL'
    assert shown(casts.cast_value(column("v"), "date", "boolean")) == "CAST(NULL AS BOOLEAN)"


def test_the_same_type_needs_no_cast() -> None:
    assert shown(casts.cast_value(column("v"), "date", "date")) == '"v"'
    assert shown(casts.castable(column("v"), "date", "date")) == "TRUE"


@pytest.mark.parametrize(
    ("old", "new", "test", "cast"),
    [
        ("integer", "bigint", "TRUE", 'CAST("v" AS BIGINT)'),
        (
            "bigint",
            "integer",
            'CASE WHEN "v" IS NULL THEN TRUE ELSE "v" BETWEEN -2147483648 AND 2147483647 END',
            'CASE WHEN "v" BETWEEN -2147483648 AND 2147483647 THEN CAST("v" AS INT) END',
        ),
        (
            "integer",
            "numeric(5,2)",
            (
                'CASE WHEN "v" IS NULL THEN TRUE ELSE'
                ' TRUNC(CAST("v" AS DECIMAL), 2) = CAST("v" AS DECIMAL)'
                " AND ABS(CAST(\"v\" AS DECIMAL)) < CAST('1e3' AS DECIMAL) END"
            ),
            (
                'CASE WHEN TRUNC(CAST("v" AS DECIMAL), 2) = CAST("v" AS DECIMAL)'
                " AND ABS(CAST(\"v\" AS DECIMAL)) < CAST('1e3' AS DECIMAL)"
                ' THEN CAST("v" AS DECIMAL(5, 2)) END'
            ),
        ),
    ],
)
def test_a_cast_is_guarded_by_its_test(old: str, new: str, test: str, cast: str) -> None:
    assert shown(casts.castable(column("v"), old, new)) == test
    assert shown(casts.cast_value(column("v"), old, new)) == cast


def test_a_chain_of_casts_goes_from_type_to_type() -> None:
    through = casts.cast_through(column("v"), ("integer", "bigint", "text"))
    assert shown(through) == 'CAST(CAST("v" AS BIGINT) AS TEXT)'
    assert shown(casts.cast_through(column("v"), ("integer",))) == '"v"'


def test_a_chain_stays_of_a_size_that_a_check_can_have() -> None:
    chain = ("text", MOMENT, "date", "text", "jsonb", "text")
    assert len(shown(casts.cast_through(column("v"), chain))) < 100_000
