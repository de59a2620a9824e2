"""Reading what waits for approval: proposals with what they would change, and the batches they are in.

A proposal is shown to those who may see the row as it is proposed and, where there is one, the
approved row. Of a masked column nothing is told, not even whether it would change: each proposal that
writes values shows it with stars before and after.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.asking import (
    Asking,
    StateMoved,
    combined,
    readable_entity,
    requested_filter,
    row_filter,
)
from mdm_gitops.data.failures import translated
from mdm_gitops.data.row_json import MASK, RowState, column_sql, moment_sql, outputs, select_list
from mdm_gitops.data.rows import MAX_SKIP, MAX_TAKE, Page
from mdm_gitops.data.selecting import (
    Placed,
    predicate_sql,
    predicate_values,
    proposals_sql,
    revision_table,
    sort_keys,
    where_clause,
)
from mdm_gitops.data.sorting import (
    SortKey,
    after_parameters,
    after_predicate,
    decode_cursor,
    encode_cursor,
    order_by,
)
from mdm_gitops.data.target import Target
from mdm_gitops.errors import InputError
from mdm_gitops.model import Column, Entity
from mdm_gitops.warehouse.store import StoredEntity


class ProposalState(StrEnum):
    PENDING = "pending"
    REJECTED = "rejected"
    ALL = "all"


_STATES: Final = {
    ProposalState.PENDING: "'pending'",
    ProposalState.REJECTED: "'rejected'",
    ProposalState.ALL: "'pending', 'rejected'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    state: ProposalState = ProposalState.PENDING
    batch_name: str | None = None
    filter: str = ""
    sort: str = ""
    skip: int = 0
    take: int = 100
    after: str = ""
    count: bool = False


async def list_pending(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: PendingRequest
) -> Page:
    """Return one page of the proposals for rows of *entity* that the principal may see.

    Raises:
        NotFound, FilterError, InputError, AccessDenied: the request is refused.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    _check_numbers(request)
    keys = sort_keys(asking, stored.definition, sort=request.sort, state=RowState.PENDING)
    scope = f"{stored.name}/pending/{request.state}/{request.batch_name or ''}"
    cursor = decode_cursor(request.after, keys, scope=scope) if request.after else ()
    if not stored.definition.approval_required:
        return Page(rows=(), has_more=False, next_after=None, total=0 if request.count else None)
    sql, placed = _list_statement(asking, stored, request, keys, cursor)
    given = {
        **predicate_values(asking, placed),
        **after_parameters(cursor),
        "batch": request.batch_name,
        "skip": request.skip,
    }
    records = await _records(conn, asking, sql, given)
    return _page(records, keys, request, scope)


async def list_batches(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, skip: int = 0, take: int = 100
) -> Page:
    """Return the named batches that have pending rows, the latest first. Errors as ``list_pending``."""
    stored = readable_entity(asking, entity)
    if not stored.definition.approval_required:
        return Page(rows=(), has_more=False, next_after=None, total=None)
    relation, placed = _visible(asking, stored, ProposalState.PENDING)
    conditions, more = _conditions(asking, row_filter(asking, stored.definition))
    conditions.append('t."_sys_batch_name" IS NOT NULL')
    sql = _BATCHES.format(
        revision=revision_table(asking),
        relation=relation,
        main=f'"{asking.schemas.data}"."{stored.name}"',
        where=where_clause(conditions),
        first=moment_sql("min(g.first)"),
        last=moment_sql("max(g.last)"),
    )
    given = {**predicate_values(asking, [*placed, *more]), "skip": skip, "take": take + 1}
    records = await _records(conn, asking, sql, given)
    rows = [record[1] for record in records if record[1] is not None]
    return Page(rows=rows[:take], has_more=len(rows) > take, next_after=None, total=None)


