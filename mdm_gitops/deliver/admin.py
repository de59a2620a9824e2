"""What a person may see and do about subscriptions: their state, what waits, secrets, replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.failures import translated
from mdm_gitops.deliver.signing import generate_secret
from mdm_gitops.errors import NotFound
from mdm_gitops.model import Webhook
from mdm_gitops.warehouse.names import Schemas

# Receivers have so long to learn a new secret.
OVERLAP_HOURS: Final = 24
STATES: Final = ("waiting", "dead", "blocked")
MAX_TAKE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A subscription with how it goes. *behind* counts changes of the feed it has not looked at;
    *has_shown_secret*: somebody may know what its deliveries are signed with."""

    webhook_id: UUID
    webhook: Webhook
    created_at: datetime
    position: int
    behind: int
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    counts: Mapping[str, int]
    has_shown_secret: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    event_id: int
    record_id: UUID
    state: str
    attempts: int
    next_attempt_at: datetime
    last_attempt_at: datetime | None
    last_status: int
    last_error: str


_OVERVIEWS: Final = """
SELECT w.webhook_id, w.definition, w.created_at, c.position,
       greatest(0, (SELECT last_id FROM {config}.feed_position) - c.position) AS behind,
       c.failing_since, c.disabled_at, c.disabled_reason,
       coalesce((SELECT jsonb_object_agg(d.state, d.n) FROM (
           SELECT state, count(*) AS n FROM {config}.webhook_delivery
            WHERE webhook_id = w.webhook_id GROUP BY state) d), '{{}}') AS counts,
       EXISTS (SELECT FROM {config}.webhook_secret s WHERE s.webhook_id = w.webhook_id
                  AND s.is_shown AND s.expires_at IS NULL) AS has_shown_secret
  FROM {config}.webhook w JOIN {config}.webhook_cursor c USING (webhook_id)
 WHERE %(webhook)s::uuid IS NULL OR w.webhook_id = %(webhook)s
 ORDER BY w.name
"""
_DELIVERIES: Final = """
SELECT event_id, record_id, state, attempts, next_attempt_at, last_attempt_at, last_status,
       last_error
  FROM {config}.webhook_delivery
 WHERE webhook_id = %(webhook)s AND (%(state)s::text IS NULL OR state = %(state)s)
   AND event_id > %(after)s
 ORDER BY event_id LIMIT %(take)s
"""
_REPLAY_ONE: Final = """
INSERT INTO {config}.webhook_delivery AS d
       (webhook_id, event_id, record_id, state, attempts, next_attempt_at)
SELECT %(webhook)s, %(event_id)s, e.record_id, 'waiting', 0, now()
  FROM (SELECT s.* FROM {config}.change_set s WHERE s.first_id <= %(event_id)s
         ORDER BY s.first_id DESC LIMIT 1) c
  JOIN {config}.event e ON e.change_set = c.key AND e.ordinal = %(event_id)s - c.first_id
    ON CONFLICT (webhook_id, event_id) DO UPDATE
   SET state = 'waiting', attempts = 0, next_attempt_at = now()
RETURNING event_id
"""
# What was given up behind the new place is met again, and stays in the table only if it fails again.
_REPLAY_FROM: Final = """
WITH met_again AS (
    DELETE FROM {config}.webhook_delivery
     WHERE webhook_id = %(webhook)s AND event_id > %(after)s AND state <> 'waiting')
UPDATE {config}.webhook_cursor SET position = least(position, %(after)s)
 WHERE webhook_id = %(webhook)s RETURNING position
"""
# Of one that was never shown no receiver can hold a copy.
_ADD_SECRET: Final = """
WITH unseen AS (
    DELETE FROM {config}.webhook_secret WHERE webhook_id = %(webhook)s AND NOT is_shown
), old AS (
    UPDATE {config}.webhook_secret SET expires_at = now() + %(hours)s * interval '1 hour'
     WHERE webhook_id = %(webhook)s AND expires_at IS NULL AND is_shown)
INSERT INTO {config}.webhook_secret (webhook_id, secret) VALUES (%(webhook)s, %(secret)s)
"""
_ANY_ACTIVE: Final = """
SELECT EXISTS (SELECT FROM {config}.webhook
                WHERE coalesce((definition ->> 'is_active')::boolean, true))
"""


async def overviews(
    conn: AsyncConnection[Any], *, schemas: Schemas, webhook_id: UUID | None = None
) -> Sequence[Overview]:
    """Return all subscriptions by name, or the one of this id.

    Raises:
        NotFound: there is none of this id.
    """
    rows = await _rows(conn, _OVERVIEWS, schemas, webhook=webhook_id)
    if webhook_id is not None and not rows:
        raise no_such_webhook()
    return [
        Overview(
            webhook_id=row[0],
            webhook=Webhook.model_validate(row[1]),
            created_at=row[2],
            position=row[3],
            behind=row[4],
            failing_since=row[5],
            disabled_at=row[6],
            disabled_reason=row[7],
            counts={state: row[8].get(state, 0) for state in STATES},
            has_shown_secret=row[9],
        )
        for row in rows
    ]


async def is_any_active(conn: AsyncConnection[Any], *, schemas: Schemas) -> bool:
    """Whether there is anything to deliver to."""
    [[found]] = await _rows(conn, _ANY_ACTIVE, schemas)
    return bool(found)


async def deliveries(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    webhook_id: UUID,
    state: str | None,
    after: int,
    take: int,
) -> Sequence[Delivery]:
    """Return what was not delivered, by the ids of the changes."""
    given = {"webhook": webhook_id, "state": state, "after": after, "take": take}
    rows = await _rows(conn, _DELIVERIES, schemas, **given)
    names = Delivery.__dataclass_fields__
    return [Delivery(**dict(zip(names, row, strict=True))) for row in rows]


async def replay(
    conn: AsyncConnection[Any], *, schemas: Schemas, webhook_id: UUID, event_id: int
) -> None:
    """Have one change delivered (again), with the same webhook-id.

    Raises:
        NotFound: there is no such change any more.
    """
    if not await _rows(conn, _REPLAY_ONE, schemas, webhook=webhook_id, event_id=event_id):
        raise NotFound(f"there is no change {event_id}", hint="retention may have removed it")


async def replay_after(
    conn: AsyncConnection[Any], *, schemas: Schemas, webhook_id: UUID, after: int
) -> int:
    """Have all changes after the id *after* delivered (again); return where the cursor stands."""
    [[position]] = await _rows(conn, _REPLAY_FROM, schemas, webhook=webhook_id, after=after)
    return int(position)


async def new_secret(conn: AsyncConnection[Any], *, schemas: Schemas, webhook_id: UUID) -> str:
    """Return a new secret, which nobody can ask for again; the one before signs on for a day."""
    secret = generate_secret()
    given = {"webhook": webhook_id, "secret": secret, "hours": OVERLAP_HOURS}
    await _rows(conn, _ADD_SECRET, schemas, **given)
    return secret


def no_such_webhook() -> NotFound:
    return NotFound("there is no such webhook", hint="GET /api/v1/webhooks lists them")


async def _rows(
    conn: AsyncConnection[Any], query: str, schemas: Schemas, **given: Any
) -> list[tuple[Any, ...]]:
    with translated():
        cursor = await conn.execute(query.format(config=f'"{schemas.config}"').encode(), given)
        return await cursor.fetchall() if cursor.description else []
