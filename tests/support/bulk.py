"""Bulk actions over HTTP, against the entities of ``importing``: what their tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from psycopg import AsyncConnection

from tests.support.importing import Importing, good, key_of, served

COUNTRIES = [{"code": c, "name": n} for c, n in (("CH", "Schweiz"), ("FR", "France"), ("IT", "x"))]
PLACES = [
    {"code": f"CH{n}", "Name": f"place {n}", "country": "CH", "level": n % 3, "salary": n}
    for n in range(1, 7)
] + [{"code": f"FR{n}", "Name": f"lieu {n}", "country": "FR", "level": 1} for n in range(1, 4)]


class Bulk(Importing):
    """Sends bulk actions, as the Global Admin or as *who*."""

    async def send(
        self, what: str, entity: str, who: str = "", *, lines: bool = False, **body: Any
    ) -> httpx2.Response:
        headers = {"X-API-Key": key_of(who)} if who else {}
        if lines:
            headers["Accept"] = "application/x-ndjson"
        return await self.client.post(
            f"/api/v1/entities/{entity}/data/bulk-action/{what}", json=body, headers=headers
        )

    async def preview(self, entity: str, who: str = "", **body: Any) -> dict[str, Any]:
        answer = await self.send("preview", entity, who, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def execute(self, entity: str, who: str = "", **body: Any) -> httpx2.Response:
        """Preview and execute."""
        token = (await self.preview(entity, who, **body))["previewToken"]
        return await self.send("execute", entity, who, previewToken=token, **body)

    async def done(self, entity: str, who: str = "", **body: Any) -> dict[str, Any]:
        return result(await self.execute(entity, who, **body))


def result(answer: httpx2.Response) -> dict[str, Any]:
    """Return the answer of an execution; all rows are accounted for."""
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    parts = ("updated", "deleted", "unchanged", "pending", "rejected")
    assert found["matchCount"] == sum(found[name] for name in parts)
    assert len({each["id"] for each in found["errors"]}) == found["rejected"]
    return found


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {k: v for k, v in found.items() if isinstance(v, int) and v and k != "errorsTruncated"}


def codes(found: dict[str, Any]) -> list[str]:
    return sorted(each["code"].removeprefix("ENTITY_VALIDATION_") for each in found["errors"])


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Bulk]:
    """Serve the warehouse at *url*, with some places in it."""
    async with served(url) as plain:
        api = Bulk(plain.client)
        good(await api.json("country", COUNTRIES))
        good(await api.json("place", PLACES))
        yield api


async def events(conn: AsyncConnection[Any], after: int = 0) -> list[tuple[str, int, Any, Any]]:
    """Return action, version, and images of the events of change sets after the first *after*."""
    cursor = await conn.execute(
        "SELECT e.action, e.version, e.old, e.new FROM mdm.event e JOIN mdm.change_set s"
        " ON s.key = e.change_set WHERE s.seq > %s ORDER BY s.seq, e.ordinal",
        [after],
    )
    return await cursor.fetchall()


async def last_seq(conn: AsyncConnection[Any]) -> int:
    cursor = await conn.execute("SELECT coalesce(max(seq), 0) FROM mdm.change_set")
    return int((await cursor.fetchone() or (0,))[0])


async def by_code(api: Bulk, entity: str = "place", **query: Any) -> dict[str, dict[str, Any]]:
    return {row["code"]: row for row in await api.rows(entity, **query)}
