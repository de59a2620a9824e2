"""API keys: how they look, how they are recognised, and how the first one comes to be.

A key is ``mdm_``, 32 random characters and 6 of checksum. Only its SHA-256 is stored: the random
part has 190 bits, so there is nothing to guess and nothing to salt. A mistyped or invented key fails
the checksum and costs no query. The bootstrap key of the settings may be any long string.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from psycopg import AsyncConnection, Error, errors, sql

from mdm_gitops.access.principal import Principal, PrincipalKind
from mdm_gitops.errors import SettingsError, WarehouseError
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoreState

PREFIX: Final = "mdm_"
BOOTSTRAP_NAME: Final = "bootstrap"
MIN_BOOTSTRAP_LENGTH: Final = 20
MAX_LENGTH: Final = 256
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_LENGTH: Final = 32
_CHECKSUM_LENGTH: Final = 6


def generate_key() -> str:
    """Return a new key. Nobody can tell it again: show it once."""
    random_part = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return f"{PREFIX}{random_part}{_checksum(random_part)}"


def is_well_formed(key: str) -> bool:
    """Whether *key* has our form and its checksum is right."""
    body = key[len(PREFIX) :]
    if not key.startswith(PREFIX) or len(body) != _RANDOM_LENGTH + _CHECKSUM_LENGTH:
        return False
    random_part, checksum = body[:_RANDOM_LENGTH], body[_RANDOM_LENGTH:]
    if not random_part.isascii() or not checksum.isascii():
        return False
    return hmac.compare_digest(_checksum(random_part), checksum)


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _checksum(text: str) -> str:
    number, signs = zlib.crc32(text.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, remainder = divmod(number, len(_ALPHABET))
        signs = _ALPHABET[remainder] + signs
    return signs


def principal_of(key: str, state: StoreState, *, now: Callable[[], datetime]) -> Principal | None:
    """Return whose key it is, or None when it is unknown, revoked or expired.

    Keys are found by their SHA-256: which part of a wrong key is right cannot show in the time.
    """
    stored = state.keys.get(digest(key))
    if stored is None or (stored.expires_at is not None and stored.expires_at <= now()):
        return None
    return state.remember(
        ("principal", stored.name, stored.is_global_admin),
        lambda: Principal(
            kind=PrincipalKind.APIKEY, name=stored.name, is_global_admin=stored.is_global_admin
        ),
    )


_SET_BOOTSTRAP: Final = """
INSERT INTO {config}.api_key AS k (name, key_sha256, is_global_admin, created_by)
VALUES (%(name)s, %(digest)s, true, 'system:settings')
ON CONFLICT (name) DO UPDATE
   SET key_sha256 = excluded.key_sha256, is_global_admin = true, revoked_at = NULL,
       expires_at = NULL, created_at = now(), created_by = excluded.created_by
 WHERE k.key_sha256 <> excluded.key_sha256
"""
_CREATE_FIRST: Final = """
INSERT INTO {config}.api_key (name, key_sha256, is_global_admin, created_by)
SELECT %(name)s, %(digest)s, true, 'system:first-start'
 WHERE NOT EXISTS (SELECT FROM {config}.api_key)
ON CONFLICT DO NOTHING
RETURNING name
"""
_USED: Final = """
UPDATE {config}.api_key SET last_used_at = now()
 WHERE name = ANY (%(names)s) AND (last_used_at IS NULL OR last_used_at < now() - interval '1 min')
"""


async def ensure_first_key(
    conn: AsyncConnection[Any], *, schemas: Schemas, configured: str = ""
) -> str | None:
    """See to it that a Global Admin's key exists; return a new one if one had to be made up.

    *configured* (``Mdm__Auth__BootstrapApiKey``) becomes the key named ``bootstrap``; another value
    replaces the earlier one. A key that was revoked stays revoked while the setting is the same.

    Raises:
        SettingsError: *configured* is too short, or is already the key of somebody else.
    """
    if configured:
        await _set_bootstrap(conn, schemas, configured)
        return None
    key = generate_key()
    given = {"name": BOOTSTRAP_NAME, "digest": digest(key)}
    cursor = await conn.execute(_statement(_CREATE_FIRST, schemas), given)
    return key if await cursor.fetchone() else None


async def _set_bootstrap(conn: AsyncConnection[Any], schemas: Schemas, key: str) -> None:
    if not MIN_BOOTSTRAP_LENGTH <= len(key) <= MAX_LENGTH:
        raise SettingsError(
            f"Mdm__Auth__BootstrapApiKey must have {MIN_BOOTSTRAP_LENGTH} to {MAX_LENGTH}"
            " characters",
            hint="for example the output of `openssl rand -hex 24`",
        )
    given = {"name": BOOTSTRAP_NAME, "digest": digest(key)}
    try:
        await conn.execute(_statement(_SET_BOOTSTRAP, schemas), given)
    except errors.UniqueViolation:
        raise SettingsError(
            "Mdm__Auth__BootstrapApiKey is the key of another name already",
            hint="choose a value of its own",
        ) from None


async def note_use(conn: AsyncConnection[Any], *, schemas: Schemas, names: frozenset[str]) -> None:
    """Record that these keys were used; to the minute, so that reads do not become writes."""
    try:
        await conn.execute(_statement(_USED, schemas), {"names": list(names)})
    except Error:
        raise WarehouseError("the use of API keys could not be recorded") from None


def _statement(text: str, schemas: Schemas) -> sql.Composed:
    return sql.SQL(text).format(config=sql.Identifier(schemas.config))
