"""``mdm-gitops entities filters``: filters that the caller keeps by name."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import Kind, member, mirror

_PATH: Final = "/entities/{name}/saved-filters"
_COLUMNS: Final = ("name", "filter", "sort", "columns", "isDefault", "valid")

COMMANDS: Final = (
    mirror("list", "GET", _PATH, "List your filters.", items="items", columns=_COLUMNS),
    mirror("show", "GET", _PATH + "/{filterName}", "Show one filter."),
    mirror(
        "save",
        "POST",
        _PATH,
        "Save a filter; one of the same name is replaced.",
        member("--name", "Its name.", required=True),
        member("--filter", "Rows that pass it, as [country] = 'CH'.", metavar="FILTER"),
        member("--sort", "Columns to sort by, - before one for descending.", metavar="NAMES"),
        member("--column", "A column to show. Repeatable.", sends="columns", kind=Kind.LIST),
        member(
            "--default", "Take it where nothing else is said.", sends="isDefault", kind=Kind.FLAG
        ),
        columns=_COLUMNS,
    ),
    mirror(
        "delete",
        "DELETE",
        _PATH + "/{filterName}",
        "Delete a filter.",
        asks="Delete the filter {filterName}?",
        done="{filterName} is gone",
    ),
)


@click.group(cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT)
def filters() -> None:
    """Keep filters of an entity by name. They are yours alone."""
