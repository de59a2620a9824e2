"""``mdm-package.json``: what a package says about itself, so that a reader can check it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mdm_gitops.model.base import Definition

FORMAT_VERSION = 1
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PackagedEntity(Definition):
    name: str
    version: str
    sha256: Sha256
    rows: Annotated[int, Field(ge=0)] = 0


class PackageManifest(Definition):
    """*files* has the checksum of each file of the package but the manifest, by its path."""

    format_version: Literal[1]
    name: str
    version: str
    exported_utc: str
    exported_by: str
    source_commit: str | None = None
    tool_version: str | None = None
    entities: Annotated[tuple[PackagedEntity, ...], Field(strict=False)] = ()
    files: dict[str, Sha256]
