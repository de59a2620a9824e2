"""The dispatcher: sees what is new in the feed, and keeps one receiver going per subscription.

Any number of processes may run one; an advisory lock per subscription, held by the session of one
connection, sees to it that each subscription has one receiver. When that session ends, however it ends,
the locks are free and another process takes over where the cursor stands. Receivers are tasks of their
own: a slow one holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.feed import number_changes
from mdm_gitops.deliver.pages import Pages
from mdm_gitops.deliver.queue import Queue
from mdm_gitops.deliver.receiver import Counting, Receiver
from mdm_gitops.deliver.sender import Sender
from mdm_gitops.deliver.subscriptions import Subscription, read_subscriptions
from mdm_gitops.deliver.targets import TargetRules
from mdm_gitops.model import Entity
from mdm_gitops.warehouse.connect import SessionLimits, connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store, StoreState

BUSY_S: Final = 0.02  # between two looks at the feed while there is something new
IDLE_S: Final = 0.2
SUBSCRIPTIONS_S: Final = 1.0  # between two looks at the subscriptions
GRACE_S: Final = 16.0  # one attempt may take so long
_AGAIN_S: Final = 2.0  # after the connection was lost
_REST_S: Final = 30.0  # for a receiver that met what nobody thought of
_BRIEFLY_S: Final = 0.1  # most receivers stop within this
_LOCK_CLASS: Final = "hashtext('mdm webhook ' || %(config)s)"
_LOCK: Final = f"SELECT pg_try_advisory_lock({_LOCK_CLASS}, hashtext(%(webhook)s))"
_UNLOCK: Final = f"SELECT pg_advisory_unlock({_LOCK_CLASS}, hashtext(%(webhook)s))"
_LAST: Final = 'SELECT last_id FROM "{config}".feed_position'
_LIMITS: Final = SessionLimits(statement_timeout_s=30, lock_timeout_s=10)
_LOG: Final = logging.getLogger("mdm_gitops.webhooks")


class NoCounting:
    """Counts nothing."""

    def note_delivery(self, webhook: str, outcome: str, seconds: float) -> None:
        return

    def note_behind(self, webhook: str, changes: int) -> None:
        return


@dataclass(slots=True, kw_only=True)
class _Running:
    subscription: Subscription
    receiver: Receiver
    task: asyncio.Task[None]
    noted_position: int  # before the subscriptions were read
    is_poked: bool = False  # a retry is due, also one that a person asked for

    def stop(self) -> None:
        self.receiver.is_stopping = True


@dataclass(slots=True, kw_only=True)
class _Session:
    """What lives and dies with one connection. *turn* is whose statement it carries."""

    conn: AsyncConnection[Any]
    pages: Pages
    turn: asyncio.Lock
    resting: dict[UUID, float] = field(default_factory=dict)  # until when


class _Known:
    """The entities of one state of the store by their number, archived ones included."""

    def __init__(self, state: StoreState) -> None:
        self.revision = state.revision
        stored = (*state.removed, *state.entities.values())
        self._entities = {entity.entity_id: entity for entity in stored}
        self._shown: dict[int, frozenset[str]] = {}

    def entity(self, entity_id: int) -> Entity | None:
        stored = self._entities.get(entity_id)
        return stored.definition if stored is not None else None

    def shown_columns(self, entity_id: int) -> frozenset[str]:
        shown = self._shown.get(entity_id)
        if shown is None:
            entity = self.entity(entity_id)
            columns = entity.columns if entity is not None else ()
            shown = frozenset(column.name for column in columns if not column.restricted)
            self._shown[entity_id] = shown
        return shown


class Dispatcher:
    """``await dispatcher.run(stopping)`` until *stopping* is set; requests under way are finished first."""

    def __init__(
        self,
        url: str,
        *,
        schemas: Schemas,
        rules: TargetRules,
        counting: Counting | None = None,
        chance: random.Random | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._url = url
        self._schemas = schemas
        self._rules = rules
        self._counting = counting or NoCounting()
        self._chance = chance or random.Random()
        self._timeout_s = timeout_s
        self._store = Store(schemas)
        self._known: _Known | None = None
        self._is_stale = False
        self._last_id = 0
        self._moved = asyncio.Condition()
        self._running: dict[UUID, _Running] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until *stopping* is set, over all losses of the connection."""
        while not stopping.is_set():
            try:
                await self._run_session(stopping)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must be delivered to
                reason = type(error).__name__
                _LOG.warning("webhooks wait for the warehouse", extra={"reason": reason})
                await _pause(stopping, _AGAIN_S)

    async def _run_session(self, stopping: asyncio.Event) -> None:
        """Deliver for as long as the connection lives; its locks are what makes us the one."""
        conn = await connect(self._url, application_name="mdm-gitops webhooks", limits=_LIMITS)
        async with conn:
            turn = asyncio.Lock()
            pages = Pages(conn, turn=turn, schemas=self._schemas)
            try:
                await self._look_after(_Session(conn=conn, pages=pages, turn=turn), stopping)
            finally:
                await self._stop_all()

    async def _look_after(self, session: _Session, stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        next_look = 0.0
        while not stopping.is_set():
            if self._is_stale or loop.time() >= next_look:
                await self._look_at_subscriptions(session)
                next_look = loop.time() + SUBSCRIPTIONS_S
            is_new = await self._look_at_feed(session) if self._running else False
            await _pause(stopping, BUSY_S if is_new else IDLE_S)

    async def _look_at_subscriptions(self, session: _Session) -> None:
        """Learn what is so now. What is known of entities is never newer than the subscriptions."""
        self._is_stale = False
        for running in self._running.values():
            running.noted_position = running.receiver.stored_position
        async with session.turn:
            known = _Known(await self._store.current(session.conn))
            found = await read_subscriptions(session.conn, schemas=self._schemas)
        await self._end_some(session, found)
        self._known = known
        await self._wake()
        await self._begin_some(session, found)
        session.pages.share_among(len(self._running))
        for running in self._running.values():
            behind = max(0, self._last_id - running.receiver.position)
            self._counting.note_behind(running.subscription.webhook.name, behind)

    async def _look_at_feed(self, session: _Session) -> bool:
        """Number what is new, and wake the receivers if there is something."""
        async with session.turn:
            await number_changes(session.conn, schemas=self._schemas)
            query = _LAST.format(config=self._schemas.config)
            row = await (await session.conn.execute(query.encode(), prepare=True)).fetchone()
        last_id = int(row[0]) if row else 0
        if last_id == self._last_id:
            return False
        self._last_id = last_id
        await self._wake()
        return True

    async def _wake(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    # --- receivers ---

    async def _end_some(self, session: _Session, found: Mapping[UUID, Subscription]) -> None:
        """Stop those whose subscription is another one now, and clear away those that have ended.

        One that waits for an answer ends later; nobody waits for it.
        """
        for webhook_id, running in self._running.items():
            wanted = found.get(webhook_id)
            if wanted is None or _changed(wanted, running) or not wanted.is_delivered:
                running.stop()
            elif wanted.has_due:
                running.is_poked = True
        await self._wake()
        ending = [each.task for each in self._running.values() if each.receiver.is_stopping]
        if ending:
            await asyncio.wait(ending, timeout=_BRIEFLY_S)
        for webhook_id, running in list(self._running.items()):
            if running.task.done():
                del self._running[webhook_id]
                self._counting.note_behind(running.subscription.webhook.name, 0)
                self._note_end(session, running)
                await self._lock(session, _UNLOCK, webhook_id)

    def _note_end(self, session: _Session, running: _Running) -> None:
        error = running.task.exception()
        if error is None:
            return
        if session.conn.broken or session.conn.closed:
            raise error
        session.resting[running.subscription.webhook_id] = time.monotonic() + _REST_S
        extra = {"webhook": running.subscription.webhook.name, "reason": type(error).__name__}
        _LOG.error("a webhook rests after an unexpected failure", extra=extra)

    async def _begin_some(self, session: _Session, found: Mapping[UUID, Subscription]) -> None:
        """Begin with those that are to be delivered to and that no other process has."""
        locked = set()
        for webhook_id, subscription in found.items():
            is_resting = time.monotonic() < session.resting.get(webhook_id, 0.0)
            if webhook_id in self._running or is_resting or not subscription.is_delivered:
                continue
            if await self._lock(session, _LOCK, webhook_id):
                locked.add(webhook_id)
        if not locked:
            return
        # Read again under the locks: the ones before us may have moved the cursors since.
        async with session.turn:
            now = await read_subscriptions(session.conn, schemas=self._schemas)
        for webhook_id in locked:
            current = now.get(webhook_id)
            if current is not None and current.is_delivered:
                self._begin(session, current)
            else:
                await self._lock(session, _UNLOCK, webhook_id)

    def _begin(self, session: _Session, subscription: Subscription) -> None:
        given = {} if self._timeout_s is None else {"timeout_s": self._timeout_s}
        sender = Sender(self._rules, **given)
        webhook_id = subscription.webhook_id
        receiver = Receiver(
            subscription,
            Queue(session.conn, turn=session.turn, schemas=self._schemas, webhook_id=webhook_id),
            session.pages,
            sender=sender,
            knowledge=self._knowledge,
            renewed=lambda revision: self._renewed(receiver, revision),
            counting=self._counting,
            chance=self._chance,
        )
        self._running[webhook_id] = _Running(
            subscription=subscription,
            receiver=receiver,
            task=asyncio.create_task(self._receive(webhook_id, receiver, sender)),
            noted_position=subscription.position,
        )

    async def _receive(self, webhook_id: UUID, receiver: Receiver, sender: Sender) -> None:
        running = self._running[webhook_id]
        async with sender:
            while not (receiver.is_disabled or receiver.is_stopping):
                seen = self._last_id
                if running.is_poked:
                    running.is_poked = False
                    receiver.note_due()
                if not await receiver.work(seen):
                    await self._wait(running, seen, await receiver.idle_s())
            await receiver.settle()

    async def _wait(self, running: _Running, seen: int, seconds: float | None) -> None:
        """Wait for the feed to move on from *seen*, or for the time of a retry."""

        def is_over() -> bool:
            return self._last_id != seen or running.is_poked or running.receiver.is_stopping

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._moved:
                await self._moved.wait_for(is_over)

    async def _renewed(self, receiver: Receiver, revision: int) -> None:
        """Wait until definitions and subscriptions are known as they were at *revision*, or later."""

        def is_over() -> bool:
            return self._knowledge().revision >= revision or receiver.is_stopping

        self._is_stale = True
        async with self._moved:
            await self._moved.wait_for(is_over)

    def _knowledge(self) -> _Known:
        assert self._known is not None, "read before the first receiver starts"
        return self._known

    async def _lock(self, session: _Session, query: str, webhook_id: UUID) -> bool:
        given = {"config": self._schemas.config, "webhook": str(webhook_id)}
        async with session.turn:
            row = await (await session.conn.execute(query, given)).fetchone()
        return bool(row and row[0])

    async def _stop_all(self) -> None:
        """Let requests under way end, and write down what was not sent."""
        for running in self._running.values():
            running.stop()
        await self._wake()
        tasks = [running.task for running in self._running.values()]
        self._running.clear()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()


def _changed(now: Subscription, running: _Running) -> bool:
    """Whether the receiver works with what is not so any more; a cursor that was put back is."""
    before = running.subscription
    return (now.webhook, now.secrets) != (before.webhook, before.secrets) or (
        now.position < running.noted_position
    )
