"""The catalogue of common entities: what a version says never changes, and how versions are merged."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.errors import Conflict
from mdm_gitops.model import Entity
from mdm_gitops.source import read_folder
from mdm_gitops.source.common_entities import common_entities
from mdm_gitops.source.common_upgrade import Former, merge_definition, merge_rows

EXAMPLES = Path(__file__).parents[2] / "examples"
# Changing one of them? Run examples/reference-data/keep_version.py first, and raise its version.
RELEASED = {
    "country": ("1.0.0", "0d5fc0a1bac936eb"),
    "subdivision": ("1.0.0", "f75882621fd4d64f"),
    "currency": ("1.0.0", "07a8cf2b870bc85a"),
    "language": ("1.0.0", "fd0ef6778dd42efc"),
    "unit_of_measure": ("1.0.0", "e4bfbdfd4949766a"),
    "time_zone": ("1.0.0", "2517d8397b5e8e69"),
}
VALUES = st.sampled_from([None, "a", "b", "c"])
ROWS = st.dictionaries(st.sampled_from("KLMN"), VALUES)


def test_what_a_version_says_does_not_change() -> None:
    found = {}
    for name, common in common_entities().items():
        present = common.version(common.entity.version)
        assert present is not None
        found[name] = (common.entity.version, hashlib.sha256(present.written()).hexdigest()[:16])
        assert Former.read(present.written()) == present
    assert found == RELEASED


def test_a_version_that_never_was_is_not_known() -> None:
    assert common_entities()["country"].version("0.9.0") is None
    assert common_entities()["country"].version("../../country") is None


def entity(**more: Any) -> Entity:
    columns = [{"name": "k", "dataType": "string", "nullable": False}]
    columns += more.pop("columns", [{"name": "v", "dataType": "string"}])
    return Entity.model_validate(
        {"name": "e", "domain": "d", "keyColumns": ["k"], "columns": columns, **more}
    )


def rows_of(values: dict[str, str | None]) -> list[dict[str, Any]]:
    return [{"k": key} | ({"v": value} if value else {}) for key, value in values.items()]


@given(before=ROWS, mine=ROWS, theirs=ROWS)
def test_rows_are_merged_key_by_key(
    before: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """Against the definition of a three-way merge, worked out for each key by itself."""
    absent = object()
    expected, conflicts = {}, 0
    for key in "KLMN":
        was, here, there = (each.get(key, absent) for each in (before, mine, theirs))
        if here == there or there == was:
            value = here
        elif here == was:
            value = there
        else:
            conflicts += 1
            continue
        if value is not absent:
            expected[key] = value
    former = Former.of(entity(), rows_of(before))
    try:
        merged = merge_rows(former, entity(), rows_of(mine), rows_of(theirs))
    except Conflict as error:
        assert len(error.details["conflicts"]) == conflicts > 0
    else:
        assert not conflicts
        assert {row["k"]: row.get("v") for row in merged} == expected


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ({"displayName": "Mine"}, {}, {"displayName": "Mine"}),
        ({}, {"displayName": "Theirs"}, {"displayName": "Theirs"}),
        ({"displayName": "Same"}, {"displayName": "Same"}, {"displayName": "Same"}),
        ({"displayName": "Mine"}, {"displayName": "Theirs"}, "displayName"),
        ({"domain": "mine"}, {"version": "2.0.0"}, {"domain": "mine", "version": "2.0.0"}),
        ({"sortColumns": [{"column": "v"}]}, {"sortColumns": [{"column": "k"}]}, "sortColumns"),
    ],
)
def test_a_definition_is_merged_value_by_value(
    mine: dict[str, Any], theirs: dict[str, Any], expected: Any
) -> None:
    former = Former.of(entity(), [])
    if isinstance(expected, str):
        with pytest.raises(Conflict) as refused:
            merge_definition(former, entity(**mine), entity(**theirs))
        assert refused.value.details["conflicts"] == [expected]
    else:
        assert merge_definition(former, entity(**mine), entity(**theirs)) == entity(**expected)


def test_columns_are_merged_by_their_names() -> None:
    def column(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "dataType": "string", **more}

    former = Former.of(entity(columns=[column("v"), column("w"), column("x")]), [])
    local = entity(columns=[column("v", maxLength=9), column("w"), column("mine")])
    new = entity(columns=[column("v", description="d"), column("theirs"), column("x")])
    merged = merge_definition(former, local, new)
    assert [each.name for each in merged.columns] == ["k", "v", "theirs", "mine"]
    assert (merged.columns[1].max_length, merged.columns[1].description) == (9, "d")
    # Removed here and changed there: nobody but a person can say.
    changed = entity(columns=[column("v"), column("w"), column("x", maxLength=3)])
    with pytest.raises(Conflict) as refused:
        merge_definition(former, local, changed)
    assert refused.value.details["conflicts"] == ["columns.x"]


def test_a_document_says_all_that_a_definition_says() -> None:
    """A merge goes through documents, so nothing may be lost on the way."""
    folders = (EXAMPLES / name for name in ("reference-data", "customer-hub"))
    entities = [e for folder in folders for e in read_folder(folder).entities.values()]
    assert len(entities) > 8
    for each in entities:
        assert Entity.model_validate(each.to_document()) == each
