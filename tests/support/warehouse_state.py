"""All that a deployment leaves behind, as one text that two runs can be compared by.

What differs between two equal runs is levelled: numbers of archives keep only their order, numbers
of entities, moments after the start of the test and the ids of seeded rows lose their value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from psycopg import AsyncConnection, sql

_SCHEMAS = ("mdm_data", "lab_views")
_LIVE = "SELECT schema_name, relation_name, kind, objects FROM mdm.live_relation(%s) ORDER BY 1, 2"
_FUNCTIONS = """
SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'mdm_data' ORDER BY 1
"""
_STORED = {
    "entities": "SELECT name, state, desired_hash, prevent_remove, record FROM mdm.entity",
    "permissions": "SELECT principal, domain, entity, actions, row_filter FROM mdm.permission",
    "webhooks": "SELECT name, definition FROM mdm.webhook",
    "seeds": "SELECT e.name, s.content_hash FROM mdm.seed s JOIN mdm.entity e USING (entity_id)",
    "project": "SELECT definition FROM mdm.project",
    "looks": "SELECT schema_name, relation_name, objects FROM mdm.deployed_relation",
}
# Fixed values of rows lie before; what a run writes lies after.
_STARTED = datetime.now(UTC)
_NUMBER = re.compile(r"(_arch_|__archive_|\"archiveNumber\": )(\d+)")


async def state(conn: AsyncConnection[Any]) -> list[str]:
    """Return the whole state, one fact per line."""
    facts = [f"function {name}" for (name,) in await _all(conn, _FUNCTIONS)]
    for schema, name, kind, objects in await _all(conn, _LIVE, list(_SCHEMAS)):
        facts += [f"{schema}.{name} {line}" for line in _lines(objects)]
        if kind == "r":
            facts += [f"{schema}.{name} row {row}" for row in await _rows(conn, schema, name)]
    for what, query in _STORED.items():
        found = await _all(conn, query)
        facts += [f"{what} {line}" for row in found for line in _stored_lines(row)]
    return sorted(_levelled(facts))


async def _all(conn: AsyncConnection[Any], query: str, *values: Any) -> list[Any]:
    return await (await conn.execute(query, values or None)).fetchall()


def _lines(objects: dict[str, Any]) -> Iterable[str]:
    for part, members in objects.items():
        if isinstance(members, dict):
            yield from (f"{part} {json.dumps([k, v])}" for k, v in members.items())
        else:
            yield f"{part} {members}"


def _stored_lines(row: tuple[Any, ...]) -> Iterable[str]:
    key = [value for value in row if not isinstance(value, dict)]
    yield json.dumps(key, sort_keys=True)
    for value in row:
        if isinstance(value, dict):
            for name, part in value.items():
                parts = part if name == "columns" else [part]
                if name != "entityId":
                    yield from (f"{key[:2]} {json.dumps({name: p}, sort_keys=True)}" for p in parts)


async def _rows(conn: AsyncConnection[Any], schema: str, table: str) -> list[str]:
    query = sql.SQL("SELECT to_jsonb(t) FROM {} t").format(sql.Identifier(schema, table))
    return [
        json.dumps(_plain(row), sort_keys=True)
        for (row,) in await (await conn.execute(query)).fetchall()
    ]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    seeded = row.get("_sys_created_by") == "system:seed"
    return {
        name: None if (seeded and name == "_sys_id") else _moment(name, value)
        for name, value in row.items()
    }


def _moment(name: str, value: Any) -> Any:
    if not name.endswith(("_at", "_from", "_to")) or not isinstance(value, str):
        return value
    return "later" if datetime.fromisoformat(value) > _STARTED else value


def _levelled(facts: list[str]) -> list[str]:
    """Replace each archive number by its rank among all of them."""
    numbers = {int(n) for fact in facts for _, n in _NUMBER.findall(fact) if n != "0"}
    rank = {number: position for position, number in enumerate(sorted(numbers), start=1)}
    return [_NUMBER.sub(lambda m: f"{m[1]}{rank.get(int(m[2]), 0)}", fact) for fact in facts]
