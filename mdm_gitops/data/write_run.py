"""Running the statements of ``write_sql`` and reading what they say of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from psycopg import AsyncConnection
from psycopg.pq.abc import PGresult

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.write_sql import Status, WriteStatement
from mdm_gitops.warehouse.prepared import is_between_transactions, run_prepared

# No store has this revision: the statement judges, and writes nothing.
NO_REVISION: Final = -1
_STATUSES: Final = {status.value.encode(): status for status in Status}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of one row. *faults* are codes with the physical name of their column."""

    status: Status
    faults: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    version: int = 0


async def run_write(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    statement: WriteStatement,
    rows: Sequence[Mapping[str, Any]] = (),
    values: Mapping[str, Any] | None = None,
    only_judge: bool = False,
    prepare: bool = True,
) -> dict[int, Line]:
    """Run *statement* and return a line per ``_pos``.

    *rows* are the objects of ``json_source``, without ``_pos``, which is their index; *values* are
    further parameters of another source.
    """
    given = parameters(asking, statement, rows=rows, values=values)
    if only_judge:
        given["revision"] = NO_REVISION
    if prepare and is_between_transactions(conn):
        return read_lines(await run_prepared(conn, statement.prepared, given), statement)
    cursor = await conn.execute(statement.sql, given, prepare=prepare)
    return read_lines(cursor.pgresult, statement)


def parameters(
    asking: Asking,
    statement: WriteStatement,
    *,
    rows: Sequence[Mapping[str, Any]] = (),
    values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what *statement* is run with; *rows* and *values* are as in ``run_write``."""
    given = {**statement.parameters(asking), "actor": asking.principal.actor, **(values or {})}
    if rows:
        documents = [{"_pos": n, **row} for n, row in enumerate(rows)]
        given["rows"] = orjson.dumps(documents).decode()
    return given


def read_lines(result: PGresult | None, statement: WriteStatement) -> dict[int, Line]:
    """Return what the outcome of *statement* says, by ``_pos``."""
    assert result is not None, "the statement has not been run"
    lines = {}
    for n in range(result.ntuples):
        position = int(result.get_value(n, 1) or 0)
        lines[position] = Line(
            status=_STATUSES[result.get_value(n, 2) or b""],
            faults=_faults(result.get_value(n, 3), statement),
            body=result.get_value(n, 4),
            version=int(result.get_value(n, 5) or 0),
        )
    return lines


def _faults(numbers: bytes | None, statement: WriteStatement) -> tuple[tuple[str, str], ...]:
    if not numbers:
        return ()
    found = (statement.faults[int(number)] for number in numbers.decode().split(",") if number)
    return tuple((fault.code, fault.column) for fault in found)
