"""Of several operators one works: whoever holds a lock of a session, on the connection that works.

So losing the lock and losing the ability to write are one event, and nobody who was paused can go on
where somebody else has begun: PostgreSQL ends a leader's session that says nothing for the length of
the lease, and with it both the lock and the connection. That every apply takes a lock of its own on
that same connection is the fence behind this fence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from mdm_gitops.errors import MdmError
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.leadership import bound_silence, say_something, try_to_lead
from mdm_gitops.warehouse.names import Schemas

logger = logging.getLogger(__name__)
T = TypeVar("T")
_BEATS: Final = 4  # in the time of a lease


def name_of_this_operator() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class Leadership:
    """Of one operator; *busy* is held by whoever uses the connection."""

    def __init__(self, *, schemas: Schemas, lease_s: float) -> None:
        self.busy = asyncio.Lock()
        self._schemas = schemas
        self._lease_s = lease_s
        self._led: Connection | None = None

    def leads(self, conn: Connection | None) -> bool:
        return conn is not None and self._led is conn and not conn.closed

    async def take(self, conn: Connection) -> bool:
        """Whether this operator leads, on *conn*, from now on or already."""
        if self.leads(conn):
            return True
        if not await try_to_lead(conn, schemas=self._schemas):
            return False
        await bound_silence(conn, seconds=self._lease_s)
        self._led = conn
        logger.info("leading as %s", name_of_this_operator())
        return True

    async def keep(
        self, connection: Callable[[], Connection | None], *, stop: asyncio.Event
    ) -> None:
        """Say something on the leader's connection now and then, while nobody else uses it."""
        while not stop.is_set():
            conn = connection()
            if conn is not None and self.leads(conn) and not self.busy.locked():
                async with self.busy:
                    await _beat(conn)
            try:
                await asyncio.wait_for(stop.wait(), timeout=self._lease_s / _BEATS)
            except TimeoutError:
                continue

    async def while_speaking(self, conn: Connection, work: Awaitable[T]) -> T:
        """Wait for *work*, which does not use *conn*, without falling silent on it."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=self._lease_s / _BEATS))[0]:
                if self.leads(conn):
                    await _beat(conn)
        finally:
            task.cancel()
        return await task


async def _beat(conn: Connection) -> None:
    try:
        await say_something(conn)
    except MdmError as error:  # the next run connects again, and leads or waits
        logger.info("no longer leading: %s", error)
