"""What may go wrong around the dispatcher: it holds up nobody, leaks nothing and loses nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web
from psycopg import AsyncConnection

from mdm_gitops.deliver import dispatcher as dispatcher_module
from mdm_gitops.deliver import pages, schedule
from mdm_gitops.deliver import receiver as receiver_module
from mdm_gitops.deliver.payload import RowEvent, body_of
from mdm_gitops.source import read_tree
from tests.support.customers import FILES
from tests.support.receivers import (
    broken,
    conn,
    deliveries,
    dispatching,
    fine,
    hanging,
    happen,
    happen_to_each,
    receiving,
    subscribe,
    until,
)
from tests.support.warehouses import apply

__all__ = ["conn"]
pytestmark = pytest.mark.anyio


async def test_a_failure_that_nobody_thought_of_stays_with_its_subscription(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = receiver_module.delivery_headers

    def headers(subscription: Any, *given: Any) -> dict[str, str]:
        if subscription.webhook.name == "odd":
            raise ZeroDivisionError
        return real(subscription, *given)

    monkeypatch.setattr(receiver_module, "delivery_headers", headers)
    monkeypatch.setattr(dispatcher_module, "_REST_S", 0.1)
    async with receiving(fine, fine) as [odd, good]:
        await subscribe(conn, "odd", odd.url)
        await subscribe(conn, "good", good.url)
        async with dispatching(database_url):
            for n in range(1, 6):
                await happen(conn, n)
                await until(lambda: len(good.got) == n)  # noqa: B023
                await asyncio.sleep(0.3)
            assert odd.got == []
            monkeypatch.setattr(receiver_module, "delivery_headers", real)
            await until(lambda: len(odd.got) == 5)


async def test_a_change_that_cannot_be_written_is_given_up_alone(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(event: RowEvent, **given: Any) -> bytes:
        if event.event_id == 2:
            raise RecursionError
        return body_of(event, **given)

    monkeypatch.setattr(receiver_module, "body_of", body)
    async with receiving(fine) as [good]:
        await subscribe(conn, "good", good.url)
        async with dispatching(database_url):
            for _ in range(3):
                await happen(conn, 1)
            await until(lambda: len(good.got) == 2)
            await asyncio.sleep(0.3)
    assert await deliveries(conn, "dead") == [(2, 0, 0, "the change cannot be written as JSON")]


@pytest.mark.parametrize("change", ["DELETE FROM mdm.webhook", "edit"])
async def test_a_subscription_that_hangs_is_changed_without_anybody_waiting(
    database_url: str, conn: AsyncConnection[Any], change: str
) -> None:
    """Nor does its end take the connection of the others along."""
    if change == "edit":
        change = 'UPDATE mdm.webhook SET definition = definition || \'{"description": "x"}\''
    async with receiving(hanging, fine) as [bad, good]:
        await subscribe(conn, "bad", bad.url)
        await subscribe(conn, "good", good.url)
        async with dispatching(database_url, timeout_s=4):
            await happen(conn, 1)
            await until(lambda: len(bad.got) == len(good.got) == 1)
            [[pid]] = await _pids(conn)
            await conn.execute(f"{change} WHERE name = 'bad'".encode())
            started, n = time.monotonic(), 1
            while time.monotonic() < started + 4.5:  # past the time of the request under way
                n += 1
                await happen(conn, n)
                await until(lambda: len(good.got) == n, 3)  # noqa: B023
                await asyncio.sleep(0.1)
            assert await _pids(conn) == [(pid,)]


async def _pids(conn: AsyncConnection[Any]) -> list[Any]:
    cursor = await conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'mdm-gitops webhooks'"
        " AND datname = current_database()"
    )
    return await cursor.fetchall()


async def test_the_connection_is_lost_in_the_middle_of_pages(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async def slowish(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return web.Response()

    number = 240
    async with receiving(slowish) as [receiver]:
        await subscribe(conn, "slowish", receiver.url)
        for n in range(number):
            await happen(conn, n % 20)
        async with dispatching(database_url):
            for enough in (40, 120):
                await until(lambda: len(receiver.got) >= enough)  # noqa: B023
                for [pid] in await _pids(conn):
                    await conn.execute("SELECT pg_terminate_backend(%s)", [pid])
            numbers = lambda: {int(h["mdm-sequence"]) for _, h, _ in receiver.got}
            await until(lambda: len(numbers()) == number, 30)
    assert all(order == sorted(order) for order in receiver.per_record().values())
    assert await deliveries(conn, "waiting") == []


async def test_two_subscriptions_of_one_url_are_two(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with receiving(fine) as [receiver]:
        for name in ("a", "b"):
            await subscribe(conn, name, receiver.url)
        async with dispatching(database_url):
            await happen(conn, 1)
            await until(lambda: len(receiver.got) == 2)
            await conn.execute("DELETE FROM mdm.webhook WHERE name = 'a'")
            await asyncio.sleep(1.3)
            await happen(conn, 2)
            await until(lambda: len(receiver.got) == 3)
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 3
    assert await deliveries(conn, "waiting") == []


async def test_what_is_wanted_is_judged_by_the_definitions_of_the_change(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at subscriptions nothing is missed, and nothing is shown that is restricted now."""
    monkeypatch.setattr(dispatcher_module, "SUBSCRIPTIONS_S", 3_600.0)
    customer = FILES["entities/customer.yaml"]
    for before, after in (
        (b"{name: salary,", b"{name: pay, renamedFrom: salary,"),
        (b"{name: credit,", b"{name: credit, classification: restricted,"),
    ):
        assert before in customer
        customer = customer.replace(before, after)
    async with receiving(fine) as [receiver]:
        webhook_id = await subscribe(conn, "shop", receiver.url, entities=["country"])
        async with dispatching(database_url):
            await happen(conn, 1, entity="country")
            await until(lambda: len(receiver.got) == 1)
            await conn.execute(
                'UPDATE mdm.webhook SET definition = definition || \'{"entities": [],'
                ' "domains": ["crm"]}\' WHERE webhook_id = %s',
                [webhook_id],
            )
            await happen(conn, 2)  # salary, credit
            await until(lambda: len(receiver.got) == 2)
            shop = f"webhooks: [{{name: shop, url: '{receiver.url}', domains: [crm]}}]".encode()
            files = {**FILES, "entities/customer.yaml": customer, "webhooks.yaml": shop}
            await apply(conn, read_tree(files))
            await happen(conn, 3)  # by its names of before
            await until(lambda: len(receiver.got) == 3)
    shown = [document["changes"] for document, _, _ in receiver.got[1:]]
    assert [each["credit"]["new"] for each in shown] == [2.5, "***"]
    assert [each["salary"]["new"] for each in shown] == ["***", "***"]


