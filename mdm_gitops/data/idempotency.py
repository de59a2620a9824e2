"""Requests that may be sent twice: the answer to a key is kept, in the transaction of what it answers.

A lock tells that a request with the key is under way; it is that of the transaction, so it cannot be
left behind. What was refused is not kept: it may be corrected and sent again with the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.failures import translated
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.warehouse.lock import lock_key
from mdm_gitops.warehouse.names import Schemas

MAX_KEY_LENGTH: Final = 255


def checked_key(text: str) -> str:
    """Return the key that a header names; quotes around it do not belong to it.

    Raises:
        InputError: it is no key.
    """
    key = text.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not key or len(key) > MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        raise InputError(
            f"Idempotency-Key must be 1 to {MAX_KEY_LENGTH} printable characters of ASCII",
            hint="a new UUID for each import will do",
            parameter="Idempotency-Key",
        )
    return key


class RequestHash:
    """The hash of a request, fed with its body as it arrives."""

    def __init__(self, what: Mapping[str, Any]) -> None:
        self._hash = hashlib.sha256()
        for name in sorted(what):
            self._hash.update(f"{name}={what[name]!r}\n".encode())

    def feed(self, chunk: bytes) -> None:
        self._hash.update(chunk)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


async def earlier_answer(
    conn: AsyncConnection[Any], *, schemas: Schemas, principal: str, key: str
) -> tuple[bytes, bytes] | None:
    """Take the key for this transaction; return hash and answer of an earlier request with it.

    Raises:
        Conflict: a request with it is under way.
    """
    number = lock_key(f"idempotency {principal} {key}", schemas.config)
    with translated():
        locked = await conn.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        if not (await locked.fetchone() or (False,))[0]:
            raise Conflict(
                "a request with this Idempotency-Key is under way",
                hint="wait for its answer, or ask again in a moment",
                code="IDEMPOTENCY_IN_FLIGHT",
            )
        found = await conn.execute(
            f'SELECT request_hash, answer::text FROM "{schemas.config}".idempotency_key'
            " WHERE principal = %s AND key = %s".encode(),
            [principal, key],
        )
        row = await found.fetchone()
    return (bytes(row[0]), row[1].encode()) if row else None


def refuse_other_request(earlier: bytes, present: bytes) -> None:
    """Raise Conflict if a key was used for another request."""
    if earlier != present:
        raise Conflict(
            "this Idempotency-Key was used for another request",
            hint="use a new key for each import",
            code="IDEMPOTENCY_CONFLICT",
        )


async def keep_answer(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    principal: str,
    key: str,
    request_hash: bytes,
    answer: bytes,
) -> None:
    """Keep the answer; it counts once the transaction is committed."""
    await conn.execute(
        f'INSERT INTO "{schemas.config}".idempotency_key (principal, key, request_hash, answer)'
        " VALUES (%s, %s, %s, %s::json)".encode(),
        [principal, key, request_hash, answer.decode()],
    )


async def forget_answers(conn: AsyncConnection[Any], *, schemas: Schemas, hours: int) -> int:
    """Delete answers older than *hours*; return how many."""
    with translated():
        cursor = await conn.execute(
            f'DELETE FROM "{schemas.config}".idempotency_key'
            " WHERE created_at < now() - make_interval(hours => %s)".encode(),
            [hours],
        )
    return cursor.rowcount
