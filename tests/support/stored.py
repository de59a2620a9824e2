"""The store as requests know it, of a warehouse that is only simulated: no database is asked."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from mdm_gitops.access.testing import by_principal
from mdm_gitops.model import PermissionGrant
from mdm_gitops.plan.recorded import EntityState, RecordedEntity, to_document
from mdm_gitops.warehouse.store import StoredEntity, StoreState, packed
from tests.support.simulated import Warehouse


def store(warehouse: Warehouse, *grants: PermissionGrant) -> StoreState:
    found = [_stored(record) for record in warehouse.facts.records]
    return StoreState(
        revision=1,
        entities={e.name: e for e in found if e.state is not EntityState.REMOVED},
        removed=tuple(e for e in found if e.state is EntityState.REMOVED),
        grants=by_principal(grants),
        keys={},
    )


def _stored(record: RecordedEntity) -> StoredEntity:
    return StoredEntity(
        entity_id=record.entity_id,
        name=record.name,
        state=record.state,
        desired_hash=record.desired_hash,
        commit=None,
        deployed_at=datetime(2026, 1, 1, tzinfo=UTC),
        row_version=1,
        packed=packed(json.dumps(to_document(record))),
    )
