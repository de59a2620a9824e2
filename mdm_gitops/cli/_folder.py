"""The folder that a command works on, as an argument; the address of a remote is told apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from mdm_gitops.settings import Settings

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://.+|[\w.-]+@[\w.-]+:.+", re.IGNORECASE)


class Folder(click.Path):
    """A path; what does not exist and reads like an address is refused as one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and _ADDRESS.fullmatch(value) and not Path(value).exists():
            from mdm_gitops.errors import InputError
            from mdm_gitops.source.git import without_credentials

            raise InputError(
                f"{without_credentials(value)[:200]!r} is the address of a remote; commands read a folder",
                hint="clone it and name the clone; the operator and the API follow a remote that"
                " Mdm__Source__Url names",
            )
        return super().convert(value, param, ctx)


FOLDER: Final = Folder(path_type=Path)


def refuse_without_files(folder: Path, settings: Settings) -> None:
    """Raise InputError for a folder that holds settings alone, since its definitions are fetched."""
    if settings.Source.Url is None or (folder / "mdm.yaml").exists():
        return
    from mdm_gitops.errors import InputError
    from mdm_gitops.source.git import without_credentials

    raise InputError(
        f"the definitions of {folder} are fetched from {without_credentials(settings.Source.Url)};"
        " this command reads a folder",
        hint="clone it and name the clone; `mdm-gitops status` and `plans` tell what the operator does",
    )
