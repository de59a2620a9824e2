"""What the definitions ask for, resolved: each entity with the targets of its references.

The hash covers the resolved targets too: when the key column of a target is renamed, the entities
that refer to it must change although their own files did not. It also covers the layout of tables
that we have changed since some were deployed, so that the next plan looks at those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mdm_gitops.model import Definitions, Entity
from mdm_gitops.model.similarity import indexed_for_match
from mdm_gitops.model.values import canonical_json
from mdm_gitops.plan.physical import PhysicalEntity, Targets, physical_entity, reference_targets

EDIT_LAYOUT: Final = "edit tables have indexes"
HISTORY_LAYOUT: Final = "history tables have indexes"
MATCH_LAYOUT: Final = "keys for matching are indexed"


@dataclass(frozen=True, kw_only=True)
class DesiredEntity:
    entity: Entity
    targets: Targets

    @property
    def name(self) -> str:
        return self.entity.folded

    @cached_property
    def desired_hash(self) -> str:
        layouts = [EDIT_LAYOUT] if self.entity.approval_required else []
        layouts += [HISTORY_LAYOUT] if self.entity.history_enabled else []
        layouts += [MATCH_LAYOUT] if indexed_for_match(self.entity) else []
        if not self.targets and not layouts:
            return self.entity.content_hash()
        resolved = [self.entity.content_hash(), dict(self.targets), *layouts]
        return hashlib.sha256(canonical_json(resolved).encode()).hexdigest()

    @cached_property
    def physical(self) -> PhysicalEntity:
        return physical_entity(self.entity, self.targets)


def desired_entities(definitions: Definitions) -> Mapping[str, DesiredEntity]:
    """Return the desired entities by folded name."""
    return {
        name: DesiredEntity(entity=entity, targets=reference_targets(entity, definitions))
        for name, entity in definitions.entities.items()
    }
