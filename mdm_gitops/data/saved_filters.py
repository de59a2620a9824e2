"""Saved filters: what a person has asked of an entity and wants to ask again.

Each belongs to one principal and one entity and is nobody else's business. It is checked against the
deployed definition and the rights of its owner when it is saved; later it may cease to fit, because
a column or a right has gone. Then it is still shown, with the reason, so that its owner can mend it.
Nothing here runs a filter: whoever does, checks it again as one that was just written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import AsyncConnection, AsyncCursor, errors, sql

from mdm_gitops.data.asking import Asking, StateMoved, readable_entity, requested_filter
from mdm_gitops.data.failures import translated
from mdm_gitops.data.row_json import RowState, chosen, outputs
from mdm_gitops.data.selecting import sort_keys
from mdm_gitops.errors import Conflict, InputError, MdmError, NotFound
from mdm_gitops.model import Entity
from mdm_gitops.model.access import MAX_FILTER_LENGTH
from mdm_gitops.warehouse.store import StoredEntity

MAX_PER_ENTITY: Final = 100
MAX_NAME_LENGTH: Final = 200
MAX_SORT_LENGTH: Final = 2_000
MAX_COLUMNS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFilter:
    name: str
    filter: str = ""
    sort: str = ""
    columns: tuple[str, ...] = ()  # empty: all
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFilter:
    """A saved filter as it stands; *reason* says why it no longer fits, "" if it does."""

    saved: SavedFilter
    updated_at: datetime
    reason: str = ""


def check_saved(asking: Asking, entity: Entity, saved: SavedFilter) -> None:
    """Raise MdmError unless a list of *entity* may be asked for with *saved* by this principal."""
    requested_filter(asking, entity, saved.filter)
    sort_keys(asking, entity, sort=saved.sort, state=RowState.ACTIVE)
    if any("," in name or not name.strip() for name in saved.columns):
        raise InputError("columns holds what is no name of a column", parameter="columns")
    members = outputs(entity, sees_restricted=True, state=RowState.ACTIVE)
    chosen(members, ",".join(saved.columns), entity)


def check_size(saved: SavedFilter) -> None:
    """Raise InputError if a part of *saved* is longer than what is kept, or its name none."""
    limits = (
        ("name", len(saved.name), MAX_NAME_LENGTH),
        ("filter", len(saved.filter), MAX_FILTER_LENGTH),
        ("sort", len(saved.sort), MAX_SORT_LENGTH),
        ("columns", len(saved.columns), MAX_COLUMNS),
    )
    for member, length, limit in limits:
        if length > limit:
            what = "names" if member == "columns" else "characters"
            raise InputError(f"{member} has more than {limit:,} {what}", parameter=member)
    if not _is_name(saved.name):
        raise InputError(
            "name must be a text of one line without white space around it, and not . or ..",
            parameter="name",
        )


def _is_name(text: str) -> bool:
    unseen = any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") for sign in text)
    # Clients take a segment of dots out of an address before they send it.
    return bool(text) and text == text.strip() and not unseen and text not in (".", "..")


# --- reading --------------------------------------------------------------------------------------

_LIST: Final = """
SELECT r.value, f.name, f.filter, f.sort, f.columns, f.is_default, f.updated_at
  FROM {config}.revision r
  LEFT JOIN {config}.saved_filter f
    ON f.entity_id = %(entity)s AND f.actor = %(actor)s
   AND (%(name)s::text IS NULL OR f.name = %(name)s)
 ORDER BY f.name COLLATE "C"
"""


async def saved_filters(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str
) -> list[KeptFilter]:
    """Return the principal's own saved filters of *entity*, by name.

    Raises:
        NotFound: there is no such entity, or none that this principal may know of.
        StateMoved: ask again with a newer state.
    """
    return await _kept(conn, asking, readable_entity(asking, entity), name=None)


async def saved_filter(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, name: str
) -> KeptFilter:
    """Return one of the principal's own saved filters.

    Raises:
        NotFound: there is no such entity or filter.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    found = await _kept(conn, asking, stored, name=name)
    if not found:
        raise _no_such_filter(stored, name)
    return found[0]


async def _kept(
    conn: AsyncConnection[Any], asking: Asking, stored: StoredEntity, *, name: str | None
) -> list[KeptFilter]:
    rows = await _rows(conn, asking, _LIST, stored, {"name": name})
    if rows[0][0] != asking.state.revision:
        raise StateMoved
    return [_judged(asking, stored.definition, row[1:]) for row in rows if row[1] is not None]


def _judged(asking: Asking, entity: Entity, row: tuple[Any, ...]) -> KeptFilter:
    name, filter_text, sort, columns, is_default, updated_at = row
    saved = SavedFilter(
        name=name, filter=filter_text, sort=sort, columns=tuple(columns), is_default=is_default
    )
    try:
        check_saved(asking, entity, saved)
    except MdmError as error:
        return KeptFilter(saved=saved, updated_at=updated_at, reason=str(error))
    return KeptFilter(saved=saved, updated_at=updated_at)


