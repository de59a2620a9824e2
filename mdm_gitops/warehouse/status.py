"""What the config store and the server tell about themselves: versions, deployments, untouched or not.

Short queries for ``status`` and for the operator, which must not read the whole store to learn that
nothing is new. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import sql
from psycopg.rows import dict_row

from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.names import Schemas

_REVISION: Final = "SELECT value FROM {config}.revision"

_UNTOUCHED: Final = "SELECT NOT EXISTS (SELECT FROM {config}.entity) AS untouched"

_VERSIONS: Final = """
SELECT current_setting('server_version') AS server, version AS store, name AS store_name
  FROM {config}.migration ORDER BY version DESC LIMIT 1
"""

_COLUMNS: Final = (
    "deployment_id, plan_id, commit_id AS commit, actor, state, started_at, finished_at"
)

_RECENT: Final = f"""
SELECT {_COLUMNS}, cardinality(entities) AS entities, error
  FROM {{config}}.deployment ORDER BY deployment_id DESC LIMIT %(take)s
"""

_LAST_OF_EACH: Final = f"""
SELECT DISTINCT ON (entity) entity, {_COLUMNS}, cardinality(entities) AS entities, error
  FROM {{config}}.deployment CROSS JOIN unnest(entities) AS entity
 ORDER BY entity, deployment_id DESC
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    server: str
    store: int
    store_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentLine:
    """One run of apply in short; ``warehouse.store.Deployment`` has its steps too."""

    deployment_id: int
    plan_id: str
    commit: str | None
    actor: str
    state: str  # running, succeeded, failed, interrupted
    entities: int
    error: Mapping[str, Any] | None
    started_at: datetime
    finished_at: datetime | None


async def read_revision(conn: Connection, *, schemas: Schemas) -> int:
    """Return the number that moves with each deployment and each change of rights."""
    row = await _one(conn, _REVISION, schemas)
    return int(row["value"])


async def is_untouched(conn: Connection, *, schemas: Schemas) -> bool:
    """Whether nothing was ever deployed here: nobody has anything to lose yet."""
    row = await _one(conn, _UNTOUCHED, schemas)
    return bool(row["untouched"])


async def read_versions(conn: Connection, *, schemas: Schemas) -> Versions:
    return Versions(**await _one(conn, _VERSIONS, schemas))


async def recent_deployments(
    conn: Connection, *, schemas: Schemas, take: int
) -> tuple[DeploymentLine, ...]:
    """Return the last deployments, newest first."""
    rows = await _rows(conn, _RECENT, schemas, take=take)
    return tuple(DeploymentLine(**row) for row in rows)


async def last_deployments(conn: Connection, *, schemas: Schemas) -> dict[str, DeploymentLine]:
    """Return the last deployment that touched each entity, by folded name."""
    rows = await _rows(conn, _LAST_OF_EACH, schemas)
    return {row.pop("entity"): DeploymentLine(**row) for row in rows}


async def _one(conn: Connection, query: str, schemas: Schemas) -> dict[str, Any]:
    return (await _rows(conn, query, schemas))[0]


async def _rows(
    conn: Connection, query: str, schemas: Schemas, **parameters: Any
) -> list[dict[str, Any]]:
    statement = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement, parameters)
        return await cursor.fetchall()
