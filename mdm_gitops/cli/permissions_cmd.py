"""``mdm-gitops permissions``: who may do what on a running server."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import Kind, member, mirror
from mdm_gitops.cli.shared_yaml_cmd import export_command, import_command

_ACTIONS: Final = ("read", "write", "approve", "viewrestricted", "admin")
_COLUMNS: Final = ("principal", "domain", "entity", "actions", "rowFilterDsl")

COMMANDS: Final = (
    mirror(
        "list",
        "GET",
        "/permissions",
        "List assignments.",
        items="items",
        columns=_COLUMNS,
    ),
    mirror(
        "add",
        "POST",
        "/permissions",
        """Add an assignment, as a commit.

        \b
        mdm-gitops permissions add --principal group:stewards --domain sales \\
          --entity customer --action write --row-filter "[country] = 'CH'"
        """,
        member(
            "--principal",
            "A user or a group; group:NAME, apikey:NAME, service:NAME.",
            required=True,
        ),
        member("--domain", "The domain; * is all of them.", required=True),
        member("--entity", "Only this entity of it."),
        member(
            "--action",
            "What is allowed. Repeatable.",
            sends="actions",
            kind=Kind.LIST,
            choices=_ACTIONS,
            required=True,
        ),
        member(
            "--row-filter",
            "Only rows that pass this filter; needs --entity.",
            sends="rowFilterDsl",
            metavar="FILTER",
        ),
        columns=_COLUMNS,
    ),
    export_command("permissions"),
    import_command("permissions"),
)


@click.group(cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT)
def permissions() -> None:
    """Look at the permissions of a running server, add to them, export and replace them."""
