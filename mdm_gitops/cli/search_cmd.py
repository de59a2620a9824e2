"""``mdm-gitops search``: entities and rows of a running server, found by words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import SKIP, Option, Place, mirror, option, take

_WORDS: Final = Option(
    flag="words",
    sends="q",
    help="",
    place=Place.QUERY,
    metavar="WORDS...",
    required=True,
    positional=-1,
)


def _with_places(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *item* with where its words stand, what was looked for between « and »."""
    places = []
    for found in item["highlights"]:
        name = found.get("column") or found.get("field")
        parts = (f"«{each['text']}»" if each["match"] else each["text"] for each in found["parts"])
        places.append(f"{name}: {''.join(parts)}")
    return {**item, "found": "; ".join(places)}


COMMANDS: Final = (
    mirror(
        "entities",
        "GET",
        "/search/entities",
        "Find entities by names and descriptions, of their columns too. The best come first.",
        _WORDS,
        SKIP,
        take(100),
        items="items",
        columns=("name", "displayName", "domain", "found"),
        view=_with_places,
    ),
    mirror(
        "data",
        "GET",
        "/search/data",
        "Find rows by words, beginnings and insides of words. The best come first.",
        _WORDS,
        option("--entity", "Only rows of this entity."),
        SKIP,
        take(100),
        items="items",
        columns=("entity", "label", "id=_sys_id", "found"),
        view=_with_places,
    ),
)


@click.group(cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT)
def search() -> None:
    """Find entities and rows by words."""
