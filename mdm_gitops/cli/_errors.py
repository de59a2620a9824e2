"""How a command ends: the one place where exceptions become text and exit codes.

Errors are shown on stderr, findings one by one with their places. With ``--json`` stdout carries
one object that says the same. A bug keeps its traceback.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import click

from mdm_gitops.errors import DefinitionError, Finding, MdmError

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 64
EXIT_INTERRUPTED: Final = 130
_SHOWN_ITEMS: Final = 20


def run_and_exit(run: Callable[[list[str]], Any], args: Sequence[str] | None) -> NoReturn:
    """Call *run* with the arguments and leave the process with the code of DECISIONS."""
    arguments = list(sys.argv[1:] if args is None else args)
    sys.exit(_run(run, arguments))


def _run(run: Callable[[list[str]], Any], arguments: list[str]) -> int:
    try:
        code = run(arguments)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Abort as exc:
        click.echo("aborted", err=True)
        return EXIT_INTERRUPTED if isinstance(exc.__cause__, KeyboardInterrupt) else EXIT_ERROR
    except click.ClickException as exc:
        return _show_click(exc, arguments)
    except MdmError as exc:
        show_error(exc, as_json=_wants_json(arguments))
        return exc.kind.exit_code
    except OSError as exc:
        return _show_os_error(exc, arguments)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether ``--json`` was given, also when the rest of the line could not be understood."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def show_error(error: MdmError, *, as_json: bool = False) -> None:
    """Tell the user of *error*: sentence and hint, or every finding with its place."""
    if as_json:
        from mdm_gitops.cli._output import echo_json

        echo_json({"error": error_document(error)})
    if isinstance(error, DefinitionError):
        for finding in error.findings:
            show_finding(finding, err=True)
        _say_error(count_of(len(error.findings), "finding") + " in the definitions", "")
    else:
        _say_error(str(error), error.hint)
        _say_items(error)


def _say_items(error: MdmError) -> None:
    """Tell each of the things that a server found wrong, and the id of what it cannot explain."""
    for item in list(error.details.get("errors") or ())[:_SHOWN_ITEMS]:
        if isinstance(item, dict) and item.get("message") not in (None, str(error)):
            place = item.get("pointer") or item.get("column") or item.get("row") or ""
            click.echo(f"  {place}{': ' if place else ''}{item['message']}", err=True)
    if error.kind.status >= 500 and error.details.get("traceId"):
        click.echo(f"trace: {error.details['traceId']}", err=True)


def error_document(error: MdmError) -> dict[str, Any]:
    """Return *error* as the value of the key ``error`` of a JSON answer."""
    document: dict[str, Any] = {"code": error.kind_code, "message": str(error), "hint": error.hint}
    if isinstance(error, DefinitionError):
        document["findings"] = [finding_document(finding) for finding in error.findings]
    # What a server told of it: the items, and by which id its log knows the request.
    told = ("errors", "traceId")
    document |= {name: error.details[name] for name in told if name in error.details}
    return document


def finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "path": finding.location.path,
        "line": finding.location.line,
        "column": finding.location.column,
        "rule": finding.rule,
        "message": finding.message,
        "hint": finding.hint,
        "pointer": finding.pointer,
    }


def show_finding(finding: Finding, *, prefix: str = "", err: bool = False) -> None:
    """Print ``path:line:column: message`` as compilers do, so that editors can jump there."""
    place = click.style(f"{prefix}{finding.location}:", bold=True)
    click.echo(f"{place} {finding.message}", err=err)
    if finding.hint:
        click.echo(f"  {click.style('hint:', fg='cyan')} {finding.hint}", err=err)


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _say_error(message: str, hint: str) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    if hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {hint}", err=True)


def _show_click(exc: click.ClickException, arguments: Sequence[str]) -> int:
    usage = isinstance(exc, click.UsageError)
    message = exc.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    hint = f"see `{context.command_path} --help`" if context else ""
    if _wants_json(arguments):
        from mdm_gitops.cli._output import echo_json

        code = "USAGE" if usage else "INTERNAL"
        echo_json({"error": {"code": code, "message": message, "hint": hint}})
    _say_error(message, hint)
    return EXIT_USAGE if usage else exc.exit_code


def _show_os_error(exc: OSError, arguments: Sequence[str]) -> int:
    if exc.errno == errno.EPIPE:
        # The reader of a pipe has what it wanted; the interpreter must not complain at exit.
        sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115, PTH123
        return EXIT_ERROR
    where = f"{exc.filename}: " if exc.filename else ""
    message = f"{where}{exc.strerror or exc}"
    if _wants_json(arguments):
        from mdm_gitops.cli._output import echo_json

        echo_json({"error": {"code": "INTERNAL", "message": message, "hint": ""}})
    _say_error(message, "")
    return EXIT_ERROR
