"""Who leads among several operators: a lock of the session, and the session's end when it is silent."""

from __future__ import annotations

from typing import Final

from mdm_gitops.warehouse.connect import Connection, in_our_words
from mdm_gitops.warehouse.lock import lock_key, try_lock
from mdm_gitops.warehouse.names import Schemas

PURPOSE: Final = "operator"


async def try_to_lead(conn: Connection, *, schemas: Schemas) -> bool:
    """Take the lock if nobody has it; it is held until the connection ends."""
    with in_our_words("asking who leads"):
        return await try_lock(conn, lock_key(PURPOSE, schemas.config))


async def bound_silence(conn: Connection, *, seconds: float) -> None:
    """Let PostgreSQL end the session when it says nothing for *seconds*, also inside a transaction."""
    milliseconds = str(max(1, round(seconds * 1000)))
    with in_our_words("taking the lead"):
        for name in ("idle_session_timeout", "idle_in_transaction_session_timeout"):
            await conn.execute("SELECT set_config(%s, %s, false)", [name, milliseconds])


async def say_something(conn: Connection) -> None:
    with in_our_words("keeping the lead"):
        await conn.execute("SELECT 1")
