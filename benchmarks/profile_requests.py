"""What a worker does with its time: samples of the real server under the load of 64 clients.

Run: ``make profile``; it writes docs/concepts/time-of-requests.md. py-spy looks at the worker from outside, a
thousand times a second, while it is busy; each sample belongs to the innermost line of Python that one of the areas
knows. What C does (the socket, libpq, orjson) counts for the line that called it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import load
from bench_deploy import apply
from bench_requests import (
    CLIENTS,
    ROWS,
    Case,
    api_key,
    cases_of,
    definitions,
    fill,
    ids_of,
    pages_of,
    run_load,
)
from figures import processor_s
from served import serving
from warehouse import Server, opened

from mdm_gitops.warehouse.embedded import acquire_server

PAGE: Final = Path(__file__).parents[1] / "docs" / "concepts" / "time-of-requests.md"
SECONDS: Final = 6
_RATE: Final = 1_000  # samples in a second
_PROFILED: Final = ("read by id", "list 100, another page each", "create", "update")


@dataclass(frozen=True, slots=True)
class Area:
    name: str
    files: tuple[str, ...]  # parts of paths


_LOOP: Final = "the event loop"
AREAS: Final = (
    Area(_LOOP, ("asyncio/runners.py",)),
    Area("the answer into the socket", ("_send_whole",)),
    Area(
        "HTTP: reading, parsing, a task for each request",
        (
            "uvicorn/",
            "mdm_api/protocol.py",
            "mdm_api/corked.py",
            "starlette/",
            "mdm_api/answers.py",
        ),
    ),
    Area("numbers, trace id, log", ("observe.py", "metrics.py", "prometheus_client/", "logs.py")),
    Area("which operation, which query", ("mdm_api/routes.py", "mdm_api/app.py", "operations.py")),
    Area(
        "who calls and what they may",
        ("mdm_api/call.py", "security.py", "throttle.py", "/access/", "data/asking.py"),
    ),
    Area("sharing statements and connections", ("coalesce.py", "psycopg_pool/", "services.py")),
    Area("the statement: libpq and its answer", ("warehouse/", "psycopg/")),
    Area("the operation: rows, rules, bodies", ("mdm_api/", "mdm_gitops/")),
)
_HEAD: Final = """\
# What a worker does with a request

Written by `make profile` on {date}: what a worker spends its processor time on with each request;
{clients} clients, {rows:,} rows of 12 columns, everything on but the rate limit. What PostgreSQL does for
a request stands in [What a request costs in PostgreSQL](cost-of-requests.md). The worker was sampled {rate:,} times
a second; a sample belongs to the innermost of these areas that it is in. How long a request takes on a quiet
machine stands in the [measured figures](../../benchmarks/RESULTS.md#single-requests).

"""
_TAIL: Final = """
- The socket is the kernel's: on one machine, sending also does the receiver's part of the work. An application that
  answers everything with the same three bytes pays this and HTTP, and nothing else.
- Statements are shared: those who ask at the same time are answered by one statement, whose cost is theirs together.
- Bodies are read strictly and each value is judged by the rules of its column before PostgreSQL sees it, which is most
  of what a create takes beyond a read.
"""


async def measure() -> str:
    """Return the page."""
    with tempfile.TemporaryDirectory() as folder:
        server = await acquire_server(Path(folder))
        try:
            url = await Server(server.url).fresh_database()
            return await _profiled(url)
        finally:
            await server.aclose()


async def _profiled(url: str) -> str:
    async with opened(url) as conn:
        await apply(conn, definitions())
        with serving(url) as (address, pid):
            keys = {"editor": api_key(address, "editor")}
            fill(address, ROWS)
            cases = cases_of(ROWS, await ids_of(conn), list(pages_of(address, keys["editor"])))
            chosen = [case for case in cases if case.name in _PROFILED]
            told = [_of_case(address, pid, keys, case) for case in chosen]
    head = _HEAD.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}", clients=CLIENTS, rows=ROWS, rate=_RATE
    )
    return head + "\n".join(_table([case.name for case in chosen], told)) + "\n" + _TAIL


def _of_case(address: str, pid: int, keys: Mapping[str, str], case: Case) -> Mapping[str, float]:
    """Return microseconds per request by area.

    The requests are counted in a run that nobody looks at: to be sampled costs a worker some of its time.
    """
    used = processor_s(pid)
    seen = run_load(address, keys, case, clients=CLIENTS, seconds=SECONDS)
    each_us = 1e6 * (processor_s(pid) - used) / (seen.per_s * (SECONDS + load.WARM_UP_S))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stacks"
        command = [Path(sys.executable).with_name("py-spy"), "record", "--pid", str(pid)]
        command += ["--duration", str(SECONDS), "--rate", str(_RATE), "--format", "raw"]
        sampling = subprocess.Popen([*command, "--output", file], stdout=subprocess.DEVNULL)
        run_load(address, keys, case, clients=CLIENTS, seconds=SECONDS)
        assert sampling.wait() == 0, "py-spy could not look at the worker"
        areas = _by_area(file.read_text().splitlines())
    return {name: each_us * number / areas.total() for name, number in areas.items()}


def _by_area(stacks: Sequence[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for stack in stacks:
        frames, _, number = stack.rpartition(" ")
        found[_area_of(frames)] += int(number)
    return found


def _area_of(frames: str) -> str:
    for frame in reversed(frames.split(";")):
        for area in AREAS:
            if any(part in frame for part in area.files):
                return area.name
    return _LOOP  # of which nothing is known but that the process does it


def _table(names: Sequence[str], told: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield shares, which say the same on a slow machine, and what they are shares of."""
    whole = [sum(each.values()) for each in told]
    yield f"| % of a worker's time for each | {' | '.join(names)} |"
    yield f"|---|{'---:|' * len(names)}"
    for area in (area.name for area in AREAS):
        shares = (
            100 * each.get(area, 0) / all_of_it for each, all_of_it in zip(told, whole, strict=True)
        )
        yield f"| {area} | {' | '.join(f'{share:.0f}' for share in shares)} |"
    yield f"| **µs together, in this run** | {' | '.join(f'**{each:.0f}**' for each in whole)} |"


if __name__ == "__main__":
    PAGE.write_text(asyncio.run(measure()))
