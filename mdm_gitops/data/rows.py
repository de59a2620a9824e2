"""Reading rows: pages and single rows, as JSON text that PostgreSQL builds.

A request becomes one statement, which is kept per state of the store, principal and shape, and
prepared the second time it is used. Its rows are passed on as bytes; nothing is done per row in
Python. The statement carries the store's revision along, so that one round trip also proves that
the rights and definitions it was built from still hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.pq.abc import PGresult

from mdm_gitops.data.asking import (
    Asking,
    StateMoved,
    readable_entity,
    refuse_restricted,
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
from mdm_gitops.data.selecting import (
    Placed,
    Selection,
    predicate_sql,
    predicate_values,
    revision_table,
    selection,
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
from mdm_gitops.data.time_travel import (
    IS_AHEAD,
    has_index_for,
    refuse_ahead,
    relation,
    relations,
)
from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.model import Entity
from mdm_gitops.warehouse.prepared import Prepared, run_prepared
from mdm_gitops.warehouse.store import StoredEntity

_SPELLING: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_DECODER: Final = json.JSONDecoder(parse_float=Decimal)
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
    as_of: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    rows: Sequence[bytes]  # each the JSON text of one row
    has_more: bool
    next_after: str | None
    total: int | None

    @cached_property
    def joined(self) -> bytes:
        """The rows as the members of a JSON array; a page has many readers, and this is made once."""
        return b",".join(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    body: bytes
    version: int
    is_deleted: bool = False


@dataclass(frozen=True, kw_only=True)
class _Statement:
    """SQL and where the values of its parameters come from."""

    sql: bytes
    predicates: tuple[Placed, ...] = ()
    keys: tuple[SortKey, ...] = ()
    has_key_column: bool = False
    past: bool = False
    steady: bool = True  # whether one plan is good for all values

    @cached_property
    def prepared(self) -> Prepared:
        return Prepared.of(self.sql)

    def parameters(self, asking: Asking, as_of: datetime | None) -> dict[str, Any]:
        values = predicate_values(asking, self.predicates)
        return {**values, "as_of": as_of} if self.past else values


async def list_rows(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: ListRequest
) -> Page:
    """Return one page of the rows of *entity* that the principal may see.

    Raises:
        NotFound, FilterError, InputError, AccessDenied, Conflict: the request is refused.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    _check_numbers(request)
    past, state = request.as_of is not None, request.shape.state
    keys = sort_keys(asking, stored.definition, sort=request.sort, state=state, past=past)
    scope = f"{stored.name}/{state.value}" + (f"/{request.as_of}" if past else "")
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
            past,
        ),
        lambda: _list_statement(asking, stored, request, keys, nulls),
    )
    values = {
        **statement.parameters(asking, request.as_of),
        **after_parameters(cursor),
        "skip": request.skip,
    }
    records = await _run(conn, statement, values, asking, prepare=seen)
    return _page(records, statement, request, scope)


