"""``mdm-gitops api-keys``: the keys of a running server. For Global Admins."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import Kind, member, mirror

_NAME: Final = {"name": "NAME"}

COMMANDS: Final = (
    mirror(
        "list",
        "GET",
        "/api-keys",
        "List keys; what they are themselves is known to their holders only.",
        items="items",
        columns=("name", "state", "admin=isGlobalAdmin", "createdBy", "expiresUtc", "lastUsedUtc"),
    ),
    mirror(
        "create",
        "POST",
        "/api-keys",
        "Make a key and print it, this once. Its rights are those of the principal apikey:NAME.",
        member("--name", "Its name.", required=True),
        member("--global-admin", "It may do everything.", sends="isGlobalAdmin", kind=Kind.FLAG),
        member("--expires-utc", "When it ends, as 2027-01-31T00:00:00Z.", metavar="MOMENT"),
    ),
    mirror(
        "revoke",
        "DELETE",
        "/api-keys/{name}",
        "End a key at once.",
        asks="Revoke the key {name}? Whoever uses it is turned away from now on.",
        done="{name} is revoked",
        arguments=_NAME,
    ),
)


@click.group(
    name="api-keys", cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT
)
def api_keys() -> None:
    """Make, list and revoke API keys of a running server."""
