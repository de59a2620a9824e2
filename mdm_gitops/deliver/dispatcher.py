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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection, Error

from mdm_gitops.data.asking import StateMoved
from mdm_gitops.data.feed import number_changes
from mdm_gitops.deliver.queue import Queue
from mdm_gitops.deliver.receiver import Counting, Receiver
from mdm_gitops.deliver.sender import Sender
from mdm_gitops.deliver.subscriptions import Subscription, read_subscriptions
from mdm_gitops.deliver.targets import TargetRules
from mdm_gitops.errors import MdmError
from mdm_gitops.model import Entity
from mdm_gitops.warehouse.connect import SessionLimits, connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import Store, StoreState

BUSY_S: Final = 0.02  # between two looks at the feed while there is something new
IDLE_S: Final = 0.2
SUBSCRIPTIONS_S: Final = 1.0  # between two looks at the subscriptions
GRACE_S: Final = 16.0  # one attempt may take so long
_AGAIN_S: Final = 2.0  # after the connection was lost
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


@dataclass(slots=True, kw_only=True)
class _Running:
    subscription: Subscription
    receiver: Receiver
    noted_position: int = 0  # before the subscriptions were read
    is_poked: bool = False  # a retry is due, also one that a person asked for
    task: asyncio.Task[None] | None = None


class _Known:
    """The entities of one state of the store by their number, archived ones included."""

    def __init__(self, state: StoreState) -> None:
        stored = (*state.removed, *state.entities.values())
        self._entities = {entity.entity_id: entity for entity in stored}

    def entity(self, entity_id: int) -> Entity | None:
        stored = self._entities.get(entity_id)
        return stored.definition if stored is not None else None


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
        self._last_id = 0
        self._moved = asyncio.Condition()
        self._running: dict[UUID, _Running] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until *stopping* is set, over all losses of the connection."""
        while not stopping.is_set():
            try:
                await self._session(stopping)
            except (MdmError, Error, StateMoved) as error:
                reason = type(error).__name__
                _LOG.warning("webhooks wait for the warehouse", extra={"reason": reason})
                await _pause(stopping, _AGAIN_S)

    async def _session(self, stopping: asyncio.Event) -> None:
        """Deliver for as long as the connection lives; its locks are what makes us the one."""
        conn = await connect(self._url, application_name="mdm-gitops webhooks", limits=_LIMITS)
        given = {} if self._timeout_s is None else {"timeout_s": self._timeout_s}
        async with conn, Sender(self._rules, **given) as sender:
            turn = asyncio.Lock()
            try:
                await self._look_after(conn, turn, sender, stopping)
            finally:
                await self._stop(*self._running)

    async def _look_after(
        self,
        conn: AsyncConnection[Any],
        turn: asyncio.Lock,
        sender: Sender,
        stopping: asyncio.Event,
    ) -> None:
        loop = asyncio.get_running_loop()
        next_look = 0.0
        while not stopping.is_set():
            if loop.time() >= next_look:
                self._note_positions()
                async with turn:
                    found = await read_subscriptions(conn, schemas=self._schemas)
                    self._known = _Known(await self._store.current(conn))
                await self._adjust(conn, turn, sender, found)
                next_look = loop.time() + SUBSCRIPTIONS_S
            is_new = await self._look(conn, turn) if self._running else False
            await _pause(stopping, BUSY_S if is_new else IDLE_S)

    def _note_positions(self) -> None:
        for running in self._running.values():
            running.noted_position = running.receiver.position

    async def _look(self, conn: AsyncConnection[Any], turn: asyncio.Lock) -> bool:
        """Number what is new, and wake the receivers if there is something."""
        async with turn:
            await number_changes(conn, schemas=self._schemas)
            query = _LAST.format(config=self._schemas.config)
            row = await (await conn.execute(query.encode(), prepare=True)).fetchone()
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

    async def _adjust(
        self,
        conn: AsyncConnection[Any],
        turn: asyncio.Lock,
        sender: Sender,
        found: Mapping[UUID, Subscription],
    ) -> None:
        for webhook_id, running in list(self._running.items()):
            wanted = found.get(webhook_id)
            if running.task is not None and running.task.done():
                running.task.result()
            if wanted is not None and wanted.has_due:
                running.is_poked = True
            if wanted is None or _changed(wanted, running) or not wanted.is_delivered:
                await self._stop(webhook_id)
                await sender.forget(running.subscription.webhook.url)
                await self._lock(conn, turn, _UNLOCK, webhook_id)
        await self._wake()
        for webhook_id, subscription in found.items():
            if webhook_id in self._running or not subscription.is_delivered:
                continue
            if await self._lock(conn, turn, _LOCK, webhook_id):
                await self._start(conn, turn, sender, webhook_id)

    async def _start(
        self, conn: AsyncConnection[Any], turn: asyncio.Lock, sender: Sender, webhook_id: UUID
    ) -> None:
        # Read again under the lock: the one before us may have moved the cursor since.
        async with turn:
            subscription = (await read_subscriptions(conn, schemas=self._schemas)).get(webhook_id)
        if subscription is None:
            return
        receiver = Receiver(
            subscription,
            Queue(conn, turn=turn, schemas=self._schemas, webhook_id=webhook_id),
            sender=sender,
            knowledge=self._knowledge,
            counting=self._counting,
            chance=self._chance,
        )
        running = _Running(subscription=subscription, receiver=receiver)
        running.task = asyncio.create_task(self._receive(running))
        self._running[webhook_id] = running

    async def _receive(self, running: _Running) -> None:
        receiver = running.receiver
        while not (receiver.is_disabled or receiver.is_stopping):
            seen, running.is_poked = self._last_id, False
            if not await receiver.work(seen):
                await self._wait(running, seen, await receiver.idle_s())

    async def _wait(self, running: _Running, seen: int, seconds: float | None) -> None:
        """Wait for the feed to move on from *seen*, or for the time of a retry."""

        def is_over() -> bool:
            return self._last_id != seen or running.is_poked or running.receiver.is_stopping

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._moved:
                await self._moved.wait_for(is_over)

    def _knowledge(self) -> _Known:
        assert self._known is not None, "read before the first receiver starts"
        return self._known

    async def _lock(
        self, conn: AsyncConnection[Any], turn: asyncio.Lock, query: str, webhook_id: UUID
    ) -> bool:
        given = {"config": self._schemas.config, "webhook": str(webhook_id)}
        async with turn:
            row = await (await conn.execute(query, given)).fetchone()
        return bool(row and row[0])

    async def _stop(self, *webhook_ids: UUID) -> None:
        """Let requests under way end, and write down what was not sent."""
        stopping = [self._running.pop(webhook_id) for webhook_id in webhook_ids]
        for running in stopping:
            running.receiver.is_stopping = True
        await self._wake()
        tasks = [running.task for running in stopping if running.task is not None]
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
