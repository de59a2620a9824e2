"""What one environment has: the definitions that were deployed there, from which commit, and drift.

For comparing environments; nothing is written. Rows stay where they are, of seeds only the hash is
told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from mdm_gitops.model import Definitions, PermissionGrant, Project
from mdm_gitops.model.access import PermissionItem, Permissions, Webhooks
from mdm_gitops.warehouse.catalog import read_facts
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.migrate import store_exists
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.status import recent_deployments
from mdm_gitops.warehouse.store import read_state

_RECENT: Final = 100
_NOTHING: Final = Project(name="nothing", api_version="mdm-gitops/v1")


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """*definitions* hold no seeds; *seeds* are the hashes of those that were applied, by entity."""

    definitions: Definitions = field(default_factory=lambda: Definitions(project=_NOTHING))
    seeds: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    commit: str | None = None
    deployed_at: datetime | None = None
    actor: str = ""
    drift: int = 0


async def read_deployed(conn: Connection, *, schemas: Schemas) -> Deployed:
    """Return what stands in the warehouse of *conn*; nothing where nothing was deployed."""
    if not await store_exists(conn, config_schema=schemas.config):
        return Deployed()
    state = await read_state(conn, schemas=schemas)
    facts = await read_facts(conn, state.definitions, schemas=schemas)
    drift = (await make_plan(conn, state.definitions, schemas=schemas)).drift
    ended = await recent_deployments(conn, schemas=schemas, take=_RECENT)
    last = next((line for line in ended if line.state == "succeeded"), None)
    return Deployed(
        definitions=Definitions(
            project=state.project or _NOTHING,
            entities=MappingProxyType(dict(state.definitions.entities)),
            permissions=Permissions(permissions=tuple(_item(grant) for grant in facts.grants)),
            webhooks=Webhooks(webhooks=tuple(facts.webhooks[n] for n in sorted(facts.webhooks))),
            commit=last.commit if last else None,
        ),
        seeds=facts.seeds,
        commit=last.commit if last else None,
        deployed_at=last.started_at if last else None,
        actor=last.actor if last else "",
        drift=len(drift),
    )


def _item(grant: PermissionGrant) -> PermissionItem:
    return PermissionItem(
        users=(grant.principal,),
        domains=(grant.domain,),
        entities=(grant.entity,) if grant.entity else (),
        actions=grant.actions,
        row_filter_dsl=grant.row_filter or None,
    )
