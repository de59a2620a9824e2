"""``mdm-gitops changes``: the change feed of a running server, a page of it or from now on for ever."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli import CONTEXT
from mdm_gitops.cli._mirror import camel, show_page
from mdm_gitops.cli._output import json_option, say
from mdm_gitops.cli._remote import Remote, remote_options

if TYPE_CHECKING:
    from mdm_gitops.client import Change, Client

_COLUMNS: Final = ("id", "occurredUtc", "entityName", "recordId", "action", "user")


@click.command(context_settings=CONTEXT)
@click.option("--entity", metavar="NAME", help="Only changes of this entity.")
@click.option(
    "--after-id",
    type=click.IntRange(min=0),
    help="Only changes after this one. Without it those of the last day.",
)
@click.option("--from-utc", metavar="MOMENT", help="From this moment on.")
@click.option("--to-utc", metavar="MOMENT", help="Up to this moment.")
@click.option("--take", type=click.IntRange(1, 500), help="At most so many; 100 if not given.")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Go on for ever: print each change as it happens, until Ctrl-C.",
)
@remote_options
@json_option
def changes(follow: bool, remote: Remote, as_json: bool, **given: Any) -> None:
    """Show changes of rows, in the order in which they became visible.

    Each change has an id. Whoever keeps the last one that was dealt with goes on from there with
    --after-id, and misses nothing. With --follow and --json each line is one JSON object.
    """
    if follow and (given["from_utc"] or given["to_utc"]):
        raise click.UsageError("--follow begins at --after-id, not at a moment")
    asyncio.run(_follow(remote, given, as_json) if follow else _page(remote, given, as_json))


async def _page(remote: Remote, given: dict[str, Any], as_json: bool) -> None:
    query = {camel(name.replace("_", "-")): value for name, value in given.items()}
    async with remote.client() as client:
        answer = await client.request("GET", "/api/v1/changes", query=query)
    show_page(answer, "entries", _COLUMNS, as_json=as_json)


async def _follow(remote: Remote, given: dict[str, Any], as_json: bool) -> None:
    async with remote.client() as client:
        after = given["after_id"]
        if after is None:
            after = await _end(client, given["entity"])
        say(f"following from {after}; Ctrl-C ends it")
        feed = client.changes.follow(after, entity=given["entity"], page_size=given["take"] or 500)
        async for change in feed:
            click.echo(_line(change, as_json=as_json))


async def _end(client: Client, entity: str | None) -> int:
    """Return where the feed ends now: behind what happened since this very moment."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    page = await client.changes.page(entity=entity, from_utc=now, take=500)
    while page["hasMore"]:  # the server's clock is ahead of ours
        page = await client.changes.page(entity=entity, after_id=page["nextAfterId"], take=500)
    return int(page["nextAfterId"])


def _line(change: Change, *, as_json: bool) -> str:
    told = {camel(name.replace("_", "-")): value for name, value in asdict(change).items()}
    if as_json:
        return json.dumps(told, ensure_ascii=False)
    return "\t".join(str(told[name]) for name in _COLUMNS)
