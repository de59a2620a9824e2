"""The structure of a warehouse without its rows, as it stands, in another database.

Written from the catalog, not from definitions: what was changed by hand, archives and a retype that
was interrupted are copied as they are. The records of the store come along; how PostgreSQL prints
and looks at a relation is asked of the copy anew, except where the original had drifted.
An index that a failed build left behind invalid is not copied: nothing can make one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection, sql

from mdm_gitops.warehouse.names import Schemas

Key = tuple[str, str]  # schema, relation

# What a plan reads of the store; later ones refer to earlier ones.
_STORE: Final = ("counter", "entity", "seed", "permission", "webhook", "project")

_OURS: Final = """
SELECT schema_name, relation_name FROM {config}.deployed_relation
 UNION
SELECT %(data)s, t.physical
  FROM {config}.entity e, LATERAL (
       SELECT e.record->>'main' UNION
       SELECT s.value->>'physical' FROM jsonb_each(e.record->'satellites') s) t(physical)
 ORDER BY 1, 2
"""

_TABLES: Final = """
SELECT n.nspname, c.relname, coalesce(string_agg(
           format('%%I %%s%%s%%s%%s', a.attname, format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attcollation <> t.typcollation THEN
                   (SELECT format(' COLLATE %%I.%%I', cn.nspname, l.collname) FROM pg_collation l
                      JOIN pg_namespace cn ON cn.oid = l.collnamespace
                     WHERE l.oid = a.attcollation) END,
               CASE WHEN d.adbin IS NULL THEN ''
                    WHEN a.attgenerated <> '' THEN
                        format(' GENERATED ALWAYS AS (%%s) STORED', pg_get_expr(d.adbin, d.adrelid))
                    ELSE format(' DEFAULT %%s', pg_get_expr(d.adbin, d.adrelid)) END,
               CASE WHEN a.attnotnull THEN ' NOT NULL' END),
           ', ' ORDER BY a.attnum), '')
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
 WHERE c.relkind = 'r' AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%(s)s::text[], %(r)s::text[]))
 GROUP BY 1, 2 ORDER BY 1, 2
"""

# (statement, whether it must succeed): what others hung on our tables may need what is not here.
_OBJECTS: Final = """
WITH ours AS (
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.reloptions, d.objects
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN {config}.deployed_relation d
        ON (d.schema_name, d.relation_name) = (n.nspname, c.relname)
     WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%(s)s::text[], %(r)s::text[]))
), statement(rank, place, text, must) AS (
    SELECT 1, p.oid::bigint, pg_get_functiondef(p.oid), false
      FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = %(data)s AND p.prokind = 'f'
     UNION ALL
    SELECT CASE k.contype WHEN 'f' THEN 4 ELSE 2 END, k.oid::bigint,
           format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s', o.nspname, o.relname, k.conname,
                  pg_get_constraintdef(k.oid)),
           coalesce(o.objects->'constraints' ? k.conname, false)
      FROM ours o JOIN pg_constraint k ON k.conrelid = o.oid
     WHERE k.contype IN ('p', 'u', 'c', 'f', 'x')
     UNION ALL
    SELECT 3, x.indexrelid::bigint, pg_get_indexdef(x.indexrelid),
           coalesce(o.objects->'indexes' ? i.relname, false)
      FROM ours o JOIN pg_index x ON x.indrelid = o.oid JOIN pg_class i ON i.oid = x.indexrelid
     WHERE x.indisvalid AND NOT EXISTS (
               SELECT FROM pg_constraint k WHERE k.conindid = x.indexrelid
                  AND k.contype IN ('p', 'u', 'x') AND k.conrelid = x.indrelid)
     UNION ALL
    SELECT 5, g.oid::bigint, pg_get_triggerdef(g.oid), false
      FROM ours o JOIN pg_trigger g ON g.tgrelid = o.oid WHERE NOT g.tgisinternal
     UNION ALL
    SELECT 6, o.oid::bigint,
           format('CREATE VIEW %%I.%%I%%s AS %%s', o.nspname, o.relname,
                  ' WITH (' || array_to_string(o.reloptions, ', ') || ')', pg_get_viewdef(o.oid)),
           true
      FROM ours o WHERE o.relkind = 'v'
)
SELECT text, must FROM statement ORDER BY rank, place
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    relations: int
    left_out: tuple[str, ...]
    """What PostgreSQL said of objects of others that could not be made there."""


async def copy_structure(
    live: AsyncConnection[Any],
    copy: AsyncConnection[Any],
    *,
    schemas: Schemas,
    drifted: Collection[Key],
) -> Copied:
    """Make in *copy*, which holds an empty store, what stands in *live*, rows left out.

    The caller holds a snapshot on *live* and knows which relations have *drifted*.
    """
    keys = await _rows(live, _OURS, schemas, {"data": schemas.data})
    given = {"s": [key[0] for key in keys], "r": [key[1] for key in keys], "data": schemas.data}
    async with copy.transaction():
        # Names are written with their schema, but in function bodies nothing may be looked at yet.
        await copy.execute("SET LOCAL check_function_bodies = off")
        for schema in sorted({key[0] for key in keys}):
            await copy.execute(
                sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
            )
        tables = await _rows(live, _TABLES, schemas, given)
        for schema, name, columns in tables:
            await copy.execute(_create_table(schema, name, columns).encode())
        left_out = []
        for text, must in await _rows(live, _OBJECTS, schemas, given):
            if must:
                await copy.execute(text.encode())
            elif problem := await _try(copy, text):
                left_out.append(problem)
        for table in (*_STORE, "deployed_relation"):
            await _copy_rows(live, copy, table, schemas)
        await _look_again(copy, [key for key in keys if key not in drifted], schemas)
    return Copied(relations=len(tables), left_out=tuple(left_out))


async def _rows(
    conn: AsyncConnection[Any], query: LiteralString, schemas: Schemas, given: dict[str, Any]
) -> list[Any]:
    composed = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    return await (await conn.execute(composed, given)).fetchall()


def _create_table(schema: str, name: str, columns: str) -> str:
    return f"CREATE TABLE {sql.Identifier(schema, name).as_string(None)} ({columns})"


async def _try(copy: AsyncConnection[Any], text: str) -> str:
    """Run *text* if that works; else return what PostgreSQL says."""
    try:
        async with copy.transaction():
            await copy.execute(text.encode())
    except psycopg.Error as error:
        return error.diag.message_primary or "an object could not be copied"
    return ""


async def _copy_rows(
    live: AsyncConnection[Any], copy: AsyncConnection[Any], table: str, schemas: Schemas
) -> None:
    name = sql.Identifier(schemas.config, table)
    await copy.execute(sql.SQL("DELETE FROM {}").format(name))
    async with (
        live.cursor() as reader,
        copy.cursor() as writer,
        reader.copy(sql.SQL("COPY {} TO STDOUT").format(name)) as source,
        writer.copy(sql.SQL("COPY {} FROM STDIN").format(name)) as target,
    ):
        async for piece in source:
            await target.write(piece)


async def _look_again(
    copy: AsyncConnection[Any], relations: Iterable[Key], schemas: Schemas
) -> None:
    """Let the copy say how the relations look to it: numbers of columns and types differ there."""
    known = list(relations)
    remember = sql.SQL("SELECT {}.remember_relation(%s, %s)").format(sql.Identifier(schemas.config))
    await copy.execute(remember, [[key[0] for key in known], [key[1] for key in known]])
