"""``permissions.yaml`` and ``webhooks.yaml`` as values.

A written permission item is short for the product of its users, domains and entities.
``PermissionGrant`` is one row of that product; grants are what is stored, compared and shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from mdm_gitops.model.base import Definition
from mdm_gitops.model.entity import Strings
from mdm_gitops.model.names import fold

ALL_DOMAINS = "*"
MAX_FILTER_LENGTH = 8_192


class Action(StrEnum):
    READ = "read"
    WRITE = "write"
    APPROVE = "approve"
    VIEWRESTRICTED = "viewrestricted"
    ADMIN = "admin"


# What a written action grants beside itself. ``viewrestricted`` alone lets nobody read.
_IMPLIED: Final[Mapping[Action, frozenset[Action]]] = MappingProxyType(
    {
        Action.READ: frozenset({Action.READ}),
        Action.WRITE: frozenset({Action.WRITE, Action.READ}),
        Action.APPROVE: frozenset({Action.APPROVE, Action.READ}),
        Action.VIEWRESTRICTED: frozenset({Action.VIEWRESTRICTED}),
        Action.ADMIN: frozenset(Action),
    }
)


def granted_by(actions: Iterable[Action]) -> frozenset[Action]:
    """Return all that the written *actions* let somebody do."""
    return frozenset().union(*(_IMPLIED[action] for action in actions))


class EventType(StrEnum):
    CREATED = "data_created"
    UPDATED = "data_updated"
    SOFT_DELETED = "data_soft_deleted"
    DELETED = "data_deleted"
    RESTORED = "data_restored"
    EDITED = "data_edited"
    REJECTED = "data_rejected"


class PermissionItem(Definition, defer_build=False):
    users: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    domains: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    entities: Strings = ()
    actions: Annotated[
        tuple[Annotated[Action, Field(strict=False)], ...], Field(strict=False, min_length=1)
    ]
    row_filter_dsl: Annotated[str, Field(max_length=MAX_FILTER_LENGTH)] | None = None

    def grants(self) -> tuple[PermissionGrant, ...]:
        """Return one grant per user, domain and entity; ``entity`` empty means domain-wide."""
        return tuple(
            PermissionGrant(
                principal=user,
                domain=domain,
                entity=fold(entity),
                actions=tuple(sorted(set(self.actions))),
                row_filter=self.row_filter_dsl or "",
            )
            for user, domain, entity in product(self.users, self.domains, self.entities or ("",))
        )


class Permissions(Definition, defer_build=False):
    permissions: Annotated[tuple[PermissionItem, ...], Field(strict=False)] = ()


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class PermissionGrant:
    """One principal, one domain, at most one entity: the unit that a plan adds or removes."""

    principal: str
    domain: str
    entity: str  # folded name, "" for the whole domain
    actions: tuple[Action, ...]  # sorted, without repetition
    row_filter: str  # "" for all rows


class Webhook(Definition, defer_build=False):
    """A subscription. *name* is its identity in Git; the secret is only ever named."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    url: Annotated[str, Field(min_length=1, max_length=2_048)]
    domains: Strings = ()
    entities: Strings = ()
    actions: Annotated[
        tuple[Annotated[EventType, Field(strict=False)], ...], Field(strict=False)
    ] = ()
    description: str | None = None
    is_active: Annotated[bool, Field(alias="is_active")] = True
    secret_ref: Annotated[str, Field(max_length=200)] | None = None


class Webhooks(Definition, defer_build=False):
    webhooks: Annotated[tuple[Webhook, ...], Field(strict=False)] = ()
