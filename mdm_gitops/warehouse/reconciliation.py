"""The operator's side of the config store: how it stands, what it was asked, what is suspended.

The operator writes how it stands; anybody else reads it, and leaves requests. A request is a number
that goes up and a notification: whoever misses the notification finds the number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from mdm_gitops.errors import MdmError
from mdm_gitops.warehouse.connect import Connection, SessionLimits, connect, in_our_words
from mdm_gitops.warehouse.names import Schemas

logger = logging.getLogger(__name__)

EVERYTHING: Final = ""  # the scope of a suspension of all
_KEPT_EVENTS: Final = 1_000
_RETRY_S: Final = 15.0
_LISTENING: Final = SessionLimits(statement_timeout_s=0, idle_in_transaction_timeout_s=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    scope: str
    suspended_by: str
    reason: str
    suspended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    event_id: int
    occurred_at: datetime
    kind: str
    actor: str
    commit: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """All that is told; *state* is what the operator wrote of itself."""

    state: dict[str, Any]
    source: str
    mode: str
    accepted_commit: str | None
    operator: str
    heartbeat_at: datetime | None
    requested: int
    handled: int
    suspensions: tuple[Suspension, ...] = ()
    events: tuple[Event, ...] = ()  # newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a run must know before it decides anything. Equal values: nothing was asked since."""

    revision: int
    requested: int
    accepted_commit: str | None
    suspended: frozenset[str] = field(default_factory=frozenset)
    decided: str = ""  # of waiting plans: which, and how

    @property
    def is_suspended(self) -> bool:
        return EVERYTHING in self.suspended


_CONTROL: Final = """
SELECT (SELECT value FROM {config}.revision) AS revision, r.requested, r.accepted_commit,
       coalesce((SELECT array_agg(s.scope) FROM {config}.suspension s), '{{}}') AS suspended,
       coalesce((SELECT string_agg(p.number || p.state, ' ' ORDER BY p.number)
                   FROM {config}.waiting_plan p
                  WHERE p.state IN ('approved', 'rejected')), '') AS decided
  FROM {config}.reconciliation r
"""
_READ: Final = """
SELECT state, source, mode, accepted_commit, operator, heartbeat_at, requested, handled
  FROM {config}.reconciliation
"""
_SUSPENSIONS: Final = """
SELECT scope, suspended_by, reason, suspended_at FROM {config}.suspension ORDER BY scope
"""
_EVENTS: Final = """
SELECT event_id, occurred_at, kind, actor, commit_id AS commit, message
  FROM {config}.reconciliation_event ORDER BY event_id DESC LIMIT %(take)s
"""
_WRITE: Final = """
UPDATE {config}.reconciliation
   SET state = %(state)s, source = %(source)s, mode = %(mode)s, operator = %(operator)s,
       heartbeat_at = now(), handled = greatest(handled, %(handled)s)
"""
_HEARTBEAT: Final = """
UPDATE {config}.reconciliation SET heartbeat_at = now(), operator = %(operator)s
"""
_ACCEPT: Final = "UPDATE {config}.reconciliation SET accepted_commit = %(commit)s"
_REQUEST: Final = """
UPDATE {config}.reconciliation
   SET requested = requested + 1, requested_at = now(), requested_by = %(actor)s
RETURNING requested
"""
_NOTE: Final = """
INSERT INTO {config}.reconciliation_event (kind, actor, commit_id, message)
VALUES (%(kind)s, %(actor)s, %(commit)s, %(message)s)
RETURNING event_id
"""
_FORGET: Final = "DELETE FROM {config}.reconciliation_event WHERE event_id <= %(last)s"
_SUSPEND: Final = """
INSERT INTO {config}.suspension (scope, suspended_by, reason)
VALUES (%(scope)s, %(actor)s, %(reason)s) ON CONFLICT (scope) DO NOTHING
"""
_RESUME: Final = "DELETE FROM {config}.suspension WHERE scope = %(scope)s"


async def read_control(conn: Connection, *, schemas: Schemas) -> Control:
    row = (await _rows(conn, _CONTROL, schemas))[0]
    return Control(**{**row, "suspended": frozenset(row["suspended"])})


async def read_reconciliation(
    conn: Connection, *, schemas: Schemas, events: int = 50
) -> Reconciliation:
    async with conn.transaction():
        row = (await _rows(conn, _READ, schemas))[0]
        suspensions = await _rows(conn, _SUSPENSIONS, schemas)
        found = await _rows(conn, _EVENTS, schemas, take=events)
    return Reconciliation(
        **row,
        suspensions=tuple(Suspension(**each) for each in suspensions),
        events=tuple(Event(**each) for each in found),
    )


