"""What the handlers share: one value, made by ``app.create_app``, found at ``app.state.services``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from mdm_api.scanning import Scanner
from mdm_api.upkeep import Expiry, Refusals
from mdm_gitops.access import Tier
from mdm_gitops.access.rate_limit import RateLimit
from mdm_gitops.data.approvals import Approver
from mdm_gitops.data.bulk_actions import BulkActor
from mdm_gitops.data.imports import Importer
from mdm_gitops.data.merging import Merger
from mdm_gitops.data.row_reader import RowReader
from mdm_gitops.data.unmerging import MergeDecider
from mdm_gitops.data.writing import RowWriter
from mdm_gitops.errors import WarehouseError
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import Connection, ConnectionPool, borrow, borrow_checked
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.silence import fell_silent
from mdm_gitops.warehouse.store import Store

if TYPE_CHECKING:
    from mdm_api.definitions import DefinitionsProvider
    from mdm_api.deployer import Deployer
    from mdm_api.metrics import Metrics
    from mdm_gitops.access.oidc import Provider

T = TypeVar("T")


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Services:
    settings: Settings
    database_url: str = field(repr=False)
    pool: ConnectionPool
    store: Store
    writer: RowWriter
    rate_limit: RateLimit | None  # None: switched off
    metrics: Metrics
    definitions: DefinitionsProvider
    deployer: Deployer
    provider: Provider | None = None  # of identities, if one is set
    now: Callable[[], datetime] = field(default=utc_now)
    used_keys: set[str] = field(default_factory=set)  # since the last housekeeping
    refusals: Refusals = field(default_factory=Refusals)
    expiry: Expiry = field(default_factory=Expiry)

    async def with_connection(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run *work*, which only reads, on a connection of the pool.

        A connection that had died in the pool is no reason to fail: the work is done once more, on one
        that has not. That is cheaper than to look at each connection before its use. Nobody waits a
        second time for a server that has said nothing for as long as a statement may take.
        """
        async with borrow(self.pool) as conn:
            try:
                return await work(conn)
            except WarehouseError:
                if not conn.closed or fell_silent(conn):
                    raise
        async with borrow_checked(self.pool) as conn:
            return await work(conn)

    @cached_property
    def reader(self) -> RowReader:
        return RowReader(self.with_connection)

    @cached_property
    def export_slots(self) -> asyncio.Semaphore:
        """Exports hold a connection for long, so half of the pool is left to everybody else."""
        return asyncio.Semaphore(max(1, self.settings.Database.PoolMaxSize // 2))

    @cached_property
    def importer(self) -> Importer:
        return Importer(
            self.database_url,
            schemas=self.schemas,
            settings=self.settings.Data,
            connect_timeout_s=self.settings.Database.ConnectTimeoutSeconds,
        )

    @property
    def bulk_actor(self) -> BulkActor:
        return BulkActor(self.importer)

    @cached_property
    def scanner(self) -> Scanner:
        return Scanner(self.database_url, schemas=self.schemas, settings=self.settings)

    @property
    def approver(self) -> Approver:
        return Approver(self.pool)

    @property
    def merger(self) -> Merger:
        return Merger(self.pool)

    @property
    def merge_decider(self) -> MergeDecider:
        return MergeDecider(self.pool)

    @cached_property
    def tier(self) -> Tier:
        return Tier(self.settings.Tier)

    @property
    def schemas(self) -> Schemas:
        return self.store.schemas
