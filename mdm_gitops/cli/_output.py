"""What all commands share of their output: data on stdout, talk on stderr, colour on a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

_NAME: Final = "mdm-gitops"
Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add ``--json`` as the parameter ``as_json``: one JSON object on stdout, also for errors."""
    option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    return option(command)


def json_errors_option(command: Command) -> Command:
    """Add ``--json`` where stdout carries a document of its own: an error is told as JSON there."""
    option = click.option(
        "--json", is_flag=True, expose_value=False, help="Also tell an error as JSON on stdout."
    )
    return option(command)


def tell(message: str, *, as_json: bool, **document: Any) -> None:
    """Tell what was done: a program by *document* on stdout, a person by *message* on stderr."""
    if as_json:
        echo_json(document)
    else:
        say(message)


def echo_json(value: Any) -> None:
    """Print *value* as one JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_spelt))


def _spelt(value: Any) -> Any:
    from mdm_gitops.model.values import to_json_value  # slow to import, so only where needed

    return to_json_value(value)


def say(message: str) -> None:
    """Tell a person something; on stderr, so that stdout can be piped."""
    click.echo(message, err=True)


def warn(message: str) -> None:
    say(f"{click.style('warning:', fg='yellow')} {message}")


def program() -> str:
    """Return how a person calls this program here: by its name where that finds this very file."""
    called = sys.argv[0] if sys.argv else ""
    if Path(called).name != _NAME or shutil.which(_NAME) == shutil.which(called):
        return _NAME
    return called


def wants_color() -> bool | None:
    """False with NO_COLOR, True with FORCE_COLOR, None for: if it is a terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def console(*, stderr: bool = False) -> Console:
    """Return a rich console; rich itself knows terminals and NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)
