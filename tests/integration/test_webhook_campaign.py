"""Many changes to receivers of all kinds while the dispatcher is killed, and the real server's delivery."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from psycopg import AsyncConnection
from psycopg.types.json import Jsonb
from standardwebhooks import Webhook as Verifier

from mdm_gitops.deliver import receiver as receiver_module
from mdm_gitops.deliver import schedule
from mdm_gitops.warehouse.connect import connect
from tests.support.campaign_record import campaign
from tests.support.faulty_receivers import FAULTS, Fault, Faulty
from tests.support.receivers import (
    Receiver,
    conn,
    dispatching,
    fine,
    receiving,
    subscribe,
    until,
)
from tests.support.served_folder import git
from tests.support.server_process import folder, serving
from tests.support.webhook_process import LONGEST_QUIET_S, Dispatching

__all__ = ["conn", "folder"]
pytestmark = pytest.mark.anyio
RECORDS = 97
# Where the faults get worse, and where they are at times again, in parts of all kills.
OUTAGE = (1 / 3, 2 / 3)
NOTHING_COMES_S = 10 * LONGEST_QUIET_S


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


@dataclass
class Campaign:
    """Changes are committed and delivered to receivers with all faults while dispatchers are killed."""

    url: str
    conn: AsyncConnection[Any]
    changes: int
    kills: int
    seed: int
    careless: bool = False
    patience_s: float = NOTHING_COMES_S

    async def run(self) -> list[Faulty]:
        """Return the receivers when the last change has reached the one without faults, and all others
        have had the time for what is kept for them."""
        chance = Random(self.seed)
        logs = [Faulty(fault, Random(chance.random())) for fault in FAULTS]
        async with receiving(*logs, keeping=False) as receivers:
            urls = {log.fault.name: at.url for log, at in zip(logs, receivers, strict=True)}
            for fault in FAULTS:
                url = urls[fault.name]
                await subscribe(self.conn, fault.name, fault.url(url) if fault.url else url)
            mending = asyncio.create_task(self._switch_on_again())
            writing = asyncio.create_task(self._write())
            try:
                await self._kill(logs)
                await self._mend(logs, urls)
                await self._deliver_the_rest(logs)
            finally:
                mending.cancel()
                await asyncio.gather(mending, return_exceptions=True)
            await writing
        return logs

    async def _write(self) -> None:
        async with await connect(self.url, application_name="writer") as writer:
            await happen_many(writer, self.changes)

    async def _kill(self, logs: Sequence[Faulty]) -> None:
        good = logs[0]
        for kill in range(1, self.kills + 1):
            is_out = OUTAGE[0] <= kill / self.kills < OUTAGE[1]
            for log in logs[1:]:
                log.mood = "out" if is_out else "moody"
            enough = self.changes * kill // (self.kills + 2)
            with self._dispatcher():
                await self._while_some_comes(lambda: len(good.numbers) < enough, [good])  # noqa: B023

    async def _mend(self, logs: Sequence[Faulty], urls: dict[str, str]) -> None:
        for log in logs:
            log.mood = "well"
            if log.fault.url:
                await self.conn.execute(
                    "UPDATE mdm.webhook SET definition = definition || %s WHERE name = %s",
                    [Jsonb({"url": urls[log.fault.name]}), log.fault.name],
                )

    async def _deliver_the_rest(self, logs: Sequence[Faulty]) -> None:
        """Let all that is kept come through: until everybody has everything, or nothing is left to do."""
        with self._dispatcher():
            await self._while_some_comes(
                lambda: any(len(log.numbers) < self.changes for log in logs), logs
            )

    async def _while_some_comes(self, wanted: Callable[[], bool], logs: Sequence[Faulty]) -> None:
        """Wait while *wanted*, as long as now and then something comes."""
        progress = -1, time.monotonic()
        while wanted():
            await asyncio.sleep(0.02)
            done, now = sum(len(log.accepted) for log in logs), time.monotonic()
            if done > progress[0]:
                progress = done, now
            if now > progress[1] + self.patience_s:
                return

    async def _switch_on_again(self) -> None:
        """As a person would, when a receiver has said that it wants no more."""
        async with await connect(self.url, application_name="person") as conn:
            while True:
                await conn.execute(
                    "UPDATE mdm.webhook w SET definition = definition || jsonb_build_object("
                    " 'description', clock_timestamp()::text) FROM mdm.webhook_cursor c"
                    " WHERE c.webhook_id = w.webhook_id AND c.disabled_at IS NOT NULL"
                )
                await asyncio.sleep(0.2)

    def _dispatcher(self) -> Dispatching:
        return Dispatching(self.url, careless=self.careless)


@pytest.mark.parametrize(
    ("changes", "kills"), [(600, 3), pytest.param(50_000, 500, marks=pytest.mark.soak)]
)
async def test_nothing_is_lost_or_out_of_order_when_the_dispatcher_is_killed(
    database_url: str, conn: AsyncConnection[Any], changes: int, kills: int
) -> None:
    seed = secrets.randbits(32) if kills > 100 else 1
    with campaign("dispatcher") as record:
        logs = await Campaign(database_url, conn, changes, kills, seed).run()
        failures = {log.fault.name: log.failures for log in logs}
        record(events=changes, kills=kills, deliveries=sum(len(log.accepted) for log in logs))
        record(
            told=f"{len(FAULTS) - 1} kinds of faults, {sum(failures.values())} failed deliveries"
        )
        everything = set(range(1, changes + 1))
        for log in logs:
            told = f"seed {seed}, {log.fault.name}, {failures}"
            assert everything - log.numbers == set(), told
            assert log.inversions == 0, told
            assert (log.renamed, log.names) == (0, changes), told
    assert all(log.failures for log in logs if log.fault.share), failures


async def test_a_dispatcher_that_counts_before_it_delivers_is_found_to_lose(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    """The negative control: the same campaign, killed once."""
    logs = await Campaign(database_url, conn, 600, 1, 1, careless=True, patience_s=5).run()
    assert any(len(log.numbers) < 600 for log in logs)


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
        log = Faulty(Fault(name=name, answer=_late, share=0.1), Random(7))
        async with receiving(log) as [receiver]:
            webhook_id = await subscribe(conn, name, receiver.url)
            async with dispatching(database_url):
                await happen_many(conn, 400)
                await until(lambda: len(log.numbers) == 400, 30)  # noqa: B023
        found[name] = log.inversions
        await conn.execute("DELETE FROM mdm.webhook WHERE webhook_id = %s", [webhook_id])
    assert found["chained"] == 0 and found["naive"] > 10, found


async def _late(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(0.005)
    return web.Response(status=500)


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
