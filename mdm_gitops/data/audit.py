"""The audit: who did what and when. Every change of a row, and every other audited action.

Changes of rows are the events of the change feed. Deployments, permissions and API keys are written
down by triggers of the store (migration 0004), whoever changes them; ``acting`` tells these who acts.
The rest (imports, sign-ins, refused keys) is told by ``record``, in the transaction of what it tells.

Only a Global Admin reads the audit, so nothing is hidden or masked in it. Newest come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.failures import translated
from mdm_gitops.data.feed import entity_names, number_changes
from mdm_gitops.data.feed_sql import (
    BLOCK_BITS,
    block_ranges,
    config_sql,
    events_in,
    json_or_null,
    moment_sql,
)
from mdm_gitops.errors import InputError
from mdm_gitops.model import fold
from mdm_gitops.warehouse.names import Schemas

DEFAULT_TAKE: Final = 100
MAX_TAKE: Final = 1_000
MAX_SKIP: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """All that is given must hold. *since* is included, *until* is not."""

    entity: str = ""  # name or display name, in any case
    user: str = ""
    action: str = ""
    record_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    skip: int = 0
    take: int = DEFAULT_TAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    entries: bytes  # JSON texts, with commas between them
    count: int
    total: int


_RECORD: Final = """
INSERT INTO "{config}".audit (actor, action, entities, record_id, commit_id, details)
VALUES (%(actor)s, %(action)s, %(entities)s, %(record_id)s, %(commit)s, %(details)s)"""
_ACTING: Final = (
    "SELECT set_config('mdm.actor', %(actor)s, true), set_config('mdm.commit', %(commit)s, true)"
)


async def record(
    conn: AsyncConnection[Any],
    *,
    schemas: Schemas,
    actor: str,
    action: str,
    entities: Sequence[str] = (),
    record_id: UUID | None = None,
    commit: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write down that *actor* did *action*. No secret may stand in *details*."""
    given = {
        "actor": actor,
        "action": action,
        "entities": [fold(name) for name in entities],
        "record_id": record_id,
        "commit": commit,
        "details": Jsonb(dict(details or {})),
    }
    with translated():
        await conn.execute(_RECORD.format(config=schemas.config).encode(), given)


async def acting(conn: AsyncConnection[Any], *, actor: str, commit: str | None = None) -> None:
    """Tell the triggers of the store who acts in the present transaction of *conn*."""
    with translated():
        await conn.execute(_ACTING, {"actor": actor, "commit": commit or ""})


async def read_audit(
    conn: AsyncConnection[Any], *, asking: Asking, request: AuditRequest
) -> AuditPage:
    """Return a page of the audit. The caller has made sure that a Global Admin asks.

    Raises:
        InputError: a number or the window is wrong.
        StateMoved: ask again with a newer state.
    """
    assert asking.principal.is_global_admin, "only a Global Admin reads the audit"
    _check(request)
    ids = await _entity_ids(conn, asking, request.entity) if request.entity else []
    names = await _folded_names(conn, asking, request.entity) if request.entity else []
    await number_changes(conn, schemas=asking.schemas)
    values = {
        "entity_ids": ids,
        "entities": names,
        "user": request.user,
        "action": request.action,
        "record_id": request.record_id,
        "since": request.since,
        "until": request.until,
        "skip": request.skip,
        "take": request.take,
        "need": request.skip + request.take,
    }
    sql = _Builder(config=config_sql(asking.schemas), request=request).statement()
    with translated():
        cursor = await conn.execute(sql.encode(), values)
    result = cursor.pgresult
    assert result is not None and result.ntuples == 1
    revision, total, count, entries = (result.get_value(0, n) for n in range(4))
    if int(revision or 0) != asking.state.revision:
        raise StateMoved
    return AuditPage(entries=entries or b"", count=int(count or 0), total=int(total or 0))


def _check(request: AuditRequest) -> None:
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    if not 0 <= request.skip <= MAX_SKIP:
        raise InputError(f"skip must be 0 to {MAX_SKIP}", parameter="skip")
    if request.since and request.until and request.since > request.until:
        raise InputError("fromUtc is after toUtc", parameter="fromUtc")


async def _called(conn: AsyncConnection[Any], asking: Asking, entity: str) -> list[tuple[int, str]]:
    known = await entity_names(conn, asking=asking)
    found = [each for each in known if each.is_called(entity)]
    found = found or [each for each in known if each.is_displayed_as(entity)]
    return [(each.entity_id, fold(each.name)) for each in found]


async def _entity_ids(conn: AsyncConnection[Any], asking: Asking, entity: str) -> list[int]:
    return [entity_id for entity_id, _ in await _called(conn, asking, entity)]


async def _folded_names(conn: AsyncConnection[Any], asking: Asking, entity: str) -> list[str]:
    """Return the names under which actions on it are kept; one that never came to be is its own."""
    return sorted({name for _, name in await _called(conn, asking, entity)} or {fold(entity)})


# --- the statement --------------------------------------------------------------------------------

