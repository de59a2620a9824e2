"""The versions of one row, and how far back the rows of an entity are known.

A version is shown to whoever its own values let through: the row filter is judged on them, and
follows references to the rows of now, as a read of the past does (``time_travel``). A row of which no
version is visible is as absent as one that is not there.

What made a version is what ended the one before. The first is the row's creation; where versions are
missing between two, because no history was kept, the later one says what has become of the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, readable_entity, row_filter
from mdm_gitops.data.failures import translated
from mdm_gitops.data.row_json import RowState, moment_sql, outputs, select_list
from mdm_gitops.data.rows import no_such_row
from mdm_gitops.data.selecting import (
    predicate_sql,
    predicate_values,
    revision_table,
    where_clause,
)
from mdm_gitops.data.time_travel import require_history, row_columns, table_sql
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.filter import TypedFilter
from mdm_gitops.model import Column, DataType
from mdm_gitops.plan.physical import Role
from mdm_gitops.warehouse.store import StoredEntity

DEFAULT_TAKE: Final = 100
MAX_TAKE: Final = 1_000
MAX_SKIP: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPage:
    """*items* are the JSON texts of versions, the newest first; *total* counts all visible ones."""

    items: Sequence[bytes]
    total: int
    has_more: bool


# The versions of the row, with when each began to count and what made it.
_VERSIONS: Final = """\
SELECT v.*, coalesce(lag(v."_sys_valid_to") OVER w, v."_sys_created_at") AS "_sys_valid_from",
       CASE WHEN lag(v."_sys_version") OVER w IS NULL THEN 'data_created'
            WHEN lag(v."_sys_version") OVER w = v."_sys_version" - 1 THEN lag(v."_sys_action") OVER w
            WHEN lag(v."_sys_is_deleted") OVER w = v."_sys_is_deleted" THEN 'data_updated'
            WHEN v."_sys_is_deleted" THEN 'data_soft_deleted'
            ELSE 'data_restored' END AS "_made_by"
  FROM (SELECT {columns}, NULL::timestamptz AS "_sys_valid_to", NULL::text AS "_sys_action"
          FROM {main} WHERE "_sys_id" = %(row_id)s::uuid
         UNION ALL
        SELECT {columns}, "_sys_valid_to", "_sys_action"
          FROM {history} WHERE "_sys_id" = %(row_id)s::uuid) v
WINDOW w AS (ORDER BY v."_sys_version")"""
_PAGE: Final = """\
WITH seen AS MATERIALIZED (SELECT t.* FROM (
{versions}) t{where})
SELECT h.*, p.* FROM (SELECT (SELECT value FROM {revision}), (SELECT count(*) FROM seen)) h
  LEFT JOIN (
SELECT row_to_json(i) FROM (
SELECT t.* FROM seen t ORDER BY t."_sys_version" DESC LIMIT %(take)s OFFSET %(skip)s
) t CROSS JOIN LATERAL (
SELECT t."_sys_version" AS "version", {valid_from} AS "validFrom", {valid_to} AS "validTo",
       t."_sys_last_modified_by" AS "changedBy", t."_made_by" AS "action",
       (SELECT row_to_json(r) FROM (SELECT {members}) r) AS "row") i
) p ON true"""


async def list_versions(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    row_id: UUID,
    skip: int = 0,
    take: int = DEFAULT_TAKE,
) -> VersionPage:
    """Return the versions of a row that the principal may see, the newest first.

    Raises:
        NotFound: there is no such entity or row.
        Conflict: the entity keeps no history.
        StateMoved: ask again with a newer state.
    """
    if not (1 <= take <= MAX_TAKE and 0 <= skip <= MAX_SKIP):
        raise InputError(f"take must be 1 to {MAX_TAKE}, skip 0 to {MAX_SKIP}")
    stored = readable_entity(asking, entity)
    require_history(stored)
    definition = stored.definition
    typed = row_filter(asking, definition)
    members = outputs(
        definition,
        sees_restricted=asking.rights(definition).sees_restricted,
        state=RowState.ALL,
    )
    sql = _PAGE.format(
        versions=_versions_sql(asking, stored),
        where=_where(asking, typed),
        revision=revision_table(asking),
        valid_from=moment_sql('t."_sys_valid_from"'),
        valid_to=moment_sql('t."_sys_valid_to"'),
        members=select_list(members),
    )
    values = {"row_id": row_id, "take": take + 1, "skip": skip}
    records = await _run(conn, asking, sql, typed, values)
    total = int(records[0][1] or 0)
    if total == 0:
        raise no_such_row(definition, row_id)
    items = [record[2] for record in records if record[2] is not None]
    return VersionPage(items=items[:take], total=total, has_more=len(items) > take)


_VALUES: Final = """\
WITH seen AS MATERIALIZED (SELECT t.* FROM (
{versions}) t{where})
SELECT (SELECT value FROM {revision}), EXISTS (SELECT FROM seen),
       t."_sys_version", t."_sys_is_deleted"{columns}
  FROM (SELECT) one LEFT JOIN seen t ON t."_sys_version" = %(version)s::int"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionValues:
    """A version as it can be written again: its own columns by physical name, as texts.

    Nothing is masked: it is for the write path, never for an answer.
    """

    texts: Mapping[str, str | None]
    is_deleted: bool


