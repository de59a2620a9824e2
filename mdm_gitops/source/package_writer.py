"""Writing a package: which files go into it, its manifest, and the archive as a stream of bytes.

The same files give the same bytes: moments, owners and order in the archive are fixed, and its
manifest tells the moment of the commit. Files are taken as their authors wrote them; only of those
that are about more than what is exported the part that belongs to it is written anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mdm_gitops import __version__
from mdm_gitops.errors import NotFound
from mdm_gitops.model import Definitions, Entity, Webhook, fold
from mdm_gitops.model.access import PermissionItem, Permissions, Webhooks
from mdm_gitops.model.package import PackagedEntity, PackageManifest
from mdm_gitops.model.project import Project
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.source.entity_files import path_of, seed_of
from mdm_gitops.source.package_reader import MANIFEST
from mdm_gitops.source.render import render

_MOMENT: Final = (1980, 1, 1, 0, 0, 0)
_MODE: Final = (stat.S_IFREG | 0o644) << 16
_LEVEL: Final = 6
_PIECE: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is asked for; no *entities* are all of them."""

    entities: tuple[str, ...] = ()
    dependencies: bool = True
    permissions: bool = False
    webhooks: bool = False
    seeds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """*files* in the order in which they stand in the archive, the manifest first."""

    manifest: PackageManifest
    files: Mapping[str, bytes]


def export_package(
    files: Mapping[str, bytes],
    definitions: Definitions,
    selection: Selection,
    *,
    exported_at: datetime,
    exported_by: str,
    version: str = "",
) -> Exported:
    """Return the package of what is selected; *definitions* are what *files* say.

    Raises:
        NotFound: a selected entity is not defined.
    """
    names = in_order(definitions, _chosen(definitions, selection))
    kept = dict(_files(files, definitions, selection, names))
    sums = {path: hashlib.sha256(data).hexdigest() for path, data in kept.items()}
    commit = definitions.commit
    manifest = PackageManifest(
        format_version=1,
        name=definitions.project.name,
        version=version or (f"1.0.0+{commit[:12]}" if commit else "1.0.0"),
        exported_utc=exported_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        exported_by=exported_by,
        source_commit=commit,
        tool_version=__version__,
        entities=tuple(_packaged(definitions, name, kept, sums) for name in names),
        files=sums,
    )
    text = json.dumps(manifest.to_document(), indent=2, ensure_ascii=False) + "\n"
    return Exported(manifest=manifest, files={MANIFEST: text.encode(), **kept})


def in_order(definitions: Definitions, names: Collection[str]) -> tuple[str, ...]:
    """Return *names* so that each stands after those that it refers to; circles go by name."""
    done: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        for target in sorted(_targets(definitions.entities[name])):
            if target in names and target not in done and target not in above:
                visit(target, (*above, name))
        done.setdefault(name)

    for name in sorted(names):
        visit(name, ())
    return tuple(done)


def zip_pieces(exported: Exported) -> Iterator[bytes]:
    """Yield the archive piece by piece."""
    out = _Out()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in exported.files.items():
            info = zipfile.ZipInfo(path, _MOMENT)
            info.compress_type, info.external_attr, info.create_system = (
                zipfile.ZIP_DEFLATED,
                _MODE,
                3,
            )
            info._compresslevel = _LEVEL  # type: ignore[attr-defined]  # public from 3.13 on
            with archive.open(info, "w") as content:
                for start in range(0, len(data), _PIECE):
                    content.write(data[start : start + _PIECE])
                    yield from out.taken()
            yield from out.taken()
    yield from out.taken()


class _Out(io.RawIOBase):
    """Where an archive is written to that is sent on at once: nobody can go back in it."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        return len(data)

    def taken(self) -> Iterator[bytes]:
        held, self._held = b"".join(self._held), []
        if held:
            yield held


# --- what goes in -----------------------------------------------------------------------------------


def _chosen(definitions: Definitions, selection: Selection) -> set[str]:
    known = definitions.entities
    chosen = {fold(name) for name in selection.entities} or set(known)
    for name in selection.entities:
        if fold(name) not in known:
            raise NotFound(
                f"there is no entity {name[:60]!r}",
                hint=did_you_mean(name, [each.name for each in known.values()]),
                code="ENTITY_NOT_FOUND",
            )
    while selection.dependencies:
        more = {target for name in chosen for target in _targets(known[name])} - chosen
        if not more:
            break
        chosen |= more
    return chosen


def _targets(entity: Entity) -> set[str]:
    return {fold(c.reference.entity) for c in entity.columns if c.reference} - {entity.folded}


def _files(
    files: Mapping[str, bytes],
    definitions: Definitions,
    selection: Selection,
    names: tuple[str, ...],
) -> Iterator[tuple[str, bytes]]:
    whole = len(names) == len(definitions.entities)
    domains = {definitions.entities[name].domain for name in names}
    project = files["mdm.yaml"] if whole else _project(definitions.project, domains)
    yield "mdm.yaml", project
    for name in names:
        path = path_of(files, name)
        assert path is not None, "an entity has a file of its name"
        yield path, files[path]
    if selection.permissions and "permissions.yaml" in files:
        items = tuple(_items(definitions.permissions.permissions, domains, set(names)))
        part = render(Permissions(permissions=items)).encode()
        yield "permissions.yaml", files["permissions.yaml"] if whole else part
    if selection.permissions and whole and "access-tests.yaml" in files:
        yield "access-tests.yaml", files["access-tests.yaml"]
    if selection.webhooks and "webhooks.yaml" in files:
        hooks = tuple(_webhooks(definitions.webhooks.webhooks, domains, set(names)))
        part = render(Webhooks(webhooks=hooks)).encode()
        yield "webhooks.yaml", files["webhooks.yaml"] if whole else part
    for name in names if selection.seeds else ():
        seed = seed_of(files, name)
        if seed is not None:
            yield seed, files[seed]


def _project(project: Project, domains: Collection[str]) -> bytes:
    """Policy and environments belong to the place and not to a part of its entities."""
    kept = tuple(domain for domain in project.domains if domain.name in domains)
    part = Project(
        name=project.name,
        api_version=project.api_version,
        description=project.description,
        domains=kept,
    )
    return render(part).encode()


def _items(
    items: Iterable[PermissionItem], domains: Collection[str], names: Collection[str]
) -> Iterator[PermissionItem]:
    """Yield what *items* say of *names*. What holds for all domains says more, and stays behind."""
    for item in items:
        kept = tuple(domain for domain in item.domains if domain in domains)
        entities = tuple(name for name in item.entities if fold(name) in names)
        if kept and (entities or not item.entities):
            yield item.model_copy(update={"domains": kept, "entities": entities})


def _webhooks(
    webhooks: Iterable[Webhook], domains: Collection[str], names: Collection[str]
) -> Iterator[Webhook]:
    for webhook in webhooks:
        kept = tuple(domain for domain in webhook.domains if domain in domains)
        entities = tuple(name for name in webhook.entities if fold(name) in names)
        if (kept or not webhook.domains) and (entities or not webhook.entities):
            yield webhook.model_copy(update={"domains": kept, "entities": entities})


def _packaged(
    definitions: Definitions, name: str, kept: Mapping[str, bytes], sums: Mapping[str, str]
) -> PackagedEntity:
    entity = definitions.entities[name]
    path = path_of(kept, name)
    assert path is not None, "it was put there"
    seed = definitions.seeds.get(name)
    rows = len(seed.rows) if seed is not None and seed_of(kept, name) else 0
    return PackagedEntity(name=entity.name, version=entity.version, sha256=sums[path], rows=rows)
