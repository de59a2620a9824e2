"""What is to be delivered to one subscription, in PostgreSQL: its cursor in the feed, and the table of
what waits or was given up. The changes themselves are read by ``pages``.

All writes go through the connection that holds the subscription's lock: who has lost the lock cannot
write any more. A page is finished in one transaction: the cursor moves over it, and what of it was not
delivered stands in the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.failures import translated
from mdm_gitops.warehouse.names import Schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """One change that could not be delivered. *attempts* counts those that were made."""

    event_id: int
    record_id: UUID
    state: str  # waiting, dead or blocked
    attempts: int
    wait_s: float = 0.0
    last_status: int = 0
    last_error: str = ""
    was_tried: bool = True  # this time


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The oldest waiting change of a record; *is_due* if its time has come."""

    event_id: int
    record_id: UUID
    attempts: int
    is_due: bool


_WAITING: Final = """
SELECT DISTINCT record_id FROM {config}.webhook_delivery
 WHERE webhook_id = %(webhook)s AND state = 'waiting' AND record_id = ANY (%(records)s)
"""
# A person may have moved the cursor meanwhile: then it stays where it was put.
_MOVE: Final = """
UPDATE {config}.webhook_cursor
   SET position = CASE WHEN position = %(before)s THEN %(position)s ELSE position END
 WHERE webhook_id = %(webhook)s RETURNING position
"""
_KEEP: Final = """
INSERT INTO {config}.webhook_delivery AS d
       (webhook_id, event_id, record_id, state, attempts, next_attempt_at, last_attempt_at,
        last_status, last_error)
SELECT %(webhook)s, u.event_id, u.record_id, u.state, u.attempts,
       now() + u.wait_s * interval '1 second', CASE WHEN u.attempts > 0 THEN now() END,
       u.last_status, u.last_error
  FROM unnest(%(events)s::bigint[], %(records)s::uuid[], %(states)s::text[], %(attempts)s::int[],
              %(waits)s::float8[], %(statuses)s::int[], %(errors)s::text[])
       AS u(event_id, record_id, state, attempts, wait_s, last_status, last_error)
 WHERE EXISTS (SELECT FROM {config}.webhook WHERE webhook_id = %(webhook)s FOR KEY SHARE)
    ON CONFLICT (webhook_id, event_id) DO UPDATE
   SET state = excluded.state, attempts = excluded.attempts,
       next_attempt_at = excluded.next_attempt_at, last_attempt_at = excluded.last_attempt_at,
       last_status = excluded.last_status, last_error = excluded.last_error
"""
# Of each record the oldest; the others wait behind it.
_HEADS: Final = """
SELECT event_id, record_id, attempts, next_attempt_at <= now() AS is_due FROM (
  SELECT DISTINCT ON (record_id) event_id, record_id, attempts, next_attempt_at
    FROM {config}.webhook_delivery
   WHERE webhook_id = %(webhook)s AND state = 'waiting'
   ORDER BY record_id, event_id) heads
"""
_DUE: Final = f"{_HEADS} WHERE next_attempt_at <= now() ORDER BY event_id LIMIT %(take)s"
_OLDEST: Final = f"{_HEADS} ORDER BY is_due DESC, event_id LIMIT 1"
_NEXT_DUE: Final = """
SELECT extract(epoch FROM min(next_attempt_at) - now())::float8 FROM {config}.webhook_delivery
 WHERE webhook_id = %(webhook)s AND state = 'waiting'
"""
_DONE: Final = """
DELETE FROM {config}.webhook_delivery WHERE webhook_id = %(webhook)s AND event_id = ANY (%(events)s)
"""
_HURRY: Final = """
UPDATE {config}.webhook_delivery SET next_attempt_at = now()
 WHERE webhook_id = %(webhook)s AND state = 'waiting' AND next_attempt_at > now()
"""
_FAILING: Final = """
UPDATE {config}.webhook_cursor SET failing_since = coalesce(failing_since, now())
 WHERE webhook_id = %(webhook)s
RETURNING extract(epoch FROM now() - failing_since)::float8
"""
_WORKING: Final = """
UPDATE {config}.webhook_cursor SET failing_since = NULL
 WHERE webhook_id = %(webhook)s AND failing_since IS NOT NULL
"""
_DISABLE: Final = """
UPDATE {config}.webhook_cursor SET disabled_at = now(), disabled_reason = %(reason)s
 WHERE webhook_id = %(webhook)s
"""


