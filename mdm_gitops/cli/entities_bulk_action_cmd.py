"""``mdm-gitops entities data bulk-action``: many rows changed or deleted, after a look at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mdm_gitops.cli import CONTEXT
from mdm_gitops.cli._errors import count_of
from mdm_gitops.cli._given import confirm, values_given
from mdm_gitops.cli._mirror import value_options
from mdm_gitops.cli._output import console, echo_json, json_option, say
from mdm_gitops.cli._remote import Remote, remote_options
from mdm_gitops.cli._show import show_list, show_object

if TYPE_CHECKING:
    from mdm_gitops.client.bulk_actions import BulkPreview

_SHOWN_ERRORS: Final = 10
_COUNTS: Final = ("matchCount", "updated", "deleted", "unchanged", "pending", "rejected")


@click.command(name="bulk-action", context_settings=CONTEXT)
@click.argument("entity")
@click.argument("action", type=click.Choice(["update", "delete"]))
@click.option("--filter", "filter_", metavar="FILTER", help="Rows that pass this filter.")
@click.option("--all", "every", is_flag=True, help="All rows, said instead of a filter.")
@value_options
@click.option("--soft", is_flag=True, help="Delete so that `restore` brings the rows back.")
@click.option("--batch-name", metavar="NAME", help="Name of the proposals, for approving them.")
@click.option("--preview", is_flag=True, help="Only show what it would be done to, and a token.")
@click.option("--token", metavar="TOKEN", help="Do what this preview showed, without another.")
@click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")
@remote_options
@json_option
def bulk_action(
    entity: str,
    action: str,
    filter_: str | None,
    every: bool,
    texts: tuple[str, ...],
    values: tuple[str, ...],
    file: Path | None,
    soft: bool,
    batch_name: str | None,
    preview: bool,
    token: str | None,
    yes: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Update or delete all rows of ENTITY that a filter finds.

    \b
    mdm-gitops entities data bulk-action customer update \\
      --filter "[country] = 'CH'" --set region=EMEA

    First the rows are counted and some are shown; then it is asked whether to go on. It is done to exactly
    the rows that were counted, or not at all.
    """
    asked: dict[str, Any] = {"action": action, "filter": filter_, "batchName": batch_name}
    if action == "update":
        asked["set"] = values_given(texts, values, file)
    asked |= {"all": every or None, "soft": soft or None}
    asked = {name: value for name, value in asked.items() if value is not None}
    asyncio.run(_run(remote, entity, asked, preview, token, yes, as_json))


async def _run(
    remote: Remote,
    entity: str,
    asked: dict[str, Any],
    only_preview: bool,
    token: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    async with remote.client() as client:
        actions = client.bulk_actions(entity)
        if token is None:
            seen = await actions.preview(asked)
            if only_preview:
                _tell_preview(seen, as_json=as_json)
                return
            if not yes:
                show_list(seen.sample, ())
            confirm(f"{asked['action']} {count_of(seen.match_count, 'row')} of {entity}?", yes=yes)
            token = seen.token
        with _bar(f"{asked['action']} {entity}") as progress:
            result = await actions.execute(asked, token, progress=progress)
    if as_json:
        echo_json(result)
        return
    show_object(result, _COUNTS)
    for error in result["errors"][:_SHOWN_ERRORS]:
        say(f"row {error['id']}: {error['message']} ({error['code']})")


def _tell_preview(seen: BulkPreview, *, as_json: bool) -> None:
    told = {
        "matchCount": seen.match_count,
        "notAllowed": seen.not_allowed,
        "previewToken": seen.token,
    }
    if as_json:
        echo_json({**told, "sample": list(seen.sample)})
    else:
        show_object(told)
        show_list(seen.sample, ())


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what is told of progress; on a terminal a bar on stderr shows it."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda done, of: None
        return
    from rich.progress import Progress

    with Progress(console=screen, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