async def get_row(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    row_id: UUID,
    shape: RowShape,
    as_of: datetime | None = None,
) -> Row:
    """Return one row; a row that the principal may not see is as absent as one that is not there.

    Raises:
        NotFound: there is no such entity or row.
        InputError, AccessDenied, Conflict: the request is refused.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    past = as_of is not None
    statement, seen = _kept(
        asking, (stored.name, shape, past), lambda: _get_statement(asking, stored, shape, past=past)
    )
    values = {**statement.parameters(asking, as_of), "row_id": row_id}
    records = await _run(conn, statement, values, asking, prepare=seen)
    body, version, is_deleted = (records.value(0, column) for column in range(3))
    if body is None or version is None:
        raise no_such_row(stored.definition, row_id)
    return Row(body=body, version=int(version), is_deleted=is_deleted == b"t")


async def get_rows(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    row_ids: Collection[str],
    shape: RowShape,
) -> Mapping[str, Row]:
    """Return, of *row_ids*, the rows that are there for the principal; one statement for all.

    Identifiers are in the spelling of ``str(UUID)``.

    Raises: as ``get_row``, but that a row is missing is no error here.
    """
    stored = readable_entity(asking, entity)
    statement, seen = _kept(
        asking,
        (stored.name, shape, "many"),
        lambda: _get_statement(asking, stored, shape, many=True),
    )
    values = {
        **statement.parameters(asking, None),
        "row_ids": "{" + ",".join(row_ids) + "}",
    }
    found = {}
    records = await _run(conn, statement, values, asking, prepare=seen)
    read, at = records.result.get_value, records.first
    for record in range(len(records)):
        body, version, row_id = read(record, at), read(record, at + 1), read(record, at + 3)
        if body is not None and version is not None and row_id is not None:
            is_deleted = read(record, at + 2) == b"t"
            found[row_id.decode()] = Row(body=body, version=int(version), is_deleted=is_deleted)
    return found


def no_such_row(entity: Entity, row_id: object) -> NotFound:
    return NotFound(f"{entity.name} has no row {str(row_id)[:60]}", code="ROW_NOT_FOUND")


def row_id_text(text: str, entity: Entity) -> str:
    """Return *text* as a row's identifier in the spelling of ``str(UUID)``; errors as ``parse_row_id``."""
    return text if _SPELLING.match(text) else str(parse_row_id(text, entity))


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
{relations}SELECT h.*, p.* FROM (SELECT (SELECT value FROM {revision}) AS revision{head}) h
  LEFT JOIN (
SELECT row_to_json(r){extra} FROM (
SELECT t.* FROM {source}{where}{order}{limit}
) t CROSS JOIN LATERAL (SELECT {members}) r
) p ON true"""


_BY_ID: Final = 't."_sys_id" = %(row_id)s::uuid'
_BY_IDS: Final = 't."_sys_id" = ANY (%(row_ids)s::uuid[])'


def _list_statement(
    asking: Asking,
    stored: StoredEntity,
    request: ListRequest,
    keys: tuple[SortKey, ...],
    nulls: tuple[bool, ...],
) -> _Statement:
    past, state = request.as_of is not None, request.shape.state
    members = _members(asking, stored.definition, request.shape, past=past)
    rows = selection(asking, stored, filter=request.filter, state=state, past=past)
    in_order = past and has_index_for(stored, keys[0].column)
    total = f", (SELECT count(*) FROM {rows.source}{where_clause(rows.conditions)}) AS total"
    with_cursor = [*rows.conditions, *([after_predicate(keys, nulls)] if nulls else ())]
    names = {member.name for member in members.outputs}
    has_keys = not {key.output for key in keys} <= names
    key_list = ", ".join(key.sql for key in keys)
    sql = _ENVELOPE.format(
        **_frame(asking, rows, members, total=total if request.count else "", in_order=in_order),
        extra=f", json_build_array({key_list})" if has_keys else "",
        where=where_clause(with_cursor),
        order=f"\n ORDER BY {order_by(keys)}",
        limit=f" LIMIT {request.take + 1}" + (" OFFSET %(skip)s" if request.skip else ""),
    )
    return _Statement(
        sql=sql.encode(),
        predicates=(*members.predicates, *rows.predicates),
        keys=keys,
        has_key_column=has_keys,
        past=past,
        steady=not past or (in_order and not request.count and not request.filter),
    )


def _get_statement(
    asking: Asking,
    stored: StoredEntity,
    shape: RowShape,
    *,
    past: bool = False,
    many: bool = False,
) -> _Statement:
    """Return what reads the row ``row_id``, or the rows ``row_ids``, each then with its identifier."""
    members = _members(asking, stored.definition, shape, past=past)
    rows = selection(asking, stored, filter="", state=shape.state, past=past)
    sql = _ENVELOPE.format(
        **_frame(asking, rows, members),
        extra=', t."_sys_version", t."_sys_is_deleted"' + (', t."_sys_id"' if many else ""),
        where=where_clause([_BY_IDS if many else _BY_ID, *rows.conditions]),
        order="",
        limit="",
    )
    predicates = (*members.predicates, *rows.predicates)
    return _Statement(sql=sql.encode(), predicates=predicates, past=past)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Members:
    """The members of a row, the filters that the rows it refers to must pass, and their entities."""

    outputs: tuple[Output, ...]
    predicates: tuple[Placed, ...]
    entities: frozenset[str]


def _frame(
    asking: Asking,
    rows: Selection,
    members: _Members,
    *,
    total: str = "",
    in_order: bool = False,
) -> dict[str, str]:
    """Return the parts of the envelope that lists and single rows have alike."""
    frame = {
        "relations": "",
        "revision": revision_table(asking),
        "head": total,
        "source": rows.source,
        "members": select_list(members.outputs),
    }
    if rows.entities:
        name = rows.name if in_order else ""
        frame["relations"] = relations(asking, rows.entities | members.entities, in_order=name)
        frame["head"] = f", {IS_AHEAD} AS ahead{total}"
    if in_order:
        frame["source"] = f"{relation(rows.name, in_order=True)} t"
    return frame


def _members(asking: Asking, entity: Entity, shape: RowShape, *, past: bool) -> _Members:
    sees_restricted = asking.rights(entity).sees_restricted
    members = chosen(
        outputs(entity, sees_restricted=sees_restricted, state=shape.state), shape.fields, entity
    )
    inner, predicates, entities = [], [], set()
    for number, column in enumerate(reference_columns(shape.expand, entity)):
        refuse_restricted(asking, entity, column.folded, purpose="expanded")
        target, _ = asking.state.definitions.reference_target(column)
        visible = row_filter(asking, target) if asking.rights(target).may_read else None
        prefix, alias = f"x{number}_", f"x{number}"
        if visible is not None:
            predicates.append((prefix, alias, visible))
        row = expanded_row(
            asking,
            column,
            alias=alias,
            visible=predicate_sql(asking, visible, prefix=prefix, alias=alias),
            past=past,
        )
        inner.append(Output(column.name, row))
        entities.add(target.folded)
    if inner:
        nested = f"(SELECT row_to_json(x) FROM (SELECT {select_list(inner)}) x)"
        members = (*members, Output(EXPANDED, nested))
    return _Members(outputs=members, predicates=tuple(predicates), entities=frozenset(entities))


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


@dataclass(frozen=True, slots=True)
class _Records:
    """What a statement gave, as the server sent it: at least one record, of nulls where there is no row.

    Columns count from the first one after those of the envelope.
    """

    result: PGresult
    first: int

    def __len__(self) -> int:
        return self.result.ntuples

    def value(self, record: int, column: int) -> bytes | None:
        return self.result.get_value(record, self.first + column)

    def values(self, column: int, *, most: int) -> list[bytes]:
        """Return what the first records hold in a column, without nulls."""
        read, at = self.result.get_value, self.first + column
        found = [read(record, at) for record in range(min(most, self.result.ntuples))]
        return [value for value in found if value is not None]


async def _run(
    conn: AsyncConnection[Any],
    statement: _Statement,
    values: dict[str, Any],
    asking: Asking,
    *,
    prepare: bool,
) -> _Records:
    with translated():
        if prepare and statement.steady:
            result = await run_prepared(conn, statement.prepared, values)
        else:
            cursor = await conn.execute(statement.sql, values, prepare=False)
            assert cursor.pgresult is not None, "the statement has been run"
            result = cursor.pgresult
    if int(result.get_value(0, 0) or 0) != asking.state.revision:
        raise StateMoved
    if statement.past and result.get_value(0, 1) == b"t":
        raise refuse_ahead()
    return _Records(result, 2 if statement.past else 1)


def _page(records: _Records, statement: _Statement, request: ListRequest, scope: str) -> Page:
    at = 1 if request.count else 0
    rows = records.values(at, most=request.take)
    has_more = len(records) > request.take
    next_after = None
    if has_more:
        key_text = records.value(request.take - 1, at + 1) if statement.has_key_column else None
        next_after = _cursor_after(rows[-1], key_text, statement.keys, scope)
    total = int(records.value(0, 0) or 0) if request.count else None
    return Page(rows=rows, has_more=has_more, next_after=next_after, total=total)


def _cursor_after(row: bytes, key_text: bytes | None, keys: tuple[SortKey, ...], scope: str) -> str:
    """Read the sort values from the row itself, or from the column that carries them beside it."""
    content = _DECODER.decode((key_text or row).decode())
    values = content if key_text is not None else [content[key.output] for key in keys]
    return encode_cursor(keys, values, scope=scope)
