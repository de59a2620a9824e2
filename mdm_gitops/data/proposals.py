"""Saving writes as proposals: locking what the statements of ``proposals_sql`` rely on, and running
them, in one short transaction and one round trip.

No constraint keeps two pending rows from claiming the same unique value, so those who propose for
one entity do it one after the other, batch by batch. Those who approve, reject or withdraw lock the
proposal's row, and so does this; whoever comes second sees what the first has done.

No foreign key holds a proposal either. Whoever deletes what it refers to, pending or approved, or
gives it another key value, must come either before it, and the judge sees that, or after it, and
carries it along (``data.carrying``). So the rows that proposals refer to are locked as a foreign key
would lock them. Order of the locks: what is referred to, the proposals, their approved rows; those who
change a key value take theirs in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.judging import default_sql, typed_sql
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_run import Line, parameters, read_lines
from mdm_gitops.data.write_sql import WriteStatement
from mdm_gitops.plan.physical import Role, table_name
from mdm_gitops.warehouse.lock import lock_key


async def run_proposals(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    statement: WriteStatement,
    rows: Sequence[Mapping[str, Any]],
    with_values: bool = True,
) -> dict[int, Line]:
    """Run *statement*, a proposal for *rows* (as ``run_write`` has them), and return its lines.

    *with_values* says that it judges values, and so what they refer to.
    """
    given = parameters(asking, statement, rows=rows)
    row_ids = [row["_id"] for row in rows]
    async with conn.pipeline(), conn.transaction():
        await lock_proposals(conn, target)
        if with_values:
            for sql, texts in _held_references(asking, target, rows):
                await conn.execute(sql, {"ids": row_ids, "texts": texts})
        await _lock_rows(conn, target, Role.EDIT, row_ids, "UPDATE")
        if with_values and target.references:  # a relinked row would be judged as it was before
            await _lock_rows(conn, target, Role.MAIN, row_ids, "SHARE")
        # A statement of its own: it must see what those have written for whom we waited.
        cursor = await conn.execute(statement.sql, given, prepare=True)
    return read_lines(cursor.pgresult, statement)


async def lock_proposals(conn: AsyncConnection[Any], target: Target) -> None:
    """Keep others from proposing for the entity until the transaction ends."""
    key = lock_key(f"proposals {target.stored.entity_id}", target.schemas.config)
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", [key])


async def _lock_rows(
    conn: AsyncConnection[Any], target: Target, role: Role, row_ids: Sequence[Any], strength: str
) -> None:
    sql = (
        f'SELECT FROM {target.table_sql(role)} t WHERE t."_sys_id" = ANY (%s::uuid[])'
        f' ORDER BY t."_sys_id" FOR {strength} OF t'
    )
    await conn.execute(sql.encode(), [list(row_ids)])


def _held_references(
    asking: Asking, target: Target, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[bytes, list[str]]]:
    """Yield the statements that lock what *rows* may refer to, each with the texts that were given."""
    for column, (entity, key) in target.references.items():
        texts = sorted({row[column] for row in rows if row.get(column) is not None})
        # What is approved comes last: until then a pending row may have become an approved one.
        if asking.state.entities[entity].definition.approval_required:
            pending = (
                f"{_table(target, entity, Role.EDIT)} r WHERE r.\"_sys_state\" = 'pending' AND"
            )
            yield _hold_sql(target, column, f'{pending} r."{key}"', "SHARE"), texts
        approved = f'{_table(target, entity, Role.MAIN)} r WHERE r."{key}"'
        yield _hold_sql(target, column, approved, "KEY SHARE"), texts


def _table(target: Target, entity: str, role: Role) -> str:
    return f'"{target.schemas.data}"."{table_name(entity, role)}"'


def _hold_sql(target: Target, column: str, referred: str, strength: str) -> bytes:
    """Return the statement that locks the rows *referred* which *column* has or will have the value of."""
    values = [
        f'SELECT {typed_sql(target, column, alias="g")} FROM unnest(%(texts)s::text[]) g("{column}")',
        f'SELECT m."{column}" FROM {target.main_sql} m WHERE m."_sys_id" = ANY (%(ids)s::uuid[])',
    ]
    if target.main.columns[column].default is not None:
        values.append(f"SELECT {default_sql(target, column)}")
    return (
        f"SELECT FROM {referred} IN ({' UNION ALL '.join(values)})"
        f' ORDER BY r."_sys_id" FOR {strength} OF r'
    ).encode()
