"""Delivering to one subscription: pages of the feed, in order per record, and what has to wait.

Different records go at the same time, the changes of one record one after the other. What fails is
kept in the table and tried again by the schedule, and later changes of that record wait behind it. When
a receiver answers nothing but failures the feed itself is the queue: it is asked now and then with one
change, and no further page is taken before that has come through, so the table stays small.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar
from uuid import UUID

from mdm_gitops.deliver.pages import Page, Pages
from mdm_gitops.deliver.payload import RowEvent, body_of
from mdm_gitops.deliver.queue import Due, Queue, Undelivered
from mdm_gitops.deliver.schedule import (
    GIVE_UP_AFTER_S,
    MAX_QUIET_S,
    delay_before_attempt_s,
    probe_delay_s,
)
from mdm_gitops.deliver.sender import Attempt, Sender
from mdm_gitops.deliver.signing import signature_headers
from mdm_gitops.deliver.subscriptions import Subscription
from mdm_gitops.deliver.targets import shown_url
from mdm_gitops.errors import SettingsError
from mdm_gitops.logs import current_trace_id, new_trace_id, trace_as
from mdm_gitops.model import Entity

CONCURRENT: Final = 32
# So many failures in a row, and no success between them, mean that the receiver is down.
DOWN_AFTER: Final = 20
_BUSY: Final = frozenset({429, 503})
_UNKNOWN: Final = -1.0  # failing, for how long the table knows
# A cursor that only passed over changes of no interest is written down so seldom.
_LAZY_S: Final = 2.0
_EXPIRED: Final = "removed by retention before it could be delivered"
_LOG: Final = logging.getLogger("mdm_gitops.webhooks")
T = TypeVar("T")
R = TypeVar("R")


class Knowledge(Protocol):
    """What is known of the entities that changes belong to, at one *revision* of the store."""

    @property
    def revision(self) -> int: ...

    def entity(self, entity_id: int) -> Entity | None: ...

    def shown_columns(self, entity_id: int) -> frozenset[str]:
        """Return the columns that are there and not restricted."""


class Counting(Protocol):
    """Where outcomes are counted (delivered, failed, dead or blocked), and how far each is behind."""

    def note_delivery(self, webhook: str, outcome: str, seconds: float) -> None: ...

    def note_behind(self, webhook: str, changes: int) -> None: ...


class Receiver:
    """Delivers to one subscription until it is stopped; made anew when the subscription changes.

    *renewed* waits until what is known is as new as the given revision.
    """

    def __init__(
        self,
        subscription: Subscription,
        queue: Queue,
        pages: Pages,
        *,
        sender: Sender,
        knowledge: Callable[[], Knowledge],
        renewed: Callable[[int], Awaitable[None]],
        counting: Counting,
        chance: random.Random,
    ) -> None:
        self._subscription = subscription
        self._queue = queue
        self._pages = pages
        self._sender = sender
        self._knowledge = knowledge
        self._renewed = renewed
        self._counting = counting
        self._chance = chance
        self._position = self._stored_position = subscription.position
        self._stored_at = time.monotonic()
        self._failures = self._probes = 0
        self._failing_from = 0.0 if subscription.failing_since is None else _UNKNOWN
        self._has_waiting = True  # until the table has said otherwise
        self._quiet_until = 0.0
        self._ahead: tuple[int, asyncio.Task[Page]] | None = None
        self.is_disabled = False
        self.is_stopping = False  # what is not sent yet waits in the table, for whoever comes next

    @property
    def position(self) -> int:
        return self._position

    @property
    def stored_position(self) -> int:
        return self._stored_position

    def note_due(self) -> None:
        """Something waits in the table that this receiver may not know of."""
        self._has_waiting = True

    async def work(self, last_id: int) -> bool:
        """Do what there is to do now; return whether there is more at once.

        *last_id* is the end of the feed.
        """
        if time.monotonic() < self._quiet_until:
            return False
        if self._is_down:
            return await self._probe()
        more = await self._retry() if self._has_waiting else False
        if self._is_down or self.is_disabled:
            return False
        if self._position < last_id:
            await self._next_page(last_id)
            more = more or self._position < last_id
        return more

    async def idle_s(self) -> float | None:
        """Return after how many seconds there is something to do but for the feed, None if nothing."""
        quiet_s = max(0.0, self._quiet_until - time.monotonic())
        if self._is_down:
            return quiet_s
        due_s = await self._queue.next_due_s() if self._has_waiting else None
        if due_s is None:
            self._has_waiting = False
        if self._position > self._stored_position:
            await self._store_position(unless_younger_than_s=_LAZY_S)
            due_s = min(_LAZY_S, due_s or _LAZY_S)
        return max(quiet_s, due_s) if due_s is not None else quiet_s or None

    async def settle(self) -> None:
        """Write down how far this has come, before another one goes on."""
        self._take_ahead()
        await self._store_position()

    @property
    def _is_down(self) -> bool:
        return self._failures >= DOWN_AFTER

    # --- pages ---

    async def _next_page(self, last_id: int) -> None:
        ahead = self._take_ahead()
        page = await (ahead or self._pages.page(self._position, last_id))
        await self._be_as_new_as(page)
        if self.is_stopping:
            return
        if page.end < last_id:
            self._read_ahead(page.end, last_id)
        self._tell_removed(page.end - self._position - len(page.events))
        chains = _by_record(event for event in page.events if self._wants(event))
        if not chains:  # of no interest: after a crash it is looked at again
            self._position = page.end
            await self._store_position(unless_younger_than_s=_LAZY_S)
            return
        kept = await self._deliver_chains(chains)
        if not self.is_disabled:  # else the page is met again when the subscription is switched on
            self._position = page.end
            await self._store_position(kept)

    def _read_ahead(self, after: int, last_id: int) -> None:
        """Let the next page be read while this one is delivered."""
        task = asyncio.create_task(self._pages.page(after, last_id))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ahead = after, task

    def _take_ahead(self) -> asyncio.Task[Page] | None:
        """Return what is being read, if it is what comes next."""
        if self._ahead is None:
            return None
        (after, task), self._ahead = self._ahead, None
        return task if after == self._position else None

    async def _deliver_chains(self, chains: Mapping[UUID, Sequence[RowEvent]]) -> list[Undelivered]:
        behind = await self._behind(chains)
        kept = [_waiting(event) for record in behind for event in chains[record]]
        free = [chain for record, chain in chains.items() if record not in behind]
        for result in await _all(self._chain, free):
            kept += result
        return kept

    async def _store_position(
        self, kept: Sequence[Undelivered] = (), *, unless_younger_than_s: float = 0.0
    ) -> None:
        now = time.monotonic()
        if not kept and (
            self._position == self._stored_position or now < self._stored_at + unless_younger_than_s
        ):
            return
        self._note_kept(kept)
        self._position = await self._queue.finish(self._stored_position, self._position, kept)
        self._stored_position, self._stored_at = self._position, now

    async def _be_as_new_as(self, page: Page) -> None:
        """Definitions may have changed since: what is restricted, and what this subscription wants."""
        if page.revision > self._knowledge().revision:
            await self._renewed(page.revision)

    def _wants(self, event: RowEvent) -> bool:
        entity = self._knowledge().entity(event.entity_id)
        return self._subscription.wants(action=event.action, entity=entity, name=event.entity_name)

    async def _behind(self, records: Collection[UUID]) -> frozenset[UUID]:
        return await self._queue.waiting_among(records) if self._has_waiting else frozenset()

    async def _chain(self, events: Sequence[RowEvent]) -> list[Undelivered]:
        """Deliver the changes of one record; after one that must wait the others wait, too."""
        kept: list[Undelivered] = []
        for number, event in enumerate(events):
            undelivered = await self._deliver(event, attempt=1)
            if undelivered is None:
                continue
            kept.append(undelivered)
            if undelivered.state == "waiting":
                return kept + [_waiting(each) for each in events[number + 1 :]]
        return kept

    def _note_kept(self, kept: Iterable[Undelivered]) -> None:
        if any(each.state == "waiting" for each in kept):
            self._has_waiting = True

    # --- retries ---

    async def _retry(self) -> bool:
        """Try again what is due; return whether that brought something through."""
        return await self._try_again(await self._queue.due(CONCURRENT))

    async def _probe(self) -> bool:
        """Ask a receiver that is down with one change; return whether it answers.

        This costs the change an attempt only if its time has come.
        """
        due = await self._queue.oldest()
        if due is None:  # all were given up: only the feed can tell
            self._failures = DOWN_AFTER - 1
            return True
        self._probes += 1
        return await self._try_again([due])

    async def _try_again(self, due: Sequence[Due]) -> bool:
        results = await _all(self._again, due)
        done = [tried.event_id for tried, left in results if left is None]
        if done:
            await self._queue.delivered(done)
        await self._queue.keep([left for tried, left in results if left and _counts(tried, left)])
        return bool(done)

    async def _again(self, due: Due) -> tuple[Due, Undelivered | None]:
        page = await self._pages.one(due.event_id)
        await self._be_as_new_as(page)
        for event in page.events:
            return due, await self._deliver(event, attempt=due.attempts + 1)
        return due, Undelivered(
            event_id=due.event_id,
            record_id=due.record_id,
            state="dead",
            attempts=due.attempts,
            last_error=_EXPIRED,
        )

    # --- one change ---

    async def _deliver(self, event: RowEvent, *, attempt: int) -> Undelivered | None:
        """Try once; return what is left to do, None if it is delivered."""
        if self.is_disabled or self.is_stopping or self._must_wait(attempt):
            return _waiting(event, attempts=attempt - 1)
        trace_as(new_trace_id())
        try:
            body = self._body(event)
        except (ValueError, RecursionError):
            return _unwritable(event)
        told = await self._send(event, body)
        if told.delivered:
            self._counting.note_delivery(self._name, "delivered", told.seconds)
            await self._note_success()
            return None
        return await self._undelivered(event, told, attempt)

    def _must_wait(self, attempt: int) -> bool:
        return time.monotonic() < self._quiet_until or (attempt == 1 and self._is_down)

    def _body(self, event: RowEvent) -> bytes:
        return body_of(event, shown=self._knowledge().shown_columns(event.entity_id))

    async def _send(self, event: RowEvent, body: bytes) -> Attempt:
        message_id = f"evt_{event.event_id}_{self._subscription.webhook_id.hex}"
        try:
            headers = delivery_headers(self._subscription, message_id, event.event_id, body)
        except SettingsError as error:
            return Attempt(status=0, seconds=0.0, error=str(error))
        return await self._sender.send(self._subscription.webhook.url, body, headers)

    async def _undelivered(self, event: RowEvent, told: Attempt, attempt: int) -> Undelivered:
        wait_s = delay_before_attempt_s(
            attempt + 1, retry_after_s=told.retry_after_s, chance=self._chance
        )
        state = "blocked" if told.blocked else "waiting" if wait_s is not None else "dead"
        self._counting.note_delivery(
            self._name, "failed" if state == "waiting" else state, told.seconds
        )
        if told.blocked:
            self._tell_blocked(told)
        else:
            self._tell_failed(event, told, attempt)
            await self._note_failure(told)
        return Undelivered(
            event_id=event.event_id,
            record_id=UUID(event.record_id),
            state=state,
            attempts=attempt,
            wait_s=wait_s or 0.0,
            last_status=told.status,
            last_error=told.error,
        )

    async def _note_success(self) -> None:
        was_down = self._is_down
        self._failures = self._probes = 0
        self._quiet_until = 0.0
        if self._failing_from:
            self._failing_from = 0.0
            await self._queue.note_working()
        if was_down:
            self._has_waiting = True
            await self._queue.hurry()

    async def _note_failure(self, told: Attempt) -> None:
        self._failures += 1
        if self._failing_from in (0.0, _UNKNOWN):
            now = self._failing_from = time.monotonic()
            seconds = await self._queue.note_failing()
            if self._failing_from:  # nothing came through meanwhile
                self._failing_from = now - seconds
        self._be_quiet(told)
        if told.gone:
            await self._disable("the receiver answered 410: it wants no more")
        if self._failing_from and time.monotonic() - self._failing_from > GIVE_UP_AFTER_S:
            await self._disable("nothing but failures for 120 hours")

    def _be_quiet(self, told: Attempt) -> None:
        """Leave a receiver alone for a while that is down, or says so itself."""
        quiet_s = probe_delay_s(self._probes, chance=self._chance) if self._is_down else 0.0
        if told.status in _BUSY and told.retry_after_s:
            quiet_s = max(quiet_s, min(told.retry_after_s, MAX_QUIET_S))
        if quiet_s:
            self._quiet_until = max(self._quiet_until, time.monotonic() + quiet_s)

    async def _disable(self, reason: str) -> None:
        if not self.is_disabled:
            self.is_disabled = True
            await self._queue.disable(reason)

    def _tell_removed(self, number: int) -> None:
        """The ids of the feed have no gaps but what retention has removed."""
        if number:
            extra = {"webhook": self._name, "changes": number}
            _LOG.warning("retention removed changes that a webhook had not come to", extra=extra)

    def _tell_failed(self, event: RowEvent, told: Attempt, attempt: int) -> None:
        extra = {"webhook": self._name, "change": event.event_id, "attempt": attempt}
        extra |= {"status": told.status or None, "reason": told.error or None}
        _LOG.info("a delivery failed", extra=extra)

    def _tell_blocked(self, told: Attempt) -> None:
        _LOG.warning(
            "webhook blocked",
            extra={
                "webhook": self._name,
                "mode": self._sender.rules.mode.value,
                "url": shown_url(self._subscription.webhook.url),
                "reason": told.error,
            },
        )

    @property
    def _name(self) -> str:
        return self._subscription.webhook.name


def delivery_headers(
    subscription: Subscription, message_id: str, event_id: int, body: bytes
) -> dict[str, str]:
    """Return the headers of one attempt, signed with each key that is valid now.

    Raises:
        SettingsError: the secret cannot be read.
    """
    timestamp_s = int(time.time())
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp_s)}
    signatures = []
    for key in subscription.signing_keys():
        signed = signature_headers(key, message_id=message_id, timestamp_s=timestamp_s, body=body)
        signatures.append(signed["webhook-signature"])
    if signatures:
        headers["webhook-signature"] = " ".join(signatures)
    if (trace_id := current_trace_id()) is not None:
        headers["traceparent"] = f"00-{trace_id}-{event_id + 1:016x}-01"
    headers["mdm-sequence"] = str(event_id)
    return headers


def _by_record(events: Iterable[RowEvent]) -> dict[UUID, list[RowEvent]]:
    chains: dict[UUID, list[RowEvent]] = {}
    for event in events:
        chains.setdefault(UUID(event.record_id), []).append(event)
    return chains


def _waiting(event: RowEvent, *, attempts: int = 0) -> Undelivered:
    """A change that was not tried now."""
    return Undelivered(
        event_id=event.event_id,
        record_id=UUID(event.record_id),
        state="waiting",
        attempts=attempts,
        was_tried=False,
    )


def _unwritable(event: RowEvent) -> Undelivered:
    return Undelivered(
        event_id=event.event_id,
        record_id=UUID(event.record_id),
        state="dead",
        attempts=0,
        last_error="the change cannot be written as JSON",
    )


def _counts(tried: Due, left: Undelivered) -> bool:
    """Whether the row of *tried* is another one now."""
    return left.state != "waiting" or (tried.is_due and left.was_tried)


async def _all(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Return what *work* gives for each item, of which ``CONCURRENT`` are under way at a time.

    When one fails the others are cancelled: nothing goes on behind the caller's back.
    """
    left, results = iter(items), []

    async def take() -> None:
        for item in left:
            results.append(await work(item))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENT, len(items))):
                group.create_task(take())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return results
