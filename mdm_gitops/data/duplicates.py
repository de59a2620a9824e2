"""Pairs of rows that may mean the same thing, as the last scans found them, and what people said of them.

A caller is shown the pairs of which they may see both rows now. The score is that of the scan, over the
columns that are not masked for them; what each column says is worked out from the rows of now. Where a
row has changed since, that is told. Pairs of other rules than those of now are not shown at all: their
scores could hold what is restricted today.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data import audit
from mdm_gitops.data.asking import (
    Asking,
    StateMoved,
    changeable_entity,
    combined,
    readable_entity,
    row_filter,
)
from mdm_gitops.data.failures import translated
from mdm_gitops.data.match_sql import compared_for, given_sql, row_sql
from mdm_gitops.data.rows import no_such_row
from mdm_gitops.data.selecting import predicate_sql, predicate_values, revision_table
from mdm_gitops.errors import InputError
from mdm_gitops.filter import TypedFilter
from mdm_gitops.model import Action
from mdm_gitops.model.similarity import rules_hash
from mdm_gitops.warehouse.store import StoredEntity

if TYPE_CHECKING:
    from mdm_gitops.data.match_score import ColumnScore, Scorer

DEFAULT_TAKE: Final = 50
MAX_TAKE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRequest:
    min_score: float = 0.0
    take: int = DEFAULT_TAKE
    after: str = ""
    dismissed: bool = False  # those that were, instead of those that were not


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    ids: tuple[str, str]
    score: float
    columns: tuple[ColumnScore, ...]
    rows: tuple[bytes, bytes]  # JSON
    has_changed: bool  # one of the rows, since it was scored


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPage:
    pairs: tuple[Pair, ...]
    next_after: str | None
    scanned_at: datetime | None  # when the last scan ended


_PAIRS: Final = """\
SELECT (SELECT value FROM {revision}),
       (SELECT max(s.finished_at) FROM "{config}".match_scan s
         WHERE s.entity_id = %(entity)s AND s.state = 'done' AND s.rules = %(rules)s), p.*
  FROM (SELECT 1) one LEFT JOIN (
SELECT p.low::text, p.high::text, p.{score},
       (a."_sys_version", b."_sys_version") <> (p.low_version, p.high_version),
       {given_a}, {given_b}, {row_a}::text, {row_b}::text
  FROM "{config}".match_pair p
  JOIN {table} a ON a."_sys_id" = p.low
  JOIN {table} b ON b."_sys_id" = p.high
 WHERE p.entity_id = %(entity)s AND p.rules = %(rules)s AND p.{score} >= %(min_score)s
   AND NOT a."_sys_is_deleted" AND NOT b."_sys_is_deleted"{visible}{after}
   AND {dismissed}EXISTS (SELECT FROM "{config}".match_dismissed d
         WHERE d.entity_id = p.entity_id AND d.low = p.low AND d.high = p.high)
 ORDER BY p.{score} DESC, p.low, p.high LIMIT %(limit)s
) p ON true"""
_AFTER: Final = """
   AND (p.{score} < %(score)s OR p.{score} = %(score)s
        AND (p.low, p.high) > (%(low)s::uuid, %(high)s::uuid))"""


async def list_pairs(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: PairRequest
) -> PairPage:
    """Return pairs of rows that the principal may see, the most alike first.

    Raises:
        NotFound, InputError, AccessDenied, Conflict: the request is refused.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    compared = compared_for(asking, stored.definition)
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    if not 0 <= request.min_score <= 1:
        raise InputError("minScore must be 0 to 1", parameter="minScore")
    visible, values = _visible(asking, row_filter(asking, stored.definition))
    values |= {
        "entity": stored.entity_id,
        "rules": rules_hash(stored.definition),
        "min_score": request.min_score,
        "limit": request.take + 1,
        **(_read_cursor(request.after) if request.after else {}),
    }
    score = "full_score" if asking.rights(stored.definition).sees_restricted else "open_score"
    sql = _PAIRS.format(
        revision=revision_table(asking),
        config=asking.schemas.config,
        table=_table(asking, stored),
        score=score,
        given_a=given_sql(asking.schemas, compared, "a"),
        given_b=given_sql(asking.schemas, compared, "b"),
        row_a=row_sql(asking, stored.definition, "a"),
        row_b=row_sql(asking, stored.definition, "b"),
        visible=visible,
        after=_AFTER.format(score=score) if request.after else "",
        dismissed="" if request.dismissed else "NOT ",
    )
    with translated():
        records = await (await conn.execute(sql.encode(), values)).fetchall()
    if records[0][0] != asking.state.revision:
        raise StateMoved
    found = [record[2:] for record in records if record[2] is not None]
    from mdm_gitops.data.match_score import Scorer  # rapidfuzz takes 4 MB

    scorer = Scorer(compared)
    pairs = tuple(_pair(scorer, *record) for record in found[: request.take])
    has_more = len(found) > request.take
    return PairPage(
        pairs=pairs,
        next_after=_cursor(pairs[-1]) if has_more else None,
        scanned_at=records[0][1],
    )


