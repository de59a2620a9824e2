"""What the handlers share: one value, made by ``app.create_app``, found at ``app.state.services``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store

if TYPE_CHECKING:
    from mdm_api.definitions import DefinitionsProvider
    from mdm_api.deployer import Deployer
    from mdm_api.metrics import Metrics

Pool = AsyncConnectionPool[AsyncConnection[Any]]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Services:
    settings: Settings
    pool: Pool
    store: Store
    metrics: Metrics
    definitions: DefinitionsProvider
    deployer: Deployer
    now: Callable[[], datetime] = field(default=utc_now)
    used_keys: set[str] = field(default_factory=set)  # since the last housekeeping

    @property
    def schemas(self) -> Schemas:
        return self.store.schemas
