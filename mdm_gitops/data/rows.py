"""Reading rows: pages and single rows, as JSON text that PostgreSQL builds.

A request becomes one statement, which is kept per state of the store, principal and shape, and
prepared the second time it is used. Its rows are passed on as bytes; nothing is done per row in
Python. The statement carries the store's revision along, so that one round trip also proves that
the rights and definitions it was built from still hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.asking import (
    Asking,
    StateMoved,
    combined,
    readable_entity,
    refuse_restricted,
    requested_filter,
    row_filter,
)
from mdm_gitops.data.failures import translated
from mdm_gitops.data.row_json import (
    EXPANDED,
    Output,
    RowState,
    chosen,
    expanded_row,
    outputs,
    reference_columns,
    select_list,
)
from mdm_gitops.data.sorting import (
    SortKey,
    after_parameters,
    after_predicate,
    decode_cursor,
    default_sort,
    encode_cursor,
    order_by,
    parse_sort,
)
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.filter import TypedFilter, compile_predicate
from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import Role, table_name
from mdm_gitops.warehouse.store import StoredEntity

DEFAULT_TAKE: Final = 100
MAX_TAKE: Final = 1_000
MAX_SKIP: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """Which rows, and which of their members."""

    state: RowState = RowState.ACTIVE
    fields: str = ""
    expand: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    shape: RowShape = RowShape()
    filter: str = ""
    sort: str = ""
    skip: int = 0
    take: int = DEFAULT_TAKE
    after: str = ""
    count: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rows: Sequence[bytes]  # each the JSON text of one row
    has_more: bool
    next_after: str | None
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    body: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """SQL and where the values of its parameters come from. *predicates* go by prefix."""

    sql: bytes
    predicates: tuple[tuple[str, str, TypedFilter], ...] = ()  # prefix, alias, filter
    keys: tuple[SortKey, ...] = ()
    has_key_column: bool = False

    def parameters(self, asking: Asking) -> dict[str, Any]:
        context, values = asking.filter_context, {}
        for prefix, alias, typed in self.predicates:
            predicate = compile_predicate(
                typed,
                context=context,
                schema=asking.schemas.data,
                alias=alias,
                parameter_prefix=prefix,
            )
            values.update(predicate.parameters)
        return values


async def list_rows(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: ListRequest
) -> Page:
    """Return one page of the rows of *entity* that the principal may see.

    Raises:
        NotFound, FilterError, InputError, AccessDenied: the request is refused.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    _check_numbers(request)
    keys = _sort_keys(asking, stored.definition, request)
    scope = f"{stored.name}/{request.shape.state.value}"
    cursor = decode_cursor(request.after, keys, scope=scope) if request.after else ()
    nulls = tuple(value is None for value in cursor)
    statement, seen = _kept(
        asking,
        (
            stored.name,
            request.shape,
            request.filter,
            keys,
            request.take,
            request.count,
            bool(request.skip),
            nulls,
        ),
        lambda: _list_statement(asking, stored, request, keys, nulls),
    )
    values = {**statement.parameters(asking), **after_parameters(cursor), "skip": request.skip}
    records = await _run(conn, statement, values, asking, prepare=seen)
    return _page(records, statement, request, scope)


