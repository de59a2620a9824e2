"""``mdm-gitops whoami``: who a server takes the caller for."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from mdm_gitops.cli import CONTEXT
from mdm_gitops.cli._output import echo_json, json_option
from mdm_gitops.cli._remote import Remote, remote_options
from mdm_gitops.cli._show import show_list, show_object


@click.command(context_settings=CONTEXT)
@remote_options
@json_option
def whoami(remote: Remote, as_json: bool) -> None:
    """Show who the server takes you for, and what you may do there."""
    url, me = asyncio.run(_asked(remote))
    if as_json:
        echo_json({**me, "url": url})
        return
    told = {
        "server": url,
        "principal": me["principal"],
        "groups": me["groups"],
        "by": me["credential"],
        "global admin": me["isGlobalAdmin"],
        "tier": me["tier"],
    }
    show_object(told)
    if me["rights"]:
        click.echo()
        show_list(me["rights"], ("entity", "domain", "actions", "on some rows=onSomeRows"))


async def _asked(remote: Remote) -> tuple[str, dict[str, Any]]:
    async with remote.client() as client:
        return client.connection.url, await client.me()