# --- writing --------------------------------------------------------------------------------------

# Two requests of one principal wait for each other, so that neither default nor number goes wrong.
_LOCK: Final = """
SELECT pg_advisory_xact_lock(hashtextextended({config_name} || %(actor)s, %(entity)s))
"""
_FIND: Final = """
SELECT r.value, count(f), count(f) FILTER (WHERE f.name = %(name)s)
  FROM {config}.revision r
  LEFT JOIN {config}.saved_filter f ON f.entity_id = %(entity)s AND f.actor = %(actor)s
 GROUP BY r.value
"""
_NO_OTHER_DEFAULT: Final = """
UPDATE {config}.saved_filter SET is_default = false
 WHERE entity_id = %(entity)s AND actor = %(actor)s AND name <> %(name)s AND is_default
   AND %(is_default)s
"""
_SAVE: Final = """
INSERT INTO {config}.saved_filter (entity_id, actor, name, filter, sort, columns, is_default)
VALUES (%(entity)s, %(actor)s, %(name)s, %(filter)s, %(sort)s, %(columns)s, %(is_default)s)
ON CONFLICT (entity_id, actor, name) DO UPDATE
   SET filter = excluded.filter, sort = excluded.sort, columns = excluded.columns,
       is_default = excluded.is_default, updated_at = now()
RETURNING updated_at
"""
_DELETE: Final = """
DELETE FROM {config}.saved_filter
 WHERE entity_id = %(entity)s AND actor = %(actor)s AND name = %(name)s RETURNING name
"""


async def save_filter(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, saved: SavedFilter
) -> tuple[KeptFilter, bool]:
    """Keep *saved* for the principal in the place of one of that name; return whether it is new.

    Raises:
        NotFound: there is no such entity, or none that this principal may know of.
        InputError, FilterError, AccessDenied: *saved* cannot be asked for.
        Conflict: there are too many already.
        StateMoved: nothing was kept, ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    check_size(saved)
    check_saved(asking, stored.definition, saved)
    values = {
        "name": saved.name,
        "filter": saved.filter,
        "sort": saved.sort,
        "columns": list(saved.columns),
        "is_default": saved.is_default,
    }
    try:
        with translated():
            async with conn.transaction():
                await _rows(conn, asking, _LOCK, stored, values)
                is_new = await _is_new(conn, asking, stored, values)
                await _execute(conn, asking, _NO_OTHER_DEFAULT, stored, values)
                [(updated_at,)] = await _rows(conn, asking, _SAVE, stored, values)
    except errors.ForeignKeyViolation:  # the entity was destroyed in this moment
        raise StateMoved from None
    return KeptFilter(saved=saved, updated_at=updated_at), is_new


async def _is_new(
    conn: AsyncConnection[Any], asking: Asking, stored: StoredEntity, values: Mapping[str, Any]
) -> bool:
    revision, count, same = (await _rows(conn, asking, _FIND, stored, values))[0]
    if revision != asking.state.revision:
        raise StateMoved
    if not same and count >= MAX_PER_ENTITY:
        raise Conflict(
            f"you have {count} saved filters of {stored.definition.name}, which is all there may be",
            hint="delete one that is not needed any more",
            code="SAVED_FILTER_LIMIT",
        )
    return not same


async def delete_filter(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, name: str
) -> None:
    """Forget one of the principal's own saved filters.

    Raises:
        NotFound: there is no such entity or filter.
    """
    stored = readable_entity(asking, entity)
    if not await _rows(conn, asking, _DELETE, stored, {"name": name}):
        raise _no_such_filter(stored, name)


def _no_such_filter(stored: StoredEntity, name: str) -> NotFound:
    return NotFound(
        f"you have no saved filter {name[:60]!r} of {stored.definition.name}",
        code="SAVED_FILTER_NOT_FOUND",
    )


async def _rows(
    conn: AsyncConnection[Any],
    asking: Asking,
    query: str,
    stored: StoredEntity,
    values: Mapping[str, Any],
) -> list[tuple[Any, ...]]:
    cursor = await _execute(conn, asking, query, stored, values)
    with translated():
        return await cursor.fetchall()


async def _execute(
    conn: AsyncConnection[Any],
    asking: Asking,
    query: str,
    stored: StoredEntity,
    values: Mapping[str, Any],
) -> AsyncCursor[Any]:
    config = asking.schemas.config
    statement = sql.SQL(query).format(
        config=sql.Identifier(config), config_name=sql.Literal(f"{config}.saved_filter:")
    )
    given = {"entity": stored.entity_id, "actor": asking.principal.actor, **values}
    with translated():
        return await conn.execute(statement, given)
