"""What is done to one entity on a person's word and not because Git says so.

``remove_entity`` archives it until the next reconcile (Git still has the last word);
``drop_archives`` destroys what archives hold. It is the only call that destroys anything, it is
never planned, and it stands in the history of deployments like everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from psycopg import AsyncConnection, errors, sql
from psycopg.types.json import Jsonb

from mdm_gitops.errors import Conflict, InputError, NotFound, WarehouseLocked
from mdm_gitops.model import Definitions, Entity, fold
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.policy import Allowance
from mdm_gitops.plan.recorded import (
    ColumnState,
    EntityState,
    RecordedEntity,
    from_document,
    to_document,
)
from mdm_gitops.warehouse.apply import DEFAULT_PATIENCE, LOCK_PURPOSE, Applied, Patience, apply_plan
from mdm_gitops.warehouse.ddl.drops import drop_column, drop_table
from mdm_gitops.warehouse.lock import alone
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan

_RECORDS = "SELECT record FROM {config}.entity ORDER BY entity_id"

_SAVE = "UPDATE {config}.entity SET record = %(record)s WHERE entity_id = %(id)s"

_FORGET = "DELETE FROM {config}.entity WHERE entity_id = %(id)s"

_FORGET_LOOKS = """
DELETE FROM {config}.deployed_relation WHERE schema_name = %(schema)s AND relation_name = ANY (%(names)s)
"""

_JOURNAL = """
INSERT INTO {config}.deployment (plan_id, actor, state, entities, summary, finished_at)
VALUES ('drop-archives', %(actor)s, 'succeeded', ARRAY[%(entity)s], %(summary)s, now())
"""


def without(definitions: Definitions, entity: str) -> Definitions:
    """Return *definitions* as if *entity* were not among them, nor what cannot be without it.

    Whatever refers to it goes too, and the seeds of all of them: the caller has made sure that none
    of those is deployed, and plans for *entity* alone.
    """
    gone = {fold(entity)}
    while more := {n for n, e in definitions.entities.items() if _refers(e, gone)} - gone:
        gone |= more
    return replace(
        definitions,
        entities=MappingProxyType({n: e for n, e in definitions.entities.items() if n not in gone}),
        seeds=MappingProxyType({n: s for n, s in definitions.seeds.items() if n not in gone}),
    )


def _refers(entity: Entity, targets: Collection[str]) -> bool:
    return any(c.reference and fold(c.reference.entity) in targets for c in entity.columns)


async def plan_removal(
    conn: AsyncConnection[Any], definitions: Definitions, *, entity: str, schemas: Schemas
) -> Plan:
    """Return the plan that archives *entity*.

    Raises:
        NotFound: it is not deployed.
        Conflict: deployed entities refer to it.
    """
    await _removable(conn, fold(entity), schemas)
    rest = without(definitions, entity)
    return await make_plan(conn, rest, schemas=schemas, target=[entity])


async def remove_entity(
    conn: AsyncConnection[Any],
    definitions: Definitions,
    *,
    entity: str,
    schemas: Schemas,
    actor: str,
    allowances: Collection[Allowance] = (),
    approved: bool = True,
    patience: Patience = DEFAULT_PATIENCE,
) -> Applied:
    """Archive *entity*; its rows stay and come back when it is deployed again. See errors above."""
    await _removable(conn, fold(entity), schemas)
    return await apply_plan(
        conn,
        without(definitions, entity),
        None,
        schemas=schemas,
        actor=actor,
        target=[entity],
        allowances=allowances,
        approved=approved,
        patience=patience,
    )


async def _removable(conn: AsyncConnection[Any], entity: str, schemas: Schemas) -> None:
    standing = [r for r in await _records(conn, schemas) if r.state is not EntityState.REMOVED]
    if all(record.name != entity for record in standing):
        raise NotFound(f"entity {entity} is not deployed", code="ENTITY_NOT_FOUND")
    referring = sorted(
        record.name
        for record in standing
        if record.name != entity and any(target == entity for target, _ in record.targets.values())
    )
    if referring:
        raise Conflict(
            f"entity {entity} cannot be removed: {', '.join(referring)} refers to it",
            hint="Remove the reference columns first",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What was destroyed: tables, and columns as ``table.column``."""

    tables: tuple[str, ...]
    columns: tuple[str, ...]