async def ids_of_batch(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    batch_name: str,
    after: UUID,
    take: int,
) -> list[UUID]:
    """Return the next rows of a batch that wait and that the caller may see, in order."""
    relation, placed = _visible(asking, target.stored, ProposalState.PENDING)
    conditions, more = _conditions(asking, row_filter(asking, target.entity))
    conditions += ['t."_sys_batch_name" = %(batch)s', 't."_sys_id" > %(after)s::uuid']
    sql = (
        f'SELECT v.value, p."_sys_id"::text FROM {revision_table(asking)} v LEFT JOIN ('
        f'SELECT t."_sys_id" FROM ({relation}) t{where_clause(conditions)}'
        ' ORDER BY t."_sys_batch_name", t."_sys_id" LIMIT %(take)s) p ON true'
    )
    given = {"batch": batch_name, "after": after, "take": take}
    records = await _records(
        conn, asking, sql, {**predicate_values(asking, [*placed, *more]), **given}
    )
    return [UUID(record[1].decode()) for record in records if record[1] is not None]


# --- the statements -------------------------------------------------------------------------------

_LIST: Final = """\
SELECT h.*, p.* FROM (SELECT (SELECT value FROM {revision}) AS revision{total}) h LEFT JOIN (
SELECT row_to_json(r), json_build_array({keys}) FROM (
  SELECT t.* FROM ({relation}) t{where}
   ORDER BY {order} LIMIT {limit} OFFSET %(skip)s
) t LEFT JOIN {main} o ON o."_sys_id" = t."_sys_id" CROSS JOIN LATERAL (SELECT {members}) r
 ORDER BY {order}
) p ON true"""
# First by batch and person, which needs no sorting of the rows.
_BATCHES: Final = """\
SELECT v.value, p.body FROM {revision} v LEFT JOIN (
SELECT row_to_json(b) AS body FROM (
SELECT g.name AS "batchName", sum(g.rows)::bigint AS "count",
    (array_agg(g.person ORDER BY g.first, g.person))[1] AS "submittedBy",
    count(*) AS "submitters", {first} AS "submittedAt", {last} AS "lastSubmittedAt",
    sum(g.creates)::bigint AS "creates", sum(g.updates)::bigint AS "updates",
    sum(g.rows - g.creates - g.updates)::bigint AS "others", sum(g.stale)::bigint AS "stale"
  FROM (
    SELECT t."_sys_batch_name" AS name, t."_sys_submitted_by" AS person, count(*) AS rows,
        min(t."_sys_submitted_at") AS first, max(t."_sys_submitted_at") AS last,
        count(*) FILTER (WHERE t."_sys_operation" = 'create') AS creates,
        count(*) FILTER (WHERE t."_sys_operation" = 'update') AS updates,
        count(*) FILTER (WHERE t."_sys_base_version" IS DISTINCT FROM o."_sys_version") AS stale
      FROM ({relation}) t LEFT JOIN {main} o ON o."_sys_id" = t."_sys_id"{where}
     GROUP BY 1, 2) g
 GROUP BY 1 ORDER BY max(g.last) DESC, 1 LIMIT %(take)s OFFSET %(skip)s
) b) p ON true"""


def _list_statement(
    asking: Asking,
    stored: StoredEntity,
    request: PendingRequest,
    keys: tuple[SortKey, ...],
    cursor: Sequence[Any],
) -> tuple[str, list[Placed]]:
    entity = stored.definition
    relation, placed = _visible(asking, stored, request.state)
    typed = combined(row_filter(asking, entity), requested_filter(asking, entity, request.filter))
    conditions, more = _conditions(asking, typed)
    if request.batch_name is not None:
        conditions.append('t."_sys_batch_name" = %(batch)s')
    total = f", (SELECT count(*) FROM ({relation}) t{where_clause(conditions)}) AS total"
    if cursor:
        conditions = [*conditions, after_predicate(keys, [value is None for value in cursor])]
    sql = _LIST.format(
        revision=revision_table(asking),
        total=total if request.count else ", NULL::bigint AS total",
        keys=", ".join(key.sql for key in keys),
        relation=relation,
        main=f'"{asking.schemas.data}"."{stored.name}"',
        where=where_clause(conditions),
        order=order_by(keys),
        limit=request.take + 1,
        members=_members(asking, entity),
    )
    return sql, [*placed, *more]


