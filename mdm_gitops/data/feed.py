"""The change feed: which changes of rows were committed, in an order that readers can rely on.

Ids are given by whoever reads first, to the change sets that became visible since, in the order in
which their writers held the rows (migrations 0003 and 0004). So an id appears only after the commit,
there is no gap, changes of a record keep their order, and a reader that pages by ``after`` gets each
change exactly once, whatever the writers do. Writers never wait for it.

A page is one statement; its entries are JSON text that PostgreSQL builds. What a caller may see is
decided in ``feed_scope``, how changes are found in ``feed_sql``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg import AsyncConnection, errors

from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.failures import translated
from mdm_gitops.data.feed_scope import EntityName, Scope, scope_of, visible_sql
from mdm_gitops.data.feed_sql import (
    BLOCK_BITS,
    BLOCK_SIZE,
    block_ranges,
    events_in,
    json_or_null,
    moment_sql,
    new_sets,
    number_sql,
)
from mdm_gitops.data.selecting import Placed, predicate_values
from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.warehouse.names import Schemas

DEFAULT_TAKE: Final = 100
MAX_TAKE: Final = 500
DEFAULT_WINDOW: Final = timedelta(hours=24)
# A page looks at this many blocks at most; the next one goes on behind them.
_MAX_BLOCKS: Final = 64
# Under a row filter the total is exact if the changes lie in so many blocks, else a lower bound.
_MAX_COUNTED_BLOCKS: Final = 16
# A full page does not wait for so few new change sets to be numbered.
_FEW_SETS: Final = 1_000
# As many portions of new changes are numbered for one page.
_MAX_PORTIONS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """*since* and *until* limit when changes happened (from ``since``, before ``until``).

    Without any of them and without *after* the last 24 hours are meant.
    """

    entity: str = ""  # name or display name, in any case
    after: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    take: int = DEFAULT_TAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPage:
    entries: bytes  # JSON texts, with commas between them
    count: int
    next_after: int
    has_more: bool
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What the text of the statement depends on, beside state and principal."""

    entity: str
    take: int
    has_since: bool
    has_until: bool
    has_after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    sql: bytes
    values: dict[str, Any]
    placed: tuple[Placed, ...]


async def number_changes(conn: AsyncConnection[Any], *, schemas: Schemas) -> bool:
    """Give ids to the changes that were committed since; return whether some are left.

    Cheap when there are none: one look into an index, no lock. Who keeps others from numbering for
    more than a moment is not waited for.
    """
    query = number_sql(_config(schemas)).encode()
    with translated():
        for _ in range(_MAX_PORTIONS):
            try:
                row = await (await conn.execute(query, prepare=True)).fetchone()
            except errors.LockNotAvailable:
                return True
            if not (row and row[0]):
                return False
    return True


async def read_changes(
    conn: AsyncConnection[Any], *, asking: Asking, request: ChangesRequest
) -> ChangesPage:
    """Return the next changes that the principal may see. *conn* must be in autocommit mode.

    Raises:
        NotFound: there is no such entity that the principal may know of.
        InputError: a number or the window is wrong.
        MdmError: ``CHANGES_EXPIRED``: changes behind *after* were removed by retention.
        StateMoved: ask again with a newer state.
    """
    request = _checked(request, asking)
    shape = _Shape(
        entity=request.entity,
        take=request.take,
        has_since=request.since is not None,
        has_until=request.until is not None,
        has_after=request.after is not None,
    )
    names = await entity_names(conn, asking=asking) if _needs_names(asking, request) else ()
    statement, seen = _kept(asking, shape, names)
    values = {
        **statement.values,
        **predicate_values(asking, statement.placed),
        "after": request.after or 0,
        "since": request.since,
        "until": request.until,
    }
    found = await _run(conn, statement, values, asking, prepare=seen)
    is_left = False
    if not found.is_current(request.take):
        is_left = await number_changes(conn, schemas=asking.schemas)
        found = await _run(conn, statement, values, asking, prepare=True)
    return _page(found, request, is_left=is_left)


def _checked(request: ChangesRequest, asking: Asking) -> ChangesRequest:
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    if request.since and request.until and request.since > request.until:
        raise InputError("fromUtc is after toUtc", parameter="fromUtc")
    if request.since is None and request.until is None and request.after is None:
        return ChangesRequest(
            entity=request.entity, take=request.take, since=asking.now - DEFAULT_WINDOW
        )
    return request


