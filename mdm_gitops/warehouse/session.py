"""A program's way to its warehouse: settings, server, one connection, the store of this version.

What the command line and the operator share; the API has a pool instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from mdm_gitops.settings import Settings, load_settings
from mdm_gitops.warehouse.apply import Patience
from mdm_gitops.warehouse.connect import (
    Connection,
    SessionLimits,
    connect,
    refuse_transaction_mode,
)
from mdm_gitops.warehouse.locate import warehouse_url
from mdm_gitops.warehouse.migrate import has_store, migrate
from mdm_gitops.warehouse.names import Schemas

Admit: TypeAlias = Callable[[Connection], Awaitable[None]]

# Plans and applies set limits of their own for each statement.
_LIMITS: Final = SessionLimits(statement_timeout_s=0, idle_in_transaction_timeout_s=600)


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


async def database_identity(conn: Connection) -> str:
    """Return what tells this database from every other one, however it is reached.

    A copy is another one, and so is a restored backup; a standby and a server that moved are not.
    """
    query = "SELECT oid FROM pg_database WHERE datname = current_database()"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return f"{await _system_identifier(conn)}/{row[0]}"


async def _system_identifier(conn: Connection) -> str:
    query = "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
    row = await (await conn.execute(query)).fetchone()
    if row is None or not row[0]:
        return "unknown"  # some hosts do not tell it
    query = "SELECT system_identifier FROM pg_control_system()"
    row = await (await conn.execute(query)).fetchone()
    return str(row[0]) if row else "unknown"


@asynccontextmanager
async def session(
    folder: Path, *, application_name: str, read_only: bool = False, admit: Admit | None = None
) -> AsyncIterator[Session]:
    """Yield a session with the warehouse of *folder*.

    Its config store is brought to this version first; *read_only* leaves everything as it is, also
    a warehouse that has no store yet. *admit* is asked before that, and may raise.
    """
    settings = load_settings(folder)
    async with warehouse_url(folder, settings) as url:
        conn = await open_connection(
            url, settings, application_name=application_name, read_only=read_only, admit=admit
        )
        async with conn:
            yield Session(conn=conn, settings=settings, schemas=schemas_of(settings), url=url)


async def open_connection(
    url: str,
    settings: Settings,
    *,
    application_name: str,
    read_only: bool = False,
    admit: Admit | None = None,
) -> Connection:
    """Return a connection to a store of this version; unless *read_only*, an older one is migrated.

    Raises:
        WarehouseError: there is no way to the server, only one through a pooler in transaction mode,
            or its store is of another version.
    """
    conn = await connect(
        url,
        application_name=application_name,
        limits=_LIMITS,
        connect_timeout_s=settings.Database.ConnectTimeoutSeconds,
        read_only=read_only,
    )
    schemas = schemas_of(settings)
    try:
        if admit is not None:
            await admit(conn)
        if read_only:
            await has_store(conn, config_schema=schemas.config)
        else:
            await refuse_transaction_mode(conn)
            await migrate(conn, config_schema=schemas.config, data_schema=schemas.data)
    except BaseException:
        await conn.close()
        raise
    return conn
