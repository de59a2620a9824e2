"""Desired and deployed side by side: each entity there is, with its state, as a principal sees it.

Pure. The states: *draft* is defined and was never deployed; *deployed* is as defined; *changed* is
deployed, and the definitions say something else by now (also: nothing); *failed* has a definition
that cannot be used, or its last deployment failed and left it behind; *removed* was taken out, its
tables are archived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from mdm_gitops.access.principal import Principal
from mdm_gitops.access.rights import Rights, rights_of
from mdm_gitops.errors import Finding
from mdm_gitops.model import Action, Definitions, Entity, fold
from mdm_gitops.plan.desired import DesiredEntity, desired_entities
from mdm_gitops.plan.recorded import EntityState
from mdm_gitops.warehouse.store import StoredEntity, StoreState


class DefinitionState(StrEnum):
    DRAFT = "draft"
    DEPLOYED = "deployed"
    CHANGED = "changed"
    REMOVED = "removed"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class DesiredView:
    """What the definitions say now. *definitions* is None when there are none, or none usable."""

    definitions: Definitions | None = None
    findings: tuple[Finding, ...] = ()
    desired: Mapping[str, DesiredEntity] = field(default_factory=lambda: MappingProxyType({}))
    unreadable: frozenset[str] = frozenset()  # folded names of entities with findings

    @classmethod
    def of(cls, definitions: Definitions, findings: tuple[Finding, ...] = ()) -> DesiredView:
        desired = desired_entities(definitions)
        for each in desired.values():
            each.desired_hash  # noqa: B018 - worked out here, where it keeps nobody waiting
        return cls(
            definitions=definitions,
            findings=findings,
            desired=desired,
            unreadable=frozenset(_entity_names(findings)) - definitions.entities.keys(),
        )

    @classmethod
    def broken(cls, findings: tuple[Finding, ...]) -> DesiredView:
        return cls(findings=findings, unreadable=frozenset(_entity_names(findings)))


def _entity_names(findings: tuple[Finding, ...]) -> set[str]:
    paths = {finding.location.path for finding in findings}
    return {
        fold(path.rpartition("/")[2].removesuffix(".yaml"))
        for path in paths
        if path.startswith("entities/") and path.endswith(".yaml")
    }


NOTHING_DESIRED = DesiredView()


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    state: DefinitionState
    desired: Entity | None
    stored: StoredEntity | None

    @property
    def definition(self) -> Entity:
        """The definition of the repository, or the deployed one where there is none."""
        if self.desired is not None:
            return self.desired
        assert self.stored is not None, "an entry stands for one of the two"
        return self.stored.definition

    @property
    def deployed(self) -> Entity | None:
        """The definition that is in use; where it is that of the repository, no second one is parsed
        and kept."""
        if self.stored is None or not self.is_in_use:
            return None
        is_as_defined = self.state is DefinitionState.DEPLOYED
        return self.definition if is_as_defined else self.stored.definition

    @property
    def is_in_use(self) -> bool:
        return self.stored is not None and self.stored.state is not EntityState.REMOVED


@dataclass(frozen=True, kw_only=True)
class Catalog:
    entries: Mapping[str, CatalogEntry]  # by folded name, in name order
    principal: Principal
    store: StoreState

    def rights(self, entry: CatalogEntry) -> Rights:
        return rights_of(self.principal, entry.definition, self.store)

    def visible(self) -> Mapping[str, CatalogEntry]:
        """Return the entries that the principal may know of."""
        return {name: e for name, e in self.entries.items() if self._may_know(e)}

    def find(self, name: str) -> CatalogEntry | None:
        entry = self.entries.get(fold(name))
        return entry if entry is not None and self._may_know(entry) else None

    def _may_know(self, entry: CatalogEntry) -> bool:
        rights = self.rights(entry)
        return rights.may_read or rights.may(Action.ADMIN)


def build_catalog(
    store: StoreState,
    view: DesiredView,
    *,
    principal: Principal,
    last_deployments: Mapping[str, str],
) -> Catalog:
    """*last_deployments*: how the last one of each entity ended, as the store tells it."""
    removed = {entity.name: entity for entity in store.removed}  # the newest archive of a name
    names = sorted({*view.desired, *store.entities, *removed})
    entries = {}
    for name in names:
        desired = view.desired.get(name)
        stored = store.entities.get(name) or removed.get(name)
        entries[name] = CatalogEntry(
            state=_state(name, desired, stored, view, last_deployments.get(name, "")),
            desired=desired.entity if desired else None,
            stored=stored,
        )
    return Catalog(entries=entries, principal=principal, store=store)


def _state(
    name: str,
    desired: DesiredEntity | None,
    stored: StoredEntity | None,
    view: DesiredView,
    last: str,
) -> DefinitionState:
    if name in view.unreadable:
        return DefinitionState.FAILED
    if stored is None:
        return DefinitionState.FAILED if last == "failed" else DefinitionState.DRAFT
    if stored.state is EntityState.REMOVED:
        failed = last == "failed" and desired is not None
        return DefinitionState.FAILED if failed else DefinitionState.REMOVED
    if desired is None:
        # Without definitions nothing is asked for, so nothing differs.
        gone = view.definitions is not None
        return DefinitionState.CHANGED if gone else DefinitionState.DEPLOYED
    is_as_defined = stored.desired_hash == desired.desired_hash
    if last == "failed" and not (is_as_defined and stored.state is EntityState.DEPLOYED):
        return DefinitionState.FAILED
    return DefinitionState.DEPLOYED if is_as_defined else DefinitionState.CHANGED
