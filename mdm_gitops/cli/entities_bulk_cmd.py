"""``mdm-gitops entities data bulk``, ``bulk-csv`` and ``bulk-xlsx``: files of rows into a server.

The file is streamed as it is read. Exit code 0 says that the import took place; how many of the rows
were rejected is in the answer, and with ``--fail-on-rejected`` in the exit code, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from mdm_gitops.cli._errors import EXIT_ERROR
from mdm_gitops.cli._output import echo_json, json_option, say
from mdm_gitops.cli._remote import Remote, chunks_of, file_size, remote_options, transfer

if TYPE_CHECKING:
    from mdm_gitops.client.rows import Rows
    from mdm_gitops.client.transport import Body

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
    return _import("bulk", given)


@click.command(name="bulk-csv")
@_import_options
@_dialect_options[0]
@_dialect_options[1]
@_dialect_options[2]
def bulk_csv(sep: str | None, quote: str | None, charset: str, **given: Any) -> int:
    """Import a CSV file whose first line names the columns."""
    return _import("bulk-csv", given, sep=sep, quote=quote, charset=charset)


@click.command(name="bulk-xlsx")
@_import_options
def bulk_xlsx(**given: Any) -> int:
    """Import the first sheet of a workbook, whose first line names the columns."""
    return _import("bulk-xlsx", given)


def _import(kind: str, given: dict[str, Any], **more: Any) -> int:
    answer = asyncio.run(_send(kind, given, more))
    if given["errors"] is not None and answer["errorsUrl"] is None:
        given["errors"].unlink(missing_ok=True)  # an older one would tell of another import
    if given["as_json"]:
        echo_json(answer)
    else:
        _tell(answer, given)
    rejected = answer["rejected"] > 0
    return EXIT_ERROR if rejected and given["fail_on_rejected"] else 0


async def _send(kind: str, given: dict[str, Any], more: dict[str, Any]) -> Any:
    path = given["file"] if str(given["file"]) != "-" else None
    size = file_size(path)
    remote: Remote = given["remote"]
    async with remote.client() as client:
        rows = client.rows(given["entity"])
        with (
            click.open_file(str(path or "-"), "rb") as file,
            transfer(
                f"sending {path or 'standard input'}", total=size, then="checking and writing"
            ) as sent,
        ):
            answer = await rows.import_answer(
                kind,
                _body(file, size, sent),
                size=size,
                mode=given["mode"],
                key_columns=_names(given["key_columns"]),
                batch_name=given["batch_name"],
                dry_run=given["dry_run"],
                idempotency_key=given["idempotency_key"],
                **more,
            )
        if given["errors"] is not None and answer["errorsUrl"] is not None:
            await _keep_errors(rows, answer["errorsUrl"], given["errors"])
        return answer


def _body(file: IO[bytes], size: int | None, sent: Callable[[int], None]) -> Body:
    """Return what is sent: a file can be read again for another attempt, a pipe cannot."""
    if size is None:
        return chunks_of(file, sent=sent)

    def anew() -> AsyncIterator[bytes]:
        file.seek(0)
        return chunks_of(file, sent=sent)

    return anew


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else (text,)


async def _keep_errors(rows: Rows, url: str, file: Path) -> None:
    async with rows.import_errors(url) as found:
        with file.open("wb") as out:
            async for chunk in found.chunks():
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
