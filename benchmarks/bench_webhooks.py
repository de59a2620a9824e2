"""How fast changes reach a receiver: all that wait, and each at a steady rate, from commit to delivery.

The receiver is a process of its own that answers at once and checks nothing; the dispatcher is one, too, in
the event loop of the server. Beside it stands a bare loop that posts one body again and again with the same client,
as a third process: on a machine that has other things to do, processor time per delivery and that ratio are what
can be compared. Run by itself: ``python benchmarks/bench_webhooks.py [events]``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import uvloop
from figures import Figure
from psycopg.types.json import Jsonb
from warehouse import SCHEMAS, Server, opened

from mdm_gitops.deliver.dispatcher import Dispatcher
from mdm_gitops.deliver.payload import RowEvent, body_of
from mdm_gitops.deliver.receiver import CONCURRENT
from mdm_gitops.deliver.sender import Sender
from mdm_gitops.deliver.targets import TargetRules, ValidationMode
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.embedded import acquire_server

EVENTS: Final = 20_000
RATE: Final = 500
STEADY_S: Final = 10
_LEAST_PER_S: Final = 3_000
_FILES: Final = {
    "mdm.yaml": b"name: bench\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n",
    "entities/thing.yaml": b"name: thing\ndomain: d\ncolumns: [{name: code, dataType: string},"
    b" {name: name, dataType: string}, {name: amount, dataType: decimal}]\n",
}
_CHANGES: Final = """
WITH k AS (SELECT nextval('mdm.change_set_key') AS key), e AS (
  INSERT INTO mdm.event
  SELECT k.key, g, n.entity_id,
         ('00000000-0000-7000-8000-' || lpad(((%(first)s + g) %% 5000)::text, 12, '0'))::uuid,
         'data_updated', 1, NULL, '{"code":"A","name":"before","amount":1.50}',
         '{"code":"A","name":"after","amount":2.50}', NULL
    FROM k, mdm.entity n, generate_series(0, %(count)s - 1) g WHERE n.name = 'thing')
