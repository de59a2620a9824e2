"""Rules of entities that no schema can tell: columns, keys, views, references, and names that clash."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model.checks import check_all_entities, check_between, check_entity
from mdm_gitops.model.known import Known
from tests.support.checking import CODE, KEYED, A, B, J, entity_of, found, known, text_of


def test_a_sound_entity_has_no_problems() -> None:
    entity = entity_of(
        CODE | {"maxLength": 3, "pattern": "[A-Z]+", "allowedValues": ["AB", "C"], "default": "C"},
        {"name": "n", "dataType": "int", "minValue": 1, "maxValue": 1, "default": 1},
        {"name": "amount", "dataType": "decimal", "precision": 5, "scale": 2, "default": 999.99},
        {"name": "day", "dataType": "date", "minValue": "2020-01-01", "default": "2020-01-01"},
        {"name": "data", "dataType": "json", "default": "x"},
        {"name": "a", "dataType": "text", "renamedFrom": "n"},
        keyColumns=["CODE"],
        sortColumns=[{"column": "n"}],
        displayRefColumn="code",
        uniqueConstraints=[{"name": "u", "columns": ["n", "amount"]}],
        similarity={"columns": [{"name": "code"}, {"name": "n", "matchMode": "number"}]},
        consumption={"views": [{"schema": "public", "name": "v", "columns": ["code", "data"]}]},
    )
    assert list(check_entity(entity)) == []


@pytest.mark.parametrize(
    ("column", "pointer", "rule", "says"),
    [
        ({"name": "_x"}, "name", "bad-name", "kept for system columns"),
        ({"name": "a__b"}, "name", "bad-name", "kept for the tables"),
        ({"name": "x" * 49}, "name", "bad-name", "49 characters"),
        ({"name": 'x"; drop'}, "name", "bad-name", "may hold only"),
        ({"name": "naïve"}, "name", "bad-name", "may hold only"),
        ({"name": "xMin"}, "name", "bad-name", "PostgreSQL keeps"),
        ({"name": "x\n"}, "name", "bad-name", "may hold only"),
        ({"renamedFrom": "C"}, "renamedFrom", "renamed-from-itself", "from itself"),
        ({"renamedFrom": "a b"}, "renamedFrom", "bad-name", "may hold only"),
        ({"dataType": "int", "maxLength": 3}, "maxLength", "rule-not-for-type", "string and text"),
        ({"dataType": "int", "pattern": "x"}, "pattern", "rule-not-for-type", "string and text"),
        ({"dataType": "int", "precision": 3}, "precision", "rule-not-for-type", "for decimal"),
        ({"scale": 3}, "scale", "rule-not-for-type", "for decimal"),
        ({"minValue": 3}, "minValue", "rule-not-for-type", "column 'c' is string"),
        ({"dataType": "bool", "maxValue": 3}, "maxValue", "rule-not-for-type", "numbers"),
        (
            {"dataType": "json", "allowedValues": ["a"]},
            "allowedValues",
            "rule-not-for-type",
            "json",
        ),
        ({"dataType": "json", "unique": True}, "unique", "not-for-json", "unique"),
        ({"dataType": "json", "reference": {"entity": "x"}}, "reference", "not-for-json", "json"),
        ({"dataType": "decimal", "scale": 1}, "scale", "scale-without-precision", "no precision"),
        (
            {"dataType": "decimal", "precision": 2, "scale": 3},
            "scale",
            "scale-above-precision",
            "scale 3 is above precision 2",
        ),
        ({"pattern": "("}, "pattern", "bad-pattern", "pattern "),
        ({"dataType": "int", "minValue": "x"}, "minValue", "not-of-type", "'x' is not an int"),
        ({"dataType": "date", "maxValue": 5}, "maxValue", "not-of-type", "is not a date"),
        ({"dataType": "int", "minValue": 2, "maxValue": 1}, "minValue", "min-above-max", "above"),
        (
            {"dataType": "date", "minValue": "2024-01-02", "maxValue": "2024-01-01"},
            "minValue",
            "min-above-max",
            "above",
        ),
        ({"default": 5}, "default", "bad-default", "put it in quotes"),
        ({"dataType": "bool", "default": "yes"}, "default", "bad-default", "neither true nor"),
        ({"default": "abc", "maxLength": 2}, "default", "bad-default", "at most 2 fit"),
        ({"default": "a1", "pattern": "[a-z]+"}, "default", "bad-default", "does not match"),
        ({"default": "c", "allowedValues": ["a", "b"]}, "default", "bad-default", "not one of"),
        ({"dataType": "int", "default": 0, "minValue": 1}, "default", "bad-default", "below"),
        ({"dataType": "int", "default": 2, "maxValue": 1}, "default", "bad-default", "above"),
        (
            {"dataType": "decimal", "precision": 3, "scale": 1, "default": 1.25},
            "default",
            "bad-default",
            "more than 1 digits after",
        ),
        (
            {"dataType": "decimal", "precision": 3, "scale": 1, "default": 100},
            "default",
            "bad-default",
            "more than 2 digits before",
        ),
        ({"allowedValues": ["a", 1]}, "allowedValues/1", "bad-allowed-value", "not text"),
        ({"allowedValues": ["a", "a"]}, "allowedValues/1", "bad-allowed-value", "twice"),
        (
            {"dataType": "decimal", "allowedValues": [1, "1.0"]},
            "allowedValues/1",
            "bad-allowed-value",
            "twice",
        ),
        ({"allowedValues": ["abc"], "maxLength": 2}, "allowedValues/0", "bad-allowed-value", "fit"),
    ],
)
def test_rules_of_a_column(column: dict[str, Any], pointer: str, rule: str, says: str) -> None:
    problems = list(check_entity(entity_of({"name": "c", "dataType": "string"} | column)))
    assert found(problems) == [(f"/columns/0/{pointer}", rule)]
    assert says in text_of(problems)


@pytest.mark.parametrize(
    ("value", "precision", "scale"), [("100", 3, 0), ("1e2", 3, 0), ("0.10", 3, 1), ("0", 1, 1)]
)
def test_a_decimal_fits_by_its_value_not_by_how_it_is_written(
    value: str, precision: int, scale: int
) -> None:
    column = {"name": "c", "dataType": "decimal", "precision": precision, "scale": scale}
    assert list(check_entity(entity_of(column | {"default": value}))) == []


@pytest.mark.parametrize(
    ("more", "pointer", "rule", "says"),
    [
        ({"name": "summary"}, "/name", "bad-name", "path of the API"),
        ({"name": "_e"}, "/name", "bad-name", "kept for system"),
        ({"name": 'x"; drop table'}, "/name", "bad-name", "may hold only"),
        ({"renamedFrom": "E"}, "/renamedFrom", "renamed-from-itself", "from itself"),
        ({"version": "1.0"}, "/version", "bad-version", "1.0.0"),
        ({"aliases": ["x", "X"]}, "/aliases/1", "duplicate-name", "twice"),
        ({"keyColumns": ["A", "x"]}, "/keyColumns/1", "unknown-column", "no column 'x'"),
        ({"keyColumns": ["a", "a"]}, "/keyColumns/1", "duplicate-name", "twice"),
        ({"keyColumns": ["b"]}, "/keyColumns/0", "nullable-key", "nullable: false"),
        ({"sortColumns": [{"column": "x"}]}, "/sortColumns/0/column", "unknown-column", "'x'"),
        ({"sortColumns": [{"column": "j"}]}, "/sortColumns/0/column", "not-for-json", "json"),
        ({"displayRefColumn": "aa"}, "/displayRefColumn", "unknown-column", "did you mean 'a'"),
        ({"displayRefColumn": "j"}, "/displayRefColumn", "not-for-json", "json"),
        (
            {"uniqueConstraints": [{"name": "u", "columns": ["a", "x"]}]},
            "/uniqueConstraints/0/columns/1",
            "unknown-column",
            "'x'",
        ),
        (
            {"uniqueConstraints": [{"name": "u-u", "columns": ["a"]}]},
            "/uniqueConstraints/0/name",
            "bad-name",
            "may hold only",
        ),
        (
            {
                "uniqueConstraints": [
                    {"name": "u", "columns": ["a"]},
                    {"name": "U", "columns": ["b"]},
                ]
            },
            "/uniqueConstraints/1/name",
            "duplicate-name",
            "twice",
        ),
        (
            {
                "uniqueConstraints": [
                    {"name": "u", "columns": ["a", "b"]},
                    {"name": "v", "columns": ["B", "A"]},
                ]
            },
            "/uniqueConstraints/1/columns",
            "duplicate-unique",
            "same columns",
        ),
        ({"search": {"columns": ["x"]}}, "/search/columns/0", "unknown-column", "'x'"),
        ({"search": {"columns": ["b"]}}, "/search/columns/0", "search-not-for-type", "int column"),
        ({"similarity": {}}, "/similarity", "similarity-without-columns", "no columns"),
        (
            {"similarity": {"columns": [{"name": "x"}]}},
            "/similarity/columns/0/name",
            "unknown-column",
            "'x'",
        ),
        (
            {"similarity": {"columns": [{"name": "b"}]}},
            "/similarity/columns/0/matchMode",
            "match-not-for-type",
            "fuzzy is not for int",
        ),
        (
            {"consumption": {"views": [{"schema": "MDM", "name": "v"}]}},
            "/consumption/views/0/schema",
            "reserved-schema",
            "not free",
        ),
        (
            {"consumption": {"views": [{"schema": "pg_x", "name": "v"}]}},
            "/consumption/views/0/schema",
            "reserved-schema",
            "not free",
        ),
        (
            {"consumption": {"views": [{"schema": "a b", "name": "v"}]}},
            "/consumption/views/0/schema",
            "bad-name",
            "may hold only",
        ),
        (
            {"consumption": {"views": [{"schema": "s", "name": "1v"}]}},
            "/consumption/views/0/name",
            "bad-name",
            "may hold only",
        ),
        (
            {"consumption": {"views": [{"schema": "s", "name": "v", "columns": ["a", "A"]}]}},
            "/consumption/views/0/columns/1",
            "duplicate-name",
            "twice",
        ),
        (
            {
                "consumption": {
                    "views": [{"schema": "s", "name": "v"}, {"schema": "S", "name": "V"}]
                }
            },
            "/consumption/views/1/name",
            "duplicate-view",
            "already a view",
        ),
    ],
)
def test_rules_of_an_entity(more: dict[str, Any], pointer: str, rule: str, says: str) -> None:
    problems = list(check_entity(entity_of(A, B, J, **more)))
    assert found(problems) == [(pointer, rule)]
    assert says in text_of(problems)


def test_columns_clash_without_regard_to_case() -> None:
    columns = [{"name": name, "dataType": "int"} for name in ("code", "CODE", "x", "x")]
    problems = list(check_entity(entity_of(*columns)))
    assert found(problems) == [
        ("/columns/1/name", "duplicate-name"),
        ("/columns/3/name", "duplicate-name"),
    ]
    assert "differ in case only" in problems[0].message


def test_one_column_cannot_become_two_but_two_can_swap() -> None:
    swap = [
        {"name": "a", "dataType": "int", "renamedFrom": "b"},
        {"name": "b", "dataType": "int", "renamedFrom": "a"},
    ]
    assert list(check_entity(entity_of(*swap))) == []
    both = [{"name": n, "dataType": "int", "renamedFrom": "Old"} for n in ("a", "b")]
    assert found(check_entity(entity_of(*both))) == [("/columns/1/renamedFrom", "renamed-twice")]


def test_reserved_schemas_are_those_of_the_settings() -> None:
    entity = entity_of(A, consumption={"views": [{"schema": "own_config", "name": "v"}]})
    assert list(check_entity(entity)) == []
    assert found(check_entity(entity, reserved_schemas=["Own_Config"])) == [
        ("/consumption/views/0/schema", "reserved-schema")
    ]


PAIR = entity_of(A, B | {"nullable": False}, name="pair", keyColumns=["a", "b"])


@pytest.mark.parametrize(
    ("data_type", "reference", "pointer", "rule", "says"),
    [
        ("int", {"entity": "targt"}, "/entity", "unknown-entity", "did you mean 'target'"),
        ("int", {"entity": "target"}, "", "reference-type", "make it `dataType: string`"),
        ("long", {"entity": "target", "column": "num"}, "/column", "reference-type", "int"),
        ("int", {"entity": "target", "column": "free"}, "/column", "reference-not-unique", "free"),
        ("int", {"entity": "target", "column": "nm"}, "/column", "unknown-column", "'num'"),
        ("string", {"entity": "pair"}, "", "reference-needs-column", "has: a, b"),
        ("string", {"entity": "pair", "column": "a"}, "/column", "reference-not-unique", "'a'"),
    ],
)
def test_references_must_lead_to_a_unique_column_of_the_same_type(
    data_type: str, reference: dict[str, str], pointer: str, rule: str, says: str
) -> None:
    entity = entity_of({"name": "r", "dataType": data_type, "reference": reference})
    problems = list(check_between(entity, known(entity, KEYED, PAIR)))
    assert found(problems) == [(f"/columns/0/reference{pointer}", rule)]
    assert says in text_of(problems)


@pytest.mark.parametrize(
    ("data_type", "reference"),
    [
        ("string", {"entity": "Target"}),
        ("text", {"entity": "target", "column": "CODE"}),
        ("int", {"entity": "target", "column": "num"}),
        ("long", {"entity": "target", "column": "alone"}),
        ("int", {"entity": "broken", "column": "x"}),
    ],
)
def test_references_that_hold(data_type: str, reference: dict[str, str]) -> None:
    entity = entity_of({"name": "r", "dataType": data_type, "reference": reference})
    all_known = Known(entities={"target": KEYED}, domains=("d",), unreadable=frozenset(["broken"]))
    assert list(check_between(entity, all_known)) == []


def test_references_may_form_a_cycle_also_when_required() -> None:
    columns = CODE, {"name": "r", "dataType": "string", "nullable": False}
    one = entity_of(
        columns[0], columns[1] | {"reference": {"entity": "two"}}, name="one", keyColumns=["code"]
    )
    two = entity_of(
        columns[0], columns[1] | {"reference": {"entity": "one"}}, name="two", keyColumns=["code"]
    )
    own = entity_of(
        columns[0], columns[1] | {"reference": {"entity": "own"}}, name="own", keyColumns=["code"]
    )
    for entity in (one, two, own):
        assert list(check_between(entity, known(one, two, own))) == []


def test_the_domain_must_exist_unless_it_could_not_be_read() -> None:
    entity = entity_of(A, domain="othr")
    problems = list(check_between(entity, known(entity)))
    assert found(problems) == [("/domain", "unknown-domain")]
    assert "did you mean 'other'" in text_of(problems)
    assert list(check_between(entity, Known(entities={}, domains=None))) == []


def test_names_that_two_entities_claim() -> None:
    view = {"consumption": {"views": [{"schema": "s", "name": "v"}]}}
    one = entity_of(A, name="one", renamedFrom="old", **view)
    two = entity_of(A, name="two", renamedFrom="OLD", **view)
    assert [(e.name, p.rule) for e, p in check_all_entities([one, two])] == [
        ("two", "renamed-twice"),
        ("two", "duplicate-view"),
    ]


def test_what_is_restricted_is_not_searched() -> None:
    hidden = {"name": "s", "dataType": "string", "classification": "restricted"}
    number = {"name": "n", "dataType": "int"}
    named = entity_of(CODE, hidden, search={"columns": ["S"]})
    assert found(check_entity(named)) == [("/search/columns/0", "restricted-search")]
    nothing = entity_of(number, hidden, search={"enabled": True})
    assert found(check_entity(nothing)) == [("/search", "search-without-columns")]
    assert found(check_entity(entity_of(CODE, hidden, number, search={"enabled": True}))) == []
    assert found(check_entity(entity_of(number, search={}))) == []
