"""Delivering to one subscription: pages of the feed, in order per record, and what has to wait.

Different records go at the same time, the changes of one record one after the other. What fails is
kept in the table and tried again by the schedule, and later changes of that record wait behind it. When
a receiver answers nothing but failures the feed itself is the queue: no further page is taken before
a retry has come through, so the table stays small.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID

from mdm_gitops.deliver.payload import RowEvent, body_of
from mdm_gitops.deliver.queue import PAGE, Due, Queue, Undelivered
from mdm_gitops.deliver.schedule import GIVE_UP_AFTER_S, delay_before_attempt_s
from mdm_gitops.deliver.sender import Attempt, Sender
from mdm_gitops.deliver.signing import signature_headers
from mdm_gitops.deliver.subscriptions import Subscription
from mdm_gitops.deliver.targets import shown_url
from mdm_gitops.errors import SettingsError
from mdm_gitops.model import Entity

CONCURRENT: Final = 32
# So many failures in a row, and no success between them, mean that the receiver is down.
DOWN_AFTER: Final = 20
_EXPIRED: Final = "removed by retention before it could be delivered"
_LOG: Final = logging.getLogger("mdm_gitops.webhooks")


class Knowledge(Protocol):
    """What is known of the entities that changes belong to."""

    def entity(self, entity_id: int) -> Entity | None: ...


class Counting(Protocol):
    """Where outcomes are counted: delivered, failed, dead or blocked."""

    def note_delivery(self, webhook: str, outcome: str, seconds: float) -> None: ...


class Receiver:
    """Delivers to one subscription until it is cancelled; made anew when the subscription changes."""

    def __init__(
        self,
        subscription: Subscription,
        queue: Queue,
        *,
        sender: Sender,
        knowledge: Callable[[], Knowledge],
        counting: Counting,
        chance: random.Random,
    ) -> None:
        self._subscription = subscription
        self._queue = queue
        self._sender = sender
        self._knowledge = knowledge
        self._counting = counting
        self._chance = chance
        self._position = subscription.position
        self._failures = 0
        self._is_failing = subscription.failing_since is not None
        self._slots = asyncio.Semaphore(CONCURRENT)
        self.is_disabled = False
        self.is_stopping = False  # what is not sent yet waits in the table, for whoever comes next

    @property
    def position(self) -> int:
        return self._position

    async def work(self, last_id: int) -> bool:
        """Do what there is to do now; return whether there is more at once.

        *last_id* is the end of the feed.
        """
        more = await self._retry()
        if self._is_down or self.is_disabled:
            return False
        if self._position < last_id:
            await self._next_page(last_id)
            more = more or self._position < last_id
        return more

    async def idle_s(self) -> float | None:
        """Return after how many seconds there will be a retry, None if none is planned."""
        seconds = await self._queue.next_due_s()
        if seconds is None and self._is_down:
            self._failures = 0  # all were given up: only the feed can tell whether it answers again
            return 0.0
        return seconds

    @property
    def _is_down(self) -> bool:
        return self._failures >= DOWN_AFTER

    # --- pages ---

    async def _next_page(self, last_id: int) -> None:
        events = [e for e in await self._queue.page(self._position) if e.event_id <= last_id]
        end = min(last_id, self._position + PAGE)
        wanted = [event for event in events if self._wants(event)]
        chains = _by_record(wanted)
        behind = await self._queue.waiting_among(chains) if chains else frozenset()
        kept = [_waiting(event) for record in behind for event in chains[record]]
        free = [chain for record, chain in chains.items() if record not in behind]
        for result in await asyncio.gather(*(self._chain(chain) for chain in free)):
            kept += result
        if self.is_disabled:
            return  # the page is met again when the subscription is switched on
        self._position = await self._queue.finish(self._position, end, kept)

    def _wants(self, event: RowEvent) -> bool:
        entity = self._knowledge().entity(event.entity_id)
        return self._subscription.wants(action=event.action, entity=entity, name=event.entity_name)

    async def _chain(self, events: Sequence[RowEvent]) -> list[Undelivered]:
        """Deliver the changes of one record; after one that must wait the others wait, too."""
        for number, event in enumerate(events):
            undelivered = await self._deliver(event, attempt=1)
            if undelivered is None:
                continue
            if undelivered.state == "waiting":
                return [undelivered, *(_waiting(each) for each in events[number + 1 :])]
            rest = await self._chain(events[number + 1 :])
            return [undelivered, *rest]
        return []

    # --- retries ---

    async def _retry(self) -> bool:
        """Try again what is due; return whether that brought something through."""
        due = await self._queue.due(1 if self._is_down else CONCURRENT)
        results = await asyncio.gather(*(self._again(each) for each in due))
        done = [d.event_id for d, result in zip(due, results, strict=True) if result is None]
        if done:
            await self._queue.delivered(done)
        await self._queue.keep([result for result in results if result is not None])
        return bool(done)

    async def _again(self, due: Due) -> Undelivered | None:
        event = await self._queue.event(due.event_id)
        if event is None:
            return Undelivered(
                event_id=due.event_id,
                record_id=due.record_id,
                state="dead",
                attempts=due.attempts,
                last_error=_EXPIRED,
            )
        return await self._deliver(event, attempt=due.attempts + 1)

    # --- one change ---

    async def _deliver(self, event: RowEvent, *, attempt: int) -> Undelivered | None:
        """Try once; return what is left to do, None if it is delivered."""
        async with self._slots:
            if self.is_disabled or self.is_stopping:
                return _waiting(event)
            told = await self.send(event)
        if told.delivered:
            self._counting.note_delivery(self._name, "delivered", told.seconds)
            await self._note_success()
            return None
        return await self._undelivered(event, told, attempt)

    async def send(self, event: RowEvent) -> Attempt:
        """Post one change once."""
        entity = self._knowledge().entity(event.entity_id)
        restricted = (
            frozenset(column.name for column in entity.columns if column.restricted)
            if entity is not None
            else _Everything()
        )
        body = body_of(event, restricted=restricted)
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
        self._failures = 0
        if self._is_failing:
            self._is_failing = False
            await self._queue.note_working()
        if was_down:
            await self._queue.hurry()

    async def _note_failure(self, told: Attempt) -> None:
        self._failures += 1
        self._is_failing = True
        failing_s = await self._queue.note_failing()
        if told.gone:
            await self._disable("the receiver answered 410: it wants no more")
        if failing_s > GIVE_UP_AFTER_S:
            await self._disable("nothing but failures for 120 hours")

    async def _disable(self, reason: str) -> None:
        if not self.is_disabled:
            self.is_disabled = True
            await self._queue.disable(reason)

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


class _Everything(frozenset[str]):
    """All names: of an entity that is gone nobody knows which values were restricted."""

    def __contains__(self, name: object) -> bool:
        return True


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
    return {**headers, "mdm-sequence": str(event_id)}


def _by_record(events: Iterable[RowEvent]) -> dict[UUID, list[RowEvent]]:
    chains: dict[UUID, list[RowEvent]] = {}
    for event in events:
        chains.setdefault(UUID(event.record_id), []).append(event)
    return chains


def _waiting(event: RowEvent) -> Undelivered:
    """A change that waits behind an older one of its record."""
    return Undelivered(
        event_id=event.event_id,
        record_id=UUID(event.record_id),
        state="waiting",
        attempts=0,
    )
