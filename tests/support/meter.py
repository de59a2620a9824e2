"""Counts what work costs PostgreSQL: messages that it gets, and rows that it reads. No seconds.

Messages are counted on the wire, whatever layer sends them; rows by PostgreSQL itself: rows of sequential
scans, and entries of indexes. Both are of one session, so nobody else's work is in them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.pq import Trace

# Views and what one session has not told yet are left behind by the second statement.
_FLUSH: Final = "SELECT pg_stat_force_next_flush()"
_READ: Final = """
SELECT (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables)
     + (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes)"""
_SENT: Final = ("Query", "Execute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    statements: int
    rows: int


async def cost_of(
    conn: AsyncConnection[Any], work: Callable[[], Awaitable[object]], *, warm_ups: int = 2
) -> Cost:
    """Return what *work*, which uses *conn* and no other, costs once its statements are prepared."""
    for _ in range(warm_ups):
        await work()
    before = await _rows_read(conn)
    with tempfile.TemporaryFile("w+") as file:
        conn.pgconn.trace(file.fileno())
        conn.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            await work()
        finally:
            conn.pgconn.untrace()
        file.seek(0)
        lines = [line.split("\t") for line in file]
    sent = sum(fields[0] == "F" and fields[2].strip() in _SENT for fields in lines)
    return Cost(statements=sent, rows=await _rows_read(conn) - before)


async def _rows_read(conn: AsyncConnection[Any]) -> int:
    await conn.execute(_FLUSH)
    row = await (await conn.execute(_READ)).fetchone()
    assert row is not None
    return int(row[0])
