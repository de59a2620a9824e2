"""Which values survive: each rule by itself, rules one after the other, and what a definition may say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.data.survivorship import Choice, Side, choose
from mdm_gitops.model import Entity
from mdm_gitops.model.checks import check_entity
from mdm_gitops.plan.changes import ChangeDefinition
from mdm_gitops.plan.fields import entity_fields
from mdm_gitops.plan.physical import physical_entity
from mdm_gitops.plan.words import word

_THEN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS: list[dict[str, Any]] = [
    {"name": "code", "dataType": "string", "nullable": False},
    {"name": "Name", "dataType": "string"},
    {"name": "size", "dataType": "int"},
    {"name": "source", "dataType": "string"},
]


def entity(**survivorship: Any) -> Entity:
    document: dict[str, Any] = {"name": "a", "domain": "d", "columns": COLUMNS}
    document["keyColumns"] = ["code"]
    if survivorship:
        document["survivorship"] = survivorship
    return Entity.model_validate(document)


def side(
    name: str | None, *, size: str | None = None, source: str | None = None, days: int = 0
) -> Side:
    texts = {"code": "X", "name": name, "size": size, "source": source}
    return Side(texts=texts, changed_at=_THEN + timedelta(days=days), source=source)


def decided(rules: Any, survivor: Side, duplicate: Side, column: str = "name") -> tuple[Any, str]:
    found = {c.column: c for c in _choices(entity(**rules), survivor, duplicate)}
    return found[column].text, found[column].rule


def _choices(definition: Entity, survivor: Side, duplicate: Side, **given: Any) -> list[Choice]:
    return choose(
        definition, survivor=survivor, duplicate=duplicate, given=given, before=survivor.texts
    )


SOURCES = {"column": "source", "order": ["erp", "web"]}


@pytest.mark.parametrize(
    ("rules", "survivor", "duplicate", "expected"),
    [
        ({}, side("a"), side("b"), ("a", "survivor")),
        ({}, side(None), side("b"), ("b", "mostComplete")),
        ({}, side(" "), side("b"), ("b", "mostComplete")),
        ({}, side("a"), side(None), ("a", "mostComplete")),
        ({}, side("a"), side("a"), ("a", "equal")),
        ({"rules": ["survivor"]}, side(None), side("b"), (None, "survivor")),
        ({"rules": ["mostRecent"]}, side("a"), side("b", days=1), ("b", "mostRecent")),
        ({"rules": ["mostRecent"]}, side("a"), side(None, days=1), (None, "mostRecent")),
        ({"rules": ["mostRecent"]}, side("a", days=1), side("b"), ("a", "mostRecent")),
        ({"rules": ["mostRecent"]}, side("a"), side("b"), ("a", "survivor")),
        ({"rules": ["longest"]}, side("aa"), side("b"), ("aa", "longest")),
        ({"rules": ["longest"]}, side("ä"), side("bb"), ("bb", "longest")),
        ({"rules": ["longest"]}, side(None), side("b"), ("b", "longest")),
        ({"rules": ["longest", "mostRecent"]}, side("a"), side("b", days=1), ("b", "mostRecent")),
        (
            {"rules": ["trustedSource"], "sources": SOURCES},
            side("a", source="web"),
            side("b", source="erp"),
            ("b", "trustedSource"),
        ),
        (
            {"rules": ["trustedSource"], "sources": SOURCES},
            side("a", source="web"),
            side("b", source="unheard"),
            ("a", "trustedSource"),
        ),
        (
            {"rules": ["trustedSource", "longest"], "sources": SOURCES},
            side("a", source="x"),
            side("bb"),
            ("bb", "longest"),
        ),
        (
            {"rules": ["survivor"], "columns": [{"name": "NAME", "rules": ["longest"]}]},
            side("a"),
            side("bb"),
            ("bb", "longest"),
        ),
    ],
)
def test_a_rule_decides_or_leaves_it_to_the_next(
    rules: Any, survivor: Side, duplicate: Side, expected: tuple[Any, str]
) -> None:
    assert decided(rules, survivor, duplicate) == expected


def test_longest_is_about_texts_only() -> None:
    rules = {"rules": ["longest", "mostRecent"]}
    survivor, duplicate = side("a", size="1000"), side("a", size="9", days=1)
    assert decided(rules, survivor, duplicate, "size") == ("9", "mostRecent")


def test_explicit_values_win_and_keys_stay() -> None:
    survivor, duplicate = side("a"), side("b", days=1)
    found = _choices(entity(rules=["mostRecent"]), survivor, duplicate, name=None, code="Y")
    chosen = {c.column: (c.text, c.rule) for c in found}
    assert chosen["name"] == (None, "explicit")
    assert chosen["code"] == ("Y", "explicit")
    other = Side(texts={**duplicate.texts, "code": "Z"}, changed_at=duplicate.changed_at)
    [key, *_] = _choices(entity(rules=["mostRecent"]), survivor, other)
    assert (key.text, key.rule) == ("X", "unique")


_TEXTS = st.none() | st.sampled_from(["", "a", "b", "aa"])
_RULES = st.lists(
    st.sampled_from(["mostRecent", "mostComplete", "longest"]), unique=True, min_size=1
)


@given(_RULES, _TEXTS, _TEXTS, st.integers(-1, 1), st.booleans())
def test_who_survives_decides_only_what_no_rule_decides(
    rules: list[str], one: str | None, two: str | None, days: int, is_same: bool
) -> None:
    """Swapped, the same row wins each column that a rule decides."""
    first, second = side(one), side(two, days=days)
    text, rule = decided({"rules": rules}, first, second)
    swapped, again = decided({"rules": rules}, second, first)
    assert rule == again
    assert text in (one, two)
    if rule == "survivor":
        assert (text, swapped) == (one, two)
    else:
        assert text == swapped


@pytest.mark.parametrize(
    ("survivorship", "pointer", "rule"),
    [
        ({"rules": ["longest", "longest"]}, ("rules", 1), "duplicate-name"),
        ({"rules": ["survivor", "longest"]}, ("rules", 0), "survivorship-never-asked"),
        ({"rules": ["trustedSource"]}, ("rules", 0), "survivorship-without-sources"),
        (
            {"columns": [{"name": "name", "rules": ["trustedSource"]}]},
            ("columns", 0, "rules", 0),
            "survivorship-without-sources",
        ),
        ({"sources": {"column": "x", "order": ["a"]}}, ("sources", "column"), "unknown-column"),
        (
            {"sources": {"column": "size", "order": ["a"]}},
            ("sources", "column"),
            "rule-not-for-type",
        ),
        (
            {"sources": {"column": "name", "order": ["a", "b", "a"]}},
            ("sources", "order", 2),
            "duplicate-name",
        ),
        (
            {"sources": {"column": "hidden", "order": ["a"]}},
            ("sources", "column"),
            "survivorship-tells-restricted",
        ),
        (
            {"sources": {"column": "kind", "order": ["erp", "web"]}},
            ("sources", "order", 1),
            "survivorship-no-such-source",
        ),
        (
            {"columns": [{"name": "x", "rules": ["longest"]}]},
            ("columns", 0, "name"),
            "unknown-column",
        ),
        (
            {"columns": [{"name": n, "rules": ["longest"]} for n in ("name", "Name")]},
            ("columns", 1, "name"),
            "duplicate-name",
        ),
        (
            {"columns": [{"name": "code", "rules": ["longest"]}]},
            ("columns", 0, "name"),
            "survivorship-of-unique",
        ),
        (
            {"columns": [{"name": "slot", "rules": ["mostRecent"]}]},
            ("columns", 0, "name"),
            "survivorship-of-unique",
        ),
        (
            {"columns": [{"name": "size", "rules": ["mostRecent", "longest"]}]},
            ("columns", 0, "rules", 1),
            "rule-not-for-type",
        ),
    ],
)
def test_rules_that_cannot_work_are_refused_where_they_stand(
    survivorship: Any, pointer: tuple[Any, ...], rule: str
) -> None:
    document = {
        "name": "a",
        "domain": "d",
        "keyColumns": ["code"],
        "uniqueConstraints": [{"name": "u", "columns": ["slot", "size"]}],
        "columns": [
            *COLUMNS[:2],
            {"name": "slot", "dataType": "string"},
            {"name": "size", "dataType": "int"},
            {"name": "kind", "dataType": "string", "allowedValues": ["erp", "crm"]},
            {"name": "hidden", "dataType": "string", "classification": "restricted"},
        ],
        "survivorship": survivorship,
    }
    if rule == "rule-not-for-type" and "columns" in survivorship:
        document["uniqueConstraints"] = []
    found = list(check_entity(Entity.model_validate(document)))
    assert [(problem.pointer, problem.rule) for problem in found] == [
        (("survivorship", *pointer), rule)
    ]


def test_a_change_of_rules_changes_no_table_and_is_told() -> None:
    before, after = entity(), entity(rules=["longest", "mostRecent"], sources=SOURCES)
    assert physical_entity(before, {}) == physical_entity(after, {})
    fields = list(entity_fields(before, after, identities={}))
    assert [field.path for field in fields] == ["survivorship"]
    told = word(ChangeDefinition(entity="a", fields=tuple(fields)))
    assert "longest" in str(told)


def test_what_is_not_written_down_is_no_part_of_a_definition() -> None:
    """Definitions that were deployed before keep their hash."""
    assert "survivorship" not in entity().to_document()
    assert entity().content_hash() != entity(rules=["longest"]).content_hash()