async def write_reconciliation(
    conn: Connection,
    *,
    schemas: Schemas,
    state: dict[str, Any],
    source: str,
    mode: str,
    operator: str,
    handled: int,
) -> None:
    values = {"source": source, "mode": mode, "operator": operator, "handled": handled}
    await _run(conn, _WRITE, schemas, state=Jsonb(state), **values)


async def beat(conn: Connection, *, schemas: Schemas, operator: str) -> None:
    """Say that *operator* is alive and leads."""
    await _run(conn, _HEARTBEAT, schemas, operator=operator)


async def accept_commit(conn: Connection, commit: str, *, schemas: Schemas) -> None:
    """Remember that *commit* was taken: from now on only what builds on it is."""
    await _run(conn, _ACCEPT, schemas, commit=commit)


async def note_event(
    conn: Connection,
    *,
    schemas: Schemas,
    kind: str,
    actor: str,
    commit: str | None,
    message: str,
) -> None:
    values = {"kind": kind, "actor": actor, "commit": commit, "message": message[:2_000]}
    row = (await _rows(conn, _NOTE, schemas, **values))[0]
    if row["event_id"] % 100 == 0:
        await _run(conn, _FORGET, schemas, last=row["event_id"] - _KEPT_EVENTS)


async def request_run(conn: Connection, *, schemas: Schemas, actor: str) -> int:
    """Ask for a run at once, wherever the operator is; return the number of the request."""
    async with conn.transaction():
        row = (await _rows(conn, _REQUEST, schemas, actor=actor))[0]
        await notify(conn, schemas=schemas)
    return int(row["requested"])


async def suspend(
    conn: Connection, *, schemas: Schemas, scope: str, actor: str, reason: str
) -> bool:
    """Stop what the operator does for *scope*; whether it was not stopped before."""
    values = {"scope": scope, "actor": actor}
    return await _told(conn, schemas, _SUSPEND, "suspended", reason=reason, **values)


async def resume(conn: Connection, *, schemas: Schemas, scope: str, actor: str) -> bool:
    """Let it go on; whether it was stopped."""
    return await _told(conn, schemas, _RESUME, "resumed", reason="", scope=scope, actor=actor)


async def _told(
    conn: Connection,
    schemas: Schemas,
    query: str,
    kind: str,
    *,
    scope: str,
    actor: str,
    reason: str,
) -> bool:
    async with conn.transaction():
        cursor = await _run(conn, query, schemas, scope=scope, actor=actor, reason=reason)
        if not cursor.rowcount:
            return False
        what = (scope or "everything") + (f": {reason}" if reason else "")
        await note_event(
            conn, schemas=schemas, kind=kind, actor=actor, commit=None, message=f"{kind} {what}"
        )
        await notify(conn, schemas=schemas)
    return True


# --- being told ---


async def notify(conn: Connection, *, schemas: Schemas) -> None:
    await conn.execute("SELECT pg_notify(%s, '')", [channel(schemas)])


def channel(schemas: Schemas) -> str:
    return f"mdm_reconcile_{schemas.config}"


async def listen(
    url: str, heard: Callable[[], None], *, schemas: Schemas, stop: asyncio.Event
) -> None:
    """Call *heard* after each notification until *stop*; an outage is waited out.

    What was missed meanwhile is found by the operator's own interval, and by the call after each
    new connection.
    """
    while not stop.is_set():
        try:
            async with await connect(
                url, application_name="mdm-gitops operator ear", limits=_LISTENING
            ) as conn:
                await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel(schemas))))
                heard()
                await _hear(conn, heard, stop)
        except (MdmError, psycopg.Error, OSError) as error:
            logger.info("notifications are not heard for a while: %s", error)
            await _pause(stop)


async def _hear(conn: Connection, heard: Callable[[], None], stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait())
    hearing = asyncio.create_task(_each(conn, heard))
    try:
        await asyncio.wait((stopping, hearing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopping, hearing):
            task.cancel()
        ended = await asyncio.gather(stopping, hearing, return_exceptions=True)
    failed = ended[1]
    if isinstance(failed, Exception) and not isinstance(failed, asyncio.CancelledError):
        raise failed


async def _each(conn: Connection, heard: Callable[[], None]) -> None:
    async for _ in conn.notifies():
        heard()


async def _pause(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout=_RETRY_S)
    except TimeoutError:
        return


async def _rows(
    conn: Connection, query: str, schemas: Schemas, **parameters: Any
) -> list[dict[str, Any]]:
    statement = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    with in_our_words("asking the config store"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchall()


async def _run(
    conn: Connection, query: str, schemas: Schemas, **parameters: Any
) -> psycopg.AsyncCursor[Any]:
    statement = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    with in_our_words("writing to the config store"):
        return await conn.execute(statement, parameters)
