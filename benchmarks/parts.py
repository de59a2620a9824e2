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
from typing import Any, Final, cast

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


PARTS: Final = (
    Part(name="access", measure=_access),
    Part(name="validate", measure=_validate),
    Part(name="start", measure=lambda run: _module("bench_start").measure(run.folder)),
    Part(name="size", measure=lambda run: _thread(_module("bench_size").measure)),
    Part(
        name="reconcile",
        measure=lambda run: _module("bench_reconcile").measure(run.server, run.folder),
    ),
    Part(
        name="memory", measure=lambda run: _module("bench_memory").measure(run.server, run.folder)
    ),
    Part(
        name="deploy",
        measure=lambda run: _module("bench_deploy").measure(
            run.server, run.folder, rounds=run.of(3, 1)
        ),
    ),
    Part(name="requests", measure=_requests),
    Part(
        name="import",
        measure=lambda run: _module("bench_import").measure(
            run.server, run.folder, rows=run.of(1_000_000, 200_000)
        ),
    ),
    Part(
        name="bulk",
        measure=lambda run: _module("bench_bulk").measure(
            run.server, run.folder, rows=run.of(1_000_000, 100_000)
        ),
    ),
    Part(
        name="export",
        measure=lambda run: _module("bench_export").measure(
            run.server, rows=run.of(1_000_000, 200_000)
        ),
    ),
    Part(
        name="feed",
        measure=lambda run: _module("bench_feed").measure(
            run.server, changes=run.of(200_000, 100_000)
        ),
    ),
    Part(name="webhooks", measure=lambda run: _module("bench_webhooks").measure(run.server)),
    Part(
        name="time-travel",
        measure=lambda run: _module("bench_time_travel").measure(
            run.server, run.of(1_000_000, 50_000)
        ),
    ),
    Part(
        name="search",
        measure=lambda run: _module("bench_search").measure(
            run.server, rows=run.of(1_000_000, 200_000)
        ),
    ),
    Part(
        name="matching",
        measure=lambda run: _module("bench_matching").measure(
            run.server, run.folder, rows=run.of(1_000_000, 100_000)
        ),
    ),
    Part(
        name="choices",
        measure=lambda run: _module("bench_choices").measure(
            run.server, rows=run.of(1_000_000, 200_000)
        ),
    ),
    Part(
        name="growth",
        measure=lambda run: _module("bench_growth").measure(
            run.server, run.folder, is_full=run.is_full
        ),
    ),
    Part(
        name="trigrams",
        measure=lambda run: _module("bench_trigrams").measure(run.of(1_000_000, 200_000)),
        is_extra=True,
    ),
    Part(
        name="peer",
        measure=lambda run: _module("bench_peer").measure(
            run.server, run.folder, is_full=run.is_full
        ),
        is_extra=True,
    ),
)
