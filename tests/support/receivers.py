"""Receivers of webhooks on this machine, a dispatcher that asks them, and changes to tell them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from mdm_gitops.deliver.dispatcher import Dispatcher
from mdm_gitops.deliver.targets import TargetRules, ValidationMode
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.customers import FILES
from tests.support.warehouses import apply

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Receiver:
    """A real server that notes what it got, and answers as it is told."""

    answer: Answer
    is_keeping: bool = True
    got: list[tuple[dict[str, Any], dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        document = json.loads(body)
        if self.is_keeping:
            self.got.append((document, dict(request.headers), body))
        return await self.answer(request, document)

    def per_record(self) -> dict[str, list[int]]:
        """Return the sequence numbers as they first came, by record."""
        found: dict[str, list[int]] = defaultdict(list)
        for document, headers, _ in self.got:
            number = int(headers["mdm-sequence"])
            if number not in found[document["recordId"]]:
                found[document["recordId"]].append(number)
        return found


async def fine(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=204)


async def broken(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=500)


async def hanging(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def resetting(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def receiving(*answers: Answer, keeping: bool = True) -> AsyncIterator[list[Receiver]]:
    receivers, runners = [], []
    for answer in answers:
        receiver = Receiver(answer, keeping)
        app = web.Application()
        app.router.add_post("/hook", receiver.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        receiver.port = runner.addresses[0][1]
        receivers.append(receiver)
        runners.append(runner)
    try:
        yield receivers
    finally:
        for runner in runners:
            await runner.cleanup()


STRICT = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1",))


@asynccontextmanager
async def dispatching(url: str, **given: Any) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(url, schemas=Schemas(), rules=given.pop("rules", STRICT), **given)
    stopping = asyncio.Event()
    task = asyncio.create_task(dispatcher.run(stopping))
    try:
        yield dispatcher
    finally:
        stopping.set()
        await task


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        await apply(conn, read_tree(FILES))
        yield conn


async def subscribe(conn: AsyncConnection[Any], name: str, url: str, **more: Any) -> Any:
    document = {"name": name, "url": url, **more}
    cursor = await conn.execute(
        "INSERT INTO mdm.webhook (name, definition) VALUES (%s, %s) RETURNING webhook_id",
        [name, Jsonb(document)],
    )
    row = await cursor.fetchone()
    return row and row[0]


async def happen(
    conn: AsyncConnection[Any],
    record: int,
    *,
    entity: str = "customer",
    action: str = "data_updated",
) -> None:
    """One committed change, as the write path records it."""
    async with conn.transaction():
        await conn.execute(
            "WITH k AS (SELECT nextval('mdm.change_set_key') AS key), e AS ("
            " INSERT INTO mdm.event SELECT k.key, 0, n.entity_id, %(id)s, %(action)s, 1, NULL,"
            "   %(old)s, %(new)s, NULL FROM k, mdm.entity n WHERE n.name = %(entity)s)"
            "INSERT INTO mdm.change_set (key, events, occurred_at, actor)"
            " SELECT key, 1, now(), 'user:ana' FROM k",
            {
                "id": f"00000000-0000-7000-8000-{record:012d}",
                "action": action,
                "entity": entity,
                "old": '{"code":"C1","credit":1.50,"salary":"9"}',
                "new": '{"code":"C1","credit":2.50,"salary":"8"}',
            },
        )


async def happen_to_each(conn: AsyncConnection[Any], records: int) -> None:
    """One change of each of so many records, each in a set of its own."""
    await conn.execute(
        "WITH k AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor)"
        "  SELECT nextval('mdm.change_set_key'), 1, now(), 'user:ana' FROM generate_series(1, %s)"
        "  RETURNING key)"
        "INSERT INTO mdm.event SELECT k.key, 0, n.entity_id,"
        "  ('00000000-0000-7000-8000-' || lpad(k.key::text, 12, '0'))::uuid, 'data_updated', 1,"
        '  NULL, \'{"code":"C1"}\', \'{"code":"C2"}\', NULL'
        "  FROM k, mdm.entity n WHERE n.name = 'customer'",
        [records],
    )


async def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is outside of us
            await asyncio.sleep(0.01)


async def deliveries(conn: AsyncConnection[Any], state: str) -> list[Any]:
    cursor = await conn.execute(
        "SELECT event_id, attempts, last_status, last_error FROM mdm.webhook_delivery"
        " WHERE state = %s ORDER BY event_id",
        [state],
    )
    return await cursor.fetchall()
