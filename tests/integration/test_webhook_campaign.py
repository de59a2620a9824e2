"""Many changes to receivers of all kinds while the dispatcher is killed, and the real server's delivery."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from psycopg import AsyncConnection
from standardwebhooks import Webhook as Verifier

from mdm_gitops.deliver import receiver as receiver_module
from mdm_gitops.deliver import schedule
from mdm_gitops.warehouse.connect import connect
from tests.support.receivers import (
    Answer,
    Receiver,
    broken,
    conn,
    dispatching,
    fine,
    receiving,
    resetting,
    subscribe,
    until,
)
from tests.support.served_folder import git
from tests.support.server_process import folder, serving

__all__ = ["conn", "folder"]
pytestmark = pytest.mark.anyio
RECORDS = 97
KINDS = ("good", "broken", "hanging", "resetting", "slow")


class Log:
    """A receiver's answer, with a note of the changes that it accepted, in the order it did."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.accepted: list[tuple[str, int]] = []
        self.ids: dict[int, set[str]] = defaultdict(set)

    async def __call__(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        number = int(request.headers["mdm-sequence"])
        self.ids[number].add(request.headers["webhook-id"])
        answer = await self._answer(request, document)
        if answer.status < 300 and not _is_cut(request):
            self.accepted.append((document["recordId"], number))
        return answer

    @property
    def numbers(self) -> set[int]:
        return {number for _, number in self.accepted}


def _is_cut(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def inversions(accepted: Iterable[tuple[str, int]]) -> int:
    """Count the changes that a record's receiver was first given after a later one."""
    highest: dict[str, int] = {}
    seen: set[int] = set()
    found = 0
    for record, number in accepted:
        if number in seen:
            continue
        seen.add(number)
        found += number < highest.get(record, 0)
        highest[record] = max(number, highest.get(record, 0))
    return found


async def slow(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(0.05)
    return web.Response()


async def never(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response(status=500)


async def happen_many(conn: AsyncConnection[Any], number: int) -> None:
    """Commit *number* changes of few records, four in a transaction."""
    for start in range(0, number, 4):
        await conn.execute(
            "WITH k AS (SELECT nextval('mdm.change_set_key') AS key), e AS ("
            " INSERT INTO mdm.event SELECT k.key, g, n.entity_id,"
            "   ('00000000-0000-7000-8000-' || lpad(((%(start)s + g) * 31 %% %(records)s)::text, 12, '0'))::uuid,"
            "   'data_updated', 1, NULL, '{\"code\":\"C1\"}', json_build_object('code', %(start)s + g), NULL"
            "   FROM k, mdm.entity n, generate_series(0, 3) g WHERE n.name = 'customer')"
            "INSERT INTO mdm.change_set (key, events, occurred_at, actor)"
            " SELECT key, 4, now(), 'user:ana' FROM k",
            {"start": start, "records": RECORDS},
        )


@contextmanager
def killed_at_the_end(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.support.webhook_process", url]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def accounted(conn: AsyncConnection[Any], name: str) -> tuple[set[int], int]:
    """Return the changes that the table keeps for *name*, and its cursor."""
    cursor = await conn.execute(
        "SELECT c.position, coalesce((SELECT array_agg(d.event_id) FROM mdm.webhook_delivery d"
        "  WHERE d.webhook_id = w.webhook_id), '{}')"
        " FROM mdm.webhook w JOIN mdm.webhook_cursor c USING (webhook_id) WHERE w.name = %s",
        [name],
    )
    row = await cursor.fetchone()
    assert row is not None
    return set(row[1]), row[0]


@pytest.mark.parametrize(
    ("number", "kills"),
    [(1_200, 3), pytest.param(20_000, 30, marks=pytest.mark.soak)],
)
async def test_nothing_is_lost_or_out_of_order_when_the_dispatcher_is_killed(
    database_url: str, conn: AsyncConnection[Any], number: int, kills: int
) -> None:
    logs = [Log(answer) for answer in (fine, broken, never, resetting, slow)]
    good = logs[0]
    async with receiving(*logs) as receivers:
        for name, receiver in zip(KINDS, receivers, strict=True):
            await subscribe(conn, name, receiver.url)
        async with await connect(database_url, application_name="writer") as writer:
            writing = asyncio.create_task(happen_many(writer, number))
            for kill in range(1, kills + 1):
                enough = number * kill // (kills + 2)
                with killed_at_the_end(database_url):
                    await until(lambda: len(good.numbers) >= enough, 60)  # noqa: B023
            with killed_at_the_end(database_url):
                await until(lambda: len(good.numbers) == number, 60 + number / 100)
                # By count: what is stuck has not held up what is not.
                assert [len(log.accepted) for log in logs[1:4]] == [0, 0, 0]
            await writing
    everything = set(range(1, number + 1))
    assert good.numbers == everything
    for name, log in zip(KINDS, logs, strict=True):
        kept, position = await accounted(conn, name)
        missing = {n for n in everything - log.numbers - kept if n <= position}
        assert missing == set(), name
        assert inversions(log.accepted) == 0, name
        assert all(len(ids) == 1 for ids in log.ids.values()), name
        assert len({next(iter(ids)) for ids in log.ids.values()}) == len(log.ids), name
    assert len(logs[4].accepted) > 0


async def test_without_chains_the_same_check_finds_changes_out_of_order(
    database_url: str, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: all changes of a page at once, and none waits behind an older one."""
    monkeypatch.setattr(schedule, "DELAYS_S", (0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05))
    found = {}
    for name in ("chained", "naive"):
        if name == "naive":
            monkeypatch.setattr(
                receiver_module, "_by_record", lambda events: {uuid4(): [each] for each in events}
            )
        log = Log(_moody(Random(7)))
        async with receiving(log) as [receiver]:
            webhook_id = await subscribe(conn, name, receiver.url)
            async with dispatching(database_url):
                await happen_many(conn, 400)
                await until(lambda: len(log.numbers) == 400, 30)  # noqa: B023
        found[name] = inversions(log.accepted)
        await conn.execute("DELETE FROM mdm.webhook WHERE webhook_id = %s", [webhook_id])
    assert found["chained"] == 0 and found["naive"] > 10, found


def _moody(chance: Random) -> Answer:
    async def answer(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(chance.random() * 0.01)
        return web.Response(status=500 if chance.random() < 0.1 else 200)

    return answer


async def test_of_two_workers_one_delivers(empty_database_url: str, folder: Path) -> None:
    """From a row over HTTP to a signed delivery, by the real server."""
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "Begin"]):
        git(folder, *command)
    variables = {
        "Mdm__RateLimit__Enabled": "false",
        "Mdm__Webhooks__Validation": "Strict",
        "Mdm__Webhooks__AllowedHosts": "127.0.0.1",
    }
    async with receiving(fine) as [receiver]:
        with serving(empty_database_url, folder, "--workers", "2", **variables) as server:
            try:
                secret = await asyncio.to_thread(_subscribe_over_http, server.client, receiver)
                await asyncio.to_thread(_write_rows, server.url, server.client.headers, 40)
                await until(lambda: len(receiver.got) >= 40, 20)
                await asyncio.sleep(1)  # a second worker would have delivered by now, too
            finally:
                assert await asyncio.to_thread(server.stop) == 0
    counts = Counter(headers["webhook-id"] for _, headers, _ in receiver.got)
    assert set(counts.values()) == {1} and len(counts) == 40
    for _, headers, body in receiver.got:
        Verifier(secret).verify(body, {name.lower(): text for name, text in headers.items()})
    codes = {document["changes"]["code"]["new"] for document, _, _ in receiver.got}
    assert codes == {f"c{n}" for n in range(40)}


def _subscribe_over_http(client: Any, receiver: Receiver) -> str:
    assert client.post("/api/v1/entities/thing/deploy", json={}).status_code == 200
    made = client.post("/api/v1/webhooks", json={"name": "shop", "url": receiver.url})
    assert made.status_code == 201, made.text
    secret: str = made.json()["secret"]
    return secret


def _write_rows(url: str, headers: Any, number: int) -> None:
    """Each over a connection of its own, so that both workers get some."""
    import httpx2

    with httpx2.Client(headers={**headers, "Connection": "close"}) as client:
        for n in range(number):
            answer = client.post(f"{url}/api/v1/entities/thing/data", json={"code": f"c{n}"})
            assert answer.status_code == 201, answer.text
