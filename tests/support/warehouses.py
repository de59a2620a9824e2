"""A real warehouse under test: apply definitions, put rows in, look at catalog and rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.types.json import Jsonb

from mdm_gitops.model import Definitions, Entity, coerce
from mdm_gitops.plan.desired import desired_entities
from mdm_gitops.plan.physical import Role, Table
from mdm_gitops.plan.plan import Plan
from mdm_gitops.warehouse.apply import Applied, apply_plan
from mdm_gitops.warehouse.connect import SessionLimits, connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from tests.support.repositories import VALUES

SCHEMAS = Schemas()
_LIVE = "SELECT schema_name, relation_name, objects FROM mdm.live_relation(%s)"


@asynccontextmanager
async def opened(url: str) -> Any:
    limits = SessionLimits(statement_timeout_s=20, lock_timeout_s=5)
    async with await connect(url, application_name="test", limits=limits) as conn:
        yield conn


async def plan(conn: AsyncConnection[Any], definitions: Definitions) -> Plan:
    return await make_plan(conn, definitions, schemas=SCHEMAS)


async def apply(conn: AsyncConnection[Any], definitions: Definitions) -> Applied:
    return await apply_plan(
        conn, definitions, None, schemas=SCHEMAS, actor="user:test", approved=True
    )


async def catalog(
    conn: AsyncConnection[Any], schemas: tuple[str, ...] = ("mdm_data", "lab_views")
) -> dict[str, Any]:
    """Return all that PostgreSQL knows of the relations, archives apart."""
    found = {}
    for schema, name, objects in await (await conn.execute(_LIVE, [list(schemas)])).fetchall():
        if "__archive_" not in name:
            objects["columns"] = {
                column: facts
                for column, facts in objects["columns"].items()
                if not column.startswith("_arch_")
            }
            found[f"{schema}.{name}"] = objects
    return found


async def rows(conn: AsyncConnection[Any], definitions: Definitions) -> dict[str, list[Any]]:
    """Return all rows of all tables of *definitions* as the text that PostgreSQL prints."""
    found = {}
    for table in tables(definitions):
        columns = sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(name)) for name in sorted(table.columns)
        )
        query = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
            columns,
            sql.Identifier(SCHEMAS.data, table.name),
            sql.SQL(", ").join(sql.Identifier(name) for name in table.primary_key),
        )
        found[table.name] = await (await conn.execute(query)).fetchall()
    return found


def tables(definitions: Definitions) -> Iterator[Table]:
    for desired in desired_entities(definitions).values():
        yield from desired.physical.tables.values()


async def fill(
    conn: AsyncConnection[Any], definitions: Definitions, *, chance: random.Random, count: int
) -> int:
    """Insert up to *count* rows per table; a row that a rule refuses is left out."""
    inserted = 0
    for desired in desired_entities(definitions).values():
        for table in desired.physical.tables.values():
            for number in range(count):
                values = {**_user_values(desired.entity, number, chance)}
                values.update(_system_values(table.role, number, chance))
                inserted += await _insert(conn, table, values)
    return inserted


def _user_values(entity: Entity, number: int, chance: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in entity.columns:
        if column.name == "code":
            raw: Any = f"k{number}"
        elif column.reference:
            raw = chance.choice((None, f"k{chance.randrange(number + 1)}"))
        else:
            raw = chance.choice((*VALUES[column.data_type.value], None))
        if raw is None and column.default is not None and chance.random() < 0.5:
            continue
        value = coerce(column.data_type, raw)
        is_json = column.data_type.value == "json" and value is not None
        values[column.folded] = Jsonb(value) if is_json else value
    return values


def _system_values(role: Role, number: int, chance: random.Random) -> dict[str, Any]:
    moment = f"2026-01-{number + 1:02d}T10:00:00Z"
    values: dict[str, Any] = {"_sys_id": f"00000000-0000-7000-8000-{chance.getrandbits(48):012x}"}
    if role is Role.EDIT:
        values |= {"_sys_operation": "create", "_sys_state": "pending"}
        return values | {"_sys_submitted_at": moment, "_sys_submitted_by": "user:a"}
    for name in ("created", "last_modified"):
        values |= {f"_sys_{name}_at": moment, f"_sys_{name}_by": "user:a"}
    if role is Role.HISTORY:
        values |= {"_sys_version": number + 1, "_sys_is_deleted": False}
        values |= {"_sys_valid_from": moment, "_sys_valid_to": moment, "_sys_action": "x"}
    return values


async def _insert(conn: AsyncConnection[Any], table: Table, values: Mapping[str, Any]) -> int:
    query = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(SCHEMAS.data, table.name),
        sql.SQL(", ").join(sql.Identifier(name) for name in values),
        sql.SQL(", ").join(sql.Placeholder() for _ in values),
    )
    try:
        await conn.execute(query, list(values.values()))
    except psycopg.IntegrityError:
        return 0
    except psycopg.DataError:
        return 0
    return 1


async def clear(conn: AsyncConnection[Any], definitions: Definitions) -> None:
    names = [sql.Identifier(SCHEMAS.data, table.name) for table in tables(definitions)]
    if names:
        await conn.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(names)))