_PAGE: Final = """\
WITH feed AS MATERIALIZED (
  SELECT (SELECT value FROM {config}.revision) AS revision, p.last_id, t.removed_id AS start
    FROM {config}.feed_position p CROSS JOIN {config}.feed_retention t
){blocks},
changes AS MATERIALIZED (
  SELECT x.* FROM feed f CROSS JOIN LATERAL (SELECT x.* FROM {events}) x
   WHERE {late} ORDER BY x.occurred_at DESC, x.id DESC LIMIT %(need)s),
actions AS MATERIALIZED (
  SELECT a.* FROM {config}.audit a WHERE {actions}
   ORDER BY a.occurred_at DESC, a.audit_id DESC LIMIT %(need)s),
page AS MATERIALIZED (
  SELECT * FROM (
    SELECT c.occurred_at, c.id, true AS is_change, c.change_set, c.ordinal FROM changes c
     UNION ALL SELECT a.occurred_at, a.audit_id, false, NULL, NULL FROM actions a) u
   ORDER BY u.occurred_at DESC, u.is_change, u.id DESC LIMIT %(take)s OFFSET %(skip)s)
SELECT f.revision, {total} + (SELECT count(*) FROM {config}.audit a WHERE {actions}), g.*
  FROM feed f LEFT JOIN LATERAL (
    SELECT count(*), string_agg({line}, ',' ORDER BY p.occurred_at DESC, p.is_change, p.id DESC)
      FROM page p
      LEFT JOIN {config}.event e ON e.change_set = p.change_set AND e.ordinal = p.ordinal
      LEFT JOIN {config}.change_set c ON c.key = p.change_set
      LEFT JOIN {config}.entity_name m ON m.entity_id = e.entity_id
      LEFT JOIN {config}.audit a ON NOT p.is_change AND a.audit_id = p.id) g ON true"""

# Which columns a change changed, from what to what; and what else the event tells.
_CHANGED: Final = """(SELECT json_object_agg(key, json_build_object('old', o.value, 'new', n.value))
   FROM json_each(e.old) o FULL JOIN json_each(e.new) n USING (key)
  WHERE o.value::text IS DISTINCT FROM n.value::text)"""
_OF_CHANGE: Final = f"""CASE WHEN e.detail IS NULL
   THEN json_build_object('version', e.version, 'changes', coalesce({_CHANGED}, '{{}}'))
   ELSE json_build_object('version', e.version, 'changes', coalesce({_CHANGED}, '{{}}'),
                          'detail', e.detail) END"""
# Actions name entities as they were folded; shown is the spelling of the definition.
_ENTITY: Final = """CASE WHEN p.is_change THEN m.name WHEN cardinality(a.entities) = 1 THEN
   coalesce((SELECT k.name FROM {config}.entity_name k WHERE lower(k.name) = a.entities[1]
              ORDER BY k.entity_id DESC LIMIT 1), a.entities[1]) END"""
_OF_ACTION: Final = """CASE WHEN cardinality(a.entities) > 1
   THEN a.details || jsonb_build_object('entities', a.entities) ELSE a.details END"""


def _line(config: str) -> str:
    change, action = "'change:' || p.id", "'action:' || p.id"
    members = {
        "id": f"to_json(CASE WHEN p.is_change THEN {change} ELSE {action} END)",
        "occurredUtc": f"to_json({moment_sql('p.occurred_at')})",
        "user": json_or_null(
            "CASE WHEN p.is_change THEN coalesce(e.actor, c.actor) ELSE a.actor END"
        ),
        "action": json_or_null("CASE WHEN p.is_change THEN e.action ELSE a.action END"),
        "entityName": json_or_null(_ENTITY.format(config=config)),
        "recordId": json_or_null("coalesce(e.record_id, a.record_id)"),
        "commit": json_or_null("coalesce(c.commit_id, a.commit_id)"),
        "details": f"CASE WHEN p.is_change THEN ({_OF_CHANGE})::text ELSE ({_OF_ACTION})::text END",
    }
    parts = ", ',', ".join(f"'\"{name}\":', {value}" for name, value in members.items())
    return f"concat('{{', {parts}, '}}')"


