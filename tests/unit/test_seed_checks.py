"""Rules of the rows in a seed file."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model.problem import Problem
from mdm_gitops.model.seed_checks import check_names, check_rows, normalise_names
from tests.support.checking import CODE, entity_of, found, text_of

SEEDED = entity_of(
    CODE | {"maxLength": 2, "pattern": "[A-Z]+"},
    {"name": "Name", "dataType": "string", "nullable": False, "default": "none"},
    {"name": "n", "dataType": "int", "minValue": 0, "unique": True},
    {"name": "kind", "dataType": "string", "allowedValues": ["a", "b"]},
    {"name": "price", "dataType": "decimal", "precision": 4, "scale": 2},
    {"name": "data", "dataType": "json"},
    keyColumns=["code"],
    uniqueConstraints=[{"name": "u", "columns": ["kind", "price"]}],
)


def seed_problems(*rows: dict[str, Any]) -> list[Problem]:
    return list(check_names(SEEDED, rows)) or list(
        check_rows(SEEDED, normalise_names(SEEDED, rows))
    )


@pytest.mark.parametrize(
    ("row", "pointer", "rule", "says"),
    [
        ({"nme": 1}, "/1/nme", "unknown-column", "row 2: entity 'e' has no column 'nme'"),
        ({"_sys_id": 1}, "/1/_sys_id", "system-column", "system column"),
        ({"Kind": "a", "kind": "b"}, "/1/kind", "duplicate-key", "twice"),
        ({"code": None}, "/1/code", "required", "not nullable"),
        ({"name": None}, "/1/Name", "required", "null"),
        ({"code": "toolong"}, "/1/code", "bad-value", "row 2: code 'toolong' has 7 characters"),
        ({"code": "b"}, "/1/code", "bad-value", "does not match"),
        ({"n": "x"}, "/1/n", "bad-value", "is not an int"),
        ({"n": True}, "/1/n", "bad-value", "truth value"),
        ({"n": -1}, "/1/n", "bad-value", "below minValue 0"),
        ({"kind": "c"}, "/1/kind", "bad-value", "not one of"),
        ({"kind": ["a"]}, "/1/kind", "bad-value", "a list"),
        ({"price": "1.234"}, "/1/price", "bad-value", "after the point"),
        ({"data": {"a": "\x00"}}, "/1/data", "bad-value", "NUL"),
        ({"code": "AA"}, "/1/code", "duplicate-row", "is that of row 1 too"),
        ({"n": 1.0}, "/1/n", "duplicate-row", "unique n"),
        ({"kind": "a", "price": "1.50"}, "/1/kind", "duplicate-row", "u ('a', '1.50')"),
    ],
)
def test_rules_of_seed_rows(row: dict[str, Any], pointer: str, rule: str, says: str) -> None:
    good = {"code": "AA", "n": 1, "kind": "a", "price": 1.5, "data": [1]}
    problems = seed_problems(good, {"code": "BB"} | row)
    assert found(problems) == [(pointer, rule)]
    assert says in text_of(problems)


def test_seed_rows_that_hold() -> None:
    rows = [
        {"CODE": "AA", "kind": None},
        {"code": "BB", "name": "x", "n": None, "price": 99.99},
        {"code": "CC", "data": {"a": [1, {"b": None}]}},
    ]
    assert seed_problems(*rows) == []
    assert seed_problems() == []
    assert normalise_names(SEEDED, rows)[0] == {"code": "AA", "kind": None}


def test_one_and_true_are_different_values() -> None:
    entity = entity_of({"name": "n", "dataType": "int"}, keyColumns=[])
    assert found(check_rows(entity, [{"n": 1}, {"n": True}, {"n": 1}])) == [("/1/n", "bad-value")]


def test_a_missing_required_value_and_a_missing_key() -> None:
    entity = entity_of(CODE, {"name": "x", "dataType": "int"})
    assert found(check_rows(entity, [{"x": 1}])) == [("/0/code", "required")]
    assert found(check_names(entity, [{"x": 1}])) == [("", "seed-without-key")]
