"""When the operator runs: its pace, and that nothing but ``stop`` ends it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mdm_gitops.errors import WarehouseLocked
from mdm_gitops.logs import current_trace_id
from mdm_gitops.settings import OperatorSettings
from mdm_operator.loop import Pace, run

pytestmark = pytest.mark.anyio

AT_ONCE = Pace(interval_s=0.0, first_retry_s=0.0, jitter=0.0)
NEVER = Pace(interval_s=3600.0, first_retry_s=3600.0, jitter=0.0)


@pytest.mark.parametrize(
    ("failures", "expected_s"),
    [(0, 30.0), (1, 2.0), (2, 4.0), (3, 8.0), (8, 256.0), (9, 300.0), (10_000, 300.0)],
)
def test_delay(failures: int, expected_s: float) -> None:
    assert Pace(jitter=0.0).delay_s(failures) == expected_s


@pytest.mark.parametrize(("spread", "expected_s"), [(0.0, 27.0), (0.5, 30.0), (1.0, 33.0)])
def test_jitter(spread: float, expected_s: float) -> None:
    assert Pace(jitter=0.1).delay_s(0, spread=lambda: spread) == pytest.approx(expected_s)


def test_pace_of_settings() -> None:
    settings = OperatorSettings(IntervalSeconds=1, FirstRetrySeconds=2, MaxRetrySeconds=3)
    assert Pace.of(settings) == Pace(interval_s=1.0, first_retry_s=2.0, max_retry_s=3.0)


async def test_failures_are_survived_and_told(caplog: pytest.LogCaptureFixture) -> None:
    stop = asyncio.Event()
    outcomes = iter([WarehouseLocked("somebody applies", hint="wait"), ValueError("a bug"), None])

    async def step() -> None:
        outcome = next(outcomes)
        if outcome is None:
            stop.set()
        else:
            raise outcome

    async with asyncio.timeout(5):
        await run(step, stop=stop, pace=AT_ONCE)
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert told == [
        (logging.WARNING, "somebody applies (wait)"),
        (logging.ERROR, "reconcile failed, 2 in a row"),
    ]
    assert caplog.records[1].exc_info, "a bug keeps its traceback"


async def test_each_run_has_a_trace_id_of_its_own() -> None:
    stop = asyncio.Event()
    traces: list[str | None] = []

    async def step() -> None:
        traces.append(current_trace_id())
        if len(traces) == 3:
            stop.set()

    async with asyncio.timeout(5):
        await run(step, stop=stop, pace=AT_ONCE)
    assert len(set(traces)) == 3 and all(each and len(each) == 32 for each in traces)
    assert current_trace_id() is None


async def test_stop_ends_a_pause() -> None:
    stop, ran = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        ran.set()

    loop = asyncio.create_task(run(step, stop=stop, pace=NEVER))
    async with asyncio.timeout(5):
        await ran.wait()
        stop.set()
        await loop


async def test_wake_ends_a_pause_also_after_a_failure() -> None:
    stop, wake, runs = asyncio.Event(), asyncio.Event(), 0

    async def step() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            stop.set()
        if runs == 2:
            raise WarehouseLocked("somebody applies")

    async def ring() -> None:
        while not stop.is_set():
            wake.set()
            await asyncio.sleep(0.01)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(ring())
        group.create_task(run(step, stop=stop, wake=wake, pace=NEVER))
    assert runs == 3


async def test_what_happens_during_a_step_is_looked_at_after_it() -> None:
    stop, wake, runs = asyncio.Event(), asyncio.Event(), 0

    async def step() -> None:
        nonlocal runs
        runs += 1
        wake.set()  # a file is saved while the step reads
        if runs == 2:
            stop.set()

    async with asyncio.timeout(5):
        await run(step, stop=stop, wake=wake, pace=NEVER)
    assert runs == 2


async def test_stop_waits_for_the_step_under_way() -> None:
    stop, ended = asyncio.Event(), False

    async def step() -> None:
        nonlocal ended
        stop.set()
        await asyncio.sleep(0.05)
        ended = True

    await run(step, stop=stop, pace=NEVER)
    assert ended


async def test_cancellation_passes_through() -> None:
    async def step() -> None:
        await asyncio.sleep(3600)

    loop = asyncio.create_task(run(step, stop=asyncio.Event(), pace=NEVER))
    await asyncio.sleep(0)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
