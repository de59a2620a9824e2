"""Loads the JSON Schemas that ship with the package, or those of a checkout."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

SCHEMA_NAMES: Final = (
    "entity",
    "permissions",
    "webhooks",
    "project",
    "package",
    "access-tests",
    "seed",
)
_PACKAGE: Final = Path(__file__).resolve().parent.parent
_PLACES: Final = (_PACKAGE / "_schemas", _PACKAGE.parent / "schemas")


def available_schemas() -> list[str]:
    """Return the names of all schemas that are installed, those of outputs among them."""
    folder = next(place for place in _PLACES if place.is_dir())
    return sorted(file.stem for file in folder.glob("*.json"))


def schema_text(name: str) -> str:
    """Return the JSON Schema called *name* as it was committed; see ``model.schema`` for names."""
    for place in _PLACES:
        file = place / f"{name}.json"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"JSON Schema {name!r} is not installed")


@cache
def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(schema_text(name))
    return loaded
