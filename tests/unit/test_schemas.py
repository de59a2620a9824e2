from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from mdm_gitops.model import schema as model_schema
from mdm_gitops.model.entity import Entity
from mdm_gitops.model.schema import SCHEMA_NAMES, build_schema
from mdm_gitops.model.schema_docs import DOCS
from mdm_gitops.source import schemas
from mdm_gitops.source.schemas import schema, schema_text

FOLDER = Path(__file__).resolve().parents[2] / "schemas"


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_the_committed_schema_is_the_one_of_the_model(name: str) -> None:
    expected = json.dumps(build_schema(name), indent=2, ensure_ascii=False) + "\n"
    if schema_text(name) != expected:  # written anew, so that the next run and the diff show it
        (FOLDER / f"{name}.json").write_text(expected, encoding="utf-8")
    assert schema_text(name) == expected, f"schemas/{name}.json was stale; commit the new one"


def test_all_schemas_of_the_model_are_committed() -> None:
    assert set(SCHEMA_NAMES) == set(schemas.SCHEMA_NAMES) <= set(schemas.available_schemas())


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_each_schema_is_valid_itself_and_so_are_its_examples(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    for part in walk(schema(name)):
        for example in part.get("examples", []) if isinstance(part.get("examples"), list) else []:
            Draft202012Validator({**part, "$defs": schema(name).get("$defs", {})}).validate(example)


@pytest.mark.parametrize("name", [name for name in SCHEMA_NAMES if name != "seed"])
def test_each_key_has_a_sentence_for_editors(name: str) -> None:
    for part in walk(schema(name)):
        for key, value in part.get("properties", {}).items():
            assert value["description"].strip(), key


def test_no_sentence_is_left_over() -> None:
    documented: dict[str, set[str]] = {}
    for name, model in model_schema._MODELS.items():
        parts = {model.__name__: schema(name), **schema(name).get("$defs", {})}
        for title, part in parts.items():
            if "properties" in part:
                documented[title] = set(part["properties"])
    assert {title: set(keys) for title, keys in DOCS.items()} == documented


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def test_an_unknown_schema_is_told() -> None:
    with pytest.raises(FileNotFoundError, match="'nothing' is not installed"):
        schema_text("nothing")


SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3)
JUNK = SCALARS | st.lists(SCALARS, max_size=2) | st.just({}) | st.just({"mode": "open"})
COLUMN = st.fixed_dictionaries(
    {"name": st.just("a"), "dataType": st.sampled_from(["int", "string", "strin"]) | JUNK},
    optional={
        "nullable": JUNK,
        "default": JUNK,
        "maxLength": JUNK,
        "allowedValues": JUNK,
        "reference": JUNK | st.just({"entity": "x"}),
        "classification": JUNK | st.just("public"),
        "ui": JUNK,
        "data_type": JUNK,
    },
)
ENTITY = st.fixed_dictionaries(
    {"name": st.just("a"), "domain": st.just("d"), "columns": st.lists(COLUMN, max_size=2)},
    optional={
        "version": JUNK,
        "access": JUNK,
        "keyColumns": JUNK,
        "sortColumns": st.lists(st.just({"column": "a", "direction": "asc"}) | JUNK, max_size=2),
        "similarity": JUNK | st.just({"minScore": 1}) | st.just({"topN": 0}),
        "survivorship": JUNK
        | st.just({"rules": []})
        | st.just({"rules": ["longest"], "columns": [{"name": "a", "rules": ["survivor"]}]})
        | st.just({"sources": {"column": "a", "order": ["x"]}}),
        "deletedRetentionDays": JUNK,
        "history_enabled": st.just(True),
    },
)


@given(ENTITY)
def test_editor_and_model_agree_on_what_is_right(document: dict[str, Any]) -> None:
    by_schema = Draft202012Validator(schema("entity")).is_valid(document)
    by_model = accepts(Entity, document)
    whole = any(isinstance(value, float) and value.is_integer() for value in scalars(document))
    # JSON Schema calls 1.0 an integer; the model, which knows how it was written, does not.
    assert by_model == by_schema or (by_schema and whole)


def accepts(model: type[BaseModel], document: Any) -> bool:
    try:
        model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


def scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from scalars(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scalars(inner)
    else:
        yield value
