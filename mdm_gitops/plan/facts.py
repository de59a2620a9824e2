"""What a plan must know of the warehouse: everything that was read, as one frozen value.

``warehouse.catalog`` fills it with a constant number of queries; ``plan.build`` reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mdm_gitops.model import PermissionGrant, Project, Webhook
from mdm_gitops.plan.hazards import TableSize
from mdm_gitops.plan.live import LiveRelation
from mdm_gitops.plan.recorded import Counters, RecordedEntity


@dataclass(frozen=True, kw_only=True)
class Facts:
    """*records* hold all entities ever deployed and not destroyed, removed ones included.

    *relations* goes by (schema, name) and holds each relation that is not exactly as recorded, and
    each that belongs to an entity whose definition changed; *unchanged* names the entities of
    which neither is true, so nothing of them was read.
    """

    data_schema: str
    records: tuple[RecordedEntity, ...] = ()
    unchanged: frozenset[str] = frozenset()
    relations: Mapping[tuple[str, str], LiveRelation] = field(
        default_factory=lambda: MappingProxyType({})
    )
    mismatched: frozenset[tuple[str, str]] = frozenset()  # not as recorded, or not recorded
    sizes: Mapping[str, TableSize] = field(default_factory=lambda: MappingProxyType({}))
    filled: frozenset[str] = frozenset()  # tables that hold at least one row
    grants: tuple[PermissionGrant, ...] = ()
    webhooks: Mapping[str, Webhook] = field(default_factory=lambda: MappingProxyType({}))
    project: Project | None = None
    seeds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Entity (folded) -> hash of the seed file that was applied last."""
    counters: Counters = field(default_factory=Counters)
    live_fingerprint: str = ""
    dependents: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Table -> views of others that read it, as ``schema.name``."""

    def table(self, name: str) -> LiveRelation | None:
        relation = self.relations.get((self.data_schema, name))
        return relation if relation is not None and relation.is_table else None
