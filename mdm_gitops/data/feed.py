"""The change feed: which changes of rows were committed, in an order that readers can rely on.

Ids are given by whoever reads first, to the change sets that became visible since, in the order in
which their writers held the rows (migrations 0003 and 0004). So an id appears only after the commit,
there is no gap, changes of a record keep their order, and a reader that pages by ``after`` gets each
change exactly once, whatever the writers do. Writers never wait for it.

A page is one statement; its entries are JSON text that PostgreSQL builds. What a caller may see is
decided in ``feed_scope``, the statement is made in ``feed_statement``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg import AsyncConnection, errors

from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.failures import translated
from mdm_gitops.data.feed_scope import EntityName, scope_of
from mdm_gitops.data.feed_sql import BLOCK_BITS, config_sql, number_sql
from mdm_gitops.data.feed_statement import MAX_TAKE, Builder, Shape, Statement
from mdm_gitops.data.selecting import predicate_values
from mdm_gitops.errors import InputError, MdmError
from mdm_gitops.model import fold
from mdm_gitops.warehouse.names import Schemas

DEFAULT_TAKE: Final = 100
DEFAULT_WINDOW: Final = timedelta(hours=24)
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


async def number_changes(conn: AsyncConnection[Any], *, schemas: Schemas) -> bool:
    """Give ids to the changes that were committed since; return whether some are left.

    Cheap when there are none: one look into an index, no lock. Who keeps others from numbering for
    more than a moment is not waited for.
    """
    query = number_sql(config_sql(schemas)).encode()
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
    shape = Shape(
        entity=fold(request.entity),
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
        query = (
            f"SELECT entity_id, name, display_name FROM {config_sql(asking.schemas)}.entity_name"
        )
        with translated():
            rows = await (await conn.execute(query.encode())).fetchall()
        kept[:] = [EntityName(entity_id=i, name=n, display_name=d or "") for i, n, d in rows]
    return kept


def _kept(asking: Asking, shape: Shape, names: Sequence[EntityName]) -> tuple[Statement, bool]:
    """Return the statement of this shape, and whether it was there already."""
    built = False

    def build() -> Statement:
        nonlocal built
        built = True
        scope = scope_of(asking, shape.entity, names)
        return Builder(asking=asking, shape=shape, scope=scope).statement()

    statement = asking.state.remember(("changes", asking.cache_key, shape), build)
    return statement, not built


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
    statement: Statement,
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