INSERT INTO mdm.change_set (key, events, occurred_at, actor)
SELECT key, %(count)s, clock_timestamp(), 'bench' FROM k"""


async def measure(server: Server, *, events: int = EVENTS) -> list[Figure]:
    url = await server.fresh_database()
    with receiving() as port:
        async with opened(url) as conn:
            definitions = read_tree(_FILES)
            await apply_plan(
                conn, definitions, None, schemas=SCHEMAS, actor="user:bench", approved=True
            )
            await conn.execute(
                "INSERT INTO mdm.webhook (name, definition) VALUES ('bench', %s)",
                [Jsonb({"name": "bench", "url": f"http://127.0.0.1:{port}/"})],
            )
            waiting = await _waiting(conn, url, port, events)
            return [*waiting, *await _steady(conn, url, port)]


async def _waiting(conn: Connection, url: str, port: int, events: int) -> list[Figure]:
    for first in range(0, events, 500):
        await conn.execute(_CHANGES, {"first": first, "count": 500})
    with _delivering(url) as process:
        while _told(port)["count"] < 500:  # noqa: ASYNC110 - so that its start is not counted
            await asyncio.sleep(0.01)
        before, started, used = _told(port)["count"], time.perf_counter(), _cpu_s(process.pid)
        while (count := _told(port)["count"]) < events:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        seconds = time.perf_counter() - started
        used = _cpu_s(process.pid) - used
    _told(port, forget=True)
    rate = (count - before) / seconds
    cpu_rate = (count - before) / used
    bare_rate, bare_cpu_rate = await asyncio.to_thread(_bare, port, events)
    return [
        Figure(
            case=f"webhooks: {events:,} changes that wait, delivered",
            value=rate,
            unit="per_s",
            limit=_LEAST_PER_S,
            is_floor=True,
            note=f"{cpu_rate:,.0f} per second of processor time",
        ),
        Figure(
            case="webhooks: processor time of a delivery over that of a bare post",
            value=bare_cpu_rate / cpu_rate,
            unit="ratio",
            note=f"bare: {bare_rate:,.0f}/s; {bare_cpu_rate:,.0f} per second of processor time",
        ),
    ]


async def delivered(
    conn: Connection, url: str, port: int, *, webhooks: int, waiting: int, events: int, rounds: int
) -> float:
    """Return the processor seconds of a dispatcher that takes *events* changes to all *webhooks*, each round.

    It first delivers the changes that wait already, and so knows all webhooks.
    """
    with _delivering(url) as process:
        while _told(port)["count"] < webhooks * waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        _told(port, forget=True)
        used = _cpu_s(process.pid)
        for done in range(rounds):
            await conn.execute(_CHANGES, {"first": 0, "count": events})
            while _told(port)["count"] < webhooks * events * (done + 1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return (_cpu_s(process.pid) - used) / rounds


def _bare(port: int, number: int) -> tuple[float, float]:
    """Return how many bare posts a second there are, and how many in a second of processor time."""
    with _process("post", str(port), str(number)) as process:
        assert process.stdout is not None
        rate, cpu_rate = process.stdout.readline().split()
    _told(port, forget=True)
    return float(rate), float(cpu_rate)


async def _steady(conn: Connection, url: str, port: int) -> list[Figure]:
    with _delivering(url):
        await conn.execute(_CHANGES, {"first": 0, "count": 1})
        while await _is_behind(conn):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        _told(port, forget=True)
        started, number = time.perf_counter(), RATE * STEADY_S
        for n in range(number):
            await asyncio.sleep(max(0.0, started + n / RATE - time.perf_counter()))
            await conn.execute(_CHANGES, {"first": n, "count": 1})
        seconds = time.perf_counter() - started
        while _told(port)["count"] < number:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    told = _told(port, forget=True)
    note = f"{number / seconds:,.0f} changes per second, each its own transaction"
    half, most = (told["latencies"][int(number * share)] * 1_000 for share in (0.5, 0.99))
    return [
        Figure(case="webhooks: commit to delivered, median", value=half, unit="ms", note=note),
        Figure(
            case="webhooks: commit to delivered, 99th percentile",
            value=most,
            unit="ms",
            limit=200.0,
        ),
    ]


async def _is_behind(conn: Connection) -> bool:
    query = (
        "SELECT max(s.seq) FILTER (WHERE s.first_id IS NULL) IS NOT NULL OR c.position < p.last_id"
    )
    query += " FROM mdm.webhook_cursor c, mdm.feed_position p, mdm.change_set s GROUP BY c.position, p.last_id"
    row = await (await conn.execute(query.encode())).fetchone()
    return bool(row and row[0])


def _told(port: int, *, forget: bool = False) -> dict[str, list[float]]:
    conn = http.client.HTTPConnection("127.0.0.1", port)
    conn.request("GET", "/forget" if forget else "/")
    told: dict[str, list[float]] = json.loads(conn.getresponse().read())
    conn.close()
    return told


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, __file__, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def receiving() -> Iterator[int]:
    with _process("receive") as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _delivering(url: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return _process("deliver", url)


# --- the processes --------------------------------------------------------------------------------


class _Receiver(asyncio.Protocol):
    """As little of HTTP as our client needs."""

    latencies: list[float] = []  # noqa: RUF012 - of all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            self._tell(is_forgotten=b"/forget" in head)
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        occurred = datetime.fromisoformat(json.loads(rest)["occurredUtc"])
        self.latencies.append((datetime.now(UTC) - occurred).total_seconds())
        self._data = b""
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    def _tell(self, *, is_forgotten: bool) -> None:
        told = {
            "count": len(self.latencies),
            "latencies": sorted(self.latencies[: 2 * RATE * STEADY_S]),
        }
        body = json.dumps(told if is_forgotten else {"count": told["count"]}).encode()
        if is_forgotten:
            self.latencies.clear()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._transport.write(head.encode() + body)
        self._transport.close()


async def _receive() -> None:
    server = await asyncio.get_running_loop().create_server(_Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _deliver(url: str) -> None:
    rules = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1",))
    await Dispatcher(url, schemas=SCHEMAS, rules=rules).run(asyncio.Event())


async def _post(port: int, number: int) -> None:
    rules = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1",))
    event = RowEvent(
        event_id=1,
        occurred_at=datetime.now(UTC),
        entity_id=1,
        entity_name="thing",
        record_id="00000000-0000-7000-8000-000000000001",
        action="data_updated",
        user="bench",
        old='{"code":"A","name":"before","amount":1.50}',
        new='{"code":"A","name":"after","amount":2.50}',
    )
    body = body_of(event, shown=("code", "name", "amount"))
    left = iter(range(number))

    async def take(sender: Sender) -> None:
        for _ in left:
            await sender.send(f"http://127.0.0.1:{port}/", body, {"webhook-id": "evt_1"})

    async with Sender(rules) as sender:
        started, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(take(sender) for _ in range(CONCURRENT)))
        seconds, used = time.perf_counter() - started, time.process_time() - used
    print(number / seconds, number / used, flush=True)


async def _main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    with tempfile.TemporaryDirectory() as folder:
        server = await acquire_server(Path(folder))
        try:
            for each in await measure(Server(server.url), events=events):
                print(f"{each.case:<50} {each.text:>10} {each.limit_text:>12}  {each.note}")
        finally:
            await server.aclose()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive"]:
            uvloop.run(_receive())
        case ["post", to, count]:
            uvloop.run(_post(int(to), int(count)))
        case ["deliver", database_url]:
            uvloop.run(_deliver(database_url))
        case _:
            asyncio.run(_main())
