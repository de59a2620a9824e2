"""The statement that reads a page of the change feed, put together from what is asked and by whom.

Two ways lead to a page. Where everything is shown, the next ids are the page and all numbers are
differences of ids. Else the blocks are chosen that hold something for the caller, their changes are
judged one by one, and totals are sums of blocks. Both answer one line with the same columns, in the
order of ``_PAGE``: the store's revision, the last id, the last removed one that the caller might have
wanted, up to where all was looked at, the total, where a beginner goes on, how many changes have no id
yet, how many entries there are, the id of the last, and their JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.feed_scope import Scope, visible_sql
from mdm_gitops.data.feed_sql import (
    BLOCK_BITS,
    BLOCK_SIZE,
    block_ranges,
    config_sql,
    events_in,
    json_or_null,
    moment_sql,
    new_sets,
)
from mdm_gitops.data.selecting import Placed

MAX_TAKE: Final = 500
# A page looks at this many blocks at most; the next one goes on behind them.
_MAX_BLOCKS: Final = 64
# Under a row filter the total is exact if the changes lie in so many blocks, else a lower bound.
_MAX_COUNTED_BLOCKS: Final = 16
# A full page does not wait for so few new change sets to be numbered.
_FEW_SETS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the text of the statement depends on, beside state and principal."""

    entity: str
    take: int
    has_since: bool
    has_until: bool
    has_after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    sql: bytes
    values: dict[str, Any]
    placed: tuple[Placed, ...]


_SET_COLUMNS: Final = (
    f", {moment_sql('s.occurred_at')} AS moment, {json_or_null('s.commit_id')} AS commit"
)
_COLUMNS: Final = """, c.moment, c.commit, coalesce(e.actor, c.actor) AS actor, e.entity_id,
           e.record_id, e.action"""

_PAGE: Final = """\
WITH feed AS MATERIALIZED (
  SELECT (SELECT value FROM {config}.revision) AS revision, p.last_id, t.removed_id,
         greatest(%(after)s::bigint, t.removed_id) AS start
    FROM {config}.feed_position p CROSS JOIN {config}.feed_retention t
){blocks}
SELECT f.revision, f.last_id, {needed}, {scanned}, {total}, {seen}, {fresh}, g.*
  FROM feed f LEFT JOIN LATERAL (
    SELECT count(*), max(z.id) FILTER (WHERE z.n <= {take}),
           string_agg(z.line, ',') FILTER (WHERE z.n <= {take})
      FROM (SELECT l.id, l.n, {line} AS line FROM ({page}) l
              LEFT JOIN (SELECT k.entity_id, to_json(k.name)::text AS name
                           FROM {config}.entity_name k) m ON m.entity_id = l.entity_id
             ORDER BY l.id) z) g ON true"""

# Of the next ids each is an entry; elsewhere one more than asked for tells that there are more.
_PLAIN_PAGE: Final = "SELECT x.*, 0 AS n FROM {events}"
_CHOSEN_PAGE: Final = """\
SELECT x.*, row_number() OVER (ORDER BY r.n, x.id) AS n FROM {events}
                     ORDER BY r.n, x.id LIMIT {limit}"""
# How many changes have no id yet, as far as they are few; else -1.
_FRESH: Final = f"""(SELECT CASE WHEN count(*) < {_FEW_SETS} THEN coalesce(sum(u.events), 0) ELSE -1 END
    FROM (SELECT events FROM {{sets}} LIMIT {_FEW_SETS}) u)"""
_ANY_FRESH: Final = "(SELECT -count(*) FROM (SELECT FROM {sets} LIMIT 1) u)"

# The action is one of our words.
_LINE: Final = """\
'{"id":' || l.id || ',"occurredUtc":"' || l.moment || '","entityName":' || coalesce(m.name, '""')
                     || ',"recordId":"' || l.record_id || '","action":"' || l.action
                     || '","user":' || to_json(l.actor)::text || ',"commit":' || l.commit || '}'"""


