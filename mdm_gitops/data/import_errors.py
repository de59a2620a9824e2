"""The reasons why rows of an import were rejected: in its answer, kept, and as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.csv_text import neutralise
from mdm_gitops.data.failures import translated
from mdm_gitops.data.judging import row_error
from mdm_gitops.data.row_json import MASK
from mdm_gitops.errors import NotFound
from mdm_gitops.model import Entity
from mdm_gitops.warehouse.names import Schemas

SHOWN_ERRORS: Final = 1_000
COLUMNS: Final = ("row", "column", "code", "message", "value")
_PAGE: Final = 2_000
# What is wrong with a column follows the order of the definition, as far as its name is one.
FAILED: Final = """\
SELECT row_number() OVER (ORDER BY f."_pos", array_position(%(names)s::text[], f."column"), f.code,
                          f."column") AS ordinal,
       f."_pos", f."column", f.code, f.message, f.value
  FROM pg_temp."failed" f"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailure:
    """One reason for one row; *message* is None where it follows from the others."""

    row: int
    column: str | None
    code: str
    message: str | None
    value: str | None

    def document(self, entity: Entity | None) -> dict[str, Any]:
        return {
            "row": self.row,
            "column": self.column,
            "code": self.code,
            "message": self.message or self._said(entity),
            "value": self.value,
        }

    def _said(self, entity: Entity | None) -> str:
        column = entity.column(self.column) if entity and self.column else None
        if column is None:
            return f"{self.column or 'the row'} is not valid"
        if self.value == MASK and column.restricted:
            return row_error(column, self.code, None).message.replace(" None", "", 1)
        return row_error(column, self.code, self.value).message


async def first_errors(
    conn: AsyncConnection[Any], entity: Entity
) -> tuple[list[dict[str, Any]], bool]:
    """Return the first errors of the import in this transaction, and whether there are more."""
    cursor = await conn.execute(
        f"{FAILED} ORDER BY ordinal LIMIT {SHOWN_ERRORS + 1}".encode(), _names(entity)
    )
    rows = await cursor.fetchall()
    found = [RowFailure(**_fields(row[1:])).document(entity) for row in rows[:SHOWN_ERRORS]]
    return found, len(rows) > SHOWN_ERRORS


def _names(entity: Entity) -> dict[str, Any]:
    return {"names": [column.name for column in entity.columns]}


def _fields(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS, row, strict=True))


_KEPT: Final = "(import_id, ordinal, row, column_name, code, message, value)"


async def keep_errors(
    conn: AsyncConnection[Any], *, schemas: Schemas, entity: Entity, import_id: UUID
) -> None:
    """Keep the errors of the import in this transaction, as part of it."""
    await conn.execute(
        f'INSERT INTO "{schemas.config}".import_error {_KEPT}'
        f" SELECT %(import_id)s::uuid, f.* FROM ({FAILED}) f".encode(),
        {"import_id": import_id, **_names(entity)},
    )


async def carry_errors(
    conn: AsyncConnection[Any],
    other: AsyncConnection[Any],
    *,
    schemas: Schemas,
    entity: Entity,
    import_id: UUID,
) -> None:
    """Keep the errors of the import in the transaction of *conn* by way of *other*, for what is in that
    transaction will not be kept."""
    select = f"SELECT %(import_id)s::uuid, f.* FROM ({FAILED}) f"
    into = f'COPY "{schemas.config}".import_error {_KEPT} FROM STDIN'
    values = {"import_id": import_id, **_names(entity)}
    async with (
        conn.cursor() as source,
        other.cursor() as goal,
        source.copy(f"COPY ({select}) TO STDOUT".encode(), values) as out,
        goal.copy(into.encode()) as to,
    ):
        async for piece in out:
            await to.write(piece)


# --- as a file ------------------------------------------------------------------------------------

_IMPORT: Final = 'SELECT actor, entity FROM "{config}".import WHERE import_id = %(import_id)s'
_PAGE_OF: Final = """\
SELECT ordinal, row, column_name, code, message, value FROM "{config}".import_error
 WHERE import_id = %(import_id)s AND ordinal > %(after)s ORDER BY ordinal LIMIT {page}"""


async def readable_import(
    conn: AsyncConnection[Any], *, asking: Asking, import_id: UUID
) -> Entity | None:
    """Return the entity of an import that the caller may look into, None if it is there no more.

    Raises:
        NotFound: there is no such import, or it is not the caller's.
    """
    with translated():
        cursor = await conn.execute(
            _IMPORT.format(config=asking.schemas.config).encode(), {"import_id": import_id}
        )
        found = await cursor.fetchone()
    if found is None or not (
        asking.principal.is_global_admin or found[0] == asking.principal.actor
    ):
        raise no_such_import(import_id)
    stored = asking.state.entities.get(found[1])
    return stored.definition if stored else None


def no_such_import(import_id: object) -> NotFound:
    return NotFound(
        f"there is no import {str(import_id)[:60]}",
        hint="the errors of an import are kept for Mdm__Data__ImportErrorRetentionDays",
    )


async def error_page(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    entity: Entity | None,
    import_id: UUID,
    after: int,
) -> tuple[bytes, int | None]:
    """Return the lines of CSV after an ordinal, and the last one's ordinal, None at the end."""
    sql = _PAGE_OF.format(config=schemas.config, page=_PAGE)
    with translated():
        cursor = await conn.execute(sql.encode(), {"import_id": import_id, "after": after})
        rows = await cursor.fetchall()
    documents = (RowFailure(**_fields(row[1:])).document(entity) for row in rows)
    return csv_lines(documents), rows[-1][0] if len(rows) == _PAGE else None


def csv_lines(documents: Any) -> bytes:
    """Return *documents* as lines of CSV; what a spreadsheet would run is made harmless."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for each in documents:
        writer.writerow([_cell(each[name]) for name in COLUMNS])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return neutralise(value) if isinstance(value, str) else value


async def error_lines(
    conn: AsyncConnection[Any], *, schemas: Schemas, entity: Entity | None, import_id: UUID
) -> AsyncGenerator[bytes]:
    """Yield the whole file, page by page."""
    yield (",".join(COLUMNS) + "\n").encode()
    after: int | None = 0
    while after is not None:
        lines, after = await error_page(
            conn, schemas=schemas, entity=entity, import_id=import_id, after=after
        )
        if lines:
            yield lines


# --- retention ------------------------------------------------------------------------------------

_REMOVE_ERRORS: Final = """\
DELETE FROM "{config}".import_error WHERE ctid = ANY (ARRAY(
    SELECT e.ctid FROM "{config}".import i JOIN "{config}".import_error e USING (import_id)
     WHERE i.finished_at < now() - make_interval(days => %(days)s) LIMIT {batch}))"""
_REMOVE_IMPORTS: Final = """\
DELETE FROM "{config}".import i WHERE i.finished_at < now() - make_interval(days => %(days)s)
   AND NOT EXISTS (SELECT FROM "{config}".import_error e WHERE e.import_id = i.import_id)"""
_REMOVED_AT_ONCE: Final = 20_000


async def remove_old_imports(conn: AsyncConnection[Any], *, schemas: Schemas, days: int) -> int:
    """Delete what is kept of imports older than *days*, as much as is quick; return the lines."""
    values: Mapping[str, Any] = {"days": days}
    with translated():
        errors = await conn.execute(
            _REMOVE_ERRORS.format(config=schemas.config, batch=_REMOVED_AT_ONCE).encode(), values
        )
        imports = await conn.execute(_REMOVE_IMPORTS.format(config=schemas.config).encode(), values)
    return errors.rowcount + imports.rowcount
