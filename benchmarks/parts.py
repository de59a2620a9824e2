"""The parts of the benchmarks, in the order in which they run, and the sizes they have.

Each part runs in a process and on a PostgreSQL server of its own, so that none finds what another left
behind: memory, tables to vacuum, caches. What it measures with is imported only there.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from figures import Told
from warehouse import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a part measures, and how much."""

    server: Server
    folder: Path  # empty; gone afterwards
    is_full: bool

    def of(self, full: int, small: int) -> int:
        return full if self.is_full else small


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    measure: Callable[[Run], Awaitable[list[Told]]]
    is_extra: bool = False  # only when it is asked for, because it needs what most do not have


def _module(name: str) -> Any:
    return importlib.import_module(name)


async def _thread(measure: Callable[[], list[Told]]) -> list[Told]:
    return await asyncio.to_thread(measure)


async def _access(run: Run) -> list[Told]:
    return cast(list[Told], _module("bench_access").measure())


async def _validate(run: Run) -> list[Told]:
    return cast(list[Told], _module("bench_validate").measure())


async def _requests(run: Run) -> list[Told]:
    return cast(
        list[Told],
        await _module("bench_requests").measure(run.server, seconds=5.0 if run.is_full else 3.0),
    )


def _bench(
    module: str, *places: Literal["server", "folder"], **sizes: tuple[int, int]
) -> Callable[[Run], Awaitable[list[Told]]]:
    """Return what calls *module* with *places* of the run, and the full or the small of *sizes*."""

    def measure(run: Run) -> Awaitable[list[Told]]:
        given = (getattr(run, place) for place in places)
        found = _module(module).measure(*given, **{n: run.of(*size) for n, size in sizes.items()})
        return cast(Awaitable[list[Told]], found)

    return measure


_BOTH: Final = ("server", "folder")
PARTS: Final = (
    Part(name="access", measure=_access),
    Part(name="validate", measure=_validate),
    Part(name="start", measure=_bench("bench_start", "folder")),
    Part(name="size", measure=lambda run: _thread(_module("bench_size").measure)),
    Part(name="reconcile", measure=_bench("bench_reconcile", *_BOTH)),
    Part(name="memory", measure=_bench("bench_memory", *_BOTH)),
    Part(name="deploy", measure=_bench("bench_deploy", *_BOTH, rounds=(3, 1))),
    Part(name="requests", measure=_requests),
    Part(name="import", measure=_bench("bench_import", *_BOTH, rows=(1_000_000, 200_000))),
    Part(name="bulk", measure=_bench("bench_bulk", *_BOTH, rows=(1_000_000, 100_000))),
    Part(name="export", measure=_bench("bench_export", "server", rows=(1_000_000, 200_000))),
    Part(name="feed", measure=_bench("bench_feed", "server", changes=(200_000, 100_000))),
    Part(name="webhooks", measure=_bench("bench_webhooks", "server")),
    Part(
        name="time-travel", measure=_bench("bench_time_travel", "server", rows=(1_000_000, 50_000))
    ),
    Part(name="search", measure=_bench("bench_search", "server", rows=(1_000_000, 200_000))),
    Part(name="matching", measure=_bench("bench_matching", *_BOTH, rows=(1_000_000, 100_000))),
    Part(name="choices", measure=_bench("bench_choices", "server", rows=(1_000_000, 200_000))),
    Part(name="growth", measure=_bench("bench_growth", *_BOTH, is_full=(True, False))),
    Part(
        name="trigrams",
        measure=lambda run: _module("bench_trigrams").measure(run.of(1_000_000, 200_000)),
        is_extra=True,
    ),
    Part(name="peer", measure=_bench("bench_peer", "server", is_full=(True, False)), is_extra=True),
)
