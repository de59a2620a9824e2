"""What every command that needs the warehouse shares: settings, server, connection, definitions."""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mdm_gitops.settings import Settings, load_settings
from mdm_gitops.warehouse.apply import Patience
from mdm_gitops.warehouse.connect import Connection, SessionLimits, connect
from mdm_gitops.warehouse.locate import warehouse_url
from mdm_gitops.warehouse.migrate import migrate
from mdm_gitops.warehouse.names import Schemas


@dataclass(frozen=True, kw_only=True)
class Session:
    conn: Connection
    settings: Settings
    schemas: Schemas
    url: str

    @property
    def patience(self) -> Patience:
        return patience_of(self.settings)


def patience_of(settings: Settings, *, writer_lock_s: float = 0.0) -> Patience:
    apply = settings.Apply
    return Patience(
        writer_lock_s=writer_lock_s,
        table_lock_s=apply.LockTimeoutSeconds,
        concurrently_lock_s=apply.ConcurrentlyLockTimeoutSeconds,
        statement_s=apply.StatementTimeoutSeconds,
        lock_retries=apply.LockRetries,
        batch_rows=apply.BackfillBatchRows,
    )


def schemas_of(settings: Settings) -> Schemas:
    return Schemas(config=settings.ConfigSchema, data=settings.EntityDataSchema)


def reserved_schemas(settings: Settings) -> tuple[str, ...]:
    """Schemas that no consumption view may use."""
    return (settings.ConfigSchema, settings.EntityDataSchema)


@asynccontextmanager
async def session(folder: Path, *, application_name: str) -> AsyncIterator[Session]:
    """Yield a session with the warehouse of *folder*; its config store is migrated first."""
    settings = load_settings(folder)
    schemas = schemas_of(settings)
    async with warehouse_url(folder, settings) as url:
        conn = await connect(
            url,
            application_name=application_name,
            limits=SessionLimits(statement_timeout_s=0, idle_in_transaction_timeout_s=600),
            connect_timeout_s=settings.Database.ConnectTimeoutSeconds,
        )
        async with conn:
            await migrate(conn, config_schema=schemas.config, data_schema=schemas.data)
            yield Session(conn=conn, settings=settings, schemas=schemas, url=url)


def actor() -> str:
    """Return who applies, for the journal: ``user:<name>`` of the machine, or what CI says."""
    name = os.environ.get("MDM_ACTOR")
    if name:
        return name
    try:
        return f"user:{getpass.getuser()}"
    except (KeyError, OSError):
        return f"user:{os.getuid()}"
