"""Retention: changes and audited actions that are older than they are kept are deleted.

Changes go in the order of their ids, so what is left is the feed from some id on; that id is
remembered, for each entity too, because a reader may only be told that it missed something if it
did. Work is done in short transactions, by one process at a time, and keeps nobody from reading,
writing or numbering.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.failures import translated
from mdm_gitops.data.feed_sql import BLOCK_BITS, config_sql
from mdm_gitops.warehouse.names import Schemas

_BATCH: Final = 10_000
_BUDGET_S: Final = 5.0

# One process at a time; the others have nothing to do.
_ALONE: Final = "SELECT removed_id FROM {config}.feed_retention FOR UPDATE SKIP LOCKED"

# The ids up to which all are old: a young change keeps those behind it.
_UP_TO: Final = """
WITH next AS (
  SELECT c.first_id + c.events - 1 AS last_id,
         bool_and(c.occurred_at < {cutoff}) OVER (ORDER BY c.first_id) AS is_old
    FROM {config}.change_set c WHERE {sets}
   ORDER BY c.first_id LIMIT %(batch)s)
SELECT CASE WHEN count(*) > 0 THEN least(max(last_id), %(removed)s::bigint + %(batch)s) END
  FROM next WHERE is_old
"""
_REMOVE: Final = """
WITH sets AS MATERIALIZED (
  SELECT c.seq, c.key, c.first_id, c.events FROM {config}.change_set c
   WHERE {sets} AND c.first_id <= %(up_to)s::bigint),
gone AS (
  DELETE FROM {config}.event e USING sets s
   WHERE e.change_set = s.key AND e.ordinal > %(removed)s::bigint - s.first_id
     AND e.ordinal <= %(up_to)s::bigint - s.first_id
  RETURNING e.entity_id, s.first_id + e.ordinal AS id),
gone_sets AS (
  DELETE FROM {config}.change_set c USING sets s
   WHERE c.seq = s.seq AND s.first_id + s.events - 1 <= %(up_to)s::bigint),
gone_blocks AS (
  DELETE FROM {config}.feed_block b WHERE b.block < (%(up_to)s::bigint + 1) >> {bits}),
noted AS (
  INSERT INTO {config}.feed_removed AS r (entity_id, removed_id)
  SELECT g.entity_id, max(g.id) FROM gone g GROUP BY g.entity_id
  ON CONFLICT (entity_id) DO UPDATE SET removed_id = excluded.removed_id)
UPDATE {config}.feed_retention SET removed_id = %(up_to)s::bigint
"""
# The sets that hold ids behind those that are gone, the first perhaps in part.
_SETS: Final = """c.first_id >= coalesce((SELECT max(p.first_id) FROM {config}.change_set p
                             WHERE p.first_id <= %(removed)s::bigint + 1), 0)"""
_REMOVE_ACTIONS: Final = """
DELETE FROM {config}.audit WHERE audit_id = ANY (ARRAY(
    SELECT audit_id FROM {config}.audit WHERE occurred_at < {cutoff}
     ORDER BY occurred_at LIMIT %(batch)s))
"""
_CUTOFF: Final = "(now() - make_interval(days => %(days)s))"
# A few old rows are found by index, whatever the planner was last told of their number.
_BY_INDEX: Final = (
    "SET LOCAL enable_seqscan = off",
    "SET LOCAL enable_hashjoin = off",
    "SET LOCAL enable_mergejoin = off",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    changes: int = 0
    actions: int = 0


async def remove_expired(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    days: int,
    batch: int = _BATCH,
    budget_s: float = _BUDGET_S,
) -> Removed:
    """Delete what is older than *days*, by the database's clock, for about *budget_s*; 0 keeps all.

    *conn* must be in autocommit mode. What is left after that time is for the next call. Changes
    without an id are kept: ``feed.number_changes`` comes first.
    """
    if not days:
        return Removed()
    changes = actions = 0
    until = time.monotonic() + budget_s
    with translated():
        while step := await _remove_changes(conn, schemas, days=days, batch=batch):
            changes += step
            if time.monotonic() > until:
                break
        while step := await _remove_actions(conn, schemas, days=days, batch=batch):
            actions += step
            if step < batch or time.monotonic() > until:
                break
    return Removed(changes=changes, actions=actions)


async def _remove_changes(
    conn: AsyncConnection[Any], schemas: Schemas, *, days: int, batch: int
) -> int:
    given = {"days": days, "batch": batch}
    async with conn.transaction():
        for setting in _BY_INDEX:
            await conn.execute(setting.encode())
        removed = await _value(conn, _ALONE, schemas, given)
        if removed is None:
            return 0
        given["removed"] = removed
        up_to = await _value(conn, _UP_TO, schemas, given)
        if up_to is None:
            return 0
        await conn.execute(_sql(_REMOVE, schemas), {**given, "up_to": up_to})
        return up_to - removed


async def _remove_actions(
    conn: AsyncConnection[Any], schemas: Schemas, *, days: int, batch: int
) -> int:
    cursor = await conn.execute(_sql(_REMOVE_ACTIONS, schemas), {"days": days, "batch": batch})
    return cursor.rowcount


async def _value(
    conn: AsyncConnection[Any], query: str, schemas: Schemas, given: dict[str, int]
) -> int | None:
    row = await (await conn.execute(_sql(query, schemas), given)).fetchone()
    return row[0] if row else None


def _sql(query: str, schemas: Schemas) -> bytes:
    config = config_sql(schemas)
    sets = _SETS.format(config=config)
    return query.format(config=config, sets=sets, cutoff=_CUTOFF, bits=BLOCK_BITS).encode()
