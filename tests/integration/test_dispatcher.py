"""Deliveries over real HTTP: order per record, retries, isolation, signatures, what is blocked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from aiohttp import web
from psycopg import AsyncConnection
from standardwebhooks import Webhook as Verifier

from mdm_gitops.deliver import schedule
from mdm_gitops.deliver.signing import generate_secret
from mdm_gitops.deliver.targets import TargetRules
from tests.support import receivers
from tests.support.receivers import (
    broken,
    deliveries,
    dispatching,
    fine,
    hanging,
    happen,
    receiving,
    resetting,
    subscribe,
    until,
)

pytestmark = pytest.mark.anyio
conn = receivers.conn


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
