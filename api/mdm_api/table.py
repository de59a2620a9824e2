"""The table of all operations: routes and description are made from it, and from nothing else."""

from __future__ import annotations

from typing import Final

from mdm_api import (
    api_keys,
    approvals,
    audit,
    changes,
    choices,
    data,
    deliveries,
    deployment,
    entities,
    entity_writes,
    export,
    health,
    hooks,
    imports,
    login,
    me,
    metrics,
    packages,
    permissions,
    plans,
    reconciliation,
    saved_filters,
    swagger,
    versions,
    webhooks,
    writes,
)
from mdm_api.operations import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *entities.operations,
    *entity_writes.operations,
    *deployment.operations,
    *reconciliation.operations,
    *plans.operations,
    *hooks.operations,
    *data.operations,
    *choices.operations,
    *export.operations,
    *imports.operations,
    *versions.operations,
    *writes.operations,
    *approvals.operations,
    *saved_filters.operations,
    *changes.operations,
    *audit.operations,
    *health.operations,
    *metrics.operations,
    *swagger.operations,
    *login.operations,
    *me.operations,
    *api_keys.operations,
    *permissions.operations,
    *webhooks.operations,
    *deliveries.operations,
    *packages.operations,
)
