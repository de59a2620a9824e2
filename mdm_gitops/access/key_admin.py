"""Making, listing and revoking API keys, for a Global Admin.

Rights hang on a key's name, not on the key: once one is revoked or has expired, a new one may be made
under its name and may do the same. A server that knows no other admins keeps its last way in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import AsyncConnection, Error, sql

from mdm_gitops.access.api_keys import BOOTSTRAP_NAME, digest, generate_key
from mdm_gitops.errors import Conflict, InputError, NotFound, WarehouseError
from mdm_gitops.warehouse.names import Schemas

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_LIST: Final = """
SELECT name, is_global_admin, created_at, created_by, expires_at, revoked_at, last_used_at
  FROM {config}.api_key ORDER BY name COLLATE "C"
"""
_ACTING: Final = "SELECT set_config('mdm.actor', %(actor)s, true)"
_CLEAR: Final = """
DELETE FROM {config}.api_key
 WHERE name = %(name)s AND (revoked_at IS NOT NULL OR expires_at <= %(now)s)
"""
_CREATE: Final = """
INSERT INTO {config}.api_key
       (name, key_sha256, is_global_admin, created_at, created_by, expires_at)
VALUES (%(name)s, %(digest)s, %(is_global_admin)s, %(now)s, %(actor)s, %(expires_at)s)
ON CONFLICT (name) DO NOTHING
RETURNING name, is_global_admin, created_at, created_by, expires_at, revoked_at, last_used_at
"""
# Two admins who revoke each other's key take turns.
_ALONE: Final = "LOCK TABLE {config}.api_key IN SHARE ROW EXCLUSIVE MODE"
_OTHER_ADMINS: Final = """
SELECT count(*) FROM {config}.api_key
 WHERE is_global_admin AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > %(now)s)
   AND name <> %(name)s
"""
_REVOKE: Final = """
UPDATE {config}.api_key SET revoked_at = %(now)s
 WHERE name = %(name)s AND revoked_at IS NULL
RETURNING is_global_admin AND (expires_at IS NULL OR expires_at > %(now)s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key; the key itself is known to nobody but its owner."""

    name: str
    is_global_admin: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


async def list_keys(conn: AsyncConnection[Any], *, schemas: Schemas) -> list[ApiKey]:
    """Return all keys by name, also those that were revoked or have expired."""
    try:
        cursor = await conn.execute(_statement(_LIST, schemas))
        return [_key(row) for row in await cursor.fetchall()]
    except Error:
        raise _not_now() from None


async def create_key(
    conn: AsyncConnection[Any],
    name: str,
    *,
    schemas: Schemas,
    actor: str,
    now: datetime,
    is_global_admin: bool = False,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Make a key for *name*; return it with the text that nobody can tell again.

    Raises:
        InputError: the name cannot be one, or the key would have expired already.
        Conflict: there is a key of that name that still works.
    """
    check_name(name)
    if expires_at is not None and expires_at <= now:
        raise InputError("the key would have expired already")
    key = generate_key()
    given = {
        "name": name,
        "digest": digest(key),
        "is_global_admin": is_global_admin,
        "actor": actor,
        "now": now,
        "expires_at": expires_at,
    }
    try:
        async with conn.transaction():
            await conn.execute(_ACTING, given)
            await conn.execute(_statement(_CLEAR, schemas), given)
            row = await (await conn.execute(_statement(_CREATE, schemas), given)).fetchone()
    except Error:
        raise _not_now() from None
    if row is None:
        raise Conflict(
            f"there is an API key {name} already",
            hint="revoke it first, or choose another name",
            code="API_KEY_EXISTS",
        )
    return _key(row), key


async def revoke_key(
    conn: AsyncConnection[Any],
    name: str,
    *,
    schemas: Schemas,
    actor: str,
    now: datetime,
    has_other_admins: bool,
) -> None:
    """Make the key of *name* useless from now on.

    Raises:
        NotFound: no key of that name works.
        Conflict: it is the last one of a Global Admin, and there are no *has_other_admins*.
    """
    if "\x00" in name:  # which PostgreSQL does not even compare
        raise _no_such_key(name)
    given = {"name": name, "actor": actor, "now": now}
    try:
        async with conn.transaction():
            await conn.execute(_statement(_ALONE, schemas))
            await conn.execute(_ACTING, given)
            revoked = await (await conn.execute(_statement(_REVOKE, schemas), given)).fetchone()
            others = await (
                await conn.execute(_statement(_OTHER_ADMINS, schemas), given)
            ).fetchone()
            if revoked is None:
                raise _no_such_key(name)
            is_way_in = revoked[0] and not (others and others[0])
            _refuse_last_way_in(name, is_last=is_way_in and not has_other_admins)
    except Error:
        raise _not_now() from None


def check_name(name: str) -> None:
    """Raise InputError unless *name* can be that of a key."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"an API key cannot be named {name[:60]!r}",
            hint="up to 63 letters, digits, dots, dashes and underscores, with one of the first two"
            " in front",
        )
    if name == BOOTSTRAP_NAME:
        raise InputError(
            f"{BOOTSTRAP_NAME} is the key that the settings make",
            hint="choose another name, or change Mdm__Auth__BootstrapApiKey",
        )


def _key(row: Any) -> ApiKey:
    name, is_global_admin, created_at, created_by, expires_at, revoked_at, last_used_at = row
    return ApiKey(
        name=name,
        is_global_admin=is_global_admin,
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
    )


def _no_such_key(name: str) -> NotFound:
    return NotFound(f"there is no API key {name[:60]} in use", code="API_KEY_NOT_FOUND")


def _refuse_last_way_in(name: str, *, is_last: bool) -> None:
    if is_last:
        raise Conflict(
            f"{name[:60]} is the last key of a Global Admin",
            hint="make another one first, with isGlobalAdmin",
            code="LAST_ADMIN_KEY",
        )


def _not_now() -> WarehouseError:
    return WarehouseError("API keys cannot be read or changed now")


def _statement(text: str, schemas: Schemas) -> sql.Composed:
    return sql.SQL(text).format(config=sql.Identifier(schemas.config))
