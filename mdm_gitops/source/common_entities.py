"""Predefined entities that come with the program: code lists of standards, with all their rows.

They are the repository ``examples/reference-data`` and its folder ``optional``; their READMEs say where the
rows come from and under which licence they are. Installing one is a change of files like any other, and so is
bringing an installed one to a newer version (``source.common_upgrade``). Which version is installed is what its
definition says in ``version``; what former versions were is kept in the folder ``former``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from mdm_gitops.errors import Conflict, NotFound
from mdm_gitops.model import Domain, Entity, Seed, fold
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.source.commits import Files
from mdm_gitops.source.common_upgrade import (
    Former,
    Row,
    as_lines,
    is_changed,
    merge_definition,
    merge_rows,
)
from mdm_gitops.source.edit import append_item
from mdm_gitops.source.entity_files import entity_at, new_path, path_of, seed_of
from mdm_gitops.source.merge import merge_entity
from mdm_gitops.source.repository import parse_entity

_PACKAGE: Final = Path(__file__).parents[1]
_PLACES: Final = (_PACKAGE / "_common", _PACKAGE.parent / "examples/reference-data")
_ISO_CODES: Final = "{} by iso-codes (salsa.debian.org/iso-codes-team/iso-codes)"
_LGPL: Final = "LGPL-2.1-or-later"
# Name: folder, source, licence.
_ENTITIES: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "country": (".", _ISO_CODES.format("ISO 3166-1"), _LGPL),
        "subdivision": (".", _ISO_CODES.format("ISO 3166-2"), _LGPL),
        "currency": (".", _ISO_CODES.format("ISO 4217"), _LGPL),
        "language": (".", _ISO_CODES.format("ISO 639-3"), _LGPL),
        "unit_of_measure": (
            "optional",
            "UN/CEFACT Recommendation 20, Revision 17, by github.com/datasets/unece-units-of-measure",
            "PDDL-1.0",
        ),
        "time_zone": (
            "optional",
            "IANA time zone database 2026f by tzdata 2026.6 (pypi.org/project/tzdata)",
            "public domain",
        ),
    }
)
_EDITOR_HINT: Final = b"# yaml-language-server:"
_PROJECT: Final = "mdm.yaml"


@dataclass(frozen=True, kw_only=True)
class CommonEntity:
    """*needs* are the common entities that it refers to, itself not among them."""

    entity: Entity
    text: bytes
    seed: bytes
    rows: int
    source: str
    licence: str
    needs: tuple[str, ...]
    former: Path  # the folder of former versions

    @property
    def id(self) -> str:
        return self.entity.name

    def version(self, version: str) -> Former | None:
        """Return what is known of *version*, None if it was never one of the catalogue."""
        if version == self.entity.version:
            return self._present
        if version not in self.former_versions:
            return None
        return Former.read((self.former / f"{self.id}-{version}.json").read_bytes())

    @cached_property
    def former_versions(self) -> frozenset[str]:
        files = self.former.glob(f"{self.id}-*.json")
        return frozenset(file.stem.removeprefix(f"{self.id}-") for file in files)

    @cached_property
    def _present(self) -> Former:
        return Former.of(self.entity, self.seed_rows)

    @property
    def seed_rows(self) -> list[Row]:
        rows: list[Row] = orjson.loads(self.seed)
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What a repository has of a common entity. *version* is None if it is none of the catalogue's; then
    it is an entity of the same name, and nobody can say what was changed."""

    version: str | None = None
    changed: bool | None = None
    upgradable: bool = False


@cache
def common_entities() -> Mapping[str, CommonEntity]:
    root = next(place for place in _PLACES if place.is_dir())
    return MappingProxyType({name: _read(root, name) for name in _ENTITIES})


def _read(root: Path, name: str) -> CommonEntity:
    folder, source, licence = _ENTITIES[name]
    lines = (root / folder / f"entities/{name}.yaml").read_bytes().splitlines(keepends=True)
    text = b"".join(line for line in lines if not line.startswith(_EDITOR_HINT))
    seed = (root / folder / f"seed/{name}.json").read_bytes()
    entity = parse_entity(text)
    targets = {fold(c.reference.entity) for c in entity.columns if c.reference}
    return CommonEntity(
        entity=entity,
        text=text,
        seed=seed,
        rows=len(orjson.loads(seed)),
        source=source,
        licence=licence,
        needs=tuple(sorted(targets - {entity.folded})),
        former=root / "former",
    )


def installation(common: CommonEntity, entity: Entity, seed: Seed | None) -> Installation:
    """Return what *entity* of a repository, with its *seed*, is of *common*."""
    known = common.version(entity.version)
    if known is None:
        return Installation()
    return Installation(
        version=entity.version,
        changed=is_changed(known, entity, seed.rows if seed else ()),
        upgradable=entity.version != common.entity.version,
    )


def find_common(name: str) -> CommonEntity:
    found = common_entities().get(fold(name))
    if found is None:
        raise NotFound(
            f"there is no common entity {name[:60]!r}",
            hint=did_you_mean(name, common_entities()),
            code="COMMON_ENTITY_NOT_FOUND",
        )
    return found


def wanted_with(common: CommonEntity, defined: Mapping[str, object]) -> tuple[CommonEntity, ...]:
    """Return *common* after all that it needs and that is not *defined*, by folded name."""
    return tuple(_with_needs(common, defined))


def _with_needs(common: CommonEntity, defined: Mapping[str, object]) -> Iterator[CommonEntity]:
    for name in common.needs:
        if name not in defined:
            yield from _with_needs(common_entities()[name], defined)
    yield common


def installed(files: Mapping[str, bytes], common: CommonEntity, domain: str) -> Files:
    """Return the files to write so that *common* is defined, in *domain* if there is one. A former
    version is brought to the present one, where it is.

    Raises:
        Conflict: it is there in its present version, or another entity of its name is
            (``ENTITY_EXISTS``), or it was changed where the new version changes it, too.
    """
    path = path_of(files, common.entity.name)
    if path is not None:
        return _upgraded(files, common, path)
    entity = common.entity.model_copy(update={"domain": domain or common.entity.domain})
    return {
        new_path(files, entity): merge_entity(common.text, entity),
        f"seed/{entity.name}.json": common.seed,
    }


def _upgraded(files: Mapping[str, bytes], common: CommonEntity, path: str) -> Files:
    local = entity_at(files, path)
    former = common.version(local.version) if local else None
    if local is None or former is None or local.version == common.entity.version:
        raise Conflict(
            f"there is an entity {common.entity.name} already",
            hint="DELETE it first, or keep it",
            code="ENTITY_EXISTS",
        )
    merged = merge_definition(former, local, common.entity)
    written: dict[str, bytes | None] = {path: merge_entity(files[path], merged)}
    seed = seed_of(files, common.entity.name)
    if seed is not None:  # else it was taken away on purpose
        rows = merge_rows(former, common.entity, orjson.loads(files[seed]), common.seed_rows)
        written[seed] = common.seed if rows == common.seed_rows else as_lines(rows)
    return written


def with_domain(files: Mapping[str, bytes], domain: str) -> Files:
    """Return mdm.yaml with *domain*, which it does not have."""
    return {_PROJECT: append_item(files.get(_PROJECT), "domains", Domain(name=domain))}
