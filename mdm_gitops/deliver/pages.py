"""The changes themselves, as the receivers of one process read them: pages of the feed, and single ones.

Receivers that are equally far read the same page, so the newest ones are kept. Each page tells at which
revision of the store it was read: whoever knows an older one may not judge by it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.failures import translated
from mdm_gitops.deliver.payload import RowEvent
from mdm_gitops.warehouse.names import Schemas

PAGE: Final = 500
# With many receivers each gets smaller pages, so that all of them together stay bounded.
_LEAST: Final = 20
_TOGETHER: Final = 20_000
# As they are stored. A page of large rows is cut here; it holds one change at least.
MAX_BYTES: Final = 2_000_000
_KEPT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Changes in order; *end* is the last id that was looked at."""

    events: Sequence[RowEvent]
    end: int
    revision: int


# The events of a set are found by their index, and those of the page alone: a set may be a whole import.
# Large values are measured without being read (pg_column_size); only what is sent is turned into text.
_PAGE: Final = """
SELECT x.id, x.occurred_at, x.entity_id, coalesce(n.name, ''), x.record_id::text, x.action, x.actor,
       x.old::text, x.new::text, x.found, (SELECT value FROM {config}.revision)
  FROM (SELECT c.first_id + e.ordinal AS id, c.occurred_at, e.entity_id, e.record_id, e.action,
               coalesce(e.actor, c.actor) AS actor, e.old, e.new, count(*) OVER () AS found,
               sum(coalesce(pg_column_size(e.old), 0) + coalesce(pg_column_size(e.new), 0)) OVER (
                   ORDER BY c.first_id + e.ordinal
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
          FROM (SELECT s.* FROM {config}.change_set s
                 WHERE s.first_id >= coalesce((SELECT max(p.first_id) FROM {config}.change_set p
                                                WHERE p.first_id <= %(after)s::bigint + 1), 0)
                 ORDER BY s.first_id LIMIT %(size)s::bigint + 1) c
         CROSS JOIN LATERAL (
                SELECT d.* FROM {config}.event d
                 WHERE d.change_set = c.key AND d.ordinal > %(after)s - c.first_id
                   AND d.ordinal <= %(end)s - c.first_id OFFSET 0) e) x
  LEFT JOIN {config}.entity_name n ON n.entity_id = x.entity_id
 WHERE coalesce(x.bytes_before, 0) < %(bytes)s
 ORDER BY x.id
"""
_ONE: Final = """
SELECT c.first_id + e.ordinal, c.occurred_at, e.entity_id, coalesce(n.name, ''), e.record_id::text,
       e.action, coalesce(e.actor, c.actor), e.old::text, e.new::text, 1,
       (SELECT value FROM {config}.revision)
  FROM (SELECT s.* FROM {config}.change_set s WHERE s.first_id <= %(event_id)s
         ORDER BY s.first_id DESC LIMIT 1) c
  JOIN {config}.event e ON e.change_set = c.key
  LEFT JOIN {config}.entity_name n ON n.entity_id = e.entity_id
 WHERE e.ordinal = %(event_id)s - c.first_id
"""


class Pages:
    """Reads on the connection *conn*, which is shared; *turn* is whose turn it is."""

    def __init__(self, conn: AsyncConnection[Any], *, turn: asyncio.Lock, schemas: Schemas) -> None:
        self._conn = conn
        self._turn = turn
        self._config = f'"{schemas.config}"'
        self._newest: OrderedDict[tuple[int, int], Page] = OrderedDict()
        self._size = PAGE

    def share_among(self, receivers: int) -> None:
        self._size = max(_LEAST, min(PAGE, _TOGETHER // max(1, receivers)))

    async def page(self, after: int, last_id: int) -> Page:
        """Return the next changes after the id *after*, up to *last_id*."""
        end = min(last_id, after + self._size)
        async with self._turn:
            page = self._newest.get((after, end))
            if page is None:
                page = self._newest[after, end] = await self._read(after, end)
                while len(self._newest) > _KEPT:
                    self._newest.popitem(last=False)
        return page

    async def one(self, event_id: int) -> Page:
        """Return a page of one change, an empty one if retention has removed it."""
        async with self._turn:
            rows = await self._rows(_ONE, event_id=event_id)
        return _page(rows, event_id)

    async def _read(self, after: int, end: int) -> Page:
        rows = await self._rows(_PAGE, after=after, end=end, size=end - after, bytes=MAX_BYTES)
        is_cut = bool(rows) and rows[0][9] > len(rows)
        return _page(rows, rows[-1][0] if is_cut else end)

    async def _rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with translated():
            text = query.format(config=self._config).encode()
            return await (await self._conn.execute(text, values, prepare=True)).fetchall()


def _page(rows: Sequence[tuple[Any, ...]], end: int) -> Page:
    revision = rows[0][10] if rows else 0
    return Page(events=[_event(row) for row in rows], end=end, revision=revision)


def _event(row: tuple[Any, ...]) -> RowEvent:
    event_id, occurred_at, entity_id, name, record_id, action, user, old, new, _, _ = row
    return RowEvent(
        event_id=event_id,
        occurred_at=occurred_at,
        entity_id=entity_id,
        entity_name=name,
        record_id=record_id,
        action=action,
        user=user,
        old=old,
        new=new,
    )
