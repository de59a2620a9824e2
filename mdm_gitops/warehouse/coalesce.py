"""Coalescing: requests that wait while a statement is under way share the next one.

There is no timer. An idle lane starts at once, so a lone request loses no time; under load each
statement serves all that arrived meanwhile, and one commit serves many callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MAX_BATCH: Final = 128
WIDTH: Final = 2

I = TypeVar("I")
R = TypeVar("R")


@dataclass(slots=True)
class _Lane(Generic[I, R]):
    """The requests of one kind that may share a statement."""

    loop: asyncio.AbstractEventLoop
    waiting: deque[tuple[I, asyncio.Future[R]]] = field(default_factory=deque)
    running: int = 0


class Coalescer(Generic[I, R]):
    """``await coalescer.submit(kind, item)`` returns what *flush* gave for the item.

    *flush* gets the items of one kind and returns a result or an exception for each, in their order.
    Two items with the same *subject* are never in one batch, and keep their order of arrival; without
    one all can be. At most *width* batches of a kind are under way at a time.
    """

    def __init__(
        self,
        flush: Callable[[Hashable, Sequence[I]], Awaitable[Sequence[R | BaseException]]],
        *,
        subject: Callable[[I], Hashable] | None,
        max_batch: int = MAX_BATCH,
        width: int = WIDTH,
    ) -> None:
        self._flush = flush
        self._subject = subject
        self._max_batch = max_batch
        self._width = width
        self._lanes: dict[Hashable, _Lane[I, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, kind: Hashable, item: I) -> asyncio.Future[R]:
        """Return what will hold the result of *item*; a caller who gives up does not stop the batch."""
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = _Lane(asyncio.get_running_loop())
        future: asyncio.Future[R] = lane.loop.create_future()
        lane.waiting.append((item, future))
        if lane.running < self._width:
            lane.running += 1
            task = asyncio.create_task(self._drain(kind, lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return future

    async def aclose(self) -> None:
        """Wait for the batches that are under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _drain(self, kind: Hashable, lane: _Lane[I, R]) -> None:
        await asyncio.sleep(0)  # let the requests of this turn of the loop arrive
        try:
            while lane.waiting:
                await self._run(kind, self._take(lane))
        finally:
            lane.running -= 1
            if not lane.running and not lane.waiting:
                self._lanes.pop(kind, None)

    def _take(self, lane: _Lane[I, R]) -> list[tuple[I, asyncio.Future[R]]]:
        taken: list[tuple[I, asyncio.Future[R]]] = []
        seen: set[Hashable] = set()
        later: list[tuple[I, asyncio.Future[R]]] = []
        while lane.waiting and len(taken) < self._max_batch:
            each = lane.waiting.popleft()
            if each[1].cancelled():
                continue  # nobody waits any more, and nothing was begun
            if self._subject is not None:
                subject = self._subject(each[0])
                if subject in seen:
                    later.append(each)
                    continue
                seen.add(subject)
            taken.append(each)
        lane.waiting.extendleft(reversed(later))
        return taken

    async def _run(self, kind: Hashable, batch: Sequence[tuple[I, asyncio.Future[R]]]) -> None:
        if not batch:
            return
        try:
            results = await self._flush(kind, [item for item, _ in batch])
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


def _fail(batch: Sequence[tuple[I, asyncio.Future[R]]], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else ConnectionError())