def _visible(
    asking: Asking, stored: StoredEntity, state: ProposalState
) -> tuple[str, list[Placed]]:
    """Return the proposals whose approved row the caller may see."""
    typed = row_filter(asking, stored.definition)
    approved = predicate_sql(asking, typed, prefix="a", alias="m")
    relation = proposals_sql(asking.schemas, stored.name, states=_STATES[state], approved=approved)
    return relation, [("a", "m", typed)] if typed is not None else []


def _conditions(asking: Asking, typed: Any) -> tuple[list[str], list[Placed]]:
    if typed is None:
        return [], []
    return [f"({predicate_sql(asking, typed, prefix='f', alias='t')})"], [("f", "t", typed)]


def _members(asking: Asking, entity: Entity) -> str:
    sees_restricted = asking.rights(entity).sees_restricted
    row = outputs(entity, sees_restricted=sees_restricted, state=RowState.PENDING)
    return f"""t."_sys_id" AS "id", t."_sys_operation" AS "operation", t."_sys_state" AS "state",
    t."_sys_submitted_by" AS "submittedBy",
    {moment_sql('t."_sys_submitted_at"')} AS "submittedAt",
    t."_sys_decided_by" AS "decidedBy", {moment_sql('t."_sys_decided_at"')} AS "decidedAt",
    t."_sys_batch_name" AS "batchName", t."_sys_comment" AS "comment",
    t."_sys_base_version" AS "baseVersion",
    t."_sys_base_version" IS DISTINCT FROM o."_sys_version" AS "isStale",
    {_changes(entity, sees_restricted)} AS "changes",
    (SELECT row_to_json(x) FROM (SELECT {select_list(row)}) x) AS "row\""""


def _changes(entity: Entity, sees_restricted: bool) -> str:
    """Return what approving would change: column -> old and new value."""
    columns = (
        _masked_change(column)
        if column.restricted and not sees_restricted
        else f"('{column.name}', to_json({column_sql(column, 'o')}),"
        f' to_json({column_sql(column, "t")}), o."{column.folded}" IS DISTINCT FROM'
        f' t."{column.folded}")'
        for column in entity.columns
    )
    return (
        "CASE WHEN t.\"_sys_operation\" IN ('create', 'update') THEN (SELECT coalesce("
        "json_object_agg(c.name, json_build_object('old', c.old, 'new', c.new)), '{}'::json)"
        f" FROM (VALUES {', '.join(columns)}) AS c(name, old, new, differs) WHERE c.differs)"
        " ELSE '{}'::json END"
    )


def _masked_change(column: Column) -> str:
    stars = f"to_json('{MASK}'::text)"
    return f"('{column.name}', {stars}, {stars}, true)"


# --- around the statements ------------------------------------------------------------------------


def _check_numbers(request: PendingRequest) -> None:
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    if not 0 <= request.skip <= MAX_SKIP:
        raise InputError(f"skip must be 0 to {MAX_SKIP}", parameter="skip")
    if request.skip and request.after:
        raise InputError(
            "skip and after cannot be used together", hint="page with after", parameter="skip"
        )


async def _records(
    conn: AsyncConnection[Any], asking: Asking, sql: str, values: dict[str, Any]
) -> list[list[bytes | None]]:
    with translated():
        cursor = await conn.execute(sql.encode(), values)
    result = cursor.pgresult
    assert result is not None
    columns = range(result.nfields)
    records = [[result.get_value(row, n) for n in columns] for row in range(result.ntuples)]
    if int(records[0][0] or 0) != asking.state.revision:
        raise StateMoved
    return records


def _page(
    records: Sequence[Sequence[bytes | None]],
    keys: tuple[SortKey, ...],
    request: PendingRequest,
    scope: str,
) -> Page:
    present = [record for record in records if record[2] is not None]
    sent = present[: request.take]
    has_more = len(present) > request.take
    next_after = None
    if has_more:
        values = json.loads(sent[-1][3] or b"[]", parse_float=Decimal)
        next_after = encode_cursor(keys, values, scope=scope)
    return Page(
        rows=[record[2] or b"" for record in sent],
        has_more=has_more,
        next_after=next_after,
        total=int(records[0][1] or 0) if request.count else None,
    )
