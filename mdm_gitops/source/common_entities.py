"""Predefined entities that come with the program: code lists of ISO standards, with all their rows.

They are the repository ``examples/reference-data``; its README says where the rows come from and under
which licence they are. Installing one is a change of files like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from mdm_gitops.errors import Conflict, NotFound
from mdm_gitops.model import Domain, Entity, fold
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.source.commits import Files
from mdm_gitops.source.edit import append_item
from mdm_gitops.source.entity_files import new_path, path_of
from mdm_gitops.source.merge import merge_entity
from mdm_gitops.source.repository import parse_entity

_PACKAGE: Final = Path(__file__).parents[1]
_PLACES: Final = (_PACKAGE / "_common", _PACKAGE.parent / "examples/reference-data")
_STANDARDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "country": "ISO 3166-1",
        "subdivision": "ISO 3166-2",
        "currency": "ISO 4217",
        "language": "ISO 639-3",
    }
)
_SOURCE: Final = "{} by iso-codes (salsa.debian.org/iso-codes-team/iso-codes)"
LICENCE: Final = "LGPL-2.1-or-later"
_EDITOR_HINT: Final = b"# yaml-language-server:"
_PROJECT: Final = "mdm.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonEntity:
    """*needs* are the common entities that it refers to, itself not among them."""

    entity: Entity
    text: bytes
    seed: bytes
    rows: int
    source: str
    needs: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.entity.name


@cache
def common_entities() -> Mapping[str, CommonEntity]:
    root = next(place for place in _PLACES if place.is_dir())
    return MappingProxyType({name: _read(root, name) for name in _STANDARDS})


def _read(root: Path, name: str) -> CommonEntity:
    lines = (root / f"entities/{name}.yaml").read_bytes().splitlines(keepends=True)
    text = b"".join(line for line in lines if not line.startswith(_EDITOR_HINT))
    seed = (root / f"seed/{name}.json").read_bytes()
    entity = parse_entity(text)
    targets = {fold(c.reference.entity) for c in entity.columns if c.reference}
    return CommonEntity(
        entity=entity,
        text=text,
        seed=seed,
        rows=len(orjson.loads(seed)),
        source=_SOURCE.format(_STANDARDS[name]),
        needs=tuple(sorted(targets - {entity.folded})),
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
    """Return the files to write so that *common* is defined, in *domain* if there is one.

    Raises:
        Conflict: an entity of its name is defined already (``ENTITY_EXISTS``).
    """
    if path_of(files, common.entity.name) is not None:
        raise Conflict(
            f"there is an entity {common.entity.name} already",
            hint="DELETE it first, or keep it",
            code="ENTITY_EXISTS",
        )
    entity = common.entity.model_copy(update={"domain": domain or common.entity.domain})
    return {
        new_path(files, entity): merge_entity(common.text, entity),
        f"seed/{entity.name}.json": common.seed,
    }


def with_domain(files: Mapping[str, bytes], domain: str) -> Files:
    """Return mdm.yaml with *domain*, which it does not have."""
    return {_PROJECT: append_item(files.get(_PROJECT), "domains", Domain(name=domain))}
