"""Sessions of browsers, in PostgreSQL: who signed in, and until when.

The browser holds a random cookie, the table its SHA-256. A session is looked up with each request that
presents it, so signing out counts at once on every server. It ends when it was not used for a while,
and in any case after a fixed time; roles and groups are those of the moment of signing in.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg import AsyncConnection, AsyncCursor, Error, sql

from mdm_gitops.access.identity import Identity
from mdm_gitops.access.principal import PrincipalKind
from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.names import Schemas

_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
# Use is noted this often, as a part of the time that a session may lie idle: reads do not become
# writes, and no session ends noticeably early.
_NOTED_EVERY: Final = 20

_START: Final = """
INSERT INTO {config}.session
       (cookie_sha256, issuer, subject, name, groups, roles, created_at, last_used_at, expires_at)
VALUES (%(digest)s, %(issuer)s, %(subject)s, %(name)s, %(groups)s, %(roles)s, %(now)s, %(now)s,
        %(expires_at)s)
"""
_FIND: Final = """
WITH found AS (
    SELECT cookie_sha256, issuer, subject, name, groups, roles, last_used_at
      FROM {config}.session
     WHERE cookie_sha256 = %(digest)s AND issuer = %(issuer)s
       AND expires_at > %(now)s AND last_used_at > %(idle_since)s
), noted AS (
    UPDATE {config}.session s SET last_used_at = %(now)s
      FROM found
     WHERE s.cookie_sha256 = found.cookie_sha256 AND s.last_used_at < %(noted_since)s
)
SELECT issuer, subject, name, groups, roles FROM found
"""
_END: Final = """
DELETE FROM {config}.session WHERE cookie_sha256 = %(digest)s
RETURNING issuer, subject, name, groups, roles
"""
_FORGET: Final = "DELETE FROM {config}.session WHERE expires_at <= %(now)s"


def is_cookie(text: str) -> bool:
    """Whether *text* has the form of our cookies; what has not costs no query."""
    return _COOKIE.fullmatch(text) is not None


async def start_session(
    conn: AsyncConnection[Any],
    identity: Identity,
    *,
    schemas: Schemas,
    now: datetime,
    longest: timedelta,
) -> str:
    """Remember that *identity* has signed in; return the cookie, which nobody can tell again."""
    cookie = secrets.token_urlsafe(32)
    given = {
        "digest": _digest(cookie),
        "issuer": identity.issuer,
        "subject": identity.subject,
        "name": identity.name,
        "groups": list(identity.groups),
        "roles": list(identity.roles),
        "now": now,
        "expires_at": now + longest,
    }
    await _execute(conn, _START, schemas, given)
    return cookie


async def find_session(
    conn: AsyncConnection[Any],
    cookie: str,
    *,
    schemas: Schemas,
    issuer: str,
    now: datetime,
    idle: timedelta,
) -> Identity | None:
    """Return who signed in with *issuer* and got *cookie*, unless the session has ended."""
    given = {
        "digest": _digest(cookie),
        "issuer": issuer,
        "now": now,
        "idle_since": now - idle,
        "noted_since": now - idle / _NOTED_EVERY,
    }
    return await _identity(await _execute(conn, _FIND, schemas, given))


async def end_session(
    conn: AsyncConnection[Any], cookie: str, *, schemas: Schemas
) -> Identity | None:
    """End the session of *cookie*; return whose it was, if there was one."""
    return await _identity(await _execute(conn, _END, schemas, {"digest": _digest(cookie)}))


async def forget_sessions(conn: AsyncConnection[Any], *, schemas: Schemas, now: datetime) -> int:
    """Remove the sessions whose time is over; return how many. Those left idle go with them then."""
    return (await _execute(conn, _FORGET, schemas, {"now": now})).rowcount


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("ascii")).digest()


async def _identity(cursor: AsyncCursor[Any]) -> Identity | None:
    row = await cursor.fetchone()
    if row is None:
        return None
    issuer, subject, name, groups, roles = row
    return Identity(
        issuer=issuer,
        subject=subject,
        kind=PrincipalKind.USER,
        name=name,
        groups=tuple(groups),
        roles=tuple(roles),
    )


async def _execute(
    conn: AsyncConnection[Any], text: str, schemas: Schemas, given: Mapping[str, Any]
) -> AsyncCursor[Any]:
    statement = sql.SQL(text).format(config=sql.Identifier(schemas.config))
    try:
        return await conn.execute(statement, given)
    except Error:
        raise WarehouseError("sessions cannot be read or written now") from None
