"""Exports: all rows that a caller may see, as CSV, JSON or a workbook, streamed.

PostgreSQL writes the text of each row and COPY hands it over; nothing is done per row in Python,
and the memory does not depend on the number of rows. An export is one transaction with one
snapshot: the tables are locked against changes of their definition first, then the store's revision
is read, and the rows are copied only if it is the one that rights and definitions were taken from.
So every refusal comes before the first byte, and what follows is the state of one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, readable_entity
from mdm_gitops.data.copy_out import copy_out
from mdm_gitops.data.export_columns import ExportColumn, csv_select_list, export_columns
from mdm_gitops.data.failures import translated
from mdm_gitops.data.row_json import RowState, select_list
from mdm_gitops.data.selecting import (
    Selection,
    predicate_values,
    revision_table,
    selection,
    sort_keys,
    where_clause,
)
from mdm_gitops.data.sorting import order_by
from mdm_gitops.data.time_travel import IS_AHEAD, refuse_ahead, relations
from mdm_gitops.data.workbook import Extent, refuse_excess, workbook
from mdm_gitops.data.xlsx_cells import extent_select_list, xlsx_select_list
from mdm_gitops.errors import MdmError
from mdm_gitops.filter import columns_used
from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import Role, table_name
from mdm_gitops.warehouse.silence import wait_for_answers


class ExportFormat(StrEnum):
    CSV = "csv"
    JSON = "json"
    XLSX = "xlsx"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    format: ExportFormat = ExportFormat.CSV
    state: RowState = RowState.ACTIVE
    fields: str = ""
    filter: str = ""
    sort: str = ""
    skip: int = 0
    take: int | None = None  # all
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """The rows of an export, still without what is told of each."""

    entity: Entity
    columns: tuple[ExportColumn, ...]
    rows: Selection
    before: str  # WITH clause
    after: str  # FROM and all that follows
    tables: tuple[str, ...]
    values: dict[str, Any]

    def select(self, members: str) -> str:
        return f"{self.before}SELECT {members}\n  FROM {self.after}"


class Export:
    """An export that may begin: ``chunks`` are its bytes, from the first to the last. ``rows`` are
    counted when it has ended."""

    def __init__(
        self,
        conn: AsyncConnection[Any],
        query: _Query,
        request: ExportRequest,
        extent: Extent | None,
    ) -> None:
        self._conn = conn
        self._query = query
        self._format = request.format
        self._extent = extent
        self.rows = 0

    @property
    def file_name(self) -> str:
        return f"{self._query.entity.name}.{self._format.value}"

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the bytes; close the iterator when not all of them are taken.

        Raises:
            MdmError: it failed; what was yielded before is not the whole.
        """
        columns = self._query.columns
        match self._format:
            case ExportFormat.CSV:
                copied = self._copied(self._query.select(csv_select_list(columns)), _CSV)
            case ExportFormat.JSON:
                copied = _json_array(self._json_rows())
            case ExportFormat.XLSX:
                assert self._extent is not None, "a workbook is measured before it is written"
                sheet = self._copied(self._query.select(xlsx_select_list(columns)), _CELLS)
                copied = workbook(
                    sheet,
                    title=self._query.entity.name,
                    columns=[each.output.name for each in columns],
                    extent=self._extent,
                )
        with translated():
            async with aclosing(copied):
                async for chunk in copied:
                    yield chunk

    def _json_rows(self) -> AsyncGenerator[bytes]:
        rows = self._query.select(select_list([each.output for each in self._query.columns]))
        return self._copied(f"SELECT row_to_json(r) FROM (\n{rows}\n) r", _LINES, before_each=b",")

    def _copied(
        self, select: str, options: str, *, before_each: bytes = b""
    ) -> AsyncGenerator[bytes]:
        statement = f"COPY (\n{select}\n) TO STDOUT ({options})"
        return copy_out(
            self._conn,
            statement,
            self._query.values,
            ended=self._count,
            before_each=before_each,
        )

    def _count(self, rows: int) -> None:
        self.rows = rows


_CSV: Final = "FORMAT csv, HEADER"
# JSON and XML of ours hold no control character but the line feed after a row, so nothing of them
# is ever quoted.
_LINES: Final = r"FORMAT csv, DELIMITER E'\x01', QUOTE E'\x02'"
_CELLS: Final = r"FORMAT csv, DELIMITER E'\t', QUOTE E'\x02', NULL '<c/>'"


