"""The filters that people have saved, as a plan wants to know them. ``data`` keeps and shows them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from psycopg import AsyncConnection, sql

from mdm_gitops.plan.saved_filters import OwnedFilter
from mdm_gitops.warehouse.names import Schemas

# A plan looks at the first of them, by entity: a note is worth no more time.
MOST_READ: Final = 10_000
_READ: Final = """
SELECT entity_id, actor, name, filter, sort, columns
  FROM {config}.saved_filter
 WHERE entity_id = ANY (%(ids)s)
 ORDER BY entity_id, name COLLATE "C", actor COLLATE "C"
 LIMIT %(most)s
"""


async def read_saved_filters(
    conn: AsyncConnection[Any], entity_ids: Collection[int], *, schemas: Schemas
) -> list[OwnedFilter]:
    """Return the saved filters of these entities, by entity and name; without a query for none."""
    if not entity_ids:
        return []
    query = sql.SQL(_READ).format(config=sql.Identifier(schemas.config))
    given = {"ids": sorted(entity_ids), "most": MOST_READ}
    rows = await (await conn.execute(query, given)).fetchall()
    return [
        OwnedFilter(
            entity_id=entity_id,
            owner=owner,
            name=name,
            filter=text,
            sort=sort,
            columns=tuple(columns),
        )
        for entity_id, owner, name, text, sort, columns in rows
    ]
