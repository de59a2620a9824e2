"""Packages where commands take a folder: a ZIP archive is read, and the folder is the current one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mdm_gitops.model import Definitions


def looks_like_archive(place: Path) -> bool:
    return place.suffix.lower() == ".zip" and place.is_file()


def folder_of(place: Path) -> Path:
    """Return the folder that has the settings and the warehouse."""
    return Path() if looks_like_archive(place) else place


def read_package_at(
    place: Path, *, rev: str | None, reserved_schemas: Sequence[str] = ()
) -> Definitions:
    """Return what the package *place* defines; see ``source.package_reader`` for errors."""
    from mdm_gitops.model.checks import DEFAULT_RESERVED_SCHEMAS
    from mdm_gitops.source.package_reader import read_package_file

    if rev is not None:
        raise click.UsageError("a package has no revisions; leave --rev out")
    reserved = reserved_schemas or DEFAULT_RESERVED_SCHEMAS
    return read_package_file(place, reserved_schemas=reserved)
