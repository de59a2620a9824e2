"""What a benchmark tells: figures with their targets, curves, and how to take them on a busy machine.

A figure is a ratio of two times taken in one run, or a time or size that has a target of its own; a curve
is what one thing does while another grows. Times are the least of several rounds: what disturbs a
measurement only ever adds to it.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNITS: Final = {
    "ratio": "{:.2f} x",
    "s": "{:.3f} s",
    "ms": "{:.1f} ms",
    "MB": "{:.0f} MB",
    "n": "{:.0f}",
    "per_s": "{:,.0f}/s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    case: str
    value: float
    unit: str  # a key of UNITS
    limit: float | None = None  # None: told beside the others, without a target
    is_floor: bool = False  # the limit is the least that is wanted, not the most
    note: str = ""

    @property
    def is_met(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.is_floor else self.value <= self.limit

    @property
    def text(self) -> str:
        return UNITS[self.unit].format(self.value)

    @property
    def limit_text(self) -> str:
        if self.limit is None:
            return ""
        return f"{'>=' if self.is_floor else '<='} {UNITS[self.unit].format(self.limit)}"

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "met" if self.is_met else "MISSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a plot: points of (x, y), both above zero, since the axes are logarithmic."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One plot, with few lines in it. *x* and *y* say what and in which unit."""

    title: str  # no other of the same part has it
    x: str
    y: str
    series: tuple[Series, ...]
    note: str = ""


Told = Figure | Curve


def best_s(run: Callable[[], object], *, rounds: int = 5) -> float:
    """Return the seconds of the quickest of *rounds*."""
    return min(_timed(run) for _ in range(rounds))


def _timed(run: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


async def best_of(run: Callable[[], Awaitable[object]], *, rounds: int = 5) -> float:
    """The same for what is awaited."""
    times = []
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        await run()
        times.append(time.perf_counter() - started)
    return min(times)


def processor_s(pid: int, *, ended_children: bool = False) -> float:
    """Return the processor time of a process, or of its children that have ended (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    user, system = fields[13:15] if ended_children else fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(text.rpartition(")")[2].split()[1])


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kilobytes) / 1024
