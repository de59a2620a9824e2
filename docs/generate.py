"""Writes the pages of docs/ that are made from code; ``--check`` only tells which are out of date.

A page is a function that returns its text, entered in ``PAGES``. Whatever is told there exists once,
in the code, so a page cannot say anything else.
"""

from __future__ import annotations

import argparse
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from mdm_api.reference import errors_page, rest_api_page
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
    words = {bool: "true, false", int: "integer", float: "number", str: "text", Path: "folder"}
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


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/errors.md": errors_page,
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
