"""A warehouse whose entities need approval, keys for those who act in it, and what stands there after.

``part`` needs approval and refers to itself, to ``kind``, which needs it as well, and to ``maker``,
which does not. ``shelf`` needs none and refers to ``part``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import digest, ensure_first_key, generate_key
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.serving import KEY, Client, served
from tests.support.warehouses import apply

FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: lab}]\n",
    "entities/maker.yaml": b"""
name: maker
domain: lab
keyColumns: [code]
columns: [{name: code, dataType: string, nullable: false}]
""",
    "entities/kind.yaml": b"""
name: kind
domain: lab
approvalRequired: true
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: label, dataType: string}
""",
    "entities/part.yaml": b"""
name: part
domain: lab
approvalRequired: true
historyEnabled: true
keyColumns: [code]
sortColumns: [{column: code}]
uniqueConstraints: [{name: place, columns: [room, slot]}]
columns:
  - {name: code, dataType: string, nullable: false, pattern: '^P[0-9]+$'}
  - {name: Label, dataType: string}
  - {name: maker, dataType: string, reference: {entity: maker}}
  - {name: kind, dataType: string, reference: {entity: kind}}
  - {name: parent, dataType: string, reference: {entity: part}}
  - {name: serial, dataType: string, unique: true}
  - {name: room, dataType: string}
  - {name: slot, dataType: int}
  - {name: rank, dataType: int, default: 7, minValue: 0, maxValue: 99}
  - {name: seen, dataType: datetime}
  - {name: price, dataType: decimal, precision: 8, scale: 2}
  - {name: secret, dataType: string, classification: restricted, maxLength: 8}
""",
    "entities/shelf.yaml": b"""
name: shelf
domain: lab
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: part, dataType: string, reference: {entity: part}}
""",
    "entities/free.yaml": b"""
name: free
domain: lab
approvalRequired: true
allowSameAuthorApproval: true
keyColumns: [code]
columns: [{name: code, dataType: string, nullable: false}, {name: note, dataType: string}]
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:ann", "apikey:bob", "apikey:cat"], domains: [lab], actions: [write, approve]}
  - {users: ["apikey:writer"], domains: [lab], actions: [write]}
  - {users: ["apikey:approver"], domains: [lab], actions: [approve]}
  - {users: ["apikey:reader"], domains: [lab], actions: [read]}
  - {users: ["apikey:seer"], domains: [lab], actions: [approve, viewrestricted]}
  - {users: ["apikey:room1"], domains: [lab], entities: [part], actions: [write, approve],
     rowFilterDsl: "[room] = '1'"}
  - {users: ["apikey:room1"], domains: [lab], entities: [kind], actions: [read],
     rowFilterDsl: "[label] <> 'hidden'"}
  - {users: ["apikey:some"], domains: [lab], entities: [part], actions: [read]}
  - {users: ["apikey:some"], domains: [lab], entities: [part], actions: [approve],
     rowFilterDsl: "[room] = '1'"}
  - {users: [root], domains: ["*"], actions: [admin]}
