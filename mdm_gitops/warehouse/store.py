"""What the config store says: the deployed entities, who may do what, and the deployments so far.

``StoreState`` is one consistent view of it, kept in memory by a server. Its *revision* moves with
each change to anything in it, in the transaction of the change; a statement that reads rows reads
the revision too, and so finds out whether the state it was built from still holds.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection, AsyncCursor, InterfaceError, OperationalError, errors, sql
from pydantic_core import from_json

from mdm_gitops.errors import WarehouseError
from mdm_gitops.model import Action, Definitions, Entity, PermissionGrant, Project
from mdm_gitops.plan.recorded import EntityState, RecordedEntity, from_document
from mdm_gitops.warehouse.names import Schemas

# States are told from this many deployments at most; older failures are no news.
RECENT_DEPLOYMENTS: Final = 500
_MAX_REMEMBERED: Final = 4_096
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StoredEntity:
    """An entity of the store. Its definition is parsed when somebody asks for it."""

    entity_id: int
    name: str  # folded
    state: EntityState
    desired_hash: str
    commit: str | None
    deployed_at: datetime
    row_version: int  # changes whenever the store's row does
    packed: bytes = field(repr=False)  # its record, as ``packed`` makes it

    @property
    def text(self) -> str:
        return zlib.decompress(self.packed).decode()

    @cached_property
    def definition(self) -> Entity:
        # Unlike ``json`` it gives one object for words that stand in many definitions.
        return Entity.model_validate(from_json(zlib.decompress(self.packed))["definition"])

    @property
    def record(self) -> RecordedEntity:
        """The identities of tables and columns; seldom asked for, so not kept."""
        return from_document(json.loads(self.text), definition=self.definition)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    name: str
    is_global_admin: bool
    expires_at: datetime | None


class _Deployed(Mapping[str, Entity]):
    """Definitions by folded name, parsed one by one when they are asked for."""

    def __init__(self, entities: Mapping[str, StoredEntity]) -> None:
        self._entities = entities

    def __getitem__(self, name: str) -> Entity:
        return self._entities[name].definition

    def __iter__(self) -> Iterator[str]:
        return iter(self._entities)

    def __len__(self) -> int:
        return len(self._entities)


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """The store at one *revision*. Mappings go by folded name, principal and SHA-256 of the key."""

    revision: int
    entities: Mapping[str, StoredEntity]  # in use: deployed, or being deployed
    removed: tuple[StoredEntity, ...]  # archived, with their last names
    grants: Mapping[str, tuple[PermissionGrant, ...]]
    keys: Mapping[bytes, StoredKey]
    project: Project | None = None  # as last deployed
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def remember(self, key: Any, work_out: Callable[[], T]) -> T:
        """Return what *work_out* gives, worked out once; it is forgotten with this state."""
        try:
            return self._memory[key]  # type: ignore[no-any-return]
        except KeyError:
            if len(self._memory) >= _MAX_REMEMBERED:
                self._memory.clear()
            found = self._memory[key] = work_out()
            return found

    @cached_property
    def grants_by_scope(self) -> Mapping[tuple[str, str], tuple[PermissionGrant, ...]]:
        """The grants by principal and folded entity, "" for those of whole domains.

        So a check costs the same however many there are. Made when somebody is first checked.
        """
        found: dict[tuple[str, str], list[PermissionGrant]] = {}
        for principal, grants in self.grants.items():
            for grant in grants:
                found.setdefault((principal, grant.entity), []).append(grant)
        return {scope: tuple(grants) for scope, grants in found.items()}

    @cached_property
    def definitions(self) -> Definitions:
        """The deployed entities as definitions, so that filters can follow their references."""
        project = self.project or Project(name="nothing", api_version="mdm-gitops/v1")
        return Definitions(project=project, entities=_Deployed(self.entities))


class Store:
    """Keeps the newest known state of one config store. One per server process."""

    def __init__(self, schemas: Schemas) -> None:
        self.schemas = schemas
        self._state: StoreState | None = None
        self._lock = asyncio.Lock()
        self._revision_query = sql.SQL("SELECT value FROM {}.revision").format(
            sql.Identifier(schemas.config)
        )

    @property
    def last_known(self) -> StoreState | None:
        return self._state

    async def current(self, conn: AsyncConnection[Any]) -> StoreState:
        """Return the state as it is now; one short query when nothing has changed."""
        known, revision = self._state, await self._revision(conn)
        if known is not None and known.revision == revision:
            return known
        found = await self.refresh(conn, other_than=known)
        if found.revision < revision:  # somebody else had begun to read it before
            found = await self.refresh(conn, other_than=found)
        return found

    async def refresh(
        self, conn: AsyncConnection[Any], *, other_than: StoreState | None
    ) -> StoreState:
        """Read the state again, once for all who wait, unless it moved on from *other_than*."""
        async with self._lock:
            known = self._state
            if known is None or known is other_than:
                known = self._state = await read_state(conn, schemas=self.schemas, previous=known)
            return known

    async def _revision(self, conn: AsyncConnection[Any]) -> int:
        row = await (await _execute(conn, self._revision_query, prepare=True)).fetchone()
        return int(row[0]) if row else 0


_ENTITIES: Final = """
SELECT entity_id, name, state, desired_hash, commit_id, deployed_at,
       xmin::text::bigint AS row_version,
       CASE WHEN (entity_id, xmin::text::bigint) IN
                 (SELECT * FROM unnest(%(ids)s::bigint[], %(versions)s::bigint[]))
            THEN NULL ELSE record::text END AS text
  FROM {config}.entity
 ORDER BY name, entity_id
