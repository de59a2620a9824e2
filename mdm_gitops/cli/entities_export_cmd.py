"""``mdm-gitops entities data export``: the rows of an entity on a running server, as a file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.cli._receiving import copy, target_file
from mdm_gitops.cli._remote import Remote, remote_options, transfer


@click.command()
@click.argument("entity")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["csv", "json", "xlsx"]),
    default="csv",
    show_default=True,
    help="The form of the file.",
)
@click.option(
    "--file",
    "-o",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Where to; standard output if not given.",
)
@click.option("--filter", metavar="FILTER", help="Only rows that pass this filter.")
@click.option("--sort", metavar="NAMES", help="Columns to sort by, - before one for descending.")
@click.option("--fields", metavar="NAMES", help="Columns to export, also system columns.")
@click.option(
    "--state",
    type=click.Choice(["active", "deleted", "all"]),
    help="Rows by deletion; active if not given.",
)
@click.option("--skip", type=click.IntRange(min=0), help="Rows to pass over.")
@click.option("--take", type=click.IntRange(min=1), help="Rows at most; all if not given.")
@click.option("--as-of-utc", metavar="MOMENT", help="The rows as they were at this moment.")
@remote_options
@json_option
def export(
    entity: str,
    format_: str,
    file: Path | None,
    as_json: bool,
    remote: Remote,
    **query: Any,
) -> None:
    """Export the rows of ENTITY that the key may see."""
    to_stdout = file is None or str(file) == "-"
    if as_json and to_stdout:
        raise click.UsageError("--json tells of a file, so it needs --file")
    if to_stdout and format_ == "xlsx" and sys.stdout.isatty():
        raise click.UsageError("a workbook is nothing for a terminal; give --file")
    size = asyncio.run(_receive(remote, entity, format_, None if to_stdout else file, query))
    if as_json:
        echo_json({"entity": entity, "format": format_, "file": str(file), "bytes": size})
    elif not to_stdout:
        say(f"{file}: {size:,} bytes")


async def _receive(
    remote: Remote, entity: str, format_: str, file: Path | None, query: dict[str, Any]
) -> int:
    async with remote.client() as client, client.rows(entity).export(format_, **query) as answer:
        with (
            target_file(file) as target,
            transfer(f"receiving {entity}", total=answer.length) as received,
        ):
            return await copy(answer, target, received)
