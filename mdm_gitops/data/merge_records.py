"""Reading merges: lists, one of them, and where the identifier of a merged row leads.

A merge is shown to who may see both of its rows, and is as absent as they are to everybody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson
from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, readable_entity
from mdm_gitops.data.failures import translated
from mdm_gitops.data.merging_sql import STANDS, count_visible, visible_sql
from mdm_gitops.data.row_json import MASK, RowState, moment_sql
from mdm_gitops.data.rows import Row, RowShape, get_row, no_such_row
from mdm_gitops.data.selecting import Placed, predicate_values, revision_table
from mdm_gitops.data.target import Target, target_of
from mdm_gitops.data.unmerging import no_such_merge
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.warehouse.store import StoredEntity

DEFAULT_TAKE: Final = 100
MAX_TAKE: Final = 1_000
STATES: Final = ("pending", "merged", "undo_pending", "undone", "rejected")
_MOST_HOPS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePage:
    items: Sequence[Mapping[str, Any]]
    next_after: str | None


_MEMBERS: Final = f"""g.merge_id::text AS "mergeId", g.state,
    g.survivor_id::text AS "survivorId", g.duplicate_id::text AS "duplicateId",
    g.proposed_by AS "proposedBy", {moment_sql("g.proposed_at")} AS "proposedAt",
    g.merged_by AS "mergedBy", {moment_sql("g.merged_at")} AS "mergedAt",
    g.undone_by AS "undoneBy", {moment_sql("g.undone_at")} AS "undoneAt", g.comment"""
_ROWS: Final = """{config}.merge g LEFT JOIN {main} s ON s."_sys_id" = g.survivor_id
  LEFT JOIN {main} d ON d."_sys_id" = g.duplicate_id"""


async def list_merges(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    state: str | None = None,
    after: str = "",
    take: int = DEFAULT_TAKE,
) -> MergePage:
    """Return merges of *entity*, the newest first; *after* is the ``next_after`` of the page before.

    Raises:
        NotFound: there is no such entity.
        InputError: *after* names no merge of it.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    if not 1 <= take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    conditions, placed = _conditions(asking, stored)
    values: dict[str, Any] = {"take": take + 1}
    if state is not None:
        conditions.append("g.state = %(state)s")
        values["state"] = state
    if after:
        place = await _place_of(conn, asking, stored, after)
        conditions.append("g.seq < %(place)s")
        values["place"] = place
    records = await _records(conn, asking, stored, conditions, placed, values)
    items = [item for item, _ in records[:take]]
    next_after = str(items[-1]["mergeId"]) if len(records) > take else None
    return MergePage(items=items, next_after=next_after)


async def _place_of(
    conn: AsyncConnection[Any], asking: Asking, stored: StoredEntity, after: str
) -> int:
    wrong = InputError("after is no cursor of this list", parameter="after")
    try:
        merge_id = UUID(after)
    except ValueError:
        raise wrong from None
    conditions, placed = _conditions(asking, stored)
    conditions.append("g.merge_id = %(merge)s")
    values = {"merge": merge_id, "take": 1}
    records = await _records(conn, asking, stored, conditions, placed, values)
    if not records:
        raise wrong
    return records[0][1]


