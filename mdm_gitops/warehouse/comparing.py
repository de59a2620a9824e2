"""A plan between two revisions that also asks the rows of a warehouse, wherever that stands.

The changes are those from the older definitions to the newer ones. What they would cost, and how many
rows stand in the way, is asked of the tables that the warehouse has under the older names; what is
not there, or is of another type, is not counted and said to be so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.model import Definitions
from mdm_gitops.plan.build import Draft, complete
from mdm_gitops.plan.human import plural
from mdm_gitops.plan.plan import DataCheck, Plan
from mdm_gitops.plan.structural import seed_differences, structural_draft
from mdm_gitops.warehouse.catalog import read_facts, read_sizes
from mdm_gitops.warehouse.checks import run_checks
from mdm_gitops.warehouse.connect import in_our_words
from mdm_gitops.warehouse.names import Schemas

_COLUMNS: Final = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname = %s AND c.relkind = 'r'
"""

Columns = Mapping[str, Mapping[str, str]]  # table -> column -> type


async def plan_between(
    conn: AsyncConnection[Any],
    old: Definitions,
    new: Definitions,
    *,
    schemas: Schemas,
    statement_timeout_s: float = 300.0,
) -> Plan:
    """Return what changes from *old* to *new*, counted in the rows that *conn* leads to.

    Raises:
        WarehouseError: the server was lost, too slow, or did not let us look.
    """
    with in_our_words("planning"):
        async with conn.transaction():
            await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            await conn.execute(f"SET LOCAL statement_timeout = {round(statement_timeout_s * 1000)}")
            columns = await _columns(conn, schemas)
            sizes = await read_sizes(conn, schemas, sorted(columns))
            drafted = structural_draft(old, new, data_schema=schemas.data, sizes=sizes)
            asked, unasked = _askable(drafted, columns)
            found = await run_checks(conn, [check for check, _ in asked], schemas=schemas)
            elsewhere = await _deployed_otherwise(conn, old, schemas)
    notes = (*drafted.notes, *_notes(len(old.entities), elsewhere, unasked))
    counted = replace(drafted, checks=asked, notes=notes)
    results = [found[check] for check, _ in asked]
    return complete(counted, results=results, seed_counts=seed_differences(old, drafted))


async def _columns(conn: AsyncConnection[Any], schemas: Schemas) -> Columns:
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in await (await conn.execute(_COLUMNS, [schemas.data])).fetchall():
        found.setdefault(table, {})[column] = kind
    return found


Asked = tuple[tuple[DataCheck, tuple[int, ...]], ...]


def _askable(drafted: Draft, columns: Columns) -> tuple[Asked, tuple[DataCheck, ...]]:
    asked = tuple(each for each in drafted.checks if _is_there(each[0], columns))
    return asked, tuple(check for check, _ in drafted.checks if not _is_there(check, columns))


def _is_there(check: DataCheck, columns: Columns) -> bool:
    """Whether the warehouse has what *check* asks for, as the older definitions have it."""
    if check.fixed_count is not None and check.table in columns:
        return True
    table = columns.get(check.table)
    if table is None or any(name not in table for name in check.columns):
        return False
    if any(table[name] != old for name, (old, _) in check.casts.items() if name in table):
        return False
    return check.target_table is None or check.target_column in columns.get(check.target_table, {})


async def _deployed_otherwise(
    conn: AsyncConnection[Any], old: Definitions, schemas: Schemas
) -> int:
    return len(old.entities) - len((await read_facts(conn, old, schemas=schemas)).unchanged)


def _notes(entities: int, elsewhere: int, unasked: Iterable[DataCheck]) -> Iterator[str]:
    if elsewhere:
        yield (
            f"the warehouse is not what the older revision says of {elsewhere:,} of"
            f" {plural(entities, 'entity', 'entities')}; rows were counted as they are there"
        )
    names = sorted({f"{check.entity}.{check.column}" for check in unasked})
    if names:
        yield f"not counted, as the warehouse has no such rows: {', '.join(names)}"
