"""Whose the unique values are that a row could not get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import AsyncConnection

from mdm_gitops.data import judging
from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.row_input import GivenRow
from mdm_gitops.data.target import Target
from mdm_gitops.filter import compile_predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The row that holds the values of *columns* already; *row_id* is None if the caller may not see
    it."""

    columns: tuple[str, ...]
    row_id: UUID | None
    is_deleted: bool


async def taken_by(
    conn: AsyncConnection[Any], *, asking: Asking, target: Target, row_id: UUID, row: GivenRow
) -> list[Holder]:
    """Return who holds unique values of *row*: nobody, if all are free by now."""
    if not target.unique_sets:
        return []
    sql, values = _question(asking, target)
    document = {**row.texts, "_id": str(row_id), "_given": row.given}
    cursor = await conn.execute(sql.encode(), {**values, "row": orjson.dumps([document]).decode()})
    return [
        Holder(
            columns=target.unique_sets[number],
            row_id=holder if is_visible else None,
            is_deleted=bool(is_deleted and is_visible),
        )
        for number, holder, is_deleted, is_visible in await cursor.fetchall()
    ]


def _question(asking: Asking, target: Target) -> tuple[str, Mapping[str, Any]]:
    typed = row_filter(asking, target.entity)
    visible, values = "true", {}
    if typed is not None:
        predicate = compile_predicate(
            typed,
            context=asking.filter_context,
            schema=target.schemas.data,
            alias="u",
            parameter_prefix="v",
        )
        visible, values = f"({predicate.sql}) IS TRUE", dict(predicate.parameters)
    fields = "".join(f', "{name}" text' for name in target.columns)
    news = ", ".join(_new_value(target, name) for name in target.columns)
    parts = [
        f'SELECT {number} AS number, u."_sys_id", u."_sys_is_deleted", {visible}'
        f" FROM next n JOIN {target.main_sql} u"
        f" ON {_same(columns)}"
        ' WHERE u."_sys_id" <> n."_id"'
        for number, columns in enumerate(target.unique_sets)
    ]
    sql = (
        "WITH given AS MATERIALIZED (SELECT * FROM json_to_recordset(%(row)s::json)"
        f' AS g("_id" uuid, "_given" text{fields})),'
        f' next AS MATERIALIZED (SELECT g."_id", {news} FROM given g'
        f' LEFT JOIN {target.main_sql} o ON o."_sys_id" = g."_id")'
        f" {' UNION ALL '.join(parts)} ORDER BY number"
    )
    return sql, values


def _new_value(target: Target, name: str) -> str:
    at = target.columns.index(name) + 1
    kept = (
        f'CASE WHEN o."_sys_id" IS NULL THEN {judging.default_sql(target, name)}'
        f' ELSE o."{name}" END'
    )
    given = judging.typed_sql(target, name, alias="g")
    return f'CASE WHEN substr(g."_given", {at}, 1) = \'1\' THEN {given} ELSE {kept} END AS "{name}"'


def _same(columns: tuple[str, ...]) -> str:
    return " AND ".join(f'u."{name}" = n."{name}"' for name in columns)
