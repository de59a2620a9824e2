"""``mdm-gitops common-entities``: predefined entities with their rows, on a running server."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import member, mirror

COMMANDS: Final = (
    mirror(
        "list",
        "GET",
        "/common-entities",
        "List predefined entities, where their rows are from, and what is installed.",
        items="items",
        columns=(
            "id",
            "displayName",
            "version",
            "installed=installedVersion",
            "changedLocally",
            "rows",
            "source",
            "licence",
        ),
    ),
    mirror(
        "install",
        "POST",
        "/common-entities/{id}/install",
        """Install one with what it refers to, or bring it to its newer version, as a commit.

        What was changed locally is kept. `entities deploy` makes its tables.
        """,
        member("--domain", "The domain that it goes into."),
    ),
)


@click.group(
    name="common-entities",
    cls=LazyGroup,
    commands_table={},
    commands=COMMANDS,
    context_settings=CONTEXT,
)
def common_entities() -> None:
    """Install countries, currencies, languages, units and other predefined entities."""
