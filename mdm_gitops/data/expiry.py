"""Soft-deleted rows whose ``deletedRetentionDays`` are over: they are deleted for good.

Each is a hard deletion like any other, with its version and its event, by the service itself. What others refer
to stays as long as they do, and what a proposal waits for stays until that is decided. Rows go in short
transactions; a row that somebody restores meanwhile has another version, and stays.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection, errors

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.failures import translated
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.write_run import run_write
from mdm_gitops.data.write_sql import (
    Operation,
    Status,
    WriteStatement,
    json_source,
    write_statement,
)
from mdm_gitops.plan.physical import Role
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoreState

ACTOR: Final = "system:retention"
_BATCH: Final = 500
_BUDGET_S: Final = 30.0
_FIRST: Final = UUID(int=0)
_OLD: Final = """\
SELECT r."_sys_id", r."_sys_version" FROM {main} r
 WHERE r."_sys_is_deleted" AND r."_sys_deleted_at" < now() - make_interval(days => %(days)s)
   AND r."_sys_id" > %(after)s{waits}
 ORDER BY r."_sys_id" LIMIT %(batch)s"""
_WAITS: Final = """
   AND NOT EXISTS (SELECT FROM {edit} e WHERE e."_sys_id" = r."_sys_id" AND e."_sys_state" = 'pending')"""


async def remove_deleted(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    state: StoreState,
    now: datetime,
    batch: int = _BATCH,
    budget_s: float = _BUDGET_S,
) -> int:
    """Delete rows for good, for about *budget_s*; return how many. What is left is for the next call.

    Raises:
        StateMoved: the definitions changed meanwhile.
        MdmError: the warehouse does not do it now.
    """
    until, removed = time.monotonic() + budget_s, 0
    myself = Principal(kind=PrincipalKind.SERVICE, name="retention", is_global_admin=True)
    asking = Asking(principal=myself, state=state, schemas=schemas, now=now)
    for stored in state.entities.values():
        if "deletedRetentionDays" not in stored.text:  # to read all definitions takes megabytes
            continue
        if stored.definition.deleted_retention_days is not None:
            target = target_of(asking, stored)
            removed += await _remove_of(conn, asking, target, batch=batch, until=until)
    return removed


async def _remove_of(
    conn: AsyncConnection[Any], asking: Asking, target: Target, *, batch: int, until: float
) -> int:
    statement = write_statement(asking, target, Operation.HARD_DELETE, json_source(target))
    removed, after = 0, _FIRST
    while time.monotonic() < until:
        with translated():
            old = await _old_rows(conn, target, after=after, batch=batch)
            if not old:
                break
            removed += await _remove(conn, asking, statement, old, target)
        after = old[-1][0]
    return removed


async def _old_rows(
    conn: AsyncConnection[Any], target: Target, *, after: UUID, batch: int
) -> list[tuple[UUID, int]]:
    waits = ""
    if target.entity.approval_required:
        waits = _WAITS.format(edit=target.table_sql(Role.EDIT))
    days = target.entity.deleted_retention_days
    given = {"days": days, "after": after, "batch": batch}
    cursor = await conn.execute(_OLD.format(main=target.main_sql, waits=waits).encode(), given)
    return await cursor.fetchall()


async def _remove(
    conn: AsyncConnection[Any],
    asking: Asking,
    statement: WriteStatement,
    old: list[tuple[UUID, int]],
    target: Target,
) -> int:
    detail = {"retentionDays": target.entity.deleted_retention_days}
    rows = [
        {"_id": str(row_id), "_base": version, "_actor": ACTOR, "_detail": detail}
        for row_id, version in old
    ]
    try:
        lines = await run_write(
            conn,
            asking=asking,
            statement=statement,
            rows=rows,
            values={"actor": ACTOR},
            prepare=False,
        )
    except errors.IntegrityError:
        # Somebody began to refer to one of them: they are for the next call.
        return 0
    if any(line.status is Status.MOVED for line in lines.values()):
        raise StateMoved
    return sum(line.status is Status.DONE for line in lines.values())
