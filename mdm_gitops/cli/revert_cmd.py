"""``mdm-gitops revert``: take a commit back by another one, and show what that does to the data."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mdm_gitops.cli._environment import environment_option
from mdm_gitops.cli._folder import FOLDER
from mdm_gitops.cli._output import echo_json, json_option, say, wants_color, warn
from mdm_gitops.errors import DefinitionError, MdmError

if TYPE_CHECKING:
    from mdm_gitops.cli.plan_cmd import Made
    from mdm_gitops.source.revert import Revert


@click.command()
@click.argument("commit")
@click.argument("directory", default=".", type=FOLDER, metavar="[DIR]")
@click.option(
    "--mainline",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of a merge: the number of the parent to go back to.",
)
@click.option("--message", "-m", help="What the commit says, instead of Git's own words.")
@click.option("--dry-run", is_flag=True, help="Show the plan; make no commit.")
@click.option("--no-plan", is_flag=True, help="Only make the commit; needs no database.")
@json_option
@environment_option
def revert(
    commit: str,
    directory: Path,
    mainline: int | None,
    message: str | None,
    dry_run: bool,
    no_plan: bool,
    as_json: bool,
) -> None:
    """Take COMMIT of the repository DIR (default: here) back by a new commit, and show the plan.

    The data of columns and entities that COMMIT removed is in their archives and comes back with
    `apply`. The work tree must have no changes; where later commits changed the same lines, or the
    definitions would not be valid, nothing is done.
    """
    if dry_run and no_plan:
        raise click.UsageError(
            "--dry-run shows the plan that --no-plan leaves out; give one of them"
        )
    made = _prepared(directory, commit, message or "", mainline)
    if made.commit is None:
        _nothing_left(made, as_json=as_json)
        return
    if dry_run:
        _tell(
            made,
            asyncio.run(_plan(directory, made.commit)),
            directory,
            landed=False,
            as_json=as_json,
        )
        return
    from mdm_gitops.source.revert import bring_in

    bring_in(directory, made)
    plan = None if no_plan else _plan_if_possible(directory, made.commit)
    _tell(made, plan, directory, landed=True, as_json=as_json)


def _prepared(directory: Path, commit: str, message: str, mainline: int | None) -> Revert:
    from mdm_gitops.cli._session import actor, reserved_schemas
    from mdm_gitops.settings import load_settings
    from mdm_gitops.source.revert import prepare_revert

    try:
        return prepare_revert(
            directory,
            commit,
            actor=actor(),
            message=message,
            mainline=mainline,
            reserved_schemas=reserved_schemas(load_settings(directory)),
        )
    except DefinitionError:
        say(f"without {commit} the definitions would not be valid, so nothing was changed:")
        raise


async def _plan(directory: Path, commit: str) -> Made:
    from mdm_gitops.cli.plan_cmd import make

    return await make(directory, rev=commit)


def _plan_if_possible(directory: Path, commit: str) -> Made | None:
    """The commit stands, whatever the warehouse says."""
    try:
        return asyncio.run(_plan(directory, commit))
    except MdmError as error:
        warn(f"the commit is made, its plan is not: {error}")
        return None


def _nothing_left(made: Revert, *, as_json: bool) -> None:
    if as_json:
        echo_json(_document(made, None, landed=False))
    say(f"nothing of {_short(made.reverted)} ({made.subject}) is left to take back")


def _tell(made: Revert, plan: Made | None, directory: Path, *, landed: bool, as_json: bool) -> None:
    if as_json:
        echo_json(_document(made, plan, landed=landed))
        return
    if landed:
        done = click.style("reverted:", fg="green")
        say(f"{done} {_short(made.reverted)} ({made.subject}) by {_short(made.commit or '')}")
    if plan is None:
        return
    from mdm_gitops.cli.plan_cmd import rendered

    click.echo(rendered(plan, "text", explain=False, color=wants_color() is True))
    if landed and not plan.plan.is_empty:
        here = "" if str(directory) == "." else f" {directory}"
        say(f"`mdm-gitops apply{here}` brings it to the warehouse")


def _document(made: Revert, plan: Made | None, *, landed: bool) -> dict[str, Any]:
    from mdm_gitops.cli.plan_cmd import document

    return {
        "reverted": made.reverted,
        "subject": made.subject,
        "commit": made.commit if landed else None,
        "plan": document(plan) if plan else None,
    }


def _short(commit: str) -> str:
    return commit[:12]