class Queue:
    """The queue of one subscription, on the connection *conn* that holds its lock.

    Several share the connection; *turn* keeps the statements of one out of the transaction of another.
    """

    def __init__(
        self,
        conn: AsyncConnection[Any],
        *,
        turn: asyncio.Lock,
        schemas: Schemas,
        webhook_id: UUID,
    ) -> None:
        self._conn = conn
        self._turn = turn
        self._config = f'"{schemas.config}"'
        self._webhook_id = webhook_id

    async def waiting_among(self, records: Collection[UUID]) -> frozenset[UUID]:
        rows = await self._rows(_WAITING, records=list(records))
        return frozenset(row[0] for row in rows)

    async def finish(self, before: int, position: int, kept: Sequence[Undelivered]) -> int:
        """Move the cursor from *before* to *position*, and keep what was not delivered, together.

        Returns where the cursor stands then.
        """
        if not kept:
            rows = await self._rows(_MOVE, before=before, position=position)
            return int(rows[0][0]) if rows else position
        with translated():
            async with self._turn, self._conn.transaction():
                await self._keep(kept)
                rows = await self._run(_MOVE, before=before, position=position)
        return int(rows[0][0]) if rows else position

    async def keep(self, kept: Sequence[Undelivered]) -> None:
        with translated():
            async with self._turn:
                await self._keep(kept)

    async def due(self, take: int) -> Sequence[Due]:
        return [_due(row) for row in await self._rows(_DUE, take=take)]

    async def oldest(self) -> Due | None:
        """Return what to try if anything: of what waits, one whose time has come, or the oldest."""
        rows = await self._rows(_OLDEST)
        return _due(rows[0]) if rows else None

    async def next_due_s(self) -> float | None:
        """Return in how many seconds the next attempt is due, None if nothing waits."""
        [[seconds]] = await self._rows(_NEXT_DUE)
        return None if seconds is None else max(0.0, float(seconds))

    async def delivered(self, events: Sequence[int]) -> None:
        await self._rows(_DONE, events=list(events))

    async def hurry(self) -> None:
        """The receiver answers again: what waits is due."""
        await self._rows(_HURRY)

    async def note_failing(self) -> float:
        """Return for how many seconds nothing but failures has been seen."""
        rows = await self._rows(_FAILING)
        return float(rows[0][0]) if rows else 0.0  # none if the subscription was removed

    async def note_working(self) -> None:
        await self._rows(_WORKING)

    async def disable(self, reason: str) -> None:
        await self._rows(_DISABLE, reason=reason)

    async def _keep(self, kept: Sequence[Undelivered]) -> None:
        if not kept:
            return
        await self._run(
            _KEEP,
            events=[each.event_id for each in kept],
            records=[each.record_id for each in kept],
            states=[each.state for each in kept],
            attempts=[each.attempts for each in kept],
            waits=[each.wait_s for each in kept],
            statuses=[each.last_status for each in kept],
            errors=[each.last_error for each in kept],
        )

    async def _rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with translated():
            async with self._turn:
                return await self._run(query, **values)

    async def _run(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        given = {**values, "webhook": self._webhook_id}
        text = query.format(config=self._config)
        cursor = await self._conn.execute(text.encode(), given, prepare=True)
        return await cursor.fetchall() if cursor.description else []


def _due(row: tuple[Any, ...]) -> Due:
    event_id, record_id, attempts, is_due = row
    return Due(event_id=event_id, record_id=record_id, attempts=attempts, is_due=is_due)
