"""``mdm-gitops drift``: what was changed in the warehouse by hand, whatever the files say now.

The last deployment is compared with the live catalog, so no definitions are read and none need to be
valid.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._errors import count_of
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option, say

if TYPE_CHECKING:
    from mdm_gitops.plan.plan import DriftItem

EXIT_DRIFT = 2


@click.command()
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 if there is any.")
@json_option
@environment_option
@click.pass_context
def drift(ctx: click.Context, directory: Path, detailed_exitcode: bool, as_json: bool) -> None:
    """Show what was changed in the warehouse of DIR (default: here) past the definitions.

    What was deployed and is missing or altered is set right by the next `apply`; what is not ours
    is shown and left alone. Nothing is written.
    """
    found = asyncio.run(read_drift(directory))
    if as_json:
        items = [
            {"kind": i.kind.value, "entity": i.entity, "object": i.object, "message": i.message}
            for i in found
        ]
        echo_json({"drift": items})
    else:
        _show(found)
    if detailed_exitcode and found:
        ctx.exit(EXIT_DRIFT)


async def read_drift(directory: Path) -> tuple[DriftItem, ...]:
    """Compare what was deployed last with what is there."""
    from mdm_gitops.cli._session import session
    from mdm_gitops.warehouse.migrate import store_exists
    from mdm_gitops.warehouse.planning import make_plan
    from mdm_gitops.warehouse.store import read_state

    async with session(directory, application_name="mdm-gitops drift", read_only=True) as s:
        if not await store_exists(s.conn, config_schema=s.schemas.config):
            return ()  # nothing was deployed, so nothing can have drifted
        state = await read_state(s.conn, schemas=s.schemas)
        plan = await make_plan(s.conn, state.definitions, schemas=s.schemas)
    return plan.drift


def _show(found: tuple[DriftItem, ...]) -> None:
    from mdm_gitops.plan.human import visible
    from mdm_gitops.plan.plan import DriftKind
    from mdm_gitops.plan.verdicts import DRIFT_WORDS

    for item in found:
        owner = f"{item.entity}: " if item.entity else ""
        word = click.style(f"{DRIFT_WORDS[item.kind]:<8}", fg="yellow")
        click.echo(f"{word} {owner}{visible(f'{item.object} {item.message}')}")
    ours = sum(item.kind is not DriftKind.STRANGE for item in found)
    if not found:
        say("no drift: everything is as it was deployed")
    elif ours:
        say(f"{count_of(len(found), 'difference')}; `mdm-gitops apply` sets {ours:,} right")
    else:
        say(f"{count_of(len(found), 'difference')}, none in what was deployed: left alone")
