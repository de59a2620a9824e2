"""Compare a seed file with the live rows, without writing anything."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, sql

from mdm_gitops.model import SeedMode
from mdm_gitops.plan.changes import ApplySeed, SeedCounts
from mdm_gitops.plan.seeds import SeedQuestion
from mdm_gitops.warehouse.ddl.seeds import SEED_PRINCIPAL, rows_text
from mdm_gitops.warehouse.names import Schemas

_SHOWN_KEYS = 5

_COMPARE = """
WITH compared AS (
    SELECT t._sys_id IS NOT NULL AS found,
           ({differs}) AS differs,
           {may_write} AS may_write,
           concat_ws(', ', {keys}) AS key
      FROM jsonb_to_recordset(%(rows)s::jsonb) AS given ({types})
      LEFT JOIN {table} t ON ({match})
)
SELECT count(*) FILTER (WHERE NOT found),
       count(*) FILTER (WHERE found AND differs AND may_write),
       count(*) FILTER (WHERE found AND NOT differs),
       count(*) FILTER (WHERE found AND differs AND NOT may_write),
       (array_agg(key ORDER BY key) FILTER (WHERE found AND differs AND NOT may_write))[:{shown}]
  FROM compared
"""


async def count_seed(
    conn: AsyncConnection[Any], question: SeedQuestion, *, schemas: Schemas
) -> SeedCounts:
    """Return what applying the file would do. A table that is new or re-keyed takes all rows."""
    change = question.change
    if question.live_table is None or not set(change.key_columns) <= question.present.keys():
        return SeedCounts(inserted=len(change.seed.rows))
    query = _query(change, question, schemas)
    row = await (await conn.execute(query, {"rows": rows_text(change)})).fetchone()
    assert row is not None
    inserted, updated, unchanged, left_alone, keys = row
    return SeedCounts(
        inserted=inserted,
        updated=updated,
        unchanged=unchanged,
        left_alone=left_alone,
        left_alone_keys=tuple(keys or ()),
    )


def _query(change: ApplySeed, question: SeedQuestion, schemas: Schemas) -> sql.Composed:
    types = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
        for column in change.columns
    )
    return sql.SQL(_COMPARE).format(
        differs=_differs(change, question),
        may_write=_may_write(change.mode),
        keys=sql.SQL(", ").join(_given(name) for name in change.key_columns),
        types=types,
        table=sql.Identifier(schemas.data, question.live_table or ""),
        match=sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(_live(question.present[name]), _given(name))
            for name in change.key_columns
        ),
        shown=sql.Literal(_SHOWN_KEYS),
    )


def _differs(change: ApplySeed, question: SeedQuestion) -> sql.Composable:
    """A column that is not there yet differs wherever the file gives it a value."""
    tests: list[sql.Composable] = []
    for column in change.columns:
        present = question.present.get(column.name)
        if present is None:
            tests.append(sql.SQL("{} IS NOT NULL").format(_given(column.name)))
        else:
            # A column that is being retyped has still its old type. As JSON 1.0 is the same as
            # 1.00, which the seed statements hold too; as text the number 5 is the text '5'.
            tests.append(
                sql.SQL(
                    "(to_jsonb({live}) IS DISTINCT FROM to_jsonb({given})"
                    " AND {live}::text IS DISTINCT FROM {given}::text)"
                ).format(live=_live(present), given=_given(column.name))
            )
    tests.append(sql.SQL("t._sys_is_deleted"))  # a row of the file is brought back
    return sql.SQL(" OR ").join(tests)


def _may_write(mode: SeedMode) -> sql.Composable:
    match mode:
        case SeedMode.CREATE:
            return sql.SQL("false")
        case SeedMode.UPSERT:
            return sql.SQL("t._sys_last_modified_by = {}").format(sql.Literal(SEED_PRINCIPAL))
        case SeedMode.ENFORCE:
            return sql.SQL("true")


def _given(column: str) -> sql.Composable:
    return sql.Identifier("given", column)


def _live(column: str) -> sql.Composable:
    return sql.Identifier("t", column)