@dataclass(frozen=True, kw_only=True)
class Builder:
    asking: Asking
    shape: Shape
    scope: Scope

    def statement(self) -> Statement:
        visible, placed = visible_sql(self.asking, self.scope, self.config)
        parts = self._plain() if self.is_plain else self._chosen(visible)
        sql = _PAGE.format(
            config=self.config,
            needed=self._needed(),
            seen=self._seen(visible),
            take=self.shape.take,
            line=_LINE,
            **parts,
        )
        values = {"open": list(self.scope.open_ids), "limited": list(self.scope.limited_ids)}
        return Statement(sql=sql.encode(), values=values, placed=placed)

    def _plain(self) -> dict[str, str]:
        """Everything is shown: the next ids are the page, and numbers are differences of ids."""
        take = self.shape.take
        ids = f"(SELECT 1 AS n, f.start + 1 AS lo, f.start + {take} AS hi)"
        return {
            "blocks": "",
            "scanned": f"least(f.start + {take}, f.last_id)",
            "total": "greatest(f.last_id - f.start, 0)",
            "fresh": _FRESH.format(sets=new_sets(self.config)),
            "page": _PLAIN_PAGE.format(events=self._entries(ids, "true")),
        }

    def _chosen(self, visible: str) -> dict[str, str]:
        """Look at those blocks that hold something for the caller."""
        limit = self.shape.take + 1
        blocks = f"(SELECT blocks[:{_MAX_BLOCKS}] FROM chosen)"
        ranges = block_ranges(blocks, start="f.start", last="f.last_id")
        events = self._entries(ranges, self._match(visible), limit=limit)
        behind = f"(SELECT blocks[{_MAX_BLOCKS + 1}] FROM chosen)"
        return {
            "blocks": self._chosen_blocks() + self._partial_blocks(),
            "scanned": f"coalesce(({behind} << {BLOCK_BITS}) - 1, f.last_id)",
            "total": self._total(visible),
            "fresh": _ANY_FRESH.format(sets=new_sets(self.config)),
            "page": _CHOSEN_PAGE.format(events=events, limit=limit),
        }

    def _entries(self, ranges: str, match: str, *, limit: int | None = None) -> str:
        return events_in(
            ranges,
            config=self.config,
            match=match,
            columns=_COLUMNS,
            set_columns=_SET_COLUMNS,
            sets=self.window,
            limit=limit,
        )

    def _counted(self, blocks: str, match: str) -> str:
        ranges = block_ranges(blocks, start="f.start", last="f.last_id")
        found = events_in(ranges, config=self.config, match=match, sets=self.window)
        return f"(SELECT count(*) FROM {found})"

    @property
    def is_plain(self) -> bool:
        return self.scope.everything and not self.window

    @property
    def config(self) -> str:
        return config_sql(self.asking.schemas)

    @property
    def window(self) -> str:
        parts = []
        if self.shape.has_since:
            parts.append("s.occurred_at >= %(since)s::timestamptz")
        if self.shape.has_until:
            parts.append("s.occurred_at < %(until)s::timestamptz")
        return " AND ".join(parts)

    # --- which events ---

    def _match(self, visible: str) -> str:
        if self.scope.everything:
            return "true"
        return f"({_OPEN} OR {visible})" if self.scope.limited else _OPEN

    def _groups(self, *ids: str) -> str:
        """Return the condition on a group ``b`` of a block that it may hold something."""
        parts = ["true"]
        if not self.scope.everything:
            named = " OR ".join(f"b.entity_id = ANY (%({each})s::bigint[])" for each in ids)
            parts.append(f"({named})")
        if self.shape.has_since:
            parts.append("b.last_occurred >= %(since)s::timestamptz")
        if self.shape.has_until:
            parts.append("b.first_occurred < %(until)s::timestamptz")
        return " AND ".join(parts)

    def _chosen_blocks(self) -> str:
        """Return the CTE of the blocks to look at, with one more that tells where to go on."""
        return f""", chosen AS MATERIALIZED (
  SELECT coalesce(array_agg(d.block ORDER BY d.block), '{{}}') AS blocks FROM (
    SELECT DISTINCT b.block FROM {self.config}.feed_block b
     WHERE b.block >= ((SELECT start FROM feed) + 1) >> {BLOCK_BITS}
       AND {self._groups("open", "limited")}
     ORDER BY b.block LIMIT {_MAX_BLOCKS + 1}) d)"""

    # --- what is told beside them ---

    def _needed(self) -> str:
        """Return the last id that retention removed and that the caller might have wanted."""
        if self.scope.everything:
            return "f.removed_id"
        return f"""coalesce((SELECT max(d.removed_id) FROM {self.config}.feed_removed d
     WHERE d.entity_id = ANY (%(open)s::bigint[] || %(limited)s::bigint[])), 0)"""

    def _total(self, visible: str) -> str:
        """Sum whole blocks, and count in those that lie partly before the start or the window.

        Where a row filter holds every change must be looked at, which is done in so many blocks.
        """
        match = "true" if self.scope.everything else _OPEN
        total = f"""(SELECT coalesce(sum(b.events), 0) FROM {self.config}.feed_block b
     WHERE b.block > (f.start + 1) >> {BLOCK_BITS} AND {self._groups("open")}
       AND b.block <> ALL ((SELECT blocks FROM partial)::bigint[]))
    + {self._counted("(SELECT blocks FROM partial)", match)}"""
        if not self.scope.limited:
            return total
        blocks = f"""ARRAY(SELECT DISTINCT b.block FROM {self.config}.feed_block b
     WHERE b.block >= (f.start + 1) >> {BLOCK_BITS} AND {self._groups("limited")}
     ORDER BY b.block LIMIT {_MAX_COUNTED_BLOCKS})"""
        return f"{total}\n    + {self._counted(blocks, visible)}"

    def _partial_blocks(self) -> str:
        """Return the CTE of the blocks of which only some changes are meant."""
        outside = [f"b.block = ((SELECT start FROM feed) + 1) >> {BLOCK_BITS}"]
        if self.shape.has_since:
            outside.append("b.first_occurred < %(since)s::timestamptz")
        if self.shape.has_until:
            outside.append("b.last_occurred >= %(until)s::timestamptz")
        return f""", partial AS MATERIALIZED (
  SELECT coalesce(array_agg(d.block ORDER BY d.block), '{{}}') AS blocks FROM (
    SELECT DISTINCT b.block FROM {self.config}.feed_block b
     WHERE b.block >= ((SELECT start FROM feed) + 1) >> {BLOCK_BITS}
       AND {self._groups("open")} AND ({" OR ".join(outside)})) d)"""

    def _seen(self, visible: str) -> str:
        """Return the last change of the newest block that is shown, whenever it happened.

        A reader who begins now, with nothing in the window, goes on from there.
        """
        if self.scope.everything:
            return "f.last_id"
        if self.shape.has_after or self.shape.has_until:
            return "0"
        newest = f"ARRAY[f.last_id >> {BLOCK_BITS}]"
        ranges = block_ranges(newest, start="f.start", last="f.last_id")
        found = events_in(ranges, config=self.config, match=self._match(visible))
        return f"(SELECT max(x.id) FROM {found})"


_OPEN: Final = "e.entity_id = ANY (%(open)s::bigint[])"


assert BLOCK_SIZE > MAX_TAKE, "a plain page is a range of ids, which is at most a block wide"