async def get_merge(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, merge_id: UUID
) -> dict[str, Any]:
    """Return one merge with where each value came from and how many rows it relinked, of those that
    the caller may see and that still refer to what they were relinked to.

    Raises:
        NotFound: there is no such entity, or no merge whose rows the caller may see.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    target = target_of(asking, stored)
    conditions, placed = _conditions(asking, stored)
    conditions.append("g.merge_id = %(merge)s")
    values = {"merge": merge_id, "take": 1}
    records = await _records(conn, asking, stored, conditions, placed, values)
    if not records:
        raise no_such_merge(stored.definition, merge_id)
    found = dict(records[0][0])
    sql = f"SELECT columns FROM {target.config_sql('merge')} WHERE merge_id = %s"
    [columns] = await (await conn.execute(sql.encode(), [merge_id])).fetchone() or ([],)
    found["columns"] = _columns(asking, target, columns)
    found["relinked"] = await _relinked(conn, asking, target, merge_id, found)
    return found


def _columns(
    asking: Asking, target: Target, columns: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    sees_restricted = asking.rights(target.entity).sees_restricted
    found = []
    for item in columns:
        column = target.entity.column_by_name.get(item["column"])
        if column is None:
            continue  # it was removed since
        is_masked = column.restricted and not sees_restricted
        found.append(
            {
                "column": column.name,
                "from": MASK if is_masked else item["from"],
                "rule": MASK if is_masked else item["rule"],
            }
        )
    return found


async def _relinked(
    conn: AsyncConnection[Any],
    asking: Asking,
    target: Target,
    merge_id: UUID,
    found: Mapping[str, Any],
) -> dict[str, int]:
    if not target.referred_columns or found["state"] not in ("merged", "undo_pending"):
        return {}
    columns = ", ".join(f'm."{name}"' for name in target.referred_columns)
    sql = f'SELECT {columns} FROM {target.main_sql} m WHERE m."_sys_id" = %s'
    keys = await (await conn.execute(sql.encode(), [found["survivorId"]])).fetchone()
    if keys is None:
        return {}
    return await count_visible(
        conn,
        asking,
        target,
        keys=dict(zip(target.referred_columns, keys, strict=True)),
        spared=(),
        merge_id=merge_id,
    )


def _conditions(asking: Asking, stored: StoredEntity) -> tuple[list[str], list[Placed]]:
    entity = stored.definition
    survivor, first = visible_sql(asking, entity, alias="s", prefix="s")
    duplicate, second = visible_sql(asking, entity, alias="d", prefix="d")
    return [survivor, duplicate, "g.entity_id = %(entity)s"], [*first, *second]


async def _records(
    conn: AsyncConnection[Any],
    asking: Asking,
    stored: StoredEntity,
    conditions: Sequence[str],
    placed: Sequence[Placed],
    values: Mapping[str, Any],
) -> list[tuple[dict[str, Any], int]]:
    rows = _ROWS.format(
        config=f'"{asking.schemas.config}"', main=f'"{asking.schemas.data}"."{stored.name}"'
    )
    sql = f"""SELECT v.value, p.* FROM {revision_table(asking)} v LEFT JOIN (
SELECT (SELECT row_to_json(x)::text FROM (SELECT {_MEMBERS}) x) AS item, g.seq FROM {rows}
 WHERE {" AND ".join(conditions)} ORDER BY g.seq DESC LIMIT %(take)s) p ON true ORDER BY p.seq DESC"""
    given = {**predicate_values(asking, placed), **values, "entity": stored.entity_id}
    with translated():
        records = await (await conn.execute(sql.encode(), given)).fetchall()
    if records[0][0] != asking.state.revision:
        raise StateMoved
    return [(orjson.loads(item), seq) for _, item, seq in records if item is not None]


# --- identifiers of merged rows -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRow:
    """A row; *redirected_from* is the identifier that was asked for, if it was merged into this one."""

    row: Row
    row_id: UUID
    redirected_from: UUID | None = None


async def get_resolved_row(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    row_id: UUID,
    shape: RowShape,
    as_of: datetime | None = None,
) -> ResolvedRow:
    """Return a row as ``get_row`` does, and of one that was merged the last survivor instead.

    Who may not see the survivor gets what is absent. A row that is asked for as deleted or pending is
    not followed, and neither is a merge that was not yet, or no longer, made at *as_of*.
    """
    follows = shape.state in (RowState.ACTIVE, RowState.ALL)
    row = None
    try:
        row = await get_row(
            conn, asking=asking, entity=entity, row_id=row_id, shape=shape, as_of=as_of
        )
    except NotFound as error:
        if not follows or error.kind_code != "ROW_NOT_FOUND":
            raise
    if row is not None and not (follows and row.is_deleted):
        return ResolvedRow(row=row, row_id=row_id)
    stored = readable_entity(asking, entity)
    last = await _last_survivor(conn, asking, stored, row_id, as_of)
    if last is None:
        if row is None:
            raise no_such_row(stored.definition, row_id)
        return ResolvedRow(row=row, row_id=row_id)
    try:
        survivor = await get_row(
            conn, asking=asking, entity=entity, row_id=last, shape=shape, as_of=as_of
        )
    except NotFound:
        raise no_such_row(stored.definition, row_id) from None
    return ResolvedRow(row=survivor, row_id=last, redirected_from=row_id)


# A row that was restored since is itself again. Of the past the merges of then count.
_NOW: Final = f"""{STANDS} AND NOT EXISTS (
    SELECT FROM {{main}} m WHERE m."_sys_id" = w.id AND NOT m."_sys_is_deleted")"""
_THEN: Final = """g.merged_at <= %(as_of)s::timestamptz
    AND (g.undone_at IS NULL OR g.undone_at > %(as_of)s::timestamptz)"""
_WALK: Final = """WITH RECURSIVE walk AS (
  SELECT %(row_id)s::uuid AS id, 0 AS hops, ARRAY[%(row_id)s::uuid] AS path
   UNION ALL
  SELECT n.survivor_id, w.hops + 1, w.path || n.survivor_id FROM walk w CROSS JOIN LATERAL (
    SELECT g.survivor_id FROM {merge} g
     WHERE g.duplicate_id = w.id AND g.entity_id = %(entity)s::bigint AND {counts}
     ORDER BY g.seq DESC LIMIT 1) n
   WHERE NOT n.survivor_id = ANY (w.path) AND w.hops < {most})
SELECT v.value, w.id, (m."_sys_id" IS NULL AND {sees_all}) OR (m."_sys_id" IS NOT NULL AND {visible})
  FROM {revision} v CROSS JOIN walk w LEFT JOIN {main} m ON m."_sys_id" = w.id ORDER BY w.hops"""


async def _last_survivor(
    conn: AsyncConnection[Any],
    asking: Asking,
    stored: StoredEntity,
    row_id: UUID,
    as_of: datetime | None,
) -> UUID | None:
    """Return the row that *row_id* was merged into in the end, None if it was not.

    Raises:
        NotFound: the caller may not see one of the rows on the way.
    """
    visible, placed = visible_sql(asking, stored.definition, alias="m", prefix="v")
    main = f'"{asking.schemas.data}"."{stored.name}"'
    sql = _WALK.format(
        merge=f'"{asking.schemas.config}".merge',
        counts=(_NOW if as_of is None else _THEN).format(main=main),
        most=_MOST_HOPS,
        sees_all="false" if placed else "true",
        visible=visible,
        revision=revision_table(asking),
        main=main,
    )
    values = {"row_id": row_id, "entity": stored.entity_id, "as_of": as_of}
    with translated():
        cursor = await conn.execute(sql.encode(), {**predicate_values(asking, placed), **values})
        records = await cursor.fetchall()
    if records[0][0] != asking.state.revision:
        raise StateMoved
    if len(records) == 1:
        return None
    if not all(is_visible for _, _, is_visible in records):
        raise no_such_row(stored.definition, row_id)
    last: UUID = records[-1][1]
    return last
