"""What commands are given beside plain options: files, values of columns, and a person's yes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click


def read_definition(file: Path) -> tuple[bytes, dict[str, str]]:
    """Return a definition as it stands in *file*, and the header that tells its language."""
    with click.open_file(str(file), "rb") as opened:
        text: bytes = opened.read()
    media = "application/json" if file.suffix.lower() == ".json" else "application/yaml"
    return text, {"Content-Type": media}


def values_given(
    texts: Sequence[str], values: Sequence[str], file: Path | None, *, needed: bool = True
) -> dict[str, Any]:
    """Return the values of ``--file``, then those of ``--set`` and ``--set-json``."""
    found: dict[str, Any] = {}
    if file is not None:
        with click.open_file(str(file), "rb") as opened:
            document = json_of("--file", opened.read())
        if not isinstance(document, dict):
            raise click.UsageError("--file must hold a JSON object: column names and values")
        found |= document
    for each in texts:
        name, text = _pair("--set", each)
        found[name] = text
    for each in values:
        name, text = _pair("--set-json", each)
        found[name] = json_of(f"--set-json {name}", text)
    if needed and not found:
        raise click.UsageError("no values are given: --set COLUMN=TEXT or --file FILE")
    return found


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"{flag} takes COLUMN=VALUE, not {text[:60]!r}")
    return name, value


def json_of(flag: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{flag} is not JSON: {error}") from None


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere ``--yes`` must have answered."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} Without a terminal this needs --yes")
    click.confirm(question, abort=True, err=True)
