"""Writes the pages of docs/ that are made from code; ``--check`` only tells which are out of date.

A page is a function that returns its text, entered in ``PAGES``. Whatever is told there exists once,
in the code, so a page cannot say anything else.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from mdm_api.reference import errors_page, rest_api_page
from mdm_gitops.cli import main as program
from mdm_gitops.settings import PREFIX, Settings

DOCS: Final = Path(__file__).parent


def settings_page() -> str:
    """Return the reference of all settings, section by section."""
    lines = [
        "# Settings",
        "",
        "Every setting has a default. A setting comes from the environment, else from `.env`, else",
        "from `mdm.toml`, the two files beside the definitions:",
        "",
        "```sh",
        "export Mdm__RateLimit__PermitLimit=50        # the same line goes into .env",
        "```",
        "",
        "```toml",
        "[RateLimit]                                  # mdm.toml",
        "PermitLimit = 50",
        "```",
        "",
        "A name that starts with `Mdm__` and is not on this page is an error. In the environment and",
        "in `.env` capitals do not matter, and a setting that is empty counts as absent. Secrets are",
        "never printed or logged.",
        "",
        "All of `Mdm__Repository__` is checked today, and nothing acts on it yet.",
    ]
    scalars = {name: field for name, field in Settings.model_fields.items() if not _section(field)}
    lines += ["", "## General", "", *_table("", scalars)]
    for name, field in Settings.model_fields.items():
        if section := _section(field):
            lines += ["", f"## {name}", "", section.__doc__ or "", ""]
            lines += _table(f"{name}__", section.model_fields)
    return "\n".join(lines) + "\n"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _table(prefix: str, fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    yield "| Setting | Value | Default | Meaning |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        cells = [f"`{PREFIX}{prefix}{name}`", _values(field), _default(field)]
        meaning = (field.description or "").replace("|", r"\|")
        yield f"| {' | '.join(cells)} | {meaning[:1].upper()}{meaning[1:]} |"


def _values(field: FieldInfo) -> str:
    """Say what fits: the choices, or the type and its bounds."""
    kind = _without_none(field.annotation)
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    words = {bool: "true, false", int: "integer", float: "number", str: "text", Path: "path"}
    text = "secret text" if kind is SecretStr else words[kind]
    return text + _bounds(field.metadata)


def _without_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _bounds(metadata: list[Any]) -> str:
    found = {
        name: getattr(each, name) for each in metadata for name in _SIGNS if hasattr(each, name)
    }
    return "".join(f", {_SIGNS[name]} {found[name]:,}" for name in _SIGNS if name in found)


_SIGNS: Final = {"gt": ">", "ge": "≥", "le": "≤"}


def _default(field: FieldInfo) -> str:
    if field.default is None or field.default == "":
        return "none"
    text = str(field.default).lower() if isinstance(field.default, bool) else f"{field.default}"
    return f"`{text.removesuffix('.0')}`"


def cli_page() -> str:
    """Return the reference of the command line: each command as its ``--help`` tells it."""
    lines = [
        "# Command line",
        "",
        "`mdm-gitops --help` and `mdm-gitops COMMAND --help` say the same. `DIR` is a folder of",
        "definitions; without it the present one is meant.",
        "",
        "- Data goes to stdout, everything said to a person to stderr.",
        '- `--json` prints one JSON object, also for an error: `{"error": {...}}`.',
        "- Colour and progress bars appear on a terminal only. `NO_COLOR` switches colour off,",
        "  `FORCE_COLOR` on.",
        "- Commands that speak to a server take it from `--url` and `--api-key`, else from `MDM_URL`",
        "  and `MDM_API_KEY`, else from a profile; [the guide](../guides/command-line.md) tells more.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done, or nothing to do |",
        "| 1 | error |",
        "| 2 | there are changes, or drift (`--detailed-exitcode`) |",
        "| 3 | refused |",
        "| 4 | out of date: the definitions or the warehouse moved since the plan was made |",
        "| 5 | locked: somebody else is applying, or a table stayed locked |",
        "| 6 | applied in part; the next apply goes on from there |",
        "| 64 | wrong usage of the command |",
    ]
    top = click.Context(program, info_name="mdm-gitops", terminal_width=200, max_content_width=200)
    for context in _commands(top):
        lines += ["", f"## {context.command_path}", "", *_command(context)]
    return "\n".join(lines) + "\n"


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Yield each command below *context*, groups before what is in them."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        yield below
        if isinstance(command, click.Group):
            yield from _commands(below)


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    yield "\n\n".join(map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n")))
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        yield from ("", "| option | default | meaning |", "|---|---|---|")
        yield from (_option(option, context) for option in options)


def _paragraph(text: str) -> str:
    """Return a paragraph of a help text; one that click leaves as it is shows lines to type."""
    if text.startswith("\b\n"):
        return f"```sh\n{text[2:]}\n```"
    # What is written with a number sign is a line of YAML, not a heading.
    return re.sub(r"^(# .+)$", r"`\1`", text, flags=re.MULTILINE)


def _option(option: click.Option, context: click.Context) -> str:
    metavar = option.make_metavar(context).removesuffix(" RANGE")
    values = "" if option.is_flag else f" {metavar}"
    spelling = f"{', '.join(option.opts)}{values}".replace("|", r"\|")
    default = f"`{option.default}`" if option.show_default is True else option.show_default or ""
    meaning = (option.help or f"One of {values.strip(' []')}.").replace("|", ", ")
    return f"| `{spelling}` | {default} | {meaning} |"


# What stands below is used by what stands above, never the other way round.
_PACKAGES: Final = (
    "api/mdm_api",
    "operator/mdm_operator",
    "mdm_gitops/cli",
    "mdm_gitops/client",
    "mdm_gitops/deliver",
    "mdm_gitops/data",
    "mdm_gitops/access",
    "mdm_gitops/warehouse",
    "mdm_gitops/warehouse/ddl",
    "mdm_gitops/plan",
    "mdm_gitops/source",
    "mdm_gitops/filter",
    "mdm_gitops/model",
    "mdm_gitops",
)


def modules_page() -> str:
    """Return the map of all modules: each with the first paragraph of its header."""
    lines = [
        "# Modules",
        "",
        "Each module says at its head what it is. How they fit together is told in",
        "[ARCHITECTURE.md](../../ARCHITECTURE.md). A package stands above those that it uses.",
    ]
    for package in _PACKAGES:
        files = sorted((DOCS.parent / package).glob("*.py"))
        lines += ["", f"## {package}", "", "| module | is |", "|---|---|"]
        told = ((file, _first_paragraph(file)) for file in files)
        lines += [f"| `{file.name}` | {text} |" for file, text in told if text]
    return "\n".join(lines) + "\n"


def _first_paragraph(file: Path) -> str:
    header = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    text = " ".join(header.partition("\n\n")[0].split()).replace("|", r"\|")
    return text.replace("``", "`")


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/cli.md": cli_page,
    "reference/errors.md": errors_page,
    "reference/modules.md": modules_page,
    "reference/rest-api.md": rest_api_page,
    "reference/settings.md": settings_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail when outdated")
    check = parser.parse_args().check
    outdated = [name for name, page in PAGES.items() if _read(DOCS / name) != page()]
    for name in outdated:
        if check:
            sys.stderr.write(f"docs/{name} is out of date: run `make docs`\n")
        else:
            (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
            sys.stderr.write(f"wrote docs/{name}\n")
    return 1 if check and outdated else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
