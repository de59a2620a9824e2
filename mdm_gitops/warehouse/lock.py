"""One writer at a time: a session-level advisory lock, polled, on the connection that works.

Polled because a session that waits inside ``pg_advisory_lock`` holds a snapshot, and a CREATE INDEX
CONCURRENTLY of the holder would wait for it: a deadlock (measured). On the same connection because
then losing the lock and losing the ability to write are one event; so no pooler may stand between.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.errors import WarehouseLocked
from mdm_gitops.warehouse.connect import in_our_words

_PAUSE_S: Final = 0.1


@asynccontextmanager
async def alone(
    conn: AsyncConnection[Any], *, purpose: str, schema: str, timeout_s: float, doing: str
) -> AsyncIterator[None]:
    """Hold the lock of *purpose* on the store *schema*; *doing* words the error for a person.

    Raises:
        WarehouseLocked: somebody else still held it after *timeout_s*.
        WarehouseError: instead of an error of the driver that nobody inside has translated.
    """
    key, doing = lock_key(purpose, schema), f"{doing} schema {schema}"
    with in_our_words(doing):
        await _taken(conn, key, timeout_s, doing)
        try:
            yield
        finally:
            if not conn.broken and not conn.closed:
                await conn.execute("SELECT pg_advisory_unlock(%s)", [key])


async def _taken(conn: AsyncConnection[Any], key: int, timeout_s: float, doing: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not await try_lock(conn, key):
        if time.monotonic() >= deadline:
            raise WarehouseLocked(
                f"another program is {doing}, and still was after {timeout_s:.0f} s",
                hint="Wait for it to end, then try again",
            )
        await asyncio.sleep(_PAUSE_S)


async def try_lock(conn: AsyncConnection[Any], key: int) -> bool:
    row = await (await conn.execute("SELECT pg_try_advisory_lock(%s)", [key])).fetchone()
    return bool(row and row[0])


def lock_key(purpose: str, schema: str) -> int:
    digest = hashlib.sha256(f"mdm-gitops {purpose} {schema}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
