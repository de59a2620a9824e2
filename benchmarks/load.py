"""The load: a number of clients that each send the next request when they have the last answer.

A process of its own, so that it shares the machine with the server but not its event loop. It does no
more of HTTP than our server needs, because what it takes of the processors is missing elsewhere. It
reads one job as JSON from standard input and writes what it saw to standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

import uvloop

WARM_UP_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Requests ``method path`` with *body*, in which ``{n}`` is a number of seven digits that is used once."""

    address: str  # http://host:port
    key: str = ""
    clients: int
    seconds: float
    method: str = "GET"
    paths: Sequence[str] = ()  # taken at random
    body: str = ""
    first: int = 0  # number
    headers: Mapping[str, str] = field(default_factory=dict)  # beside that of the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    per_s: float
    median_ms: float
    p99_ms: float
    processor_s: float  # of the clients
    failed: int  # answers other than 2xx
    sample: str  # the first that failed


def run(job: Job) -> Seen:
    """Carry *job* out in a process of its own."""
    command = [sys.executable, __file__]
    given = json.dumps(asdict(job)).encode()
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)
    return Seen(**json.loads(done.stdout))


class _Measure:
    def __init__(self, request: Callable[[], bytes]) -> None:
        self.request = request
        self.latencies: list[float] = []
        self.failed = 0
        self.sample = ""
        self.is_over = False

    def note(self, started: float, answer: bytes) -> None:
        self.latencies.append(time.perf_counter() - started)
        if not answer.startswith(b"HTTP/1.1 2"):
            self.failed += 1
            self.sample = self.sample or answer.decode(errors="replace")[:2_000]


class _Client(asyncio.Protocol):
    def __init__(self, measure: _Measure) -> None:
        self._measure = measure
        self._data = b""
        self._needed = 0  # bytes of the answer; 0 while its head is not there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._measure.request())

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        if not self._needed:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._data[:end].lower()
            at = head.index(b"content-length: ") + 16
            line_end = head.find(b"\r", at)
            length = int(head[at : line_end if line_end > 0 else len(head)])
            self._needed = end + 4 + length
        if len(self._data) < self._needed:
            return
        self._measure.note(self._started, self._data)
        self._data, self._needed = b"", 0
        if not self._measure.is_over:
            self._send()


def _requests(job: Job) -> Callable[[], bytes]:
    host = job.address.partition("//")[2]
    headers = {"Host": host, **({"X-API-Key": job.key} if job.key else {}), **job.headers}
    common = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    heads = [f"{job.method} {path} HTTP/1.1\r\n{common}".encode() for path in job.paths]
    choose = random.Random(1).choice
    if not job.body:
        whole = [head + b"\r\n" for head in heads]
        return lambda: choose(whole)
    numbers = iter(range(job.first, 10_000_000))
    before, _, after = job.body.partition("{n}")

    def with_body() -> bytes:
        body = f"{before}{next(numbers):07}{after}".encode()
        head = b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % (choose(heads), len(body)) + body

    return with_body


async def _load(job: Job) -> Seen:
    measure = _Measure(_requests(job))
    host, _, port = job.address.partition("//")[2].partition(":")
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Client(measure), host, int(port))
        for _ in range(job.clients)
    ]
    await asyncio.sleep(WARM_UP_S)
    measure.latencies.clear()
    started, used = time.perf_counter(), sum(os.times()[:2])
    await asyncio.sleep(job.seconds)
    latencies = sorted(measure.latencies)
    seconds, used = time.perf_counter() - started, sum(os.times()[:2]) - used
    measure.is_over = True
    await asyncio.sleep(0.2)
    for transport, _ in made:
        transport.close()
    return Seen(
        per_s=len(latencies) / seconds,
        median_ms=1_000 * _at(latencies, 0.5),
        p99_ms=1_000 * _at(latencies, 0.99),
        processor_s=used,
        failed=measure.failed,
        sample=measure.sample,
    )


def _at(latencies: Sequence[float], share: float) -> float:
    return latencies[int(len(latencies) * share)] if latencies else float("nan")


def _main() -> None:
    given: Mapping[str, Any] = json.load(sys.stdin)
    print(json.dumps(asdict(uvloop.run(_load(Job(**given))))))


if __name__ == "__main__":
    _main()
