"""Sites, parts and persons, those who may see some of them, and the feed they read: served, with keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.model import Definitions
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.changes import Event, write_events
from tests.support.serving import KEY, Client, add_key, served
from tests.support.warehouses import apply

FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: lab}, {name: hr}]
""",
    "entities/site.yaml": b"""
name: Site
displayName: Place of work
domain: lab
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Region, dataType: string}
  - {name: rank, dataType: int}
""",
    "entities/part.yaml": b"""
name: part
domain: lab
approvalRequired: true
allowSameAuthorApproval: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Region, dataType: string}
""",
    "entities/person.yaml": b"""
name: person
domain: hr
keyColumns: [login]
columns:
  - {name: login, dataType: string, nullable: false}
  - {name: salary, dataType: int, classification: restricted}
""",
    "permissions.yaml": b"""
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: ["apikey:lab"], domains: [lab], actions: [read]}
  - {users: ["apikey:hr"], domains: [hr], actions: [read]}
  - {users: ["apikey:north"], domains: [lab], entities: [site, part], actions: [read],
     rowFilterDsl: "[Region] = 'N'"}
""",
}


@dataclass
class Lab:
    conn: AsyncConnection[Any]
    client: Client
    keys: dict[str, str]
    app: Starlette

    async def get(self, who: str, path: str = "/api/v1/changes", **query: Any) -> httpx2.Response:
        return await self.client.get(path, params=query, headers={"X-API-Key": self.keys[who]})

    async def changes(self, who: str = "root", **query: Any) -> list[dict[str, Any]]:
        answer = await self.get(who, **{"afterId": 0, "take": 500, **query})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["totalCount"] == len(document["entries"])
        assert document["hasMore"] is False
        found: list[dict[str, Any]] = document["entries"]
        return found

    async def told(self, who: str = "root", **query: Any) -> list[tuple[str, str]]:
        return [(e["action"], e["recordId"]) for e in await self.changes(who, **query)]

    async def send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self.client.request(
            method, f"/api/v1/entities/{path}", json=body, headers={"X-API-Key": KEY}
        )
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    async def create(self, entity: str, **values: Any) -> str:
        return str((await self.send("POST", f"{entity}/data", values))["_sys_id"])


KEYS: dict[str, str] = {"root": KEY}  # the others are made with the warehouse that is copied


async def prepare(conn: AsyncConnection[Any]) -> None:
    await apply(conn, definitions())
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    for name in ("lab", "hr", "north", "nobody"):
        KEYS[name] = await add_key(conn, name)


@asynccontextmanager
async def opened(url: str, *, tier: str = "Enterprise") -> AsyncIterator[Lab]:
    settings = Settings(
        Tier=tier,  # type: ignore[arg-type]
        RateLimit=RateLimitSettings(Enabled=False),
        AuditRetentionDays=0,  # the tests remove by themselves
    )
    async with await connect(url, application_name="test") as conn:
        app = create_app(database_url=url, settings=settings)
        async with served(app) as client:
            yield Lab(conn=conn, client=client, keys=KEYS, app=app)


def definitions(**changes: bytes) -> Definitions:
    return read_tree({**FILES, **{f"entities/{n}.yaml": text for n, text in changes.items()}})


# --- windows --------------------------------------------------------------------------------------


async def at(lab: Lab, hours_ago: float) -> str:
    moment = datetime.now(UTC) - timedelta(hours=hours_ago)
    event = Event()
    await write_events(lab.conn, [event], occurred_at=moment)
    return str(event.record_id)


def utc(hours_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def entity_id(lab: Lab, name: str) -> int:
    query = "SELECT entity_id FROM mdm.entity WHERE name = %s"
    row = await (await lab.conn.execute(query, [name])).fetchone()
    assert row is not None
    return int(row[0])
