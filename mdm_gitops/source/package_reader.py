"""Reading a package: a ZIP archive with the layout of a repository, and a manifest that says what must
be inside. What is read is proven against the manifest first; then it is read like any repository.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, TypeVar

from pydantic import ValidationError

from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.model import Definitions, PermissionGrant, fold
from mdm_gitops.model.access import Permissions, Webhooks
from mdm_gitops.model.checks import DEFAULT_RESERVED_SCHEMAS
from mdm_gitops.model.package import FORMAT_VERSION, PackageManifest
from mdm_gitops.source.documents import YamlDocument
from mdm_gitops.source.limits import MAX_YAML_BYTES
from mdm_gitops.source.repository import read_tree
from mdm_gitops.source.strict_json import DECODER
from mdm_gitops.source.zip_tree import ZipTree

Shape = TypeVar("Shape", Permissions, Webhooks)
MANIFEST: Final = "mdm-package.json"
_MANIFEST_END: Final = "package.json"
_MAX_MANIFEST_BYTES: Final = 8 * MAX_YAML_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """*files* are those of the layout, by path, as the manifest says they must be."""

    manifest: PackageManifest
    files: Mapping[str, bytes]

    def definitions(
        self, *, reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS
    ) -> Definitions:
        """Return what the package defines, as if it were a repository; see ``read_tree``."""
        commit = self.manifest.source_commit
        return read_tree(self.files, commit=commit, reserved_schemas=reserved_schemas)

    def grants(self) -> tuple[PermissionGrant, ...]:
        """Return what the package permits, whatever else it holds."""
        found = self._shared("permissions", Permissions)
        return tuple(grant for item in found.permissions for grant in item.grants())

    def webhook_names(self) -> tuple[str, ...]:
        return tuple(webhook.name for webhook in self._shared("webhooks", Webhooks).webhooks)

    def _shared(self, name: str, model: type[Shape]) -> Shape:
        data = self.files.get(f"{name}.yaml")
        if data is None:
            return model()
        return YamlDocument(f"{name}.yaml", data).as_model(model, name)


def read_package(file: IO[bytes]) -> Package:
    """Return the package in *file*.

    Raises:
        MdmError: see ``ZipTree``; or the manifest is missing or wrong (``PACKAGE_MANIFEST_INVALID``),
            or a file is not as it says (``PACKAGE_CHECKSUM``).
    """
    tree = ZipTree(file)
    path = _manifest_path(tree)
    data = tree.read(path)
    manifest = _manifest(data, path)
    _check_list(tree, manifest, path)
    files = {}
    wanted = {entry.path for entry in tree.entries()}
    for each in tree.paths:
        if each == path:
            continue
        content = tree.read(each)
        if hashlib.sha256(content).hexdigest() != manifest.files[each]:
            raise _not_as_exported(f"{each} has another checksum than the manifest says")
        if each in wanted:
            files[each] = content
    _check_entities(manifest, files)
    return Package(manifest=manifest, files=files)


def read_package_file(
    path: Path, *, reserved_schemas: Sequence[str] = DEFAULT_RESERVED_SCHEMAS
) -> Definitions:
    """Read the definitions in the package *path*; see ``read_package`` and ``read_tree``."""
    with opened(path) as file:
        return read_package(file).definitions(reserved_schemas=reserved_schemas)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    with file:
        yield file


def _manifest_path(tree: ZipTree) -> str:
    found = [path for path in tree.paths if "/" not in path and path.endswith(_MANIFEST_END)]
    if len(found) != 1:
        what = "no manifest" if not found else f"{len(found)} manifests"
        raise _wrong_manifest(f"the package has {what}", hint=f"it holds one {MANIFEST} at its top")
    return found[0]


def _manifest(data: bytes, path: str) -> PackageManifest:
    if len(data) > _MAX_MANIFEST_BYTES:
        raise _wrong_manifest(f"{path} has more than {_MAX_MANIFEST_BYTES:,} bytes")
    try:
        value: Any = DECODER.decode(data.decode())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, MdmError):
        raise _wrong_manifest(f"{path} is not JSON") from None
    version = value.get("formatVersion") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise _wrong_manifest(
            f"{path} does not have formatVersion {FORMAT_VERSION}",
            hint="was the package exported by a newer version of this program?",
        )
    try:
        return PackageManifest.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])[:120]
        raise _wrong_manifest(f"{path}: {at}: {first['msg']}") from None


def _check_list(tree: ZipTree, manifest: PackageManifest, path: str) -> None:
    inside, listed = set(tree.paths) - {path}, set(manifest.files)
    for missing in sorted(listed - inside):
        raise _not_as_exported(f"{missing[:200]} is in the manifest and not in the package")
    for more in sorted(inside - listed):
        raise _not_as_exported(f"{more[:200]} is in the package and not in the manifest")


def _check_entities(manifest: PackageManifest, files: Mapping[str, bytes]) -> None:
    """The list of entities is what people look at, so it must be true."""
    by_name = {
        fold(PurePosixPath(path).stem): path
        for path in files
        if path.startswith("entities/") and path.endswith(".yaml")
    }
    told = {fold(entity.name): entity for entity in manifest.entities}
    if told.keys() != by_name.keys() or len(told) != len(manifest.entities):
        raise _wrong_manifest("the manifest's list of entities is not that of the files")
    for name, entity in told.items():
        if manifest.files[by_name[name]] != entity.sha256:
            raise _wrong_manifest(f"the manifest has two checksums of entity {entity.name}")


def _wrong_manifest(message: str, *, hint: str = "") -> MdmError:
    return MdmError(message, hint=hint, code="PACKAGE_MANIFEST_INVALID")


def _not_as_exported(message: str) -> MdmError:
    return MdmError(message, hint="it was changed or damaged on its way", code="PACKAGE_CHECKSUM")
