"""``mdm-gitops entities``: entities and their rows on a running server."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "data": ("mdm_gitops.cli.entities_cmd:data", "Import and export rows."),
}
DATA_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "bulk": ("mdm_gitops.cli.entities_bulk_cmd:bulk", "Import a JSON array of rows."),
    "bulk-csv": ("mdm_gitops.cli.entities_bulk_cmd:bulk_csv", "Import a CSV file."),
    "bulk-xlsx": (
        "mdm_gitops.cli.entities_bulk_cmd:bulk_xlsx",
        "Import the first sheet of a workbook.",
    ),
    "export": ("mdm_gitops.cli.entities_export_cmd:export", "Export rows as a file."),
}


@click.group(cls=LazyGroup, commands_table=COMMANDS, context_settings=CONTEXT)
def entities() -> None:
    """Work with entities on a running server."""


@click.group(name="data", cls=LazyGroup, commands_table=DATA_COMMANDS, context_settings=CONTEXT)
def data() -> None:
    """Import and export the rows of an entity."""
