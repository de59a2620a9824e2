"""New values into old text: what is meant is what is read again, and other lines do not move."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdm_gitops.model import Entity
from mdm_gitops.source import parse_entity
from mdm_gitops.source.merge import merge_document, merge_entity
from mdm_gitops.source.yaml_reader import load_yaml

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/entities/**/*.yaml"))
TEXT = """\
# yaml-language-server: $schema=x
name: thing   # what it is
domain: ref
version: 2.0.0
keyColumns: [code]
aliases: [it]
uniqueConstraints: [{name: both, columns: [code, size]}]

columns:
  # the key
  - name: code
    dataType: string
    nullable: false   # always there
    # deep in code

  # how large
  - name: size
    nullable: true    # the default, written down
    dataType: int
    allowedValues:
      - 1   # small
      - 2   # large

  - {name: note, dataType: text, description: free}   # one line
  - name: long
    description: |
      two lines
      # no comment
    dataType: string
# the end
"""


def changed(data: bytes, **values: Any) -> tuple[Entity, str]:
    document = {**parse_entity(data).to_document(), **values}
    entity = Entity.model_validate({k: v for k, v in document.items() if v is not None})
    result = merge_entity(data, entity)
    assert parse_entity(result) == entity
    return entity, result.decode()


def diff(old: str, new: str) -> list[str]:
    lines = difflib.ndiff(old.splitlines(), new.splitlines())
    return [line for line in lines if line[0] in "+-"]


def columns(**changes: Any) -> list[dict[str, Any]]:
    """The columns of TEXT; a change of None takes one away."""
    found = parse_entity(TEXT).to_document()["columns"]
    merged = [{**c, **(changes.get(c["name"]) or {})} for c in found]
    kept = [c for c in merged if c["name"] not in changes or changes[c["name"]] is not None]
    return [{k: v for k, v in c.items() if v is not None} for c in kept]


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a scalar keeps the comment beside it": (
        {"domain": "crm"},
        ["- domain: ref", "+ domain: crm"],
    ),
    "a new member stands where the model has it": (
        {"displayName": "Thing"},
        ["+ displayName: Thing"],
    ),
    "a member goes with its line": ({"version": None}, ["- version: 2.0.0"]),
    "a list on one line": (
        {"aliases": ["it", "item"]},
        ["- aliases: [it]", "+ aliases: [it, item]"],
    ),
    "a rule inside of a column": (
        {"columns": columns(code={"maxLength": 5})},
        ["+     maxLength: 5"],
    ),
    "an item of a list inside of a column": (
        {"columns": columns(size={"allowedValues": [2, 3]})},
        ["-       - 1   # small", "+       - 3"],
    ),
    "a column with its comment goes": (
        {"columns": columns(size=None), "uniqueConstraints": None},
        [
            "- uniqueConstraints: [{name: both, columns: [code, size]}]",
            "- ",
            "-   # how large",
            "-   - name: size",
            "-     nullable: true    # the default, written down",
            "-     dataType: int",
            "-     allowedValues:",
            "-       - 1   # small",
            "-       - 2   # large",
        ],
    ),
    "a column on one line": (
        {"columns": columns(note={"description": "other"})},
        [
            "-   - {name: note, dataType: text, description: free}   # one line",
            "+   - {name: note, description: other, dataType: text}   # one line",
        ],
    ),
    "a new column at the end": (
        {"columns": [*columns(), {"name": "z", "dataType": "bool"}]},
        ["+ ", "+   - name: z", "+     dataType: bool"],
    ),
    "a renamed column keeps its comments": (
        {
            "columns": columns(code={"name": "id", "renamedFrom": "code"}),
            "keyColumns": ["id"],
            "uniqueConstraints": None,
        },
        [
            "- keyColumns: [code]",
            "- uniqueConstraints: [{name: both, columns: [code, size]}]",
            "+ keyColumns: [id]",
            "-   - name: code",
            "+   - name: id",
            "+     renamedFrom: code",
        ],
    ),
    "several lines become one": (
        {"columns": columns(long={"description": "one"})},
        [
            "-     description: |",
            "-       two lines",
            "-       # no comment",
            "+     description: one",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_only_what_differs_is_written(case: str) -> None:
    values, expected = CASES[case]
    _, text = changed(TEXT.encode(), **values)
    assert sorted(line.rstrip() for line in diff(TEXT, text) if not line.startswith("?")) == sorted(
        line.rstrip() for line in expected
    )


def test_what_is_equal_is_not_touched() -> None:
    data = TEXT.replace("\n", "\r\n").encode()
    assert merge_entity(data, parse_entity(data)) == data


def test_line_ends_stay_as_they_are() -> None:
    _, text = changed(TEXT.replace("\n", "\r\n").encode(), domain="crm")
    assert text == TEXT.replace("domain: ref", "domain: crm").replace("\n", "\r\n")


def test_columns_change_places_with_their_comments() -> None:
    order = [columns()[number] for number in (1, 0, 3, 2)]
    entity, text = changed(TEXT.encode(), columns=order)
    assert [c.name for c in entity.columns] == ["size", "code", "long", "note"]
    assert sorted(text.splitlines()) == sorted(TEXT.splitlines())
    assert text.index("# how large") < text.index("- name: size") < text.index("# the key")


def test_what_cannot_be_spliced_is_written_as_a_whole() -> None:
    flow = "# mine\n{name: a, domain: b, columns: [{name: c, dataType: int}]}\n"
    _, text = changed(flow.encode(), description="d")
    assert text.startswith("# mine\nname: a\n")


@st.composite
def _edited(draw: st.DrawFn) -> tuple[bytes, Entity]:
    """An example, and the same with columns taken away, added, changed and moved."""
    data = draw(st.sampled_from(EXAMPLES)).read_bytes()
    document = parse_entity(data).to_document()
    document.pop("version", None)
    if draw(st.booleans()):
        document["description"] = draw(st.text("a #:'\"\n-[{é", min_size=1, max_size=20))
    for name in ("aliases", "consumption", "sortColumns", "similarity", "displayName"):
        if draw(st.booleans()):
            document.pop(name, None)
    found = document["columns"]
    free = [column for column in found if draw(st.booleans())] or found[:1]
    for column in free:
        if draw(st.booleans()):
            column["description"] = draw(st.text("x #:'\n-", min_size=1, max_size=9))
        if draw(st.booleans()):
            column.pop("displayName", None)
    document["columns"] = [*draw(st.permutations(free)), {"name": "added_x", "dataType": "int"}]
    return data, Entity.model_validate(document)


@settings(max_examples=150, deadline=None)
@given(_edited())
def test_whatever_is_changed_is_read_again(case: tuple[bytes, Entity]) -> None:
    data, entity = case
    old = parse_entity(data).to_document()
    merged = merge_document(data.decode(), old, entity.to_document())  # no second try
    assert Entity.model_validate(load_yaml(merged.encode(), "x")) == entity
