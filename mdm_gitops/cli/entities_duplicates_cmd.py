"""``mdm-gitops entities duplicates``: rows that may mean the same, and rows like a given one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._errors import EXIT_ERROR
from mdm_gitops.cli._mirror import (
    Input,
    Kind,
    Option,
    Place,
    member,
    mirror,
    option,
    take,
)
from mdm_gitops.cli._output import console, echo_json, json_option, say
from mdm_gitops.cli._remote import Remote, remote_options
from mdm_gitops.cli._show import show_object

_PATH: Final = "/entities/{name}/duplicates"
_SCAN: Final = {"id": "SCAN"}
_SHOWN: Final = ("scanId", "state", "mode", "step", "progress", "counts", "error")
_IDS: Final = Option(
    flag="ids",
    sends="ids",
    help="",
    place=Place.BODY,
    kind=Kind.LIST,
    metavar="ID ID",
    required=True,
    positional=2,
)


def _flat(match: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"score": match["score"], **match["row"]}


def _pair(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**item, "first": item["ids"][0], "second": item["ids"][1]}


similar = mirror(
    "similar",
    "POST",
    "/entities/{name}/similar",
    """List rows that are like one that is there, or like one with the given values.

    \b
    mdm-gitops entities data similar customer --set name="Jon Smith" --top 5
    """,
    member("--id", "The row that is there.", metavar="ID"),
    member("--top", "How many.", kind=Kind.NUMBER, minimum=1, maximum=100),
    member("--min-score", "Only rows at least this much alike, 0 to 1.", kind=Kind.DECIMAL),
    reads=Input.VALUES,
    values_in="values",
    items="matches",
    view=_flat,
)


@click.command(context_settings=CONTEXT)
@click.argument("entity")
@click.option("--full", is_flag=True, help="Compare all rows, not only those that changed since.")
@click.option("--min-score", type=float, help="Keep only pairs at least this much alike, 0 to 1.")
@click.option("--no-wait", is_flag=True, help="Only begin; `show` tells how far it is.")
@remote_options
@json_option
def scan(
    entity: str,
    full: bool,
    min_score: float | None,
    no_wait: bool,
    remote: Remote,
    as_json: bool,
) -> int:
    """Look for pairs of rows of ENTITY that may mean the same, and wait until all were compared.

    The scan goes on when the command is stopped; `cancel` ends it. `list` has what it found.
    """
    found = asyncio.run(_scan(remote, entity, full, min_score, no_wait))
    if as_json:
        echo_json(found)
    else:
        show_object(found, _SHOWN)
    return EXIT_ERROR if found["state"] in ("failed", "cancelled") else 0


async def _scan(
    remote: Remote, entity: str, full: bool, min_score: float | None, no_wait: bool
) -> dict[str, Any]:
    async with remote.client() as client:
        duplicates = client.duplicates(entity)
        begun = await duplicates.scan(full=full, min_score=min_score)
        if no_wait:
            return begun
        say(f"scan {begun['scanId']}")
        with _bar(entity) as progress:
            return await duplicates.waited(begun["scanId"], progress=progress)


@contextmanager
def _bar(entity: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda scan: None
        return
    from rich.progress import Progress

    with Progress(console=screen, transient=True) as bar:
        task = bar.add_task(f"scanning {entity}", total=1.0)
        yield lambda scan: bar.update(
            task, completed=scan["progress"], description=f"{entity}: {scan['step']}"
        )


COMMANDS: Final = (
    scan,
    mirror(
        "show",
        "GET",
        _PATH + "/scans/{id}",
        "Show how far a scan is, and what it counted.",
        arguments=_SCAN,
        columns=_SHOWN,
    ),
    mirror(
        "cancel",
        "POST",
        _PATH + "/scans/{id}/cancel",
        "Stop a scan; nothing of it is kept.",
        arguments=_SCAN,
        columns=_SHOWN,
    ),
    mirror(
        "list",
        "GET",
        _PATH,
        "List pairs that the last scans found, the most alike first.",
        option("--min-score", "Only pairs at least this much alike, 0 to 1.", kind=Kind.DECIMAL),
        option("--dismissed", "Pairs that were dismissed instead.", kind=Kind.FLAG),
        take(200),
        option("--after", "Go on from here; the page before says it.", metavar="CURSOR"),
        items="items",
        columns=("score", "first", "second", "changed"),
        view=_pair,
    ),
    mirror(
        "dismiss",
        "POST",
        _PATH + "/dismiss",
        "Say that two rows are not the same; they are not listed again.",
        _IDS,
        done="the two rows of {name} are no pair",
    ),
    mirror(
        "reopen",
        "POST",
        _PATH + "/reopen",
        "Let two rows be listed as a pair again.",
        _IDS,
        done="the two rows of {name} may be a pair again",
    ),
)


@click.group(cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT)
def duplicates() -> None:
    """Find rows of an entity that may mean the same; `entities data deduplicate` merges two."""
