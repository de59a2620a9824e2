"""Answers for people and pipes: a table on a terminal, values with tabs between them elsewhere.

What is shown was written by others, so signs that steer a terminal are not passed on to it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click

_SYSTEM: Final = "_sys_"
_ID: Final = "_sys_id"
_UNSEEN: Final = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F)}
_HARMLESS: Final = dict.fromkeys(_UNSEEN, " ")


def show_list(items: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print *items*; a column is a name, ``name.inner``, or ``heading=name``."""
    chosen = list(columns) or user_columns(items)
    heads = [each.partition("=")[0] for each in chosen]
    names = [each.rpartition("=")[2] for each in chosen]
    lines = [[_text(_found(item, name)) for name in names] for item in items]
    if not sys.stdout.isatty():
        for line in chain([heads], lines):
            click.echo("\t".join(line))
        return
    from rich.table import Table
    from rich.text import Text

    from mdm_gitops.cli._output import console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for line in lines:
        table.add_row(*(Text(each) for each in line))
    screen = console()
    screen.soft_wrap = False
    screen.print(table)


def show_object(value: Mapping[str, Any], fields: Sequence[str] = ()) -> None:
    """Print the members of *value*, one per line."""
    names = list(fields) or list(value)
    heads = [each.partition("=")[0] for each in names]
    width = max(map(len, heads), default=0)
    for head, name in zip(heads, names, strict=True):
        text = _text(_found(value, name.rpartition("=")[2]))
        if sys.stdout.isatty():
            click.echo(f"{click.style(head.ljust(width), bold=True)}  {text}".rstrip())
        else:
            click.echo(f"{head}\t{text}")


def user_columns(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of rows: the id and what people gave; those of a definition's own."""
    seen = dict.fromkeys(chain.from_iterable(items))
    ids = [_ID] if _ID in seen else []
    return ids + [name for name in seen if not name.startswith((_SYSTEM, "_expanded"))]


def _found(item: Mapping[str, Any], name: str) -> Any:
    value: Any = item
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str():
            return value.translate(_HARMLESS)
        case list() if all(isinstance(each, str | int) for each in value):
            return ", ".join(_text(each) for each in value)
        case list() | dict():
            return json.dumps(value, ensure_ascii=False).translate(_HARMLESS)
        case _:
            return str(value)
