"""Writes change sets as writers do (0003_events.sql), without rows: for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection

_EVENTS = """
INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version, actor, old, new, detail)
SELECT %(key)s, n - 1, entity_id, record_id, action, version, actor, old::json, new::json, detail::jsonb
  FROM unnest(%(entities)s::bigint[], %(records)s::uuid[], %(actions)s::text[], %(versions)s::int[],
              %(actors)s::text[], %(olds)s::text[], %(news)s::text[], %(details)s::text[])
       WITH ORDINALITY AS u(entity_id, record_id, action, version, actor, old, new, detail, n)
"""
_SET = """
INSERT INTO mdm.change_set (key, events, occurred_at, actor, commit_id)
VALUES (%(key)s, %(events)s, coalesce(%(occurred_at)s, now()), %(actor)s, %(commit)s)
"""


@dataclass(frozen=True, kw_only=True)
class Event:
    entity_id: int = 1
    record_id: UUID = field(default_factory=uuid4)
    action: str = "data_updated"
    version: int = 1
    actor: str | None = None
    old: Any = None
    new: Any = None
    detail: Any = None


async def write_events(
    conn: AsyncConnection[Any],
    events: Sequence[Event],
    *,
    actor: str = "user:anna",
    occurred_at: datetime | None = None,
    commit: str | None = None,
    key: int | None = None,
) -> None:
    """Write *events* and then their set, as the last statements of a transaction."""
    given = {
        "key": await new_key(conn) if key is None else key,
        "events": len(events),
        "actor": actor,
        "occurred_at": occurred_at,
        "commit": commit,
        "entities": [e.entity_id for e in events],
        "records": [e.record_id for e in events],
        "actions": [e.action for e in events],
        "versions": [e.version for e in events],
        "actors": [e.actor for e in events],
        "olds": [_json(e.old) for e in events],
        "news": [_json(e.new) for e in events],
        "details": [_json(e.detail) for e in events],
    }
    await conn.execute(_EVENTS, given)
    await conn.execute(_SET, given)


async def new_key(conn: AsyncConnection[Any]) -> int:
    """Draw the key of a change set; a transaction may do so whenever it likes."""
    row = await (await conn.execute("SELECT nextval('mdm.change_set_key')")).fetchone()
    assert row is not None
    return int(row[0])


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