def _needs_names(asking: Asking, request: ChangesRequest) -> bool:
    return bool(request.entity) and asking.principal.is_global_admin


async def entity_names(conn: AsyncConnection[Any], *, asking: Asking) -> Sequence[EntityName]:
    """Return all entities there are and were, read once per state of the store."""
    kept: list[EntityName] = asking.state.remember(("entity names",), list)
    if not kept:
        query = f"SELECT entity_id, name, display_name FROM {_config(asking.schemas)}.entity_name"
        with translated():
            rows = await (await conn.execute(query.encode())).fetchall()
        kept[:] = [EntityName(entity_id=i, name=n, display_name=d or "") for i, n, d in rows]
    return kept


# --- the statement --------------------------------------------------------------------------------

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


def _kept(asking: Asking, shape: _Shape, names: Sequence[EntityName]) -> tuple[_Statement, bool]:
    """Return the statement of this shape, and whether it was there already."""
    built = False

    def build() -> _Statement:
        nonlocal built
        built = True
        scope = scope_of(asking, shape.entity, names)
        return _Builder(asking=asking, shape=shape, scope=scope).statement()

    statement = asking.state.remember(("changes", asking.cache_key, shape), build)
    return statement, not built


@dataclass(frozen=True, kw_only=True)
class _Builder:
    asking: Asking
    shape: _Shape
    scope: Scope

    def statement(self) -> _Statement:
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
        return _Statement(sql=sql.encode(), values=values, placed=placed)

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
        return _config(self.asking.schemas)

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


def _config(schemas: Schemas) -> str:
    return f'"{schemas.config}"'


# --- around the statement -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    last_id: int
    needed_id: int  # the last removed one that the caller might have wanted
    scanned_id: int  # all up to here were looked at
    total: int
    seen_id: int
    fresh: int  # so many changes have no id yet; -1 for some or many
    count: int  # one more than asked for if there are more
    page_end: int
    entries: bytes

    def is_current(self, take: int) -> bool:
        """Whether changes without an id make no difference: they come behind a page that is full."""
        return not self.fresh or (self.fresh > 0 and self.count >= take)


async def _run(
    conn: AsyncConnection[Any],
    statement: _Statement,
    values: dict[str, Any],
    asking: Asking,
    *,
    prepare: bool,
) -> _Found:
    with translated():
        cursor = await conn.execute(statement.sql, values, prepare=prepare or None)
    result = cursor.pgresult
    assert result is not None and result.ntuples == 1
    revision, *numbers, entries = (result.get_value(0, n) for n in range(result.nfields))
    if int(revision or 0) != asking.state.revision:
        raise StateMoved
    last, needed, scanned, total, seen, fresh, count, end = (int(each or 0) for each in numbers)
    return _Found(
        last_id=last,
        needed_id=needed,
        scanned_id=scanned,
        total=total + max(fresh, 0),
        seen_id=seen,
        fresh=fresh,
        count=count,
        page_end=end,
        entries=entries or b"",
    )


def _page(found: _Found, request: ChangesRequest, *, is_left: bool) -> ChangesPage:
    if request.after is not None and request.after < found.needed_id:
        raise MdmError(
            f"changes behind afterId {request.after} were removed after the time that they are kept",
            hint="read the rows anew, then go on from nextAfterId of a call without afterId",
            code="CHANGES_EXPIRED",
        )
    is_full = found.count > request.take
    is_cut = found.scanned_id < found.last_id
    is_left = is_left or found.fresh > 0
    return ChangesPage(
        entries=found.entries,
        count=min(found.count, request.take),
        next_after=_next_after(found, request, is_full=is_full, is_cut=is_cut),
        has_more=is_full or is_cut or is_left,
        total=found.total,
    )


def _next_after(found: _Found, request: ChangesRequest, *, is_full: bool, is_cut: bool) -> int:
    """Return the position behind the page.

    Behind the last page it is that of the last entry, and moves on by whole blocks without one: it
    must not stand still until retention passes it, and to each step of others it must not move.
    """
    if is_full:
        return found.page_end
    if is_cut:
        return found.scanned_id
    own = max(found.page_end, found.needed_id if request.after is None else request.after)
    if request.until is not None:  # what came later was not looked for
        return own
    return max(own, found.seen_id, found.last_id >> BLOCK_BITS << BLOCK_BITS)


assert BLOCK_SIZE > MAX_TAKE, "a plain page is a range of ids, which is at most a block wide"
