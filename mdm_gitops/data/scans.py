"""Scans for duplicates as jobs: begun, told of, cancelled. The work itself is ``data.scan_run``.

One scan of an entity runs at a time. Whoever began it holds an advisory lock on a connection of its
own until it has ended, so a scan that says it runs while nobody holds the lock was killed; it is told
as failed, and the next one begins anew. What a killed process may still do ends where it would write,
because it writes only while its scan is the one that runs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data import audit
from mdm_gitops.data.asking import Asking, StateMoved, changeable_entity, readable_entity
from mdm_gitops.data.failures import translated
from mdm_gitops.data.match_sql import compared
from mdm_gitops.data.selecting import revision_table
from mdm_gitops.errors import Conflict, InputError, NotFound
from mdm_gitops.model import Action, Entity
from mdm_gitops.model.similarity import rules_hash
from mdm_gitops.warehouse.lock import lock_key, try_lock
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoredEntity

DEFAULT_MIN_SCORE: Final = 0.6
_ENDING_S: Final = 10.0
_PAUSE_S: Final = 0.05
ABANDONED: Final = "the process that ran it ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    full: bool = False  # compare all rows, also those that have not changed since the last scan
    min_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A scan as a caller sees it; *counts* is None for whoever may not see all rows."""

    scan_id: UUID
    state: str  # running, done, failed, cancelled
    mode: str  # full, changed
    min_score: float
    since: datetime | None  # rows changed from then on were compared with all
    started_at: datetime
    started_by: str
    finished_at: datetime | None
    step: str
    progress: float
    counts: dict[str, int] | None
    error: str


def scan_key(schemas: Schemas, entity_id: int) -> int:
    return lock_key(f"duplicates of {entity_id}", schemas.config)


def least_score(entity: Entity, request: ScanRequest) -> float:
    """Return from which score on pairs are kept: as asked, as the definition says, or 0.6."""
    found = request.min_score
    if found is None:
        rules = entity.similarity
        is_said = rules is not None and "min_score" in rules.model_fields_set
        found = rules.min_score if rules is not None and is_said else DEFAULT_MIN_SCORE
    if not 0 < found <= 1:
        raise InputError("minScore must be above 0 and at most 1", parameter="minScore")
    return found


# Where rules and limit are those of the last scan, its pairs stand, but for rows that changed since.
_BEGIN: Final = """\
WITH ended AS (
  UPDATE "{config}".match_scan SET state = 'failed', error = %(abandoned)s, finished_at = now()
   WHERE entity_id = %(entity)s AND state = 'running' RETURNING scan_id)
SELECT (SELECT value FROM {revision}), (SELECT count(*) FROM ended),
       (SELECT s.until FROM "{config}".match_scan s
         WHERE s.entity_id = %(entity)s AND s.state = 'done'
         ORDER BY s.started_at DESC LIMIT 1),
       (SELECT s.rules = %(rules)s AND s.min_score = %(min_score)s FROM "{config}".match_scan s
         WHERE s.entity_id = %(entity)s AND s.state = 'done'
         ORDER BY s.started_at DESC LIMIT 1)"""
_INSERT: Final = """\
INSERT INTO "{config}".match_scan (scan_id, entity_id, rules, min_score, since, started_by)
VALUES ("{config}".uuid_v7(), %(entity)s, %(rules)s, %(min_score)s, %(since)s, %(actor)s)
RETURNING scan_id"""


async def begin_scan(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: ScanRequest
) -> UUID:
    """Write down a scan that runs, and hold its lock on *conn*, which belongs to it from now on.

    Raises:
        NotFound, AccessDenied, InputError: the caller may not have it.
        Conflict: another one runs, or nothing can be compared.
        StateMoved: ask again with a newer state; nothing was written.
    """
    stored = changeable_entity(asking, entity)
    compared(stored.definition)
    values: dict[str, Any] = {
        "entity": stored.entity_id,
        "rules": rules_hash(stored.definition),
        "min_score": least_score(stored.definition, request),
        "actor": asking.principal.actor,
        "abandoned": ABANDONED,
    }
    config = asking.schemas.config
    with translated():
        await _taken(conn, asking, stored)
        async with conn.transaction():
            sql = _BEGIN.format(config=config, revision=revision_table(asking))
            [(revision, _, until, is_same)] = await (
                await conn.execute(sql.encode(), values)
            ).fetchall()
            if revision != asking.state.revision:
                raise StateMoved
            since = until if is_same and not request.full else None
            insert = _INSERT.format(config=config).encode()
            [(scan_id,)] = await (await conn.execute(insert, {**values, "since": since})).fetchall()
            await audit.record(
                conn,
                schemas=asking.schemas,
                actor=asking.principal.actor,
                action="duplicate_scan_started",
                entities=[stored.name],
                details={"scan": str(scan_id), "mode": "changed" if since else "full"},
            )
    return UUID(str(scan_id))