def _text_sql(column: Column) -> str:
    """Return the value as a text that the write path reads as the same value."""
    value = f't."{column.folded}"'
    return moment_sql(value) if column.data_type is DataType.DATETIME else f"{value}::text"


async def version_values(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, row_id: UUID, version: int
) -> VersionValues:
    """Return the values of one version of a row that the principal may see.

    Raises:
        NotFound: there is no such entity, row or version.
        Conflict: the entity keeps no history.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    require_history(stored)
    typed = row_filter(asking, stored.definition)
    names = [column.folded for column in stored.definition.columns]
    sql = _VALUES.format(
        versions=_versions_sql(asking, stored),
        where=_where(asking, typed),
        revision=revision_table(asking),
        columns="".join(f", {_text_sql(column)}" for column in stored.definition.columns),
    )
    values = {"row_id": row_id, "version": version}
    [record] = await _run(conn, asking, sql, typed, values)
    _, is_there, number, is_deleted, *texts = record
    if is_there != b"t":
        raise no_such_row(stored.definition, row_id)
    if number is None:
        raise NotFound(
            f"row {row_id} of {stored.definition.name} has no version {version}",
            code="VERSION_NOT_FOUND",
        )
    decoded = [None if text is None else text.decode() for text in texts]
    return VersionValues(
        texts=dict(zip(names, decoded, strict=True)), is_deleted=is_deleted == b"t"
    )


# Identifiers are made in the order of time, all but exactly: among the first rows by identifier is
# the one that was created first.
_BOUNDS: Final = """\
SELECT (SELECT value FROM {revision}), row_to_json(b) FROM (
SELECT {first} AS "fromUtc", {now} AS "toUtc" FROM (
 (SELECT t."_sys_created_at" AS created FROM {main} t{where} ORDER BY t."_sys_id" LIMIT 100)
  UNION ALL
 (SELECT t."_sys_created_at" FROM {history} t{where} ORDER BY t."_sys_id" LIMIT 100)) r) b"""


async def time_travel_bounds(conn: AsyncConnection[Any], *, asking: Asking, entity: str) -> bytes:
    """Return ``{"fromUtc", "toUtc"}``: when the first row that the caller may see was created, null
    where there is none, and now.

    Raises:
        NotFound, Conflict: there is no such entity, or it keeps no history.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    require_history(stored)
    typed = row_filter(asking, stored.definition)
    sql = _BOUNDS.format(
        revision=revision_table(asking),
        first=moment_sql("min(r.created)"),
        now=moment_sql("statement_timestamp()"),
        main=table_sql(asking, stored.name, Role.MAIN),
        history=table_sql(asking, stored.name, Role.HISTORY),
        where=_where(asking, typed),
    )
    [record] = await _run(conn, asking, sql, typed, {})
    return record[1] or b"null"


# --- around the statements ------------------------------------------------------------------------


def _versions_sql(asking: Asking, stored: StoredEntity) -> str:
    return _VERSIONS.format(
        columns=", ".join(f'"{name}"' for name in row_columns(stored.definition)),
        main=table_sql(asking, stored.name, Role.MAIN),
        history=table_sql(asking, stored.name, Role.HISTORY),
    )


def _where(asking: Asking, typed: TypedFilter | None) -> str:
    condition = predicate_sql(asking, typed, prefix="f", alias="t")
    return where_clause([f"({condition})"] if condition else [])


async def _run(
    conn: AsyncConnection[Any],
    asking: Asking,
    sql: str,
    typed: TypedFilter | None,
    values: Mapping[str, Any],
) -> list[list[bytes | None]]:
    """Run a statement whose first column is the store's revision."""
    filters = predicate_values(asking, [("f", "t", typed)] if typed is not None else [])
    with translated():
        cursor = await conn.execute(sql.encode(), {**filters, **values})
    result = cursor.pgresult
    assert result is not None
    columns = range(result.nfields)
    records = [[result.get_value(row, n) for n in columns] for row in range(result.ntuples)]
    if int(records[0][0] or 0) != asking.state.revision:
        raise StateMoved
    return records
