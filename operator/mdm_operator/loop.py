"""Run one reconcile step again and again, until told to stop.

The loop knows when to run, not what a run does: ``step`` is passed in. It is level-triggered: each
run compares what Git says with what is there, from scratch, so a lost wake-up costs latency and
never correctness.

It ends only through *stop*, and only between two runs. A step that fails is logged and tried again,
later each time; cancellation passes straight through.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mdm_gitops.errors import MdmError
from mdm_gitops.logs import tracing
from mdm_gitops.settings import OperatorSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    interval_s: float = 30.0  # between two good runs
    first_retry_s: float = 2.0  # doubles with each failure in a row ...
    max_retry_s: float = 300.0  # ... up to this
    jitter: float = 0.1  # share of the delay, either way; keeps replicas apart

    @classmethod
    def of(cls, settings: OperatorSettings) -> Pace:
        return cls(
            interval_s=settings.IntervalSeconds,
            first_retry_s=settings.FirstRetrySeconds,
            max_retry_s=settings.MaxRetrySeconds,
        )

    def delay_s(self, failures: int, *, spread: Callable[[], float] = random.random) -> float:
        """Seconds to wait after *failures* failed runs in a row (0: the run was good).

        *spread* returns a number from 0 to 1 that says where in the jitter to be.
        """
        delay = self.interval_s
        if failures:
            delay = min(self.first_retry_s * 2 ** min(failures - 1, 30), self.max_retry_s)
        return delay * (1 + self.jitter * (2 * spread() - 1))


async def run(
    step: Callable[[], Awaitable[object]],
    *,
    stop: asyncio.Event,
    pace: Pace,
    wake: asyncio.Event | None = None,
) -> None:
    """Run *step* at *pace* until *stop*; *wake* ends a pause early, also one after a failure.

    Each run has a trace id of its own in the log.
    """
    wake = wake or asyncio.Event()
    failures = 0
    while not stop.is_set():
        wake.clear()  # before the step, which sees all that happened until here
        with tracing():
            failures = 0 if await _succeeds(step, failures) else failures + 1
        await _either(stop, wake, timeout_s=pace.delay_s(failures))


async def _succeeds(step: Callable[[], Awaitable[object]], failures: int) -> bool:
    try:
        await step()
    except MdmError as error:  # expected: said in one line
        hint = f" ({error.hint})" if error.hint else ""
        logger.warning("%s%s", error, hint, extra={"code": error.kind_code})
        return False
    except Exception:  # a bug: keep the traceback, keep running
        logger.exception("reconcile failed, %d in a row", failures + 1)
        return False
    return True


async def _either(*events: asyncio.Event, timeout_s: float) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
