"""The whole of what a commit says: project, entities, permissions, webhooks and seeds.

``Definitions`` is built by the source once every file has been read and every check has passed
(``model.checks``); no later layer checks it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from mdm_gitops.errors import Location
from mdm_gitops.model.access import PermissionGrant, Permissions, Webhook, Webhooks
from mdm_gitops.model.access_tests import AccessTests
from mdm_gitops.model.entity import Column, Entity
from mdm_gitops.model.names import fold
from mdm_gitops.model.project import Project
from mdm_gitops.model.values import canonical_json


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Rows of ``seed/<entity>.json``: column name (definition's spelling) -> JSON value."""

    entity: str  # folded name
    rows: tuple[Mapping[str, Any], ...]
    content_hash: str  # SHA-256 of the rows' canonical JSON

    @classmethod
    def of(cls, entity: str, rows: tuple[Mapping[str, Any], ...]) -> Seed:
        digest = hashlib.sha256(canonical_json(rows).encode()).hexdigest()
        return cls(entity=fold(entity), rows=rows, content_hash=digest)


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """All definitions of one commit or folder; mappings go by folded name, in name order."""

    project: Project
    # What is large is left out of the repr: asyncio prints the result of each task on its way out.
    entities: Mapping[str, Entity] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    permissions: Permissions = field(default_factory=Permissions, repr=False)
    webhooks: Webhooks = field(default_factory=Webhooks, repr=False)
    seeds: Mapping[str, Seed] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    access_tests: AccessTests = field(default_factory=AccessTests, repr=False)
    test_places: Mapping[str, Location] = field(  # by the test's name
        default_factory=lambda: MappingProxyType({}), repr=False, compare=False
    )
    commit: str | None = None  # the Git commit they were read from, None for a plain folder

    def entity(self, name: str) -> Entity | None:
        return self.entities.get(fold(name))

    @cached_property
    def grants(self) -> tuple[PermissionGrant, ...]:
        """All permission grants, sorted and without repetition."""
        items = self.permissions.permissions
        return tuple(sorted({grant for item in items for grant in item.grants()}))

    @cached_property
    def webhook_by_name(self) -> Mapping[str, Webhook]:
        return MappingProxyType({webhook.name: webhook for webhook in self.webhooks.webhooks})

    def reference_target(self, column: Column) -> tuple[Entity, Column]:
        """Return the entity and column that *column* refers to; it must have a reference."""
        assert column.reference is not None, f"{column.name} has no reference"
        target = self.entities[fold(column.reference.entity)]
        name = column.reference.column or target.key_columns[0]
        return target, target.column_by_name[fold(name)]

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over all definitions: two repositories that mean the same have the same."""
        parts = {
            "project": self.project.content_hash(),
            "entities": {name: entity.content_hash() for name, entity in self.entities.items()},
            "permissions": [canonical_json(_grant_document(grant)) for grant in self.grants],
            "webhooks": {w.name: w.content_hash() for w in self.webhooks.webhooks},
            "seeds": {name: seed.content_hash for name, seed in self.seeds.items()},
        }
        if self.access_tests.tests:
            parts["accessTests"] = self.access_tests.content_hash()
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


def _grant_document(grant: PermissionGrant) -> list[Any]:
    return [grant.principal, grant.domain, grant.entity, list(grant.actions), grant.row_filter]
