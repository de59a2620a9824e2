"""Whose the unique values are that a row could not get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import AsyncConnection

from mdm_gitops.data import judging
from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.proposals_sql import CLAIMS, OVERLAID
from mdm_gitops.data.row_input import GivenRow
from mdm_gitops.data.selecting import Placed, predicate_sql, predicate_values, proposals_sql
from mdm_gitops.data.target import Target
from mdm_gitops.plan.physical import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The row that holds the values of *columns* already; *row_id* is None if the caller may not see
    it. A *pending* one has only been proposed."""

    columns: tuple[str, ...]
    row_id: UUID | None
    is_deleted: bool
    is_pending: bool = False


async def taken_by(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    row_id: UUID,
    row: GivenRow,
    with_pending: bool = False,
) -> list[Holder]:
    """Return who holds unique values of *row*: nobody, if all are free by now.

    For a row that is to become a proposal, pending rows hold theirs, too (*with_pending*).
    """
    if not target.unique_sets:
        return []
    sql, placed = _question(asking, target, with_pending)
    document = {**row.texts, "_id": str(row_id), "_given": row.given}
    values = {**predicate_values(asking, placed), "row": orjson.dumps([document]).decode()}
    cursor = await conn.execute(sql.encode(), values)
    found: dict[int, Holder] = {}
    for number, is_pending, holder, is_deleted, is_visible in await cursor.fetchall():
        held = Holder(
            columns=target.unique_sets[number],
            row_id=holder if is_visible else None,
            is_deleted=bool(is_deleted and is_visible and not is_pending),
            is_pending=is_pending,
        )
        found.setdefault(number, held)  # the approved one comes first
    return list(found.values())


def _question(asking: Asking, target: Target, with_pending: bool) -> tuple[str, list[Placed]]:
    typed = row_filter(asking, target.entity)
    placed: list[Placed] = [("v", "u", typed)] if typed is not None else []
    visible = predicate_sql(asking, typed, prefix="v", alias="u")
    visible = f"({visible}) IS TRUE" if visible else "true"
    parts = [_holders(target, n, target.main_sql, visible) for n in range(len(target.unique_sets))]
    if with_pending:
        if typed is not None:
            placed.append(("a", "m", typed))
            hidden = predicate_sql(asking, typed, prefix="a", alias="m")
            visible += (
                f' AND NOT EXISTS (SELECT FROM {target.main_sql} m WHERE m."_sys_id" = u."_sys_id"'
                f" AND ({hidden}) IS NOT TRUE)"
            )
        pending = f"({proposals_sql(target.schemas, target.name)})"
        parts += [
            _holders(target, n, pending, visible, is_pending=True)
            for n in range(len(target.unique_sets))
        ]
    sql = f"WITH {_next(target, with_pending)} {' UNION ALL '.join(parts)} ORDER BY number, is_pending"
    return sql, placed


def _holders(
    target: Target, number: int, relation: str, visible: str, *, is_pending: bool = False
) -> str:
    same = " AND ".join(f'u."{name}" = n."{name}"' for name in target.unique_sets[number])
    return (
        f'SELECT {number} AS number, {is_pending} AS is_pending, u."_sys_id",'
        f' u."_sys_is_deleted", {visible} FROM next n JOIN {relation} u ON {same}'
        f' WHERE u."_sys_id" <> n."_id"{f" AND {CLAIMS}" if is_pending else ""}'
    )


def _next(target: Target, with_pending: bool) -> str:
    """Return the row as it would be: what is given, laid over what is there."""
    fields = "".join(f', "{name}" text' for name in target.columns)
    news = ", ".join(_new_value(target, name, with_pending) for name in target.columns)
    edit = target.table_sql(Role.EDIT)
    proposed = f' LEFT JOIN {edit} e ON e."_sys_id" = g."_id"' if with_pending else ""
    return (
        "given AS MATERIALIZED (SELECT * FROM json_to_recordset(%(row)s::json)"
        f' AS g("_id" uuid, "_given" text{fields})),'
        f' next AS MATERIALIZED (SELECT g."_id", {news} FROM given g'
        f' LEFT JOIN {target.main_sql} o ON o."_sys_id" = g."_id"{proposed})'
    )


def _new_value(target: Target, name: str, with_pending: bool) -> str:
    at = target.columns.index(name) + 1
    proposed = f'WHEN {OVERLAID} THEN e."{name}" ' if with_pending else ""
    kept = (
        f'CASE {proposed}WHEN o."_sys_id" IS NULL THEN {judging.default_sql(target, name)}'
        f' ELSE o."{name}" END'
    )
    given = judging.typed_sql(target, name, alias="g")
    return f'CASE WHEN substr(g."_given", {at}, 1) = \'1\' THEN {given} ELSE {kept} END AS "{name}"'