def _pair(
    scorer: Scorer,
    low: str,
    high: str,
    score: float,
    has_changed: bool,
    given_low: Sequence[str | None],
    given_high: Sequence[str | None],
    row_low: str,
    row_high: str,
) -> Pair:
    _, columns = scorer.explain(scorer.prepared(given_low), scorer.prepared(given_high))
    return Pair(
        ids=(low, high),
        score=score,
        columns=columns,
        rows=(row_low.encode(), row_high.encode()),
        has_changed=has_changed,
    )


def _table(asking: Asking, stored: StoredEntity) -> str:
    return f'"{asking.schemas.data}"."{stored.name}"'


def _visible(asking: Asking, typed: TypedFilter | None) -> tuple[str, dict[str, Any]]:
    """Return the conditions that both rows pass the filter, and their values."""
    if typed is None:
        return "", {}
    placed = [("fa", "a", typed), ("fb", "b", typed)]
    sides = (
        predicate_sql(asking, typed, prefix=prefix, alias=alias) for prefix, alias, _ in placed
    )
    return "".join(f"\n   AND ({side})" for side in sides), predicate_values(asking, placed)


def _cursor(pair: Pair) -> str:
    text = json.dumps([pair.score, *pair.ids], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(text: str) -> dict[str, Any]:
    try:
        padded = text + "=" * (-len(text) % 4)
        score, low, high = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        return {"score": float(score), "low": UUID(low), "high": UUID(high)}
    except (binascii.Error, ValueError, TypeError, AttributeError, OverflowError):
        raise InputError(
            "after is not the nextAfter of an earlier page", parameter="after"
        ) from None


# --- what people say ------------------------------------------------------------------------------

_BOTH: Final = """\
SELECT (SELECT value FROM {revision}),
       (SELECT count(*) FROM {table} a WHERE a."_sys_id" = ANY(%(ids)s::uuid[]){visible})"""
_DISMISS: Final = """\
INSERT INTO "{config}".match_dismissed (entity_id, low, high, dismissed_by)
VALUES (%(entity)s, %(low)s, %(high)s, %(actor)s) ON CONFLICT DO NOTHING"""
_UNDO: Final = """\
DELETE FROM "{config}".match_dismissed
 WHERE entity_id = %(entity)s AND low = %(low)s AND high = %(high)s"""


async def set_dismissed(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    entity: str,
    ids: tuple[UUID, UUID],
    dismissed: bool,
) -> None:
    """Remember that the two rows are not the same, or forget that; doing it twice is doing it once.

    Raises:
        NotFound, AccessDenied: there is no such entity or row for who may write it.
        InputError: it is one row.
        StateMoved: ask again with a newer state; nothing was written.
    """
    stored = changeable_entity(asking, entity)
    low, high = sorted(ids)
    if low == high:
        raise InputError("ids must be of two different rows", parameter="ids")
    definition = stored.definition
    typed = combined(row_filter(asking, definition), row_filter(asking, definition, Action.WRITE))
    config = asking.schemas.config
    values = {"entity": stored.entity_id, "low": low, "high": high}
    with translated():
        async with conn.transaction():
            await _require_both(conn, asking, stored, typed, (low, high))
            statement = (_DISMISS if dismissed else _UNDO).format(config=config)
            done = await conn.execute(
                statement.encode(), {**values, "actor": asking.principal.actor}
            )
            if done.rowcount:
                await audit.record(
                    conn,
                    schemas=asking.schemas,
                    actor=asking.principal.actor,
                    action="duplicate_dismissed" if dismissed else "duplicate_reopened",
                    entities=[stored.name],
                    details={"ids": [str(low), str(high)]},
                )


async def _require_both(
    conn: AsyncConnection[Any],
    asking: Asking,
    stored: StoredEntity,
    typed: TypedFilter | None,
    ids: tuple[UUID, UUID],
) -> None:
    visible, values = "", {}
    if typed is not None:
        visible = f" AND ({predicate_sql(asking, typed, prefix='f', alias='a')})"
        values = predicate_values(asking, [("f", "a", typed)])
    sql = _BOTH.format(
        revision=revision_table(asking), table=_table(asking, stored), visible=visible
    )
    cursor = await conn.execute(sql.encode(), {"ids": list(ids), **values})
    [(revision, count)] = await cursor.fetchall()
    if revision != asking.state.revision:
        raise StateMoved
    if count != 2:
        raise no_such_row(stored.definition, " or ".join(map(str, ids)))