@dataclass(frozen=True, kw_only=True)
class _Builder:
    config: str
    request: AuditRequest

    def statement(self) -> str:
        """Return the whole statement.

        The changes of one record are found by index. Others are found by block: from the times and
        numbers of the blocks follows a moment after which there are as many changes as are needed,
        so that only the blocks that reach behind it are looked at.
        """
        of_record = self.request.record_id is not None
        return _PAGE.format(
            config=self.config,
            blocks="" if of_record else self._newest_blocks(),
            events=self._of_record() if of_record else self._in_blocks(),
            late="true" if of_record else "x.occurred_at >= (SELECT bound FROM late)",
            actions=self._actions(),
            total=self._total_of_record() if of_record else self._total(),
            line=_line(self.config),
        )

    # --- conditions ---

    def _match(self) -> str:
        parts = ["true"]
        if self.request.entity:
            parts.append("e.entity_id = ANY (%(entity_ids)s::bigint[])")
        if self.request.user:
            parts.append("coalesce(e.actor, c.actor) = %(user)s::text")
        if self.request.action:
            parts.append("e.action = %(action)s::text")
        return " AND ".join(parts)

    def _window(self, moment: str) -> str:
        parts = ["true"]
        if self.request.since:
            parts.append(f"{moment} >= %(since)s::timestamptz")
        if self.request.until:
            parts.append(f"{moment} < %(until)s::timestamptz")
        return " AND ".join(parts)

    def _actions(self) -> str:
        parts = [self._window("a.occurred_at")]
        if self.request.entity:
            parts.append("a.entities && %(entities)s::text[]")
        if self.request.user:
            parts.append("a.actor = %(user)s::text")
        if self.request.action:
            parts.append("a.action = %(action)s::text")
        if self.request.record_id:
            parts.append("a.record_id = %(record_id)s::uuid")
        return " AND ".join(parts)

    def _groups(self) -> str:
        """Return the condition on a group ``b`` of a block that it holds something."""
        parts = [f"b.block >= ((SELECT start FROM feed) + 1) >> {BLOCK_BITS}"]
        if self.request.entity:
            parts.append("b.entity_id = ANY (%(entity_ids)s::bigint[])")
        if self.request.user:
            parts.append("b.actor = %(user)s::text")
        if self.request.action:
            parts.append("b.action = %(action)s::text")
        if self.request.since:
            parts.append("b.last_occurred >= %(since)s::timestamptz")
        if self.request.until:
            parts.append("b.first_occurred < %(until)s::timestamptz")
        return " AND ".join(parts)

    def _whole(self) -> str:
        """Return the condition that all of a group is meant, as far as it holds something at all."""
        parts = [f"b.block > ((SELECT start FROM feed) + 1) >> {BLOCK_BITS}"]
        if self.request.since:
            parts.append("b.first_occurred >= %(since)s::timestamptz")
        if self.request.until:
            parts.append("b.last_occurred < %(until)s::timestamptz")
        return " AND ".join(parts)

    # --- changes ---

    def _newest_blocks(self) -> str:
        return f""",
groups AS MATERIALIZED (
  SELECT b.block, b.events, b.first_occurred, b.last_occurred, {self._whole()} AS is_whole
    FROM {self.config}.feed_block b WHERE {self._groups()}),
late AS MATERIALIZED (
  SELECT CASE WHEN coalesce(sum(w.events), 0) >= %(need)s THEN min(w.first_occurred)
              ELSE '-infinity'::timestamptz END AS bound
    FROM (SELECT g.events, g.first_occurred, sum(g.events) OVER (
                   ORDER BY g.first_occurred DESC, g.block ROWS UNBOUNDED PRECEDING) - g.events AS before
            FROM groups g WHERE g.is_whole) w
   WHERE w.before < %(need)s),
chosen AS MATERIALIZED (
  SELECT coalesce(array_agg(d.block ORDER BY d.block), '{{}}') AS blocks FROM (
    SELECT DISTINCT g.block FROM groups g
     WHERE g.last_occurred >= (SELECT bound FROM late)) d),
partial AS MATERIALIZED (
  SELECT coalesce(array_agg(d.block ORDER BY d.block), '{{}}') AS blocks FROM (
    SELECT DISTINCT g.block FROM groups g WHERE NOT g.is_whole) d)"""

    def _in_blocks(self) -> str:
        ranges = block_ranges("(SELECT blocks FROM chosen)", start="f.start", last="f.last_id")
        return events_in(
            ranges,
            config=self.config,
            match=self._match(),
            columns=", c.occurred_at, c.key AS change_set, e.ordinal",
            sets=self._window("s.occurred_at"),
        )

    def _total(self) -> str:
        ranges = block_ranges("(SELECT blocks FROM partial)", start="f.start", last="f.last_id")
        counted = events_in(
            ranges, config=self.config, match=self._match(), sets=self._window("s.occurred_at")
        )
        return f"""(SELECT coalesce(sum(g.events), 0) FROM groups g
   WHERE g.block <> ALL ((SELECT blocks FROM partial)::bigint[]))
    + (SELECT count(*) FROM {counted})"""

    def _of_record(self) -> str:
        return f"""(SELECT c.first_id + e.ordinal AS id, c.occurred_at, c.key AS change_set, e.ordinal
     {self._record_events()}) x"""

    def _total_of_record(self) -> str:
        return f"(SELECT count(*) {self._record_events()})"

    def _record_events(self) -> str:
        return f"""FROM {self.config}.event e JOIN {self.config}.change_set c ON c.key = e.change_set
     WHERE e.record_id = %(record_id)s::uuid AND c.first_id IS NOT NULL
       AND c.first_id + e.ordinal > (SELECT start FROM feed)
       AND {self._match()} AND {self._window("c.occurred_at")}"""
