"""The staging table of an import: the body as it came, in texts, one line per row.

It is a temporary table of the import's own transaction: it costs no WAL, nobody else sees it, and
it is gone with the transaction. Its columns are numbered (``c0``, ``c1``, ...): what they mean is said by a
header that can be read again when the definition changes meanwhile. ``_pos`` counts the rows from 1.

CSV is parsed by COPY. What it refuses is told here by the line of the body, in our words; the words of
the server may be in any language, so the place in its source that raised them says what it was.
"""

from __future__ import annotations

import re
import select
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, errors

from mdm_gitops.data.failures import translated
from mdm_gitops.data.import_csv import ENCODINGS, CsvReader, Dialect, Unreadable
from mdm_gitops.data.import_json import JsonReader, RowLines

_LINE: Final = re.compile(r"\b(\d+)(?=[,:]|\Z)")
# Enough for a message of the driver, little enough for the event loop.
_SENT_BYTES: Final = 262_144
_LINES_AT_ONCE: Final = 256
_UNREADABLE: Final = (
    errors.BadCopyFileFormat,
    errors.CharacterNotInRepertoire,
    errors.UntranslatableCharacter,
    errors.ProgramLimitExceeded,
)


async def create_staging(conn: AsyncConnection[Any], width: int, *, judged: bool) -> None:
    """Create the table for rows of *width* values; those that are *judged* say more of each."""
    columns = [f'"c{n}" text' for n in range(width)]
    if judged:
        columns += ['"_given" text', '"_own" json']
    await conn.execute(
        'CREATE TEMP TABLE "given" ("_pos" bigint GENERATED ALWAYS AS IDENTITY,'
        f" {', '.join(columns)}) ON COMMIT DROP".encode()
    )


async def copy_csv(
    conn: AsyncConnection[Any], reader: CsvReader, first: bytes, chunks: AsyncIterator[bytes]
) -> int:
    """Copy *first* and the rest of the body, *chunks*, which *reader* reads; return the rows.

    Raises:
        Unreadable: it is no CSV, or not of as many columns as its header.
    """
    assert reader.header is not None, "the header says how many columns there are"
    columns = ", ".join(f'"c{n}"' for n in range(len(reader.header)))
    statement = f'COPY pg_temp."given" ({columns}) FROM STDIN ({_options(reader.dialect)})'
    cursor = conn.cursor()
    with translated(), _told(reader):  # what is told here is none of the driver's errors any more
        async with cursor.copy(statement.encode()) as copy:
            await copy.write(first)
            async for chunk in chunks:
                await copy.write(reader.feed(chunk))
                if _has_answered(conn):  # before all was sent: it has refused
                    break
            else:
                await copy.write(reader.finish())
    return cursor.rowcount


def _options(dialect: Dialect) -> str:
    sep, quote = (sign.replace("'", "''") for sign in (dialect.sep, dialect.quote))
    encoding = ENCODINGS[dialect.encoding]
    return f"FORMAT csv, HEADER, DELIMITER E'{sep}', QUOTE '{quote}', ESCAPE '{quote}', ENCODING '{encoding}'"


async def copy_json(
    conn: AsyncConnection[Any],
    reader: JsonReader,
    lines: RowLines,
    width: int,
    chunks: AsyncIterator[bytes],
) -> int:
    """Copy the rows that *reader* finds in *chunks*; return how many they were.

    Raises:
        Unreadable: the body is no JSON array of objects.
    """
    columns = ", ".join([*(f'"c{n}"' for n in range(width)), '"_given"', '"_own"'])
    cursor = conn.cursor()
    with translated():
        async with cursor.copy(f'COPY pg_temp."given" ({columns}) FROM STDIN'.encode()) as copy:

            async def send(pending: list[str]) -> None:
                await copy.write("".join(pending))
                pending.clear()

            pending: list[str] = []
            async for chunk in chunks:
                for start in range(0, len(chunk), _SENT_BYTES):
                    for row in reader.feed(chunk[start : start + _SENT_BYTES]):
                        pending.append(lines.line(row))
                        if len(pending) == _LINES_AT_ONCE:
                            await send(pending)
            pending += [lines.line(row) for row in reader.finish()]
            await send(pending)
    return cursor.rowcount


def _has_answered(conn: AsyncConnection[Any]) -> bool:
    poller = select.poll()
    poller.register(conn.pgconn.socket, select.POLLIN)
    return bool(poller.poll(0))


@contextmanager
def _told(reader: CsvReader) -> Any:
    """Tell what COPY refuses by the line of the body."""
    try:
        yield
    except _UNREADABLE as error:
        raise _unreadable(reader, error) from None


def _unreadable(reader: CsvReader, error: psycopg.Error) -> Unreadable:
    width = len(reader.header or ())
    function, said = error.diag.source_function or "", error.diag.message_primary or ""
    where = _LINE.search(error.diag.context or "")
    line = reader.header_lines + int(where[1]) - 1 if where else 0
    if isinstance(error, errors.CharacterNotInRepertoire | errors.UntranslatableCharacter):
        name = reader.dialect.encoding.upper()
        return Unreadable(
            f"it is not {name}",
            line=line,
            hint="name its encoding: Content-Type: text/csv; charset=windows-1252",
        )
    if function.startswith("CopyReadLine"):
        return Unreadable(
            "its line ends differently from those before it",
            line=line,
            hint="end all lines in one way, or put a value with a line end in quotes",
        )
    if isinstance(error, errors.BadCopyFileFormat):
        more = {"extra": "more", "missi": "fewer"}.get(said[:5], "another number of")
        return Unreadable(
            f"it has {more} values than the header, which has {width}",
            line=line,
            hint="a value that holds the separator or a line end stands in quotes",
        )
    return Unreadable("it is no CSV", line=line)
