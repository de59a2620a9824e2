"""``mdm-gitops entities data deduplicate`` and ``mdm-gitops entities merges``: two rows that are one."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import COMMENT, TAKE, Input, Kind, member, mirror, option

_PATH: Final = "/entities/{name}/data/deduplicate"
_ONE: Final = _PATH + "/{mergeId}"
_MERGE: Final = {"mergeId": "MERGE"}
_ROWS: Final = (
    member("--survivor", "The row that stays.", sends="survivorId", metavar="ID", required=True),
    member("--duplicate", "The row that goes.", sends="duplicateId", metavar="ID", required=True),
    member(
        "--survivor-version",
        "Only if that row is still this version.",
        kind=Kind.NUMBER,
        minimum=1,
        metavar="NUMBER",
    ),
    member(
        "--duplicate-version",
        "Only if that row is still this version.",
        kind=Kind.NUMBER,
        minimum=1,
        metavar="NUMBER",
    ),
)
_STATES: Final = ("pending", "merged", "undo_pending", "undone", "rejected")

deduplicate = mirror(
    "deduplicate",
    "POST",
    _PATH,
    """Merge two rows: one stays, all that refers to the other is relinked to it.

    Values that are given win over the entity's rules of survivorship. `entities merges undo` takes the
    merge apart again.
    """,
    *_ROWS,
    reads=Input.VALUES,
    values_in="values",
    asks="Merge two rows of {name}?",
    is_long=True,
)

COMMANDS: Final = (
    mirror(
        "preview",
        "POST",
        _PATH + "/preview",
        "Show what a merge would make of two rows; nothing is written.",
        *_ROWS,
        reads=Input.VALUES,
        values_in="values",
        items="columns",
        columns=("column", "value", "from", "rule", "survivor", "duplicate"),
    ),
    mirror(
        "list",
        "GET",
        _PATH,
        "List merges, the newest first.",
        option("--state", "Only merges in this state.", choices=_STATES),
        TAKE,
        option("--after", "Go on from here; the page before says it.", metavar="CURSOR"),
        items="items",
        columns=("mergeId", "state", "survivorId", "duplicateId", "mergedBy", "mergedAt"),
    ),
    mirror(
        "show",
        "GET",
        _ONE,
        "Show one merge, and where each value came from.",
        arguments=_MERGE,
        parts={"columns": ("column", "from", "rule")},
    ),
    mirror(
        "undo",
        "POST",
        _ONE + "/undo",
        "Take a merge apart: both rows and all links come back.",
        member(
            "--keep-later-edits",
            "Leave what was changed since as it is, and undo the rest.",
            kind=Kind.FLAG,
        ),
        arguments=_MERGE,
        columns=("mergeId", "state", "relinked"),
        is_long=True,
    ),
    mirror(
        "approve",
        "POST",
        _ONE + "/approve",
        "Approve a merge, or its undoing, that waits for a second person.",
        COMMENT,
        arguments=_MERGE,
        columns=("mergeId", "state", "relinked"),
        is_long=True,
    ),
    mirror(
        "reject",
        "POST",
        _ONE + "/reject",
        "Reject what waits.",
        COMMENT,
        arguments=_MERGE,
        columns=("mergeId", "state"),
    ),
)


@click.group(cls=LazyGroup, commands_table={}, commands=COMMANDS, context_settings=CONTEXT)
def merges() -> None:
    """Look at merges of rows, and take them apart again; `entities data deduplicate` makes them."""