_RUNS: Final = """\
SELECT EXISTS(SELECT FROM "{config}".match_scan WHERE entity_id = %(entity)s AND state = 'running')"""


async def _taken(conn: AsyncConnection[Any], asking: Asking, stored: StoredEntity) -> None:
    """Take the lock; that of a scan that has ended is free as soon as its process has ended, too."""
    deadline = time.monotonic() + _ENDING_S
    key = scan_key(asking.schemas, stored.entity_id)
    sql = _RUNS.format(config=asking.schemas.config).encode()
    while not await try_lock(conn, key):
        [(runs,)] = await (await conn.execute(sql, {"entity": stored.entity_id})).fetchall()
        if runs or time.monotonic() > deadline:
            raise Conflict(
                f"a scan of {stored.definition.name} is running",
                hint="wait for it to end, or cancel it",
                code="DUPLICATE_SCAN_RUNNING",
            )
        await asyncio.sleep(_PAUSE_S)


_END: Final = """\
UPDATE "{config}".match_scan SET state = %(state)s, error = %(error)s, finished_at = now()
 WHERE scan_id = %(scan)s AND state = 'running'"""


async def end_scan(
    conn: AsyncConnection[Any], *, schemas: Schemas, scan_id: UUID, state: str, error: str = ""
) -> bool:
    """Say how a scan that runs has ended; one that has ended stays as it is."""
    sql = _END.format(config=schemas.config).encode()
    with translated():
        done = await conn.execute(sql, {"scan": scan_id, "state": state, "error": error})
    return done.rowcount > 0


_READ: Final = """\
SELECT (SELECT value FROM {revision}), s.*
  FROM (SELECT 1) one LEFT JOIN (
SELECT scan_id, CASE WHEN state = 'running' AND NOT EXISTS (
         SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database b ON b.oid = l.database
          WHERE b.datname = current_database() AND l.locktype = 'advisory' AND l.granted
            AND l.objsubid = 1 AND (l.classid::bigint << 32) | l.objid::bigint = %(key)s)
       THEN 'failed' ELSE state END AS state,
       min_score, since, started_at, started_by, finished_at, step, progress, counts, error
  FROM "{config}".match_scan WHERE scan_id = %(scan)s AND entity_id = %(entity)s
) s ON true"""


async def read_scan(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, scan_id: str
) -> Scan:
    """Return a scan of *entity*.

    Raises:
        NotFound: there is none, or no such entity for this caller.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    values = {
        "scan": _uuid(scan_id),
        "entity": stored.entity_id,
        "key": scan_key(asking.schemas, stored.entity_id),
    }
    sql = _READ.format(config=asking.schemas.config, revision=revision_table(asking))
    with translated():
        [record] = await (await conn.execute(sql.encode(), values)).fetchall()
    revision, found, state, least, since, started, by, finished, step, progress, counts, error = (
        record
    )
    if revision != asking.state.revision:
        raise StateMoved
    if found is None:
        raise no_such_scan(scan_id)
    sees_all = not asking.rights(stored.definition).filters_for(Action.READ)
    return Scan(
        scan_id=found,
        state=state,
        mode="full" if since is None else "changed",
        min_score=least,
        since=since,
        started_at=started,
        started_by=by,
        finished_at=finished,
        step=step,
        progress=progress,
        counts=counts if sees_all else None,
        error=error or (ABANDONED if state == "failed" else ""),
    )


async def cancel_scan(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, scan_id: str
) -> None:
    """End a scan that runs; nothing of it is kept. One that has ended stays as it is.

    Raises:
        NotFound, AccessDenied: it is not there for this caller, or may not be ended by them.
        StateMoved: ask again with a newer state.
    """
    stored = changeable_entity(asking, entity)
    scan = await read_scan(conn, asking=asking, entity=entity, scan_id=scan_id)
    if scan.state != "running":
        return
    with translated():
        async with conn.transaction():
            ended = await end_scan(
                conn, schemas=asking.schemas, scan_id=scan.scan_id, state="cancelled"
            )
            if ended:
                await audit.record(
                    conn,
                    schemas=asking.schemas,
                    actor=asking.principal.actor,
                    action="duplicate_scan_cancelled",
                    entities=[stored.name],
                    details={"scan": str(scan.scan_id)},
                )


def no_such_scan(scan_id: object) -> NotFound:
    return NotFound(
        f"there is no scan {str(scan_id)[:60]}",
        hint="scans are kept until 20 newer ones of the entity have ended",
        code="DUPLICATE_SCAN_NOT_FOUND",
    )


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise no_such_scan(text) from None