async def _json_array(rows: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Make an array of rows that each have a comma before them."""
    held = b""
    async with aclosing(rows):
        async for chunk in rows:
            if held:
                yield held
            held = chunk if held else b"[" + chunk[1:]
    yield (held or b"[") + b"]\n"


@asynccontextmanager
async def opened_export(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    request: ExportRequest,
    timeout_s: float,
) -> AsyncIterator[Export]:
    """Check *request* and hold a snapshot of the rows as long as the block lasts.

    Raises:
        NotFound, FilterError, InputError, AccessDenied, Conflict: the request is refused.
        StateMoved: ask again with a newer state.
        MdmError: the block lasts longer than *timeout_s*.
    """
    query = _query(asking, entity, request)
    before = wait_for_answers(conn, None)
    try:
        async with asyncio.timeout(timeout_s):
            with translated():
                async with conn.transaction():
                    await _begin(conn, asking, query, request, timeout_s)
                    extent = await _measured(conn, query, request)
                    yield Export(conn, query, request, extent)
    except TimeoutError:
        raise MdmError(
            f"the export took longer than {timeout_s:g} s",
            hint="export fewer rows or columns; Mdm__Data__ExportTimeoutSeconds allows more",
            code="QUERY_TIMEOUT",
        ) from None
    finally:
        wait_for_answers(conn, before)


def _query(asking: Asking, name: str, request: ExportRequest) -> _Query:
    stored = readable_entity(asking, name)
    entity, past = stored.definition, request.as_of is not None
    rows = selection(asking, stored, filter=request.filter, state=request.state, past=past)
    values = predicate_values(asking, rows.predicates)
    return _Query(
        entity=entity,
        columns=export_columns(asking, entity, fields=request.fields, state=request.state),
        rows=rows,
        before=relations(asking, rows.entities) if past else "",
        after=rows.source
        + where_clause(rows.conditions)
        + _order_and_limits(asking, entity, request),
        tables=tuple(_tables(asking, stored.name, rows)),
        values={**values, "as_of": request.as_of} if past else values,
    )


def _order_and_limits(asking: Asking, entity: Entity, request: ExportRequest) -> str:
    """Return the order of the list; where nobody asks for one, the rows come as they are stored,
    which saves a fifth of the time of the whole.
    """
    past, is_part = request.as_of is not None, bool(request.skip or request.take)
    keys = sort_keys(asking, entity, sort=request.sort, state=request.state, past=past)
    if len(keys) == 1 and not request.sort.strip(" ,") and not is_part:
        return ""
    limit = f" LIMIT {request.take}" if request.take else ""
    offset = f" OFFSET {request.skip}" if request.skip else ""
    return f"\n ORDER BY {order_by(keys)}{limit}{offset}"


def _tables(asking: Asking, name: str, rows: Selection) -> list[str]:
    """Return all tables that the rows are read from or judged by."""
    owners = {owner for _, _, typed in rows.predicates for owner, _ in columns_used(typed)}
    tables = {table_name(each, Role.MAIN) for each in {name, *owners, *rows.entities}}
    for each in rows.entities:
        if asking.state.entities[each].definition.history_enabled:
            tables.add(table_name(each, Role.HISTORY))
    return [f'"{asking.schemas.data}"."{table}"' for table in sorted(tables)]


# A lock takes no snapshot: that is taken by the last statement, when no definition can change any
# more that the copy depends on. To TCP whoever takes no rows for a while is as silent as a network that was
# cut, but a reader may be slow.
_BEGIN: Final = """\
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL statement_timeout = {timeout_ms};
SET LOCAL synchronize_seqscans = off;
SET LOCAL tcp_user_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = {timeout_ms};
LOCK TABLE {tables} IN ACCESS SHARE MODE;
SELECT value FROM {revision}"""


async def _begin(
    conn: AsyncConnection[Any],
    asking: Asking,
    query: _Query,
    request: ExportRequest,
    timeout_s: float,
) -> None:
    statement = _BEGIN.format(
        timeout_ms=min(round(timeout_s * 1000), 2**31 - 1),
        tables=", ".join(query.tables),
        revision=revision_table(asking),
    )
    cursor = await conn.execute(statement, prepare=False)
    while cursor.nextset():
        pass
    record = await cursor.fetchone()
    if record is None or record[0] != asking.state.revision:
        raise StateMoved
    if request.as_of is not None:
        ahead = await conn.execute(f"SELECT {IS_AHEAD}", {"as_of": request.as_of})
        if (await ahead.fetchone() or (False,))[0]:
            raise refuse_ahead()


async def _measured(
    conn: AsyncConnection[Any], query: _Query, request: ExportRequest
) -> Extent | None:
    """Return how much a workbook will hold, after a look whether it can."""
    if request.format is not ExportFormat.XLSX:
        return None
    inner = query.select(extent_select_list(query.columns))
    statement = f"SELECT count(*), min(too_long), sum(size)::bigint FROM (\n{inner}\n) measured"
    record = await (await conn.execute(statement, {"": None, **query.values})).fetchone()
    assert record is not None, "an aggregate has one row"
    extent = Extent(rows=record[0], too_long=record[1], text_bytes=record[2] or 0)
    names = [each.output.name for each in query.columns]
    refuse_excess(extent, entity=query.entity.name, columns=names)
    return extent