"""
_GRANTS: Final = """
SELECT principal, domain, entity, actions, row_filter FROM {config}.permission
 ORDER BY principal, domain, entity, actions, row_filter
"""
_PROJECT: Final = "SELECT definition FROM {config}.project"
_KEYS: Final = """
SELECT key_sha256, name, is_global_admin, expires_at FROM {config}.api_key WHERE revoked_at IS NULL
"""


async def read_state(
    conn: AsyncConnection[Any], *, schemas: Schemas, previous: StoreState | None = None
) -> StoreState:
    """Read the whole state in one snapshot; rows that *previous* holds already are not sent.

    Raises:
        WarehouseError: there is no config store, or it is of an older version.
    """
    with _translated():
        async with conn.transaction():
            await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return await read_state_within(conn, schemas=schemas, previous=previous)


async def read_state_within(
    conn: AsyncConnection[Any], *, schemas: Schemas, previous: StoreState | None = None
) -> StoreState:
    """Read the state as ``read_state`` does, in the snapshot that the caller holds."""
    kept = (
        {
            (entity.entity_id, entity.row_version): entity
            for entity in (*previous.entities.values(), *previous.removed)
        }
        if previous
        else {}
    )
    revision = await _rows(conn, "SELECT value FROM {config}.revision", schemas)
    found = {"ids": [key[0] for key in kept], "versions": [key[1] for key in kept]}
    entity_rows = await _rows(conn, _ENTITIES, schemas, found)
    grant_rows = await _rows(conn, _GRANTS, schemas)
    key_rows = await _rows(conn, _KEYS, schemas)
    projects = await _rows(conn, _PROJECT, schemas)
    entities = [_entity(row, kept) for row in entity_rows]
    return StoreState(
        revision=revision[0]["value"],
        entities={e.name: e for e in entities if e.state is not EntityState.REMOVED},
        removed=tuple(e for e in entities if e.state is EntityState.REMOVED),
        grants=_by_principal(grant_rows),
        keys={bytes(row.pop("key_sha256")): StoredKey(**row) for row in key_rows},
        project=Project.model_validate(projects[0]["definition"]) if projects else None,
    )


def packed(text: str) -> bytes:
    """Return the *text* of a record as it is kept: most are read once, and all would be megabytes."""
    return zlib.compress(text.encode(), level=1)


def _entity(row: dict[str, Any], kept: Mapping[tuple[int, int], StoredEntity]) -> StoredEntity:
    if row["text"] is None:
        return kept[row["entity_id"], row["row_version"]]
    return StoredEntity(
        entity_id=row["entity_id"],
        name=row["name"],
        state=EntityState(row["state"]),
        desired_hash=row["desired_hash"],
        commit=row["commit_id"],
        deployed_at=row["deployed_at"],
        row_version=row["row_version"],
        packed=packed(row["text"]),
    )


def _by_principal(rows: list[dict[str, Any]]) -> Mapping[str, tuple[PermissionGrant, ...]]:
    grants: dict[str, list[PermissionGrant]] = {}
    for row in rows:
        actions = tuple(Action(action) for action in row.pop("actions"))
        grant = PermissionGrant(actions=actions, **row)
        grants.setdefault(grant.principal, []).append(grant)
    return {principal: tuple(each) for principal, each in grants.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One run of apply, with its steps as the journal has them."""

    deployment_id: int
    plan_id: str
    commit: str | None
    actor: str
    state: str  # running, succeeded, failed, interrupted
    entities: tuple[str, ...]
    summary: Mapping[str, Any]
    error: Mapping[str, Any] | None
    started_at: datetime
    finished_at: datetime | None
    steps: tuple[Mapping[str, Any], ...]


