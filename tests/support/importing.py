"""A warehouse to import into: an entity with every rule, and those that it takes to refer, approve,
keep history and refer to itself; and a client that sends files to it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import digest, ensure_first_key, generate_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from tests.support.warehouses import apply

COUNTRIES = [{"code": c, "name": n} for c, n in (("CH", "Schweiz"), ("FR", "France"))]
KEY: Final = "a bootstrap key, 30 characters"
FILES: Final[dict[str, bytes]] = {
    "mdm.yaml": b"name: imports\napiVersion: mdm-gitops/v1\ndomains: [{name: geo}, {name: other}]\n",
    "entities/country.yaml": b"""
name: country
domain: geo
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, maxLength: 2}
  - {name: name, dataType: string}
  - {name: continent, dataType: string}
""",
    "entities/place.yaml": b"""
name: place
domain: geo
historyEnabled: true
keyColumns: [code]
uniqueConstraints: [{name: slot, columns: [country, slot]}]
columns:
  - {name: code, displayName: Place Code, dataType: string, nullable: false, pattern: "[A-Z]{2}[0-9]{1,6}"}
  - {name: Name, dataType: string, nullable: false, maxLength: 20}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: email, dataType: string, unique: true}
  - {name: kind, dataType: string, allowedValues: [port, rail]}
  - {name: price, dataType: decimal, precision: 8, scale: 2, minValue: 0}
  - {name: level, dataType: int, minValue: 0, maxValue: 9}
  - {name: slot, dataType: int}
  - {name: big, dataType: long}
  - {name: open, dataType: bool, nullable: false, default: true}
  - {name: since, dataType: date, minValue: "2000-01-01"}
  - {name: seen, dataType: datetime}
  - {name: token, dataType: guid}
  - {name: extra, dataType: json}
  - {name: note, dataType: text}
  - {name: salary, dataType: int, classification: restricted}
""",
    "entities/node.yaml": b"""
name: node
domain: geo
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: parent, dataType: string, reference: {entity: node}}
  - {name: rank, dataType: int, unique: true}
""",
    "entities/gated.yaml": b"""
name: gated
domain: geo
approvalRequired: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, maxLength: 4}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: parent, dataType: string, reference: {entity: gated}}
  - {name: email, dataType: string, unique: true}
  - {name: level, dataType: int, minValue: 0}
  - {name: open, dataType: bool, nullable: false, default: true}
""",
    "entities/loose.yaml": b"""
name: loose
domain: geo
columns:
  - {name: a, displayName: Label, dataType: string}
  - {name: b, displayName: Label, dataType: int}
""",
    "permissions.yaml": b"""
permissions:
  - users: ["apikey:writer"]
    domains: [geo]
    entities: []
    actions: [write]
  - users: ["apikey:approver"]
    domains: [geo]
    entities: []
    actions: [approve]
  - users: ["apikey:reader"]
    domains: [geo]
    entities: []
    actions: [read]
  - users: ["apikey:swiss"]
    domains: [geo]
    entities: [place]
    actions: [write]
    rowFilterDsl: "[country] = 'CH'"
  - users: ["apikey:swiss"]
    domains: [geo]
    entities: [country]
    actions: [read]
  - users: ["apikey:local"]
    domains: [geo]
    entities: [place]
    actions: [read]
  - users: ["apikey:local"]
    domains: [geo]
    entities: [place]
    actions: [write]
    rowFilterDsl: "[country] = 'CH'"
  - users: ["apikey:swiss"]
    domains: [geo]
    entities: [gated]
    actions: [write, approve]
    rowFilterDsl: "[country] = 'CH'"
""",
}
PRINCIPALS: Final = ("writer", "reader", "swiss", "local", "stranger", "approver")


async def deploy(conn: AsyncConnection[Any], files: Mapping[str, bytes] = FILES) -> None:
    await apply(conn, read_tree(dict(files)))
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    for name in PRINCIPALS:
        await conn.execute(
            "INSERT INTO mdm.api_key (name, key_sha256, is_global_admin, created_by)"
            " VALUES (%s, %s, false, 'test') ON CONFLICT DO NOTHING",
            [name, digest(key_of(name))],
        )


_KEYS: dict[str, str] = {}


def key_of(name: str) -> str:
    """Return the API key of a principal; the same one through the whole run."""
    if name not in _KEYS:
        _KEYS[name] = generate_key()
    return _KEYS[name]


@asynccontextmanager
async def served(database_url: str, settings: Settings | None = None) -> AsyncIterator[Importing]:
    app = create_app(
        database_url=database_url,
        settings=settings or Settings(RateLimit={"Enabled": False}),  # type: ignore[arg-type]
    )
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://mdm.example", timeout=60
        ) as client,
    ):
        client.headers["X-API-Key"] = KEY
        yield Importing(client)


class Importing:
    """Sends imports as the Global Admin, or as *who* (a name of ``PRINCIPALS``)."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def post(
        self,
        kind: str,
        entity: str,
        content: Any,
        *,
        media_type: str,
        who: str = "",
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> httpx2.Response:
        given = {"Content-Type": media_type, **(headers or {})}
        if who:
            given["X-API-Key"] = key_of(who)
        return await self.client.post(
            f"/api/v1/entities/{entity}/data/{kind}", content=content, headers=given, params=query
        )

    async def csv(
        self, entity: str, content: str | bytes, *, charset: str = "", **more: Any
    ) -> httpx2.Response:
        media_type = "text/csv" + (f"; charset={charset}" if charset else "")
        return await self.post("bulk-csv", entity, content, media_type=media_type, **more)

    async def json(self, entity: str, rows: Any, **more: Any) -> httpx2.Response:
        content = rows if isinstance(rows, str | bytes) else json.dumps(rows)
        return await self.post("bulk", entity, content, media_type="application/json", **more)

    async def rows(self, entity: str, who: str = "", **query: Any) -> list[dict[str, Any]]:
        headers = {"X-API-Key": key_of(who)} if who else {}
        answer = await self.client.get(
            f"/api/v1/entities/{entity}/data", params={"take": 1000, **query}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found


def good(answer: httpx2.Response) -> dict[str, Any]:
    """Return the answer of an import that took place; all of its rows are accounted for."""
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert set(found) == {
        "received",
        "inserted",
        "updated",
        "unchanged",
        "rejected",
        "pending",
        "batchName",
        "errors",
        "errorsTruncated",
        "errorsUrl",
    }
    parts = ("inserted", "updated", "unchanged", "rejected", "pending")
    assert found["received"] == sum(found[name] for name in parts)
    assert bool(found["errors"]) == bool(found["rejected"]) == bool(found["errorsUrl"])
    return found


def counts(answer: httpx2.Response) -> dict[str, int]:
    """Return the counts that are not zero."""
    found = good(answer)
    names = ("received", "inserted", "updated", "unchanged", "rejected", "pending")
    return {name: found[name] for name in names if found[name]}


def reasons(answer: httpx2.Response) -> list[tuple[int, str | None, str]]:
    """Return row, column and code of each error, the code without what all have in common."""
    return [
        (e["row"], e["column"], e["code"].removeprefix("ENTITY_VALIDATION_"))
        for e in good(answer)["errors"]
    ]


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


async def recorded_events(conn: AsyncConnection[Any]) -> list[dict[str, Any]]:
    cursor = await conn.execute(
        "SELECT row_to_json(x) FROM (SELECT e.*, c.seq, c.events FROM mdm.event e"
        " JOIN mdm.change_set c ON c.key = e.change_set ORDER BY c.seq, e.ordinal) x"
    )
    return [row[0] for row in await cursor.fetchall()]
