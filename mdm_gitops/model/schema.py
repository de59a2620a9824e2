"""JSON Schemas (2020-12) of the definition files, made from the model.

They serve editors (completion, hover, squiggles) and the messages of ``validate``. They say what a
single value may be; what must hold between values is ``model.checks``. The committed copies are in
``schemas/`` and ship with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from mdm_gitops.model.access import Permissions, Webhooks
from mdm_gitops.model.access_tests import AccessTests
from mdm_gitops.model.entity import Entity
from mdm_gitops.model.names import NAME_PATTERN
from mdm_gitops.model.package import PackageManifest
from mdm_gitops.model.project import Project
from mdm_gitops.model.schema_docs import DOCS, EXAMPLES, SUMMARIES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    "entity": Entity,
    "permissions": Permissions,
    "webhooks": Webhooks,
    "project": Project,
    "package": PackageManifest,
    "access-tests": AccessTests,
}
SCHEMA_NAMES: Final = (*_MODELS, "seed")
# Where a name is given to something that becomes a table, column, index or view.
_NAMED: Final = ("Entity", "Column", "UniqueConstraint", "ConsumptionView")


def build_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema called *name*, one of ``SCHEMA_NAMES``."""
    schema = _seed() if name == "seed" else _of_model(_MODELS[name])
    head = {"$schema": DIALECT, "title": f"mdm-gitops {name}", "description": SUMMARIES[name]}
    return head | {key: value for key, value in schema.items() if key not in head}


def _seed() -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "object", "additionalProperties": True, "minProperties": 1},
        "examples": [[{"code": "CH", "name": "Switzerland"}]],
    }


def _of_model(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True)
    parts = {model.__name__: schema, **schema.get("$defs", {})}
    for title, part in parts.items():
        part.pop("title", None)
        part.pop("description", None)
        for key, value in part.get("properties", {}).items():
            _describe(value, title, key)
    _each_schema(schema, _simplify)
    for title in _NAMED:
        if title in parts:
            parts[title]["properties"]["name"]["pattern"] = NAME_PATTERN
    return schema


def _describe(schema: dict[str, Any], title: str, key: str) -> None:
    schema.pop("title", None)
    schema["description"] = DOCS[title][key]
    if (title, key) in EXAMPLES:
        schema["examples"] = EXAMPLES[title, key]


def _each_schema(schema: Any, change: Callable[[dict[str, Any]], None]) -> None:
    if isinstance(schema, dict):
        for value in schema.values():
            _each_schema(value, change)
        change(schema)
    elif isinstance(schema, list):
        for value in schema:
            _each_schema(value, change)


def _simplify(schema: dict[str, Any]) -> None:
    """Turn ``anyOf`` of plain types into a list of types: editors and messages read better."""
    schema.pop("discriminator", None)
    if schema.get("default", ...) is None:
        del schema["default"]
    choices = schema.get("anyOf")
    if not isinstance(choices, list) or not all("type" in choice for choice in choices):
        return
    types = list(dict.fromkeys(_types(choices)))
    if "number" in types and "integer" in types:
        types.remove("integer")
    del schema["anyOf"]
    for choice in choices:
        schema.update({key: value for key, value in choice.items() if key != "type"})
    schema["type"] = types[0] if len(types) == 1 else types


def _types(choices: list[dict[str, Any]]) -> Iterator[str]:
    for choice in choices:
        kind = choice["type"]
        yield from kind if isinstance(kind, list) else [kind]
