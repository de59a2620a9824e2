"""Puts entities into a warehouse without a plan: the tables of ``plan.physical`` in plain SQL.

For tests of what is served, which should not fail because of what plans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection, sql
from psycopg.types.json import Jsonb

from mdm_gitops.model import Definitions
from mdm_gitops.plan.desired import DesiredEntity, desired_entities
from mdm_gitops.plan.physical import PhysicalColumn, Table
from mdm_gitops.plan.recorded import (
    EntityState,
    RecordedColumn,
    RecordedEntity,
    RecordedSatellite,
    Role,
    to_document,
)

BY = "system:test"


async def deploy(conn: AsyncConnection[Any], definitions: Definitions) -> None:
    """Create the tables of all entities, record them, and set the permissions."""
    for number, desired in enumerate(desired_entities(definitions).values(), start=1):
        for table in desired.physical.tables.values():
            await conn.execute(_create_table(table))
        await _record(conn, desired, number)
    await set_grants(conn, definitions)


async def set_grants(conn: AsyncConnection[Any], definitions: Definitions) -> None:
    async with conn.transaction():
        await conn.execute("DELETE FROM mdm.permission")
        for grant in definitions.grants:
            await conn.execute(
                "INSERT INTO mdm.permission (principal, domain, entity, actions, row_filter)"
                " VALUES (%s, %s, %s, %s, %s)",
                [
                    grant.principal,
                    grant.domain,
                    grant.entity,
                    list(grant.actions),
                    grant.row_filter,
                ],
            )


async def insert(
    conn: AsyncConnection[Any], table: str, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Insert *rows* of user values (system values may be given too); return their ids."""
    ids = []
    for row in rows:
        values: dict[str, Any] = {
            "_sys_created_at": "2024-01-02T03:04:05Z",
            "_sys_created_by": BY,
            "_sys_last_modified_at": "2024-01-02T03:04:05.25Z",
            "_sys_last_modified_by": BY,
            **{name: Jsonb(v) if isinstance(v, dict | list) else v for name, v in row.items()},
        }
        statement = sql.SQL(
            "INSERT INTO mdm_data.{} (_sys_id, {}) VALUES (coalesce(%s, mdm.uuid_v7()), {})"
            " RETURNING _sys_id::text"
        ).format(
            sql.Identifier(table),
            sql.SQL(", ").join(sql.Identifier(n) for n in values if n != "_sys_id"),
            sql.SQL(", ").join(sql.Placeholder() for n in values if n != "_sys_id"),
        )
        given = values.pop("_sys_id", None)
        cursor = await conn.execute(statement, [given, *values.values()])
        ids.append((await cursor.fetchone() or [""])[0])
    return ids


def _create_table(table: Table) -> sql.Composed:
    columns = [_column(column) for column in table.columns.values()]
    keys = sql.SQL(", ").join(sql.Identifier(name) for name in table.primary_key)
    return sql.SQL("CREATE TABLE mdm_data.{} ({}, PRIMARY KEY ({}))").format(
        sql.Identifier(table.name), sql.SQL(", ").join(columns), keys
    )


def _column(column: PhysicalColumn) -> sql.Composed:
    text = sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
    if column.default is not None:
        text += sql.SQL(" DEFAULT {}").format(sql.Literal(column.default))
    return text + sql.SQL(" NOT NULL") if column.not_null else text


async def _record(conn: AsyncConnection[Any], desired: DesiredEntity, number: int) -> None:
    physical = desired.physical
    record = RecordedEntity(
        entity_id=number,
        name=desired.name,
        state=EntityState.DEPLOYED,
        definition=desired.entity,
        desired_hash=desired.desired_hash,
        targets=desired.targets,
        columns=tuple(
            RecordedColumn(
                key=key,
                name=name,
                physical=name,
                type=physical.main.columns[name].type,
            )
            for key, name in enumerate(desired.entity.column_by_name, start=1)
        ),
        main=physical.main.name,
        satellites={
            role: RecordedSatellite(physical=table.name)
            for role, table in physical.tables.items()
            if role is not Role.MAIN
        },
    )
    await conn.execute(
        "INSERT INTO mdm.entity (entity_id, name, state, desired_hash, prevent_remove, record)"
        " VALUES (%s, %s, 'deployed', %s, false, %s)",
        [number, desired.name, desired.desired_hash, json.dumps(to_document(record))],
    )
