"""The rows that a bulk action is for: those that its filter and the caller's row filter let through.

A preview and the execution ask the same question, once of the table and once of the rows that are
locked by then, and both have PostgreSQL work out the same *token*: a hash over who asks, what is to be
done, and the identifiers and versions of the rows. So nothing needs to be kept between the two, and a
row that came, went or changed meanwhile makes another token.

The hash is taken of blocks of rows and then of these hashes: it takes little memory for any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, row_filter
from mdm_gitops.data.failures import translated
from mdm_gitops.data.row_json import RowState, outputs, select_list
from mdm_gitops.data.selecting import (
    Placed,
    predicate_sql,
    predicate_values,
    revision_table,
    selection,
    sort_keys,
    where_clause,
)
from mdm_gitops.data.sorting import order_by
from mdm_gitops.data.target import Target
from mdm_gitops.data.write_sql import Operation
from mdm_gitops.model import Action

SAMPLE: Final = 10
_BLOCK: Final = 1_024
_TOKEN: Final = f"""\
SELECT coalesce(sum(b.rows), 0)::bigint AS rows, coalesce(sum(b.denied), 0)::bigint AS denied,
       encode(sha256(convert_to(%(what)s::text, 'UTF8')
         || coalesce(string_agg(b.hash, ''::bytea ORDER BY b.block), ''::bytea)), 'hex') AS token
  FROM (SELECT ("_pos" - 1) / {_BLOCK} AS block, count(*) AS rows,
               count(*) FILTER (WHERE "_denied") AS denied,
               sha256(string_agg(uuid_send("_id") || int4send("_version"), ''::bytea
                                 ORDER BY "_pos")) AS hash
          FROM {{rows}} GROUP BY 1) b"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How many rows match, how many of them the caller may not write, and the token of all."""

    rows: int
    denied: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The question for the rows ``t``. *denied* is true of those that the caller may not write."""

    asking: Asking
    target: Target
    source: str
    where: str
    denied: str
    predicates: tuple[Placed, ...]

    @staticmethod
    def of(asking: Asking, target: Target, filter: str) -> Matching:
        """Return the question for *filter*, "" for all rows.

        Raises:
            FilterError, AccessDenied: it is no filter for the entity, or asks too much.
        """
        rows = selection(asking, target.stored, filter=filter, state=RowState.ACTIVE)
        write = row_filter(asking, target.entity, Action.WRITE)
        placed: list[Placed] = list(rows.predicates)
        denied = "false"
        if write is not None and write != row_filter(asking, target.entity):
            placed.append(("w", "t", write))
            denied = f"({predicate_sql(asking, write, prefix='w', alias='t')}) IS NOT TRUE"
        return Matching(
            asking=asking,
            target=target,
            source=rows.source,
            where=where_clause(rows.conditions),
            denied=denied,
            predicates=tuple(placed),
        )

    @property
    def values(self) -> dict[str, Any]:
        return predicate_values(self.asking, self.predicates)

    def numbered_sql(self) -> str:
        return (
            f'SELECT t."_sys_id" AS "_id", t."_sys_version" AS "_version", {self.denied} AS "_denied",'
            f' row_number() OVER (ORDER BY t."_sys_id") AS "_pos" FROM {self.source}{self.where}'
        )

    def sample_sql(self) -> str:
        """Return the first rows as the caller may see them, a JSON array."""
        asking, entity = self.asking, self.target.entity
        members = outputs(
            entity,
            sees_restricted=asking.rights(entity).sees_restricted,
            state=RowState.ACTIVE,
        )
        keys = sort_keys(asking, entity, sort="", state=RowState.ACTIVE)
        first = (
            f"SELECT t.* FROM {self.source}{self.where} ORDER BY {order_by(keys)} LIMIT {SAMPLE}"
        )
        return (
            f"SELECT coalesce(json_agg(row_to_json(r)), '[]'::json)::text FROM ({first}) t"
            f" CROSS JOIN LATERAL (SELECT {select_list(members)}) r"
        )


def what_is_asked(
    asking: Asking,
    target: Target,
    *,
    change: Operation,
    filter: str,
    texts: Mapping[str, str | None],
) -> str:
    """Return what the token says beside the rows."""
    said = [asking.principal.actor, target.stored.entity_id, change.value, filter, dict(texts)]
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()


async def look(conn: AsyncConnection[Any], matching: Matching, *, what: str) -> tuple[Found, bytes]:
    """Return what matches now, and a sample of it as JSON, all in one snapshot.

    Raises:
        StateMoved: ask again with a newer state.
    """
    sql = (
        f"WITH numbered AS ({matching.numbered_sql()})"
        f" SELECT v.value, f.*, ({matching.sample_sql()}) FROM {revision_table(matching.asking)} v"
        f" CROSS JOIN ({_TOKEN.format(rows='numbered')}) f"
    )
    with translated():
        cursor = await conn.execute(sql.encode(), {**matching.values, "what": what})
        record = await cursor.fetchone()
    if record is None or record[0] != matching.asking.state.revision:
        raise StateMoved
    _, rows, denied, token, sample = record
    return Found(rows=rows, denied=denied, token=token), sample.encode()


_CREATE: Final = """\
CREATE TEMP TABLE "matched" ("_pos" bigint GENERATED ALWAYS AS IDENTITY, "_id" uuid,
  "_version" integer, "_denied" boolean, "_blocked" boolean DEFAULT false) ON COMMIT DROP"""


async def hold(
    conn: AsyncConnection[Any], matching: Matching, *, what: str, strength: str | None
) -> Found:
    """Put the rows that match into the temporary table ``matched``, in the order of their identifiers,
    and return what they are.

    They are locked (FOR *strength*) until the transaction ends; None says that the table is.
    """
    await conn.execute(_CREATE.encode())
    lock = f" FOR {strength} OF t" if strength else ""
    select = f'SELECT t."_sys_id", t."_sys_version", {matching.denied} FROM {matching.source}'
    await conn.execute(
        f'INSERT INTO pg_temp."matched" ("_id", "_version", "_denied") {select}{matching.where}'
        f' ORDER BY t."_sys_id"{lock}'.encode(),
        matching.values,
    )
    cursor = await conn.execute(_TOKEN.format(rows='pg_temp."matched"').encode(), {"what": what})
    record = await cursor.fetchone()
    assert record is not None, "sums have one row"
    found = Found(rows=record[0], denied=record[1], token=record[2])
    await conn.execute(
        'CREATE UNIQUE INDEX ON pg_temp."matched" ("_pos"); ANALYZE pg_temp."matched"'
    )
    return found
