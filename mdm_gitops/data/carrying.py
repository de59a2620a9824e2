"""Carrying proposals along when a key value changes that they hold.

A proposal that refers to the old value would be refused when it is approved, and one for a row that is
relinked would be out of date, although nobody has changed anything but a name. So the one is given
the new value, with an event, and the other rests on the version that relinking makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_sql import event_image, events_sql
from mdm_gitops.plan.physical import Role


async def carry_proposals(
    conn: AsyncConnection[Any],
    asking: Asking,
    target: Target,
    column: str,
    values: Mapping[str, Any],
    conditions: tuple[str, str] = ("true", "true"),
) -> int:
    """Change *column* from ``old`` to ``new`` in the proposals of *target*; return in how many.

    *conditions* are further ones, on the approved rows ``r`` that are relinked and on the proposals
    ``e``. Call it before the approved rows are relinked. The proposal for the row ``approving`` is left.
    """
    given = {**values, "actor": asking.principal.actor}
    rows, proposals = conditions
    await conn.execute(_rebase_sql(target, column, rows).encode(), given)
    cursor = await conn.execute(_carry_sql(target, column, proposals).encode(), given)
    [carried] = await cursor.fetchone() or (0,)
    return int(carried)


def _rebase_sql(target: Target, column: str, rows: str) -> str:
    return (
        f'UPDATE {target.table_sql(Role.EDIT)} e SET "_sys_base_version" = r."_sys_version" + 1'
        f' FROM {target.main_sql} r WHERE r."{column}" = %(old)s::{target.type_of(column)}'
        f' AND {rows} AND e."_sys_id" = r."_sys_id" AND e."_sys_base_version" = r."_sys_version"'
    )


def _carry_sql(target: Target, column: str, proposals: str) -> str:
    edit, type_ = target.table_sql(Role.EDIT), target.type_of(column)
    events = events_sql(
        target,
        action="'data_edited'",
        rows='done d JOIN old o ON o."_sys_id" = d."_sys_id" JOIN todo t ON t."_id" = d."_sys_id"',
        record='d."_sys_id"',
        version='coalesce(d."_sys_base_version", 0)',
        old=event_image(target, "o"),
        new=event_image(target, "d"),
    )
    return f"""WITH old AS MATERIALIZED (SELECT e.* FROM {edit} e
  WHERE e."{column}" = %(old)s::{type_} AND {proposals}
    AND e."_sys_id" IS DISTINCT FROM %(approving)s::uuid
  ORDER BY e."_sys_id" FOR UPDATE OF e),
todo AS MATERIALIZED (SELECT o."_sys_id" AS "_id",
  row_number() OVER (ORDER BY o."_sys_id") AS "_pos", %(actor)s::text AS "_actor",
  jsonb_build_object('relinkedFrom', %(old)s::text) || %(detail)s::jsonb AS "_detail" FROM old o),
done AS (UPDATE {edit} e SET "{column}" = %(new)s::{type_} FROM todo t
  WHERE e."_sys_id" = t."_id" RETURNING e.*),
{events}
SELECT count(*) FROM done"""