""",
}
PEOPLE = ("ann", "bob", "cat", "writer", "approver", "reader", "seer", "room1", "some")
ROOT = "root"


class Lab:
    """The served application. Paths are those below ``/api/v1/entities``."""

    def __init__(self, client: Client, conn: AsyncConnection[Any], keys: dict[str, str]) -> None:
        self.client = client
        self.conn = conn
        self._keys = keys
        self._forgotten = 0

    def through(self, client: Client) -> Lab:
        """Return the same warehouse, served by another application."""
        return Lab(client, self.conn, self._keys)

    async def send(
        self, who: str, method: str, path: str, document: Any = None, **more: Any
    ) -> httpx2.Response:
        headers = {"X-API-Key": self._keys[who], **more.pop("headers", {})}
        if document is not None:
            more["json"] = document
        answer = await self.client.request(
            method, f"/api/v1/entities/{path}", headers=headers, **more
        )
        assert answer.status_code < 500, (method, path, answer.text)
        return answer

    async def propose(self, who: str, entity: str = "part", **values: Any) -> str:
        """Create a row and return its identifier."""
        answer = await self.send(who, "POST", f"{entity}/data", values)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["_sys_id"])

    async def approved(self, entity: str = "part", **values: Any) -> str:
        """Let ann create a row and bob approve it; return its identifier."""
        row_id = await self.propose("ann", entity, **values)
        answer = await self.send("bob", "POST", f"{entity}/approve/{row_id}")
        assert answer.status_code == 200, answer.text
        return row_id

    async def row(self, row_id: str, entity: str = "part", **params: Any) -> Any:
        """Return the row as root sees it, None if there is none."""
        answer = await self.send(ROOT, "GET", f"{entity}/data/{row_id}", params=params)
        return answer.json() if answer.status_code == 200 else None

    async def pending(self, row_id: str, entity: str = "part") -> Any:
        return await self.row(row_id, entity, state="pending")

    async def edit(self, entity: str = "part") -> list[dict[str, Any]]:
        """Return the rows of the edit table."""
        cursor = await self.conn.execute(
            f"SELECT row_to_json(e) FROM mdm_data.{entity}__edit e ORDER BY _sys_submitted_at"  # type: ignore[arg-type]
        )
        return [row for (row,) in await cursor.fetchall()]

    async def events(self) -> list[dict[str, Any]]:
        """Return the events that are not forgotten, in the order in which they were recorded."""
        cursor = await self.conn.execute(
            "SELECT n.name AS entity, e.record_id::text AS id, e.action, e.version,"
            " coalesce(e.actor, s.actor) AS actor, e.old, e.new, e.detail"
            " FROM mdm.change_set s JOIN mdm.event e ON e.change_set = s.key"
            " JOIN mdm.entity n USING (entity_id) WHERE s.seq > %s ORDER BY s.seq, e.ordinal",
            [self._forgotten],
        )
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]

    async def forget_events(self) -> None:
        cursor = await self.conn.execute("SELECT coalesce(max(seq), 0) FROM mdm.change_set")
        [self._forgotten] = await cursor.fetchone() or (0,)


KEYS: dict[str, str] = {ROOT: KEY}  # the others are made with the warehouse that is copied


async def prepare(conn: AsyncConnection[Any]) -> None:
    """Deploy the entities and make the keys, in a database that tests copy."""
    KEYS.update(await _deployed(conn))


async def _deployed(conn: AsyncConnection[Any]) -> dict[str, str]:
    await apply(conn, read_tree(FILES))
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    return {name: await key_of(conn, name) for name in PEOPLE}


@asynccontextmanager
async def opened(database_url: str) -> AsyncIterator[Lab]:
    """Deploy the entities in a database of one's own and serve them."""
    async with await connect(database_url, application_name="test") as conn:
        keys = {ROOT: KEY, **await _deployed(conn)}
    async with opened_copy(database_url, keys) as lab:
        yield lab


@asynccontextmanager
async def opened_copy(database_url: str, keys: Mapping[str, str] = KEYS) -> AsyncIterator[Lab]:
    """Serve a copy of what ``prepare`` has made."""
    async with await connect(database_url, application_name="test") as conn:
        settings = Settings(RateLimit=RateLimitSettings(Enabled=False))
        async with served(create_app(database_url=database_url, settings=settings)) as client:
            lab = Lab(client, conn, dict(keys))
            for code in ("M1", "M2"):
                await lab.send(ROOT, "POST", "maker/data", {"code": code})
            await lab.forget_events()
            yield lab


async def key_of(conn: AsyncConnection[Any], name: str) -> str:
    key = generate_key()
    await conn.execute(
        "INSERT INTO mdm.api_key (name, key_sha256, is_global_admin, created_by)"
        " VALUES (%s, %s, false, 'test')",
        [name, digest(key)],
    )
    return key


def problem(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json()["code"])
