"""Who asks for rows, and through which filters everything that is answered must go.

One value, ``Asking``, is handed to every function of this package; there is no other way to rows.
It is bound to one state of the store: when a statement finds that the store has moved on, nothing
of its result is used (``StateMoved``) and the caller asks again with the newer state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from mdm_gitops.access import Principal, Rights, Tier, rights_of
from mdm_gitops.errors import AccessDenied, FilterError, NotFound
from mdm_gitops.filter import (
    FilterContext,
    TypedFilter,
    columns_used,
    conjunction,
    disjunction,
    only_found,
    parse,
    see_through,
    type_check,
)
from mdm_gitops.model import Action, Entity, fold
from mdm_gitops.model.suggest import nearest
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoredEntity, StoreState


class StateMoved(Exception):
    """The store changed after the state was read; read it again and repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    principal: Principal
    state: StoreState
    schemas: Schemas
    now: datetime
    tier: Tier = Tier.ENTERPRISE
    # Worked out once; not taken along by replace(), whose principal may be another one.
    _rights: dict[str, Rights] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rights(self, entity: Entity) -> Rights:
        found = self._rights.get(entity.folded)
        if found is None:
            found = self._rights[entity.folded] = rights_of(self.principal, entity, self.state)
        return found

    def filters_for(self, entity: Entity, action: Action) -> tuple[str, ...]:
        """Return the row filters that hold for *action*; empty means all rows.

        Raises:
            AccessDenied: there are some, and the tier has no row filters. To leave them out would
                show more than they allow, so nothing is shown.
        """
        texts = self.rights(entity).filters_for(action)
        if texts:
            self.tier.require(Tier.PROFESSIONAL, f"your row filter on {entity.name}")
        return texts

    @property
    def filter_context(self) -> FilterContext:
        return FilterContext(
            today=self.now.date(),
            now=self.now,
            me=self.principal.me,
            groups=self.principal.groups,
        )

    @property
    def cache_key(self) -> tuple[object, ...]:
        """What everything worked out for this principal depends on, beside the state."""
        return (self.principal.identities, self.principal.is_global_admin)


def readable_entity(asking: Asking, name: str) -> StoredEntity:
    """Return the deployed entity *name* if the principal may read it.

    Raises:
        NotFound: there is none, or none that this principal may know of.
    """
    stored = asking.state.entities.get(name) or asking.state.entities.get(fold(name))
    if stored is None or not asking.rights(stored.definition).may_read:
        raise no_such_entity(name, _readable_names(asking))
    return stored


def no_such_entity(name: str, visible: Iterable[str]) -> NotFound:
    """Return the one error for absent and for hidden; *visible* names may be suggested."""
    near = nearest(name, visible)
    return NotFound(
        f"there is no entity {name[:60]!r}",
        hint=f"did you mean {near!r}?" if near else "",
        code="ENTITY_NOT_FOUND",
    )


def _readable_names(asking: Asking) -> Iterable[str]:
    entities = (stored.definition for stored in asking.state.entities.values())
    return [entity.name for entity in entities if asking.rights(entity).may_read]


def changeable_entity(asking: Asking, name: str, *, action: Action = Action.WRITE) -> StoredEntity:
    """Return the deployed entity *name* if the principal has *action* on it.

    Raises:
        NotFound: there is none, or none that this principal may know of.
        AccessDenied: it may be read, and no more.
    """
    stored = readable_entity(asking, name)
    if not asking.rights(stored.definition).may(action):
        raise AccessDenied(
            f"you may read {stored.definition.name}, but the action {action.value} is not yours",
            hint="an administrator grants it in permissions.yaml",
        )
    return stored


def row_filter(asking: Asking, entity: Entity, action: Action = Action.READ) -> TypedFilter | None:
    """Return the filter that a row of *entity* must pass for *action*, None for all rows.

    A row whose reference leads nowhere passes no filter that follows it.

    Raises:
        AccessDenied: a stored filter no longer fits the entity, or the tier has no row filters:
            nothing is shown then.
    """
    texts = asking.filters_for(entity, action)
    if not texts:
        return None
    try:
        typed = [_stored_filter(asking.state, entity, text) for text in texts]
    except FilterError:
        raise AccessDenied(
            f"a row filter of yours on {entity.name} is not valid any more",
            hint="an administrator must correct it in permissions.yaml",
        ) from None
    return typed[0] if len(typed) == 1 else disjunction(*typed)


def requested_filter(asking: Asking, entity: Entity, text: str) -> TypedFilter | None:
    """Return the caller's own filter, fit to be run: it asks nothing that the caller may not know.

    Raises:
        FilterError: it is no filter for this entity.
        AccessDenied: it asks for a masked column, or follows a reference to an entity that the
            caller may not read.
    """
    if not text.strip():
        return None
    typed = _checked(asking.state, entity, text)
    owners = set()
    for owner, column in sorted(columns_used(typed)):
        target = asking.state.entities[owner].definition
        if not asking.rights(target).may_read:
            raise AccessDenied(
                f"the filter follows a reference to {target.name}, which you may not read"
            )
        refuse_restricted(asking, target, column, purpose="filtered by")
        owners.add(owner)
    # An entity may refer to itself, so its own rows are followed only as far as they are seen.
    visible = {name: row_filter(asking, asking.state.entities[name].definition) for name in owners}
    return see_through(typed, {name: each for name, each in visible.items() if each is not None})


def combined(*filters: TypedFilter | None) -> TypedFilter | None:
    present = [each for each in filters if each is not None]
    return conjunction(*present) if present else None


def refuse_restricted(asking: Asking, entity: Entity, column: str, *, purpose: str) -> None:
    """Raise AccessDenied if *column* is masked for the caller: order and matches would tell it."""
    found = entity.column(column)
    if found is not None and found.restricted and not asking.rights(entity).sees_restricted:
        raise AccessDenied(
            f"column {found.name!r} of {entity.name} is restricted and cannot be {purpose}",
            hint="the action viewrestricted shows it",
            code="COLUMN_RESTRICTED",
        )


def _checked(state: StoreState, entity: Entity, text: str) -> TypedFilter:
    def check() -> TypedFilter:
        return type_check(parse(text), entity, state.definitions)

    return state.remember(("filter", entity.folded, text), check)


def _stored_filter(state: StoreState, entity: Entity, text: str) -> TypedFilter:
    key = ("row filter", entity.folded, text)
    return state.remember(key, lambda: only_found(_checked(state, entity, text)))