_DEPLOYMENTS: Final = """
SELECT d.deployment_id, d.plan_id, d.commit_id AS commit, d.actor, d.state, d.entities, d.summary,
       d.error, d.started_at, d.finished_at,
       coalesce((SELECT jsonb_agg(jsonb_build_object('number', s.number, 'phase', s.phase,
                        'title', s.title, 'state', s.state, 'rowsDone', s.rows_done)
                        ORDER BY s.number)
                   FROM {config}.deployment_step s WHERE s.deployment_id = d.deployment_id),
                '[]') AS steps
  FROM {config}.deployment d
 WHERE d.entities && %(names)s::text[]
 ORDER BY d.deployment_id DESC
 LIMIT %(take)s OFFSET %(skip)s
"""
_LAST_STATES: Final = """
SELECT DISTINCT ON (name) name, state
  FROM (SELECT * FROM {config}.deployment ORDER BY deployment_id DESC LIMIT %(recent)s) d
 CROSS JOIN unnest(d.entities) AS name
 ORDER BY name, deployment_id DESC
"""


async def deployments_of(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    names: Collection[str],
    skip: int = 0,
    take: int = 100,
) -> list[Deployment]:
    """Return the deployments that touched an entity of one of these folded *names*, newest first."""
    given = {"names": list(names), "take": take, "skip": skip}
    rows = await _rows(conn, _DEPLOYMENTS, schemas, given)
    return [
        Deployment(**{**row, "entities": tuple(row["entities"]), "steps": tuple(row["steps"])})
        for row in rows
    ]


async def last_deployment_states(
    conn: AsyncConnection[Any], *, schemas: Schemas
) -> Mapping[str, str]:
    """Return how the last deployment of each entity ended, by folded name."""
    rows = await _rows(conn, _LAST_STATES, schemas, {"recent": RECENT_DEPLOYMENTS})
    return {row["name"]: row["state"] for row in rows}


async def _rows(
    conn: AsyncConnection[Any],
    query: str,
    schemas: Schemas,
    parameters: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    statement = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    cursor = await _execute(conn, statement, parameters)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]


async def _execute(
    conn: AsyncConnection[Any],
    statement: sql.Composed,
    parameters: Mapping[str, Any] | None = None,
    *,
    prepare: bool | None = None,
) -> AsyncCursor[Any]:
    with _translated():
        return await conn.execute(statement, parameters, prepare=prepare)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn):
        raise WarehouseError(
            "the config store is not there, or not of this version",
            hint="start with mdm-gitops serve, apply or up: each brings it to its version",
            code="WAREHOUSE_UNUSABLE",
        ) from None
    except (OperationalError, InterfaceError):
        raise WarehouseError("the warehouse did not answer", hint="try again in a moment") from None