async def test_large_changes_come_in_small_pages(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_BYTES", 3_000)
    sizes = []
    real = pages.Pages._read

    async def read(self: pages.Pages, after: int, end: int) -> pages.Page:
        page = await real(self, after, end)
        sizes.append(len(page.events))
        return page

    monkeypatch.setattr(pages.Pages, "_read", read)
    async with receiving(fine) as [receiver]:
        await subscribe(conn, "good", receiver.url)
        for n in range(60):
            await happen(conn, n)
        # As one that cannot be compressed: by itself it is more than a page may have.
        await conn.execute(
            "UPDATE mdm.event SET new = (SELECT json_build_object('code',"
            " string_agg(md5(g::text), '')) FROM generate_series(1, 200) g)"
            " WHERE change_set %% 3 = 0",
            [],
        )
        async with dispatching(database_url):
            await until(lambda: len(receiver.got) == 60)
    assert sorted(int(h["mdm-sequence"]) for _, h, _ in receiver.got) == list(range(1, 61))
    assert max(sizes) < 60 and min(size for size in sizes) >= 1 and len(sizes) > 10


async def test_a_receiver_that_is_down_is_asked_seldom_and_its_changes_keep_their_attempts(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_FIRST_QUIET_S", 0.2)
    is_up = False

    async def answer(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=200 if is_up else 500)

    number = 700
    async with receiving(answer) as [receiver]:
        await subscribe(conn, "down", receiver.url)
        await happen_to_each(conn, number)
        async with dispatching(database_url):
            await until(lambda: len(receiver.got) >= 20)
            await asyncio.sleep(2)
            # Those of the moment it went down, and a few probes: not the whole page.
            assert 20 <= len(receiver.got) <= 60
            waiting = await deliveries(conn, "waiting")
            assert len(waiting) == pages.PAGE and max(row[1] for row in waiting) <= 2
            is_up = True
            await until(lambda: len(receiver.per_record()) == number)
            await asyncio.sleep(0.3)
    assert await deliveries(conn, "waiting") == await deliveries(conn, "dead") == []


async def test_a_retry_that_was_not_made_costs_no_attempt(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with receiving(broken) as [receiver]:
        webhook_id = await subscribe(conn, "broken", receiver.url)
        await happen(conn, 1)
        async with dispatching(database_url):
            await until(lambda: len(receiver.got) == 1)
            await asyncio.sleep(0.3)
        await conn.execute(
            "UPDATE mdm.webhook_delivery SET attempts = 7, next_attempt_at = now()"
            " WHERE webhook_id = %s",
            [webhook_id],
        )
        async with dispatching(database_url):
            await until(lambda: len(receiver.got) == 2)
            await asyncio.sleep(0.3)
    assert [row[:2] for row in await deliveries(conn, "waiting")] == [(1, 8)]


async def test_retry_after_quiets_the_whole_subscription(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async def busy(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "30"})

    async with receiving(busy) as [receiver]:
        await subscribe(conn, "busy", receiver.url)
        for n in range(200):
            await happen(conn, n)
        async with dispatching(database_url):
            await until(lambda: len(receiver.got) >= 1)
            await asyncio.sleep(1)
    assert len(receiver.got) <= receiver_module.CONCURRENT  # those that were under way


async def test_many_blocked_changes_of_one_record(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with receiving(fine) as [receiver]:
        await subscribe(conn, "inside", receiver.url.replace("127.0.0.1", "localhost"))
        for _ in range(450):
            await happen(conn, 1)
        async with dispatching(database_url):
            async with asyncio.timeout(15):
                while len(await deliveries(conn, "blocked")) < 450:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
    assert receiver.got == []


async def test_what_retention_removed_is_told_and_passed_over(
    database_url: str, conn: AsyncConnection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(fine) as [receiver]:
        await subscribe(conn, "late", receiver.url)
        for n in range(5):
            await happen(conn, n)
        await conn.execute("DELETE FROM mdm.event WHERE change_set IN (2, 4)")
        async with dispatching(database_url):
            await until(lambda: len(receiver.got) == 3)
            await happen(conn, 6)
            await until(lambda: len(receiver.got) == 4)
    assert [int(h["mdm-sequence"]) for _, h, _ in receiver.got][-1] == 6
    told = [r for r in caplog.records if r.getMessage().startswith("retention removed changes")]
    assert [record.__dict__["changes"] for record in told] == [2]


@pytest.mark.parametrize("number", [200, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_many_subscriptions(
    database_url: str, conn: AsyncConnection[Any], number: int
) -> None:
    async with receiving(fine) as [receiver]:
        for n in range(number):
            entities = [] if n % 10 == 0 else ["country"]
            await subscribe(conn, f"w{n}", receiver.url, entities=entities)
        async with dispatching(database_url):
            await happen(conn, 1)
            await until(lambda: len(receiver.got) == number // 10, 30)
            started = time.monotonic()
            await happen(conn, 2, entity="country")
            await until(lambda: len(receiver.got) == number // 10 + number, 30)
            seconds = time.monotonic() - started
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == len(receiver.got)
    assert seconds < number / 20
