"""What a definition may refer to: the entities and domains that exist.

A file that could not be read still exists: whoever refers to its entity is not told off for it, or
one slip would be reported a hundred times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mdm_gitops.model.entity import Entity
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.suggest import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    entities: Mapping[str, Entity]  # by folded name
    domains: tuple[str, ...] | None  # None when mdm.yaml could not be read
    unreadable: frozenset[str] = field(default=frozenset())  # folded names of broken entities

    def unknown_domain(self, name: str, at: Pointer) -> Problem | None:
        if self.domains is None or name in self.domains:
            return None
        return Problem(
            rule="unknown-domain",
            message=f"domain {name!r} is not in mdm.yaml",
            pointer=at,
            hint=_everything(name) or did_you_mean(name, self.domains),
        )

    def unknown_entity(self, name: str, at: Pointer) -> Problem | None:
        if fold(name) in self.entities or fold(name) in self.unreadable:
            return None
        names = (entity.name for entity in self.entities.values())
        return Problem(
            rule="unknown-entity",
            message=f"entity {name!r} does not exist",
            pointer=at,
            hint=_everything(name) or did_you_mean(name, names),
        )


def _everything(name: str) -> str:
    return "leave the list empty to mean all" if name == "*" else ""
