"""``mdm-gitops entities data``: the rows of an entity on a running server."""

from __future__ import annotations

from typing import Final

import click

from mdm_gitops.cli import CONTEXT, LazyGroup
from mdm_gitops.cli._mirror import (
    IF_VERSION,
    SKIP,
    TAKE,
    Input,
    Kind,
    Option,
    member,
    mirror,
    option,
    take,
)

_DATA: Final = "/entities/{name}/data"
_ROW: Final = _DATA + "/{id}"
_VERSIONS: Final = "/entities/{name}/versions/{id}"
_STATES: Final = ("active", "deleted", "all", "pending")
_FIELDS: Final = option("--fields", "Columns to show, also system columns.", metavar="NAMES")
_EXPAND: Final = option("--expand", "Reference columns whose rows come along.", metavar="NAMES")
_AS_OF: Final = option("--as-of-utc", "As it was at this moment.", metavar="MOMENT")


def _choosing(what: str) -> tuple[Option, ...]:
    return (
        option("--column", what, required=True),
        option("--q", "What the label contains.", metavar="TEXT"),
        take(100),
    )


COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "bulk": ("mdm_gitops.cli.entities_bulk_cmd:bulk", "Import a JSON array of rows."),
    "bulk-csv": ("mdm_gitops.cli.entities_bulk_cmd:bulk_csv", "Import a CSV file."),
    "bulk-xlsx": (
        "mdm_gitops.cli.entities_bulk_cmd:bulk_xlsx",
        "Import the first sheet of a workbook.",
    ),
    "bulk-action": (
        "mdm_gitops.cli.entities_bulk_action_cmd:bulk_action",
        "Update or delete all rows that a filter finds.",
    ),
    "similar": (
        "mdm_gitops.cli.entities_duplicates_cmd:similar",
        "List rows that are like a given one.",
    ),
    "deduplicate": ("mdm_gitops.cli.entities_merges_cmd:deduplicate", "Merge two rows."),
    "export": ("mdm_gitops.cli.entities_export_cmd:export", "Export rows as a file."),
}

ROWS: Final = (
    mirror(
        "list",
        "GET",
        _DATA,
        """List rows.

        \b
        mdm-gitops entities data list customer --filter "[country] = 'CH'" --sort -created
        """,
        option("--filter", "Only rows that pass this filter.", metavar="FILTER"),
        option("--sort", "Columns to sort by, - before one for descending.", metavar="NAMES"),
        _FIELDS,
        option("--state", "Rows in this state; active.", choices=_STATES),
        _EXPAND,
        _AS_OF,
        SKIP,
        TAKE,
        option("--after", "Go on from here; the page before says it.", metavar="CURSOR"),
        option("--count", "Count all of them, too.", kind=Kind.FLAG),
        items="items",
    ),
    mirror(
        "get",
        "GET",
        _ROW,
        "Show one row.",
        _FIELDS,
        option("--state", "Only if it is in this state.", choices=_STATES),
        _EXPAND,
        _AS_OF,
    ),
    mirror(
        "create",
        "POST",
        _DATA,
        """Create a row; where the entity needs approval, propose it.

        \b
        mdm-gitops entities data create customer --set code=C1 --set-json credit_limit=1000
        """,
        reads=Input.VALUES,
    ),
    mirror(
        "update",
        "PUT",
        _ROW,
        "Change a row. Columns that are not given keep their values.",
        IF_VERSION,
        reads=Input.VALUES,
    ),
    mirror(
        "delete",
        "DELETE",
        _ROW,
        "Delete a row for good, or softly with --soft.",
        option("--soft", "Keep it; `restore` brings it back.", kind=Kind.FLAG),
        IF_VERSION,
        asks="Delete row {id} of {name}?",
        done="row {id} is deleted",
    ),
    mirror("restore", "POST", _ROW + "/restore", "Bring a softly deleted row back.", IF_VERSION),
)

PAST: Final = (
    mirror(
        "versions",
        "GET",
        _VERSIONS,
        "List the versions of a row, newest first.",
        SKIP,
        TAKE,
        items="items",
        columns=("version", "validFrom", "validTo", "changedBy", "action"),
    ),
    mirror(
        "restore-version",
        "POST",
        _VERSIONS + "/restore",
        "Return a row to an earlier version, as a new one.",
        member("--version", "The version.", kind=Kind.NUMBER, minimum=1, required=True),
        IF_VERSION,
    ),
    mirror(
        "bounds",
        "GET",
        _DATA + "/time-travel-bounds",
        "Show which moments --as-of-utc may name.",
    ),
)

CHOICES: Final = (
    mirror(
        "ref-options",
        "GET",
        _DATA + "/ref-options",
        "List rows that a reference column may refer to.",
        *_choosing("The reference column."),
        items="options",
        columns=("value", "label"),
    ),
    mirror(
        "suggestions",
        "GET",
        _DATA + "/column-suggestions",
        "List values that a column has already.",
        *_choosing("The column; its definition must allow it (autocomplete)."),
        items="options",
        columns=("value", "label"),
    ),
    mirror(
        "import-errors",
        "GET",
        "/imports/{id}/errors",
        "Print all errors of an import as CSV; its answer names it in errorsUrl.",
        is_text=True,
        arguments={"id": "IMPORT"},
    ),
)


@click.group(
    name="data",
    cls=LazyGroup,
    commands_table=COMMANDS,
    commands=(*ROWS, *PAST, *CHOICES),
    context_settings=CONTEXT,
)
def data() -> None:
    """Read and write the rows of an entity, one by one, as files, and as they were."""
