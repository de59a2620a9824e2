"""``mdm-gitops entities data bulk``, ``bulk-csv`` and ``bulk-xlsx``: files of rows into a server.

The file is streamed as it is read. Exit code 0 says that the import took place; how many of the rows
were rejected is in the answer, and with ``--fail-on-rejected`` in the exit code, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote as in_path

import click

from mdm_gitops.cli._errors import EXIT_ERROR
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.cli._remote import Remote, chunks_of, file_size, remote_options, transfer

Command = TypeVar("Command", bound=Callable[..., Any])
_SHOWN_ERRORS: Final = 10
_COUNTS: Final = ("inserted", "updated", "unchanged", "pending", "rejected")


def _import_options(command: Command) -> Command:
    """Add what all imports have in common."""
    options = (
        click.argument("entity"),
        click.option(
            "--file",
            "file",
            required=True,
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            metavar="FILE",
            help="The file; - is standard input.",
        ),
        click.option(
            "--mode",
            type=click.Choice(["insert", "upsert"]),
            default="insert",
            show_default=True,
            help="Whether rows that are there already are refused or updated.",
        ),
        click.option(
            "--key-columns",
            metavar="NAMES",
            help="Columns that tell which row is meant, with commas between; else the key.",
        ),
        click.option(
            "--batch-name", metavar="NAME", help="Name for approving the rows as one group."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Do all of it, tell what comes of it, write nothing."
        ),
        click.option(
            "--idempotency-key",
            metavar="KEY",
            help="Repeating the import with the same key does it once.",
        ),
        click.option(
            "--errors",
            "errors",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Where all reasons for rejected rows go, as CSV.",
        ),
        click.option("--fail-on-rejected", is_flag=True, help="Exit with 1 if a row was rejected."),
        remote_options,
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


_dialect_options = (
    click.option("--sep", metavar="SIGN", help="Between values; , if not given. tab is a tab."),
    click.option("--quote", metavar="SIGN", help='Around values; " if not given.'),
    click.option(
        "--charset",
        default="utf-8",
        show_default=True,
        metavar="NAME",
        help="utf-8, iso-8859-1 or windows-1252.",
    ),
)


@click.command()
@_import_options
def bulk(**given: Any) -> int:
    """Import a JSON array of row objects."""
    return _import("bulk", "application/json", given)


@click.command(name="bulk-csv")
@_import_options
@_dialect_options[0]
@_dialect_options[1]
@_dialect_options[2]
def bulk_csv(sep: str | None, quote: str | None, charset: str, **given: Any) -> int:
    """Import a CSV file whose first line names the columns."""
    return _import("bulk-csv", f"text/csv; charset={charset}", given, sep=sep, quote=quote)


@click.command(name="bulk-xlsx")
@_import_options
def bulk_xlsx(**given: Any) -> int:
    """Import the first sheet of a workbook, whose first line names the columns."""
    media_type = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    return _import("bulk-xlsx", media_type, given)


def _import(kind: str, media_type: str, given: dict[str, Any], **query: Any) -> int:
    remote = Remote(url=given["url"], api_key=given["api_key"])
    answer = _send(remote, kind, media_type, given, query)
    if given["errors"] is not None:
        _keep_errors(remote, answer["errorsUrl"], given["errors"])
    if given["as_json"]:
        echo_json(answer)
    else:
        _tell(answer, given)
    rejected = answer["rejected"] > 0
    return EXIT_ERROR if rejected and given["fail_on_rejected"] else 0


def _send(
    remote: Remote, kind: str, media_type: str, given: dict[str, Any], query: dict[str, Any]
) -> Any:
    path = given["file"] if str(given["file"]) != "-" else None
    headers = {"Content-Type": media_type}
    if given["idempotency_key"]:
        headers["Idempotency-Key"] = given["idempotency_key"]
    size = file_size(path)
    if size is not None:
        headers["Content-Length"] = str(size)
    with (
        click.open_file(str(path or "-"), "rb") as file,
        transfer(
            f"sending {path or 'standard input'}", total=size, then="checking and writing"
        ) as sent,
    ):
        return remote.call(
            "POST",
            f"/api/v1/entities/{in_path(given['entity'], safe='')}/data/{kind}",
            query={
                "mode": given["mode"],
                "keyColumns": given["key_columns"],
                "batchName": given["batch_name"],
                "dryRun": given["dry_run"] or None,
                **query,
            },
            content=chunks_of(file, sent=sent),
            headers=headers,
        )


def _keep_errors(remote: Remote, url: str | None, file: Path) -> None:
    """Write all reasons to *file*; where nothing was rejected an older one goes away."""
    if url is None:
        file.unlink(missing_ok=True)
        return
    with remote.opened("GET", url) as found, file.open("wb") as out:
        for chunk in found.iter_bytes():
            out.write(chunk)


def _tell(answer: dict[str, Any], given: dict[str, Any]) -> None:
    """Print the counts on stdout, the first errors and where all of them are on stderr."""
    would = "would be " if given["dry_run"] else ""
    click.echo(f"{answer['received']:,} rows received")
    for name in _COUNTS:
        if answer[name] or name == "rejected":
            click.echo(f"{answer[name]:>12,} {'' if name == 'pending' else would}{name}")
    if answer["batchName"] and answer["pending"]:
        click.echo(f"batch: {answer['batchName']}")
    for error in answer["errors"][:_SHOWN_ERRORS]:
        say(f"row {error['row']}: {error['message']} ({error['code']})")
    if given["errors"] is not None and answer["errors"]:
        say(f"all errors: {given['errors']}")
    elif len(answer["errors"]) > _SHOWN_ERRORS or answer["errorsTruncated"]:
        say(f"all errors as CSV: {answer['errorsUrl']}")