async def drop_archives(
    conn: AsyncConnection[Any],
    *,
    entity: str,
    confirm: str,
    schemas: Schemas,
    actor: str,
    patience: Patience = DEFAULT_PATIENCE,
) -> Dropped:
    """Destroy all archived columns and tables of *entity*, also of its removed namesakes.

    *confirm* must be the name of the entity. All or nothing, in one transaction.

    Raises:
        InputError: not confirmed; nothing was changed.
        NotFound: there is no such entity and no archive of one.
        WarehouseLocked: somebody is applying, or reads the tables.
        Conflict: something that is not ours depends on them, as a view that was made by hand.
    """
    if fold(confirm) != fold(entity):
        raise InputError(
            f"dropping the archives of {entity} destroys data and must be confirmed",
            hint=f'Send {{"confirm": "{entity}"}}',
            code="CONFIRMATION_REQUIRED",
        )
    async with alone(
        conn,
        purpose=LOCK_PURPOSE,
        schema=schemas.config,
        timeout_s=patience.writer_lock_s,
        doing="applying a plan to",
    ):
        found = [r for r in await _records(conn, schemas) if r.name == fold(entity)]
        if not found:
            raise NotFound(f"there is no entity {entity}", code="ENTITY_NOT_FOUND")
        try:
            return await _drop(conn, found, fold(entity), schemas, actor, patience)
        except errors.LockNotAvailable as error:
            raise WarehouseLocked(
                f"the archives of {entity} are being read", hint="Try again later"
            ) from error
        except errors.DependentObjectsStillExist as error:
            others = (error.diag.message_detail or "something else depends on them").partition("\n")
            raise Conflict(
                f"the archives of {entity} cannot be dropped: {others[0]}",
                hint="Nothing was dropped; what depends on them is not ours, so remove it by hand",
            ) from error


async def _drop(
    conn: AsyncConnection[Any],
    records: Collection[RecordedEntity],
    entity: str,
    schemas: Schemas,
    actor: str,
    patience: Patience,
) -> Dropped:
    dropped = Dropped(
        tables=tuple(name for record in records for name in _tables(record)),
        columns=tuple(f"{t}.{c}" for record in records for t, c in _columns(record)),
    )
    async with conn.transaction():
        await conn.execute(f"SET LOCAL lock_timeout = {round(patience.table_lock_s * 1000)}")
        for record in records:
            await _drop_one(conn, record, schemas)
        summary = {"dropped": {"tables": dropped.tables, "columns": dropped.columns}}
        await _run(conn, _JOURNAL, schemas, actor=actor, entity=entity, summary=Jsonb(summary))
    return dropped


async def _drop_one(conn: AsyncConnection[Any], record: RecordedEntity, schemas: Schemas) -> None:
    for table, name in _columns(record):
        await conn.execute(drop_column(table, name, schemas).encode())
    tables = list(_tables(record))
    for table in tables:
        await conn.execute(drop_table(table, schemas).encode())
    await _run(conn, _FORGET_LOOKS, schemas, schema=schemas.data, names=tables)
    if record.state is EntityState.REMOVED:
        await _run(conn, _FORGET, schemas, id=record.entity_id)
        return
    kept = replace(
        record,
        columns=tuple(c for c in record.columns if c.state is not ColumnState.ARCHIVED),
        satellites=MappingProxyType(
            {role: s for role, s in record.satellites.items() if not s.archived}
        ),
    )
    await _run(conn, _SAVE, schemas, id=record.entity_id, record=Jsonb(to_document(kept)))
    names = list(kept.active_table_names)
    remember = "SELECT {config}.remember_relation(%(in_schemas)s::text[], %(names)s::text[])"
    await _run(conn, remember, schemas, in_schemas=[schemas.data] * len(names), names=names)


def _tables(record: RecordedEntity) -> Iterator[str]:
    if record.state is EntityState.REMOVED:
        yield from record.table_names
    else:
        yield from (s.physical for s in record.satellites.values() if s.archived)


def _columns(record: RecordedEntity) -> Iterator[tuple[str, str]]:
    """Yield the archived columns of the tables that stay."""
    if record.state is EntityState.REMOVED:
        return
    for column in record.columns:
        if column.state is ColumnState.ARCHIVED:
            for table in record.active_table_names:
                yield table, column.physical


async def _records(conn: AsyncConnection[Any], schemas: Schemas) -> list[RecordedEntity]:
    cursor = await _run(conn, _RECORDS, schemas)
    return [from_document(row[0]) for row in await cursor.fetchall()]


async def _run(conn: AsyncConnection[Any], query: str, schemas: Schemas, **parameters: Any) -> Any:
    composed = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    return await conn.execute(composed, parameters)
