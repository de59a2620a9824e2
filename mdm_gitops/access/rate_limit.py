"""The rate limit: requests per client in a fixed window, counted exactly across all workers.

The count is in PostgreSQL, whose clock says when a window begins. Requests that wait meanwhile share
one statement. A client that is over the limit is turned away from memory until its window ends:
whatever the others count, its number only grows.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import Error, sql

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.coalesce import Coalescer
from mdm_gitops.warehouse.connect import ConnectionPool, borrow, borrow_checked
from mdm_gitops.warehouse.names import Schemas

_MAX_TURNED_AWAY: Final = 10_000
# In one order, so that two workers never wait for each other's rows crosswise.
_COUNT: Final = """
WITH moment AS (
    SELECT date_bin(%(window)s * interval '1 second', statement_timestamp(), '2000-01-01T00:00Z') AS start
)
INSERT INTO {config}.rate_window AS w (client, started, used)
SELECT g.client, m.start, g.requests
  FROM unnest(%(clients)s::text[], %(requests)s::bigint[]) AS g(client, requests) CROSS JOIN moment m
 ORDER BY g.client
    ON CONFLICT (client) DO UPDATE
   SET started = CASE WHEN {holds} THEN w.started ELSE excluded.started END,
       used = CASE WHEN {holds} THEN w.used ELSE 0 END + excluded.used
RETURNING w.client, w.used,
          extract(epoch FROM w.started + %(window)s * interval '1 second' - statement_timestamp())::float8
"""
# Who waited for the row may have a moment of the window before. More than that ahead lies only what was
# counted before somebody set the clock back.
_HOLDS: Final = """
w.started BETWEEN excluded.started AND excluded.started + %(window)s * interval '1 second'"""
_FORGET: Final = """
DELETE FROM {config}.rate_window
 WHERE client IN (SELECT client FROM {config}.rate_window
                   WHERE started < statement_timestamp() - %(window)s * interval '2 seconds'
                   LIMIT 10000 FOR UPDATE SKIP LOCKED)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The answer for one request: whether it may go on, and what is left of the window."""

    allowed: bool
    limit: int
    window_s: int
    remaining: int
    resets_in_s: int  # whole seconds, rounded up


class RateLimit:
    """One per server process; *limit* requests per *window_s* seconds and client."""

    def __init__(
        self, pool: ConnectionPool, *, schemas: Schemas, limit: int, window_s: int
    ) -> None:
        self._pool = pool
        self._limit = limit
        self._window_s = window_s
        config = sql.Identifier(schemas.config)
        self._count = sql.SQL(_COUNT).format(config=config, holds=sql.SQL(_HOLDS))
        self._forget = sql.SQL(_FORGET).format(config=config)
        self._turned_away: dict[str, float] = {}  # client -> until when, of the monotonic clock
        self._coalescer: Coalescer[str, tuple[int, float]] = Coalescer(
            self._flush, subject=None, max_batch=1_024, width=1
        )

    async def take(self, client: str) -> Permit:
        """Count one request of *client*.

        Raises:
            WarehouseError: it could not be counted.
        """
        until = self._turned_away.get(client)
        if until is not None:
            left = until - time.monotonic()
            if left > 0:
                return self._permit(self._limit + 1, left)
            del self._turned_away[client]
        used, left = await self._coalescer.submit(None, client)
        if used > self._limit:
            if len(self._turned_away) >= _MAX_TURNED_AWAY:
                self._turned_away.clear()
            self._turned_away[client] = time.monotonic() + left
        return self._permit(used, left)

    async def forget_past_windows(self) -> None:
        """Remove the counts of clients that have not come back; for the housekeeping."""
        async with borrow(self._pool) as conn:
            try:
                await conn.execute(self._forget, {"window": self._window_s})
            except Error:
                raise WarehouseError("old counts of requests could not be removed") from None

    def _permit(self, used: int, left_s: float) -> Permit:
        return Permit(
            allowed=used <= self._limit,
            limit=self._limit,
            window_s=self._window_s,
            remaining=max(0, self._limit - used),
            resets_in_s=max(1, math.ceil(left_s)),
        )

    async def _flush(
        self, kind: Hashable, clients: Sequence[str]
    ) -> Sequence[tuple[int, float] | BaseException]:
        """Return for each request its number in the window, and the seconds left of it."""
        requests = Counter(clients)
        given = {
            "window": self._window_s,
            "clients": list(requests),
            "requests": list(requests.values()),
        }
        async with borrow_checked(self._pool) as conn:
            try:
                cursor = await conn.execute(self._count, given, prepare=True)
                found = {name: (used, left) for name, used, left in await cursor.fetchall()}
            except Error:
                raise WarehouseError("the request could not be counted") from None
        numbers = {name: used - requests[name] for name, (used, _) in found.items()}
        results: list[tuple[int, float] | BaseException] = []
        for client in clients:
            numbers[client] += 1
            results.append((numbers[client], found[client][1]))
        return results
