"""What a principal may do with an entity: the one place where permissions are evaluated.

Default deny. Actions are the union of the domain rows and the entity rows of all the principal's
names. A row filter holds per action: if an entity row that grants it has a filter, the principal
gets the OR of the filters of those entity rows, and a domain row never widens past them. An entity
with ``access.mode: restricted`` is not reached by domain rows at all. A Global Admin has every
action on every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mdm_gitops.access.principal import Principal
from mdm_gitops.model import AccessMode, Action, Entity, PermissionGrant
from mdm_gitops.model.access import ALL_DOMAINS, granted_by
from mdm_gitops.warehouse.store import StoreState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """*row_filters*: per granted action the filters of which one must let a row through.

    An action that is granted and not in it reaches all rows.
    """

    actions: frozenset[Action]
    row_filters: Mapping[Action, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def may(self, action: Action) -> bool:
        return action in self.actions

    @property
    def may_read(self) -> bool:
        return Action.READ in self.actions

    @property
    def sees_restricted(self) -> bool:
        """Whether restricted columns are shown in clear."""
        return Action.VIEWRESTRICTED in self.actions

    def filters_for(self, action: Action) -> tuple[str, ...]:
        """Return the row filters that hold for *action*; empty means all rows."""
        return self.row_filters.get(action, ())


NO_RIGHTS: Final = Rights(actions=frozenset())
ALL_RIGHTS: Final = Rights(actions=frozenset(Action))


def rights_of(principal: Principal, entity: Entity, state: StoreState) -> Rights:
    """Return what *principal* may do with *entity* according to the deployed permissions."""
    if principal.is_global_admin:
        return ALL_RIGHTS
    key = ("rights", principal.identities, entity.folded, entity.domain, entity.access.mode)
    return state.remember(key, lambda: _evaluate(_grants_on(principal, state, entity), entity))


def domain_actions(principal: Principal, state: StoreState) -> Mapping[str, frozenset[Action]]:
    """Return what *principal* may do by domain, for entities that domain rows reach."""
    if principal.is_global_admin:
        return {ALL_DOMAINS: frozenset(Action)}
    found: dict[str, frozenset[Action]] = {}
    for grant in _domain_grants(principal, state):
        found[grant.domain] = found.get(grant.domain, frozenset()) | granted_by(grant.actions)
    return found


def _domain_grants(principal: Principal, state: StoreState) -> Iterable[PermissionGrant]:
    for identity in principal.identities:
        yield from state.grants_by_scope.get((identity, ""), ())


def _grants_on(
    principal: Principal, state: StoreState, entity: Entity
) -> Iterable[PermissionGrant]:
    """Yield the grants that may reach *entity*: its own, and those of domains."""
    yield from _domain_grants(principal, state)
    for identity in principal.identities:
        yield from state.grants_by_scope.get((identity, entity.folded), ())


def _evaluate(grants: Iterable[PermissionGrant], entity: Entity) -> Rights:
    granted: set[Action] = set()
    filters: dict[Action, list[str]] = {}
    for grant in grants:
        if not _reaches(grant, entity):
            continue
        actions = granted_by(grant.actions)
        granted |= actions
        if grant.entity:
            for action in actions:
                filters.setdefault(action, []).append(grant.row_filter)
    # Among the entity rows one without a filter gives all rows.
    limited = {a: tuple(sorted(set(f))) for a, f in filters.items() if all(f)}
    return Rights(actions=frozenset(granted), row_filters=MappingProxyType(limited))


def _reaches(grant: PermissionGrant, entity: Entity) -> bool:
    if grant.domain not in (entity.domain, ALL_DOMAINS):
        return False
    if grant.entity:
        return True  # only its own are asked
    return entity.access.mode is not AccessMode.RESTRICTED


def may_administer(principal: Principal, state: StoreState, *, domain: str, entity: str) -> bool:
    """Whether *principal* may say who may what in *domain*, or only for its folded *entity*.

    The action admin reaches as far as its own row: that of a domain not into a restricted entity,
    that of an entity not to its domain, and only that of ``*`` to all.
    """
    if principal.is_global_admin:
        return True
    stored = state.entities.get(entity) if entity else None
    if stored is not None:
        definition = stored.definition
        same = domain in (definition.domain, ALL_DOMAINS)
        if not same or not rights_of(principal, definition, state).may(Action.ADMIN):
            return False
        return domain != ALL_DOMAINS or _administers(principal, state, ALL_DOMAINS)
    return _administers(principal, state, domain)


def _administers(principal: Principal, state: StoreState, domain: str) -> bool:
    return any(
        grant.domain in (domain, ALL_DOMAINS) and Action.ADMIN in granted_by(grant.actions)
        for grant in _domain_grants(principal, state)
    )
