"""Deliveries over real HTTP: order per record, retries, isolation, signatures, what is blocked."""

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
from standardwebhooks import Webhook as Verifier

from mdm_gitops.deliver import schedule
from mdm_gitops.deliver.dispatcher import Dispatcher
from mdm_gitops.deliver.signing import generate_secret
from mdm_gitops.deliver.targets import TargetRules, ValidationMode
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.customers import FILES
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Receiver:
    """A real server that notes what it got, and answers as it is told."""

    answer: Answer
    got: list[tuple[dict[str, Any], dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        document = json.loads(body)
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
async def receiving(*answers: Answer) -> AsyncIterator[list[Receiver]]:
    receivers, runners = [], []
    for answer in answers:
        receiver = Receiver(answer)
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


async def test_a_delivery_is_what_the_interface_says_and_verifies(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    secret = generate_secret()
    async with receiving(fine) as [good]:
        await happen(conn, 1)  # before the subscription
        webhook_id = await subscribe(conn, "good", good.url)
        await conn.execute("INSERT INTO mdm.webhook_secret VALUES (%s, %s)", [webhook_id, secret])
        async with dispatching(database_url):
            await happen(conn, 2)
            await until(lambda: len(good.got) == 1)
            await asyncio.sleep(0.3)
    [(document, headers, body)] = good.got
    assert list(document) == ["event", "entityName", "recordId", "occurredUtc", "user", "changes"]
    assert document["event"] == "data_updated" and document["user"] == "user:ana"
    assert document["entityName"] == "customer" and document["recordId"].endswith("2")
    assert document["changes"] == {
        "credit": {"old": 1.5, "new": 2.5},
        "salary": {"old": "***", "new": "***"},
    }
    assert b'"old":1.50' in body  # each digit
    lower = {name.lower(): value for name, value in headers.items()}
    Verifier(secret).verify(body, lower)
    with pytest.raises(Exception, match="signature"):
        Verifier(secret).verify(body + b" ", lower)


async def test_filters_choose_what_is_sent(database_url: str, conn: AsyncConnection[Any]) -> None:
    cases: dict[str, dict[str, Any]] = {
        "all": {},
        "domain": {"domains": ["ref"]},
        "entity": {"entities": ["Customer"]},
        "action": {"actions": ["data_created"]},
        "off": {"is_active": False},
    }
    async with receiving(*[fine] * len(cases)) as receivers:
        for (name, more), receiver in zip(cases.items(), receivers, strict=True):
            await subscribe(conn, name, receiver.url, **more)
        async with dispatching(database_url):
            await happen(conn, 1)
            await happen(conn, 2, entity="country", action="data_created")
            await until(lambda: len(receivers[0].got) == 2)
            await asyncio.sleep(0.5)
    got = [
        sorted((d["entityName"], d["event"]) for d, _, _ in receiver.got) for receiver in receivers
    ]
    customer, country = ("customer", "data_updated"), ("country", "data_created")
    assert got == [[country, customer], [country], [customer], [country], []]


async def test_bad_receivers_slow_down_nobody_and_lose_nothing(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    number, records = 300, 40
    async with receiving(fine, broken, hanging, resetting) as receivers:
        good = receivers[0]
        for index, receiver in enumerate(receivers):
            await subscribe(conn, f"w{index}", receiver.url)
        async with dispatching(database_url, timeout_s=0.5):
            for n in range(number):
                await happen(conn, n % records)
            await until(lambda: len(good.got) == number)
    orders = good.per_record()
    assert len(orders) == records and all(order == sorted(order) for order in orders.values())
    assert sum(len(order) for order in orders.values()) == number == len(good.got)
    # What the others did not take waits in the table, or still in the feed behind their cursors.
    cursor = await conn.execute(
        "SELECT w.name, c.position, (SELECT count(*) FROM mdm.webhook_delivery d"
        "  WHERE d.webhook_id = w.webhook_id AND d.state = 'waiting')"
        "  FROM mdm.webhook w JOIN mdm.webhook_cursor c USING (webhook_id) ORDER BY 1"
    )
    for name, position, waiting in await cursor.fetchall():
        assert waiting == (0 if name == "w0" else position), name
        assert position == number if name == "w0" else position <= number


async def test_retries_keep_the_order_and_the_id(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "DELAYS_S", (0, 0.05, 0.05, 0.05, 0.05))
    failures: dict[str, int] = {}

    async def flaky(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        number = request.headers["mdm-sequence"]
        failures[number] = failures.get(number, 0) + 1
        return web.Response(status=200 if failures[number] > int(number) % 3 else 503)

    async with receiving(flaky) as [receiver]:
        await subscribe(conn, "flaky", receiver.url)
        async with dispatching(database_url):
            for n in range(60):
                await happen(conn, n % 7)
            await until(lambda: sum(1 for n in failures if failures[n] > int(n) % 3) == 60)
    ids: dict[str, set[str]] = defaultdict(set)
    for _, headers, _ in receiver.got:
        ids[headers["mdm-sequence"]].add(headers["webhook-id"])
    assert all(len(each) == 1 for each in ids.values()) and len(ids) == 60
    assert all(order == sorted(order) for order in receiver.per_record().values())
    assert await deliveries(conn, "waiting") == []


async def test_what_never_gets_through_is_kept_as_dead_and_frees_the_record(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "DELAYS_S", (0, 0.02, 0.02))

    async def picky(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=400 if request.headers["mdm-sequence"] == "2" else 200)

    async with receiving(picky) as [receiver]:
        await subscribe(conn, "picky", receiver.url)
        async with dispatching(database_url):
            for _ in range(4):
                await happen(conn, 1)
            await until(lambda: any(h["mdm-sequence"] == "4" for _, h, _ in receiver.got))
            await asyncio.sleep(0.3)
    assert await deliveries(conn, "dead") == [(2, 3, 400, "")]
    assert await deliveries(conn, "waiting") == []


async def test_gone_switches_off_and_a_change_switches_on_again(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    status = 410

    async def leaving(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status)

    async with receiving(leaving) as [receiver]:
        webhook_id = await subscribe(conn, "leaving", receiver.url)
        async with dispatching(database_url):
            await happen(conn, 1)
            await until(lambda: len(receiver.got) == 1)
            await asyncio.sleep(1.3)
            await happen(conn, 2)
            await asyncio.sleep(0.5)
            assert len(receiver.got) == 1
            cursor = await conn.execute("SELECT disabled_reason FROM mdm.webhook_cursor")
            assert await cursor.fetchone() == ("the receiver answered 410: it wants no more",)
            status = 200
            await conn.execute(
                'UPDATE mdm.webhook SET definition = definition || \'{"description": "again"}\''
                " WHERE webhook_id = %s",
                [webhook_id],
            )
            await until(lambda: len(receiver.got) >= 3)
    assert [int(h["mdm-sequence"]) for _, h, _ in receiver.got] == [1, 1, 2]


async def test_only_one_of_two_dispatchers_delivers_and_the_other_takes_over(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with receiving(fine) as [good]:
        await subscribe(conn, "good", good.url)
        async with dispatching(database_url):
            async with dispatching(database_url):
                for n in range(50):
                    await happen(conn, n)
                await until(lambda: len(good.got) >= 50)
            # Whoever had the lock ended or goes on; nothing is missing and nothing is twice.
            for n in range(50):
                await happen(conn, n)
            await until(lambda: len(good.got) >= 100)
            await asyncio.sleep(0.3)
    assert sorted(int(h["mdm-sequence"]) for _, h, _ in good.got) == list(range(1, 101))


async def test_what_may_not_be_reached_is_blocked_and_not_tried(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with receiving(fine, fine) as [first, second]:
        await subscribe(conn, "number", first.url)
        await subscribe(conn, "name", second.url.replace("127.0.0.1", "localhost"))
        async with dispatching(database_url, rules=TargetRules()):
            await happen(conn, 1)
            async with asyncio.timeout(10):
                while len(await deliveries(conn, "blocked")) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    assert first.got == second.got == []
    assert {row[3] for row in await deliveries(conn, "blocked")} == {"leads to this machine"}
