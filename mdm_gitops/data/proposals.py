"""Saving writes as proposals: locking what the statements of ``proposals_sql`` rely on, and running
them, in one short transaction and one round trip.

No constraint keeps two pending rows from claiming the same unique value, so those who propose for
one entity do it one after the other, batch by batch. Those who approve, reject or withdraw lock the
proposal's row, and so does this; whoever comes second sees what the first has done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_run import Line, parameters, read_lines
from mdm_gitops.data.write_sql import WriteStatement
from mdm_gitops.plan.physical import Role
from mdm_gitops.warehouse.lock import lock_key


async def run_proposals(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    statement: WriteStatement,
    rows: Sequence[Mapping[str, Any]],
) -> dict[int, Line]:
    """Run *statement*, a proposal for *rows* (as ``run_write`` has them), and return its lines."""
    given = parameters(asking, statement, rows=rows)
    async with conn.pipeline(), conn.transaction():
        await lock_proposals(conn, target, [row["_id"] for row in rows])
        # A statement of its own: it must see what those have written for whom we waited.
        cursor = await conn.execute(statement.sql, given, prepare=True)
    return read_lines(cursor.pgresult, statement)


async def lock_proposals(
    conn: AsyncConnection[Any], target: Target, row_ids: Sequence[Any] = ()
) -> None:
    """Keep others from proposing for the entity until the transaction ends, and from deciding on the
    proposals for *row_ids*."""
    key = lock_key(f"proposals {target.stored.entity_id}", target.schemas.config)
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", [key])
    if row_ids:
        sql = (
            f'SELECT FROM {target.table_sql(Role.EDIT)} e WHERE e."_sys_id" = ANY (%s::uuid[])'
            ' ORDER BY e."_sys_id" FOR UPDATE OF e'
        )
        await conn.execute(sql.encode(), [list(row_ids)])
