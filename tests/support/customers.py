"""Customers of countries, all rules on, and people who may see or write some: what many tests write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from tests.support.serving import KEY, Client, add_key, served
from tests.support.warehouses import SCHEMAS, apply

FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}, {name: crm}]\n",
    "entities/country.yaml": b"""
name: country
domain: ref
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, maxLength: 3}
  - {name: Name, dataType: string}
  - {name: region, dataType: string, default: EU}
""",
    "entities/customer.yaml": b"""
name: customer
domain: crm
historyEnabled: true
keyColumns: [code]
uniqueConstraints: [{name: mail, columns: [email, country]}]
columns:
  - {name: code, dataType: string, nullable: false, pattern: '^C[0-9]+$'}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: parent, dataType: string, reference: {entity: customer}}
  - {name: email, dataType: string}
  - {name: segment, dataType: string, allowedValues: [a, b]}
  - {name: credit, dataType: decimal, precision: 8, scale: 2, minValue: 0, maxValue: 5000}
  - {name: rank, dataType: int, default: 7}
  - {name: born, dataType: date}
  - {name: seen, dataType: datetime}
  - {name: active, dataType: bool, nullable: false, default: true}
  - {name: tag, dataType: guid}
  - {name: extra, dataType: json}
  - {name: salary, dataType: string, classification: restricted}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:swiss"], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[country] = 'CH'"}
  - {users: ["apikey:swiss"], domains: [ref], entities: [country], actions: [read],
     rowFilterDsl: "[code] <> 'XX'"}
  - {users: ["apikey:reader"], domains: ["*"], actions: [read]}
  - {users: ["apikey:narrow"], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[segment] = 'a'"}
  - {users: ["apikey:narrow"], domains: [crm], entities: [customer], actions: [read],
     rowFilterDsl: "[segment] = 'a' OR [segment] = 'b'"}
  - {users: [root], domains: ["*"], actions: [admin]}
""",
}
CUSTOMERS, COUNTRIES = "/api/v1/entities/customer/data", "/api/v1/entities/country/data"


async def prepare(conn: AsyncConnection[Any]) -> None:
    """Deploy these entities, and put the first key in."""
    await apply(conn, read_tree(FILES))
    await ensure_first_key(conn, schemas=SCHEMAS, configured=KEY)


@asynccontextmanager
async def writing(url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    """Serve the warehouse at *url* for the first key, with countries and no events."""
    async with served(create_app(database_url=url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        for code in ("CH", "DE", "XX"):
            assert (await client.post(COUNTRIES, json={"code": code})).status_code == 201
        await conn.execute("TRUNCATE mdm.event, mdm.change_set")
        yield client


async def key_of(conn: AsyncConnection[Any], name: str) -> dict[str, str]:
    return {"X-API-Key": await add_key(conn, name)}


async def events(conn: AsyncConnection[Any]) -> list[tuple[str, str, str, Any, Any]]:
    """Return entity, action, actor, old and new of all events, in the order they were recorded."""
    cursor = await conn.execute(
        "SELECT e.name, v.action, coalesce(v.actor, c.actor), v.old, v.new"
        "  FROM mdm.change_set c JOIN mdm.event v ON v.change_set = c.key"
        "  JOIN mdm.entity e USING (entity_id) ORDER BY c.seq, v.ordinal"
    )
    return await cursor.fetchall()


async def history(conn: AsyncConnection[Any], entity: str) -> list[tuple[Any, ...]]:
    cursor = await conn.execute(
        "SELECT _sys_version, _sys_action, code, _sys_valid_from < _sys_valid_to"  # type: ignore[arg-type]
        f"  FROM mdm_data.{entity}__history ORDER BY _sys_valid_to"
    )
    return await cursor.fetchall()


async def make(client: Client, **values: Any) -> dict[str, Any]:
    answer = await client.post(CUSTOMERS, json=values)
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()
    return row
