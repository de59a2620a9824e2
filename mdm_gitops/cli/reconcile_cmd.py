"""``mdm-gitops reconcile``: what the operator of a warehouse is told: look now, stop, go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click

from mdm_gitops.cli import LazyGroup
from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._mirror import mirror
from mdm_gitops.cli._output import json_option, tell
from mdm_gitops.cli._remote import Remote, remote_options

COMMANDS: Final = {
    "now": ("mdm_gitops.cli.reconcile_cmd:now", "Ask for a run at once."),
    "suspend": ("mdm_gitops.cli.reconcile_cmd:suspend", "Stop reconciling."),
    "resume": ("mdm_gitops.cli.reconcile_cmd:resume", "Let it go on."),
}
_DIRECTORY: Final = click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
_ENTITY: Final = click.option(
    "--entity", default="", help="Only this entity (default: everything)."
)


_SHOW: Final = mirror(
    "show",
    "GET",
    "/reconciliation",
    "Show how the operator of a server stands; `status` shows it for a folder.",
)


@click.group(cls=LazyGroup, commands_table=COMMANDS, commands=(_SHOW,))
def reconcile() -> None:
    """Tell the operator of a warehouse what to do, wherever it runs.

    Without --url, --api-key or --profile it is that of the warehouse of DIR.
    """


@click.command()
@_DIRECTORY
@remote_options
@json_option
@environment_option
def now(directory: Path, remote: Remote, as_json: bool) -> None:
    """Ask the operator for a run at once; it looks at everything, also where nothing seems new."""
    number = asyncio.run(_now_there(remote) if remote.is_named else _now(directory))
    told = f"asked for a run (request {number}); mdm-gitops status shows how it ends"
    tell(told, as_json=as_json, requested=number)


@click.command()
@_DIRECTORY
@_ENTITY
@click.option("--reason", default="", help="Why; it is shown in the status.")
@remote_options
@json_option
@environment_option
def suspend(directory: Path, entity: str, reason: str, remote: Remote, as_json: bool) -> None:
    """Stop what the operator does for everything, or for one entity, until `resume`."""
    if remote.is_named:
        asyncio.run(_suspend_there(remote, entity, reason))
        told = "is suspended"
    else:
        changed = asyncio.run(_suspend(directory, entity, reason))
        told = "is suspended" if changed else "was already suspended"
    tell(f"{entity or 'everything'} {told}", as_json=as_json, entity=entity or None, suspended=True)


@click.command()
@_DIRECTORY
@_ENTITY
@remote_options
@json_option
@environment_option
def resume(directory: Path, entity: str, remote: Remote, as_json: bool) -> None:
    """Let the operator go on."""
    if remote.is_named:
        asyncio.run(_resume_there(remote, entity))
        told = "goes on"
    else:
        changed = asyncio.run(_resume(directory, entity))
        told = "goes on" if changed else "was not suspended"
    tell(
        f"{entity or 'everything'} {told}", as_json=as_json, entity=entity or None, suspended=False
    )


async def _now_there(remote: Remote) -> int | None:
    async with remote.client() as client:
        answer = await client.operator.reconcile()
    number = answer["requested"]
    return None if number is None else int(number)


async def _suspend_there(remote: Remote, entity: str, reason: str) -> None:
    async with remote.client() as client:
        await client.operator.suspend(entity=entity or None, reason=reason or None)


async def _resume_there(remote: Remote, entity: str) -> None:
    async with remote.client() as client:
        await client.operator.resume(entity=entity or None)


async def _now(directory: Path) -> int:
    from mdm_gitops.cli._session import actor, session
    from mdm_gitops.warehouse.reconciliation import request_run

    async with session(directory, application_name="mdm-gitops reconcile") as s:
        return await request_run(s.conn, schemas=s.schemas, actor=actor())


async def _suspend(directory: Path, entity: str, reason: str) -> bool:
    from mdm_gitops.cli._session import actor, session
    from mdm_gitops.data import audit
    from mdm_gitops.data.asking import no_such_entity
    from mdm_gitops.model import fold
    from mdm_gitops.warehouse import reconciliation
    from mdm_gitops.warehouse.store import read_state

    async with session(directory, application_name="mdm-gitops reconcile") as s:
        who, scope = actor(), fold(entity)
        entities = (await read_state(s.conn, schemas=s.schemas)).entities
        if scope and scope not in entities:  # a misspelt name would stop nothing
            raise no_such_entity(entity, entities)
        async with s.conn.transaction():
            changed = await reconciliation.suspend(
                s.conn, schemas=s.schemas, scope=scope, actor=who, reason=reason
            )
            if changed:
                await audit.record(
                    s.conn,
                    schemas=s.schemas,
                    actor=who,
                    action="reconciliation_suspended",
                    entities=[scope] if scope else [],
                    details={"reason": reason} if reason else {},
                )
        return changed


async def _resume(directory: Path, entity: str) -> bool:
    from mdm_gitops.cli._session import actor, session
    from mdm_gitops.data import audit
    from mdm_gitops.model import fold
    from mdm_gitops.warehouse import reconciliation

    async with (
        session(directory, application_name="mdm-gitops reconcile") as s,
        s.conn.transaction(),
    ):
        who, scope = actor(), fold(entity)
        changed = await reconciliation.resume(s.conn, schemas=s.schemas, scope=scope, actor=who)
        if changed:
            await audit.record(
                s.conn,
                schemas=s.schemas,
                actor=who,
                action="reconciliation_resumed",
                entities=[scope] if scope else [],
            )
        return changed