async def get_row(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, row_id: UUID, shape: RowShape
) -> Row:
    """Return one row; a row that the principal may not see is as absent as one that is not there.

    Raises:
        NotFound: there is no such entity or row.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    statement, seen = _kept(
        asking, (stored.name, shape), lambda: _get_statement(asking, stored, shape)
    )
    values = {**statement.parameters(asking), "row_id": row_id}
    _, body, version = (await _run(conn, statement, values, asking, prepare=seen))[0]
    if body is None or version is None:
        raise no_such_row(stored.definition, row_id)
    return Row(body=body, version=int(version))


def no_such_row(entity: Entity, row_id: object) -> NotFound:
    return NotFound(f"{entity.name} has no row {str(row_id)[:60]}", code="ROW_NOT_FOUND")


def parse_row_id(text: str, entity: Entity) -> UUID:
    """Return *text* as a row's identifier; what cannot be one names no row.

    Raises:
        NotFound: it is not a GUID.
    """
    try:
        return UUID(text)
    except ValueError:
        raise no_such_row(entity, text) from None


# --- the statements -------------------------------------------------------------------------------

# The left join answers the revision also when there is no row.
_ENVELOPE: Final = """\
SELECT h.*, p.* FROM (SELECT (SELECT value FROM {revision}) AS revision{head}) h
  LEFT JOIN (
SELECT row_to_json(r){extra} FROM (
SELECT t.* FROM {source}{where}{order}{limit}
) t CROSS JOIN LATERAL (SELECT {members}) r
) p ON true"""


def _list_statement(
    asking: Asking,
    stored: StoredEntity,
    request: ListRequest,
    keys: tuple[SortKey, ...],
    nulls: tuple[bool, ...],
) -> _Statement:
    entity, shape = stored.definition, request.shape
    members, predicates = _members(asking, entity, shape)
    typed = combined(row_filter(asking, entity), requested_filter(asking, entity, request.filter))
    conditions = _conditions(asking, typed, shape.state)
    if typed is not None:
        predicates.append(("f", "t", typed))
    source = _source(asking, stored, shape.state)
    total = f", (SELECT count(*) FROM {source}{_where(conditions)}) AS total"
    with_cursor = [*conditions, after_predicate(keys, nulls)] if nulls else conditions
    names = {member.name for member in members}
    has_keys = not {key.output for key in keys} <= names
    key_list = ", ".join(key.sql for key in keys)
    sql = _ENVELOPE.format(
        revision=_revision(asking),
        head=total if request.count else "",
        extra=f", json_build_array({key_list})" if has_keys else "",
        source=source,
        where=_where(with_cursor),
        order=f"\n ORDER BY {order_by(keys)}",
        limit=f" LIMIT {request.take + 1}" + (" OFFSET %(skip)s" if request.skip else ""),
        members=select_list(members),
    )
    return _Statement(
        sql=sql.encode(), predicates=tuple(predicates), keys=keys, has_key_column=has_keys
    )


def _get_statement(asking: Asking, stored: StoredEntity, shape: RowShape) -> _Statement:
    entity = stored.definition
    members, predicates = _members(asking, entity, shape)
    typed = row_filter(asking, entity)
    if typed is not None:
        predicates.append(("f", "t", typed))
    conditions = ['t."_sys_id" = %(row_id)s::uuid', *_conditions(asking, typed, shape.state)]
    sql = _ENVELOPE.format(
        revision=_revision(asking),
        head="",
        extra=', t."_sys_version"',
        source=_source(asking, stored, shape.state),
        where=_where(conditions),
        order="",
        limit="",
        members=select_list(members),
    )
    return _Statement(sql=sql.encode(), predicates=tuple(predicates))


def _members(
    asking: Asking, entity: Entity, shape: RowShape
) -> tuple[tuple[Output, ...], list[tuple[str, str, TypedFilter]]]:
    """Return the members of a row, and the filters that the rows it refers to must pass."""
    sees_restricted = asking.rights(entity).sees_restricted
    members = chosen(
        outputs(entity, sees_restricted=sees_restricted, state=shape.state), shape.fields, entity
    )
    inner, predicates = [], []
    for number, column in enumerate(reference_columns(shape.expand, entity)):
        refuse_restricted(asking, entity, column.folded, purpose="expanded")
        target, _ = asking.state.definitions.reference_target(column)
        visible = row_filter(asking, target) if asking.rights(target).may_read else None
        prefix, alias = f"x{number}_", f"x{number}"
        if visible is not None:
            predicates.append((prefix, alias, visible))
        condition = _predicate_sql(asking, visible, prefix=prefix, alias=alias)
        inner.append(
            Output(column.name, expanded_row(asking, column, alias=alias, visible=condition))
        )
    if inner:
        nested = f"(SELECT row_to_json(x) FROM (SELECT {select_list(inner)}) x)"
        members = (*members, Output(EXPANDED, nested))
    return members, predicates


def _conditions(asking: Asking, typed: TypedFilter | None, state: RowState) -> list[str]:
    found = []
    if state is RowState.ACTIVE:
        found.append('NOT t."_sys_is_deleted"')
    elif state is RowState.DELETED:
        found.append('t."_sys_is_deleted"')
    if typed is not None:
        found.append(f"({_predicate_sql(asking, typed, prefix='f', alias='t')})")
    return found


def _predicate_sql(asking: Asking, typed: TypedFilter | None, *, prefix: str, alias: str) -> str:
    if typed is None:
        return ""
    predicate = compile_predicate(
        typed,
        context=asking.filter_context,
        schema=asking.schemas.data,
        alias=alias,
        parameter_prefix=prefix,
    )
    return predicate.sql


def _where(conditions: Sequence[str]) -> str:
    return "\n WHERE " + " AND ".join(conditions) if conditions else ""


def _source(asking: Asking, stored: StoredEntity, state: RowState) -> str:
    """Return what stands after FROM: the approved rows, or proposals that look like them."""
    data, main = asking.schemas.data, f'"{asking.schemas.data}"."{stored.name}"'
    if state is not RowState.PENDING:
        return f"{main} t"
    if not stored.definition.approval_required:
        return f"({_NO_PROPOSALS.format(main=main)}) t"
    edit = f'"{data}"."{table_name(stored.name, Role.EDIT)}"'
    return f"({_PROPOSALS.format(main=main, edit=edit)}) t"


_PROPOSALS: Final = """SELECT e.*, coalesce(e."_sys_base_version", 0) AS "_sys_version",
       coalesce(m."_sys_created_at", e."_sys_submitted_at") AS "_sys_created_at",
       coalesce(m."_sys_created_by", e."_sys_submitted_by") AS "_sys_created_by",
       e."_sys_submitted_at" AS "_sys_last_modified_at",
       e."_sys_submitted_by" AS "_sys_last_modified_by",
       coalesce(m."_sys_is_deleted", false) AS "_sys_is_deleted",
       m."_sys_deleted_at" AS "_sys_deleted_at"
  FROM {edit} e LEFT JOIN {main} m ON m."_sys_id" = e."_sys_id"
 WHERE e."_sys_state" = 'pending'"""
# An entity that needs no approval has no proposals; the question is answered all the same.
_NO_PROPOSALS: Final = """SELECT m.*, 'pending'::text AS "_sys_state", ''::text AS "_sys_operation",
       NULL::text AS "_sys_batch_name", NULL::text AS "_sys_comment",
       NULL::timestamptz AS "_sys_submitted_at", NULL::text AS "_sys_submitted_by"
  FROM {main} m WHERE false"""


def _revision(asking: Asking) -> str:
    return f'"{asking.schemas.config}".revision'


# --- around the statements ------------------------------------------------------------------------


def _check_numbers(request: ListRequest) -> None:
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    if not 0 <= request.skip <= MAX_SKIP:
        raise InputError(f"skip must be 0 to {MAX_SKIP}", parameter="skip")
    if request.skip and request.after:
        raise InputError(
            "skip and after cannot be used together", hint="page with after", parameter="skip"
        )


def _sort_keys(asking: Asking, entity: Entity, request: ListRequest) -> tuple[SortKey, ...]:
    key = ("sort", asking.cache_key, entity.folded, request.sort, request.shape.state)
    return asking.state.remember(key, lambda: _parsed_sort(asking, entity, request))


def _parsed_sort(asking: Asking, entity: Entity, request: ListRequest) -> tuple[SortKey, ...]:
    sees_restricted = asking.rights(entity).sees_restricted

    def refuse(column: str) -> None:
        refuse_restricted(asking, entity, column, purpose="sorted by")

    def is_masked(column: str) -> bool:
        found = entity.column(column)
        return found is not None and found.restricted and not sees_restricted

    if request.sort.strip(" ,"):
        keys = parse_sort(request.sort, entity, refuse=refuse)
    else:
        keys = default_sort(entity, is_masked=is_masked)
    if request.shape.state is RowState.PENDING:
        return tuple(_as_proposal(key) for key in keys)
    return keys


def _as_proposal(key: SortKey) -> SortKey:
    """A proposal may lack what an approved row must have."""
    nullable = key.nullable or not key.column.startswith("_sys_")
    return SortKey(
        column=key.column,
        output=key.output,
        data_type=key.data_type,
        descending=key.descending,
        nullable=nullable,
    )


def _kept(asking: Asking, shape: tuple[Any, ...], build: Any) -> tuple[_Statement, bool]:
    """Return the statement of this shape, and whether it was there already."""
    built = False

    def build_now() -> _Statement:
        nonlocal built
        built = True
        statement: _Statement = build()
        return statement

    statement = asking.state.remember(("rows", asking.cache_key, *shape), build_now)
    return statement, not built


async def _run(
    conn: AsyncConnection[Any],
    statement: _Statement,
    values: dict[str, Any],
    asking: Asking,
    *,
    prepare: bool,
) -> list[list[bytes | None]]:
    """Run the statement and return its rows as the server sent them."""
    with translated():
        cursor = await conn.execute(statement.sql, values, prepare=prepare or None)
    result = cursor.pgresult
    assert result is not None
    columns = range(result.nfields)
    records = [[result.get_value(row, n) for n in columns] for row in range(result.ntuples)]
    if int(records[0][0] or 0) != asking.state.revision:
        raise StateMoved
    return records


def _page(
    records: list[list[bytes | None]], statement: _Statement, request: ListRequest, scope: str
) -> Page:
    at = 2 if request.count else 1
    rows = [record[at] for record in records]
    present = [row for row in rows if row is not None]
    has_more = len(present) > request.take
    sent = present[: request.take]
    next_after = None
    if has_more:
        last = records[request.take - 1]
        key_text = last[at + 1] if statement.has_key_column else None
        next_after = _cursor_after(sent[-1], key_text, statement.keys, scope)
    total = int(records[0][1] or 0) if request.count else None
    return Page(rows=sent, has_more=has_more, next_after=next_after, total=total)


def _cursor_after(row: bytes, key_text: bytes | None, keys: tuple[SortKey, ...], scope: str) -> str:
    """Read the sort values from the row itself, or from the column that carries them beside it."""
    content = json.loads(key_text or row, parse_float=Decimal)
    values = content if key_text is not None else [content[key.output] for key in keys]
    return encode_cursor(keys, values, scope=scope)
