"""The statements of merges: both rows held and read, what refers to them, and the record that is kept.

The rows themselves are written by the statements of ``write_sql``, with the rights of who merges or, for
a merge that waited, of who approves it. Links are noted before they are changed, in the statement that
locks them, so what is noted is what is relinked, and what an undo gives back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from mdm_gitops.data.asking import Asking, StateMoved, row_filter
from mdm_gitops.data.relink import Narrowing
from mdm_gitops.data.row_json import moment_sql
from mdm_gitops.data.selecting import Placed, predicate_sql, predicate_values, revision_table
from mdm_gitops.data.target import Referrer, Target, target_of
from mdm_gitops.data.write_sql import (
    Builder,
    Operation,
    Source,
    WriteStatement,
    json_source,
    outcome_row,
)
from mdm_gitops.errors import AccessDenied
from mdm_gitops.model import Action, Column, DataType, Entity
from mdm_gitops.plan.physical import Role

STANDS: Final = "g.state IN ('merged', 'undo_pending')"


# --- the two rows ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """A row that is locked, as it is now. *keys* are the values that others may refer to it by."""

    row_id: UUID
    version: int
    is_deleted: bool
    changed_at: datetime
    is_visible: bool
    may_write: bool
    may_decide: bool  # whether the caller may approve changes of it
    has_proposal: bool
    body: str  # JSON, as the caller may see it
    texts: Mapping[str, str | None]
    keys: Mapping[str, Any]


async def hold_rows(
    conn: AsyncConnection[Any], asking: Asking, target: Target, row_ids: Sequence[UUID]
) -> dict[UUID, HeldRow]:
    """Lock these rows until the transaction ends, in one order for all, and return those that exist.

    Raises:
        StateMoved: ask again with a newer state.
    """
    lock = (
        f'SELECT FROM {target.main_sql} m WHERE m."_sys_id" = ANY (%s::uuid[])'
        ' ORDER BY m."_sys_id" FOR UPDATE OF m'
    )
    await conn.execute(lock.encode(), [list(row_ids)])
    # A statement of its own: it must see what those have written for whom we waited.
    sql, placed = asking.state.remember(
        ("merge rows", target.name, asking.cache_key), lambda: _read_sql(asking, target)
    )
    values = {**predicate_values(asking, placed), "ids": list(row_ids)}
    records = await (await conn.execute(sql, values)).fetchall()
    if records[0][0] != asking.state.revision:
        raise StateMoved
    return {record[1]: _held(target, record) for record in records if record[1] is not None}


def _read_sql(asking: Asking, target: Target) -> tuple[bytes, list[Placed]]:
    visible, placed = visible_sql(asking, target.entity, alias="m", prefix="v")
    rights = [visible]
    for prefix, action in (("w", Action.WRITE), ("d", Action.APPROVE)):
        passes, more = "false", list[Placed]()
        if asking.rights(target.entity).may(action):
            passes, more = visible_sql(
                asking, target.entity, alias="m", prefix=prefix, action=action
            )
        rights.append(passes)
        placed = [*placed, *more]
    proposed = "false"
    if target.entity.approval_required:
        proposed = (
            f'EXISTS (SELECT FROM {target.table_sql(Role.EDIT)} e WHERE e."_sys_id" = m."_sys_id"'
            " AND e.\"_sys_state\" = 'pending')"
        )
    columns = [text_sql(column) for column in target.entity.columns]
    columns += [f'm."{name}"' for name in target.referred_columns]
    sql = f"""SELECT v.value, m."_sys_id", m."_sys_version", m."_sys_is_deleted",
    m."_sys_last_modified_at", {", ".join(rights)}, {proposed},
    {outcome_row(target, asking, "m")}::text, {", ".join(columns)}
  FROM {revision_table(asking)} v LEFT JOIN {target.main_sql} m ON m."_sys_id" = ANY (%(ids)s::uuid[])"""
    return sql.encode(), placed


def _held(target: Target, record: Sequence[Any]) -> HeldRow:
    count = len(target.columns)
    return HeldRow(
        row_id=record[1],
        version=record[2],
        is_deleted=record[3],
        changed_at=record[4],
        is_visible=record[5],
        may_write=record[6],
        may_decide=record[7],
        has_proposal=record[8],
        body=record[9],
        texts=dict(zip(target.columns, record[10 : 10 + count], strict=True)),
        keys=dict(zip(target.referred_columns, record[10 + count :], strict=True)),
    )


def text_sql(column: Column, alias: str = "m") -> str:
    """Return the value as a text that the write path reads as the same value."""
    value = f'{alias}."{column.folded}"'
    return moment_sql(value) if column.data_type is DataType.DATETIME else f"{value}::text"


def visible_sql(
    asking: Asking, entity: Entity, *, alias: str, prefix: str, action: Action = Action.READ
) -> tuple[str, list[Placed]]:
    """Return the condition that the row *alias* passes the caller's filter for *action*, and that."""
    typed = row_filter(asking, entity, action)
    if typed is None:
        return "true", []
    sql = f"({predicate_sql(asking, typed, prefix=prefix, alias=alias)}) IS TRUE"
    return sql, [(prefix, alias, typed)]


# --- writing them ---------------------------------------------------------------------------------


class MergeBuilder(Builder):
    """Writes for a merge: always a version, judged by *action* before and after."""

    action: Action = Action.WRITE

    def _refused(self, action: Action, alias: str) -> str:
        if action is not Action.WRITE or self.action is Action.WRITE:
            return super()._refused(action, alias)
        return super()._refused(self.action, alias)

    def _unchanged(self, columns: Sequence[str]) -> str:
        return "false"

    def _visible_reference(self, entity: str, alias: str) -> str:
        if self.action is Action.APPROVE:
            return ""  # what the proposer sees was judged when he proposed
        return super()._visible_reference(entity, alias)


def row_statement(
    asking: Asking, target: Target, operation: Operation, *, action: Action
) -> WriteStatement:
    """Return the statement for one of the two rows; further parameter: ``author``."""

    def build() -> WriteStatement:
        builder = MergeBuilder(asking=asking, target=target, source=_source(target))
        builder.action = action
        return builder.change(operation, relink=True)

    sees_restricted = asking.rights(target.entity).sees_restricted
    key = ("merge", target.name, operation, action, sees_restricted, asking.cache_key)
    return asking.state.remember(key, build)


def _source(target: Target) -> Source:
    given = json_source(target)
    sql = given.sql.replace('g."_actor" AS "_author"', '%(author)s::text AS "_author"', 1)
    assert sql != given.sql, "the author is whoever proposed it"
    return Source(sql=sql, columns=given.columns, marked=True)


# --- what refers to them --------------------------------------------------------------------------


def by_entity(referrers: Sequence[Referrer]) -> dict[str, list[Referrer]]:
    found: dict[str, list[Referrer]] = {}
    for referrer in referrers:
        found.setdefault(referrer.entity, []).append(referrer)
    return found


async def count_visible(
    conn: AsyncConnection[Any],
    asking: Asking,
    target: Target,
    *,
    keys: Mapping[str, Any],
    spared: Sequence[UUID],
    merge_id: UUID | None = None,
) -> dict[str, int]:
    """Return how many rows of each entity hold one of *keys*, of those that the caller may see.

    With *merge_id* only of the rows that this merge has relinked.
    """
    counts = {}
    known = await linked(conn, asking, target, merge_id) if merge_id else target.referrers
    for name, referrers in by_entity(known).items():
        entity = asking.state.entities[name].definition
        visible = _visible_or_none(asking, entity)
        if visible is None:
            continue
        condition, placed = visible
        held, values = [], dict(predicate_values(asking, placed))
        for number, referrer in enumerate(referrers):
            key = keys.get(referrer.key)
            if key is None or _is_masked(asking, entity, referrer.column):
                continue
            column_type = target.type_of(referrer.key)
            link = _linked_sql(asking, f"%(column{number})s") if merge_id else "true"
            held.append(f'(r."{referrer.column}" = %(key{number})s::{column_type} AND {link})')
            values |= {f"key{number}": key, f"column{number}": referrer.column}
        if not held:
            continue
        values |= {"spared": list(spared), "merge": merge_id}
        values["entity"] = asking.state.entities[name].entity_id
        sql = (
            f'SELECT count(*) FROM "{asking.schemas.data}"."{name}" r WHERE ({" OR ".join(held)})'
            f' AND NOT r."_sys_id" = ANY (%(spared)s::uuid[]) AND {condition}'
        )
        [count] = await (await conn.execute(sql.encode(), values)).fetchone() or (0,)
        if count:
            counts[entity.name] = count
    return counts


def _visible_or_none(asking: Asking, entity: Entity) -> tuple[str, list[Placed]] | None:
    if not asking.rights(entity).may_read:
        return None
    try:
        return visible_sql(asking, entity, alias="r", prefix="v")
    except AccessDenied:  # a row filter that is not valid any more shows nothing
        return None


def _is_masked(asking: Asking, entity: Entity, column: str) -> bool:
    """Whether the caller may not know what a column refers to, and so not how many rows do."""
    restricted = entity.column_by_name[column].restricted
    return restricted and not asking.rights(entity).sees_restricted


def _linked_sql(asking: Asking, column: str) -> str:
    return (
        f'EXISTS (SELECT FROM "{asking.schemas.config}".merge_link l WHERE l.merge_id = %(merge)s::uuid'
        f" AND l.entity_id = %(entity)s::bigint AND l.column_name = {column}::text"
        ' AND NOT l.is_proposal AND l.row_id = r."_sys_id")'
    )


async def note_links(
    conn: AsyncConnection[Any],
    asking: Asking,
    target: Target,
    *,
    merge_id: UUID,
    keys: Mapping[str, Any],
    spared: Sequence[UUID],
) -> list[Referrer]:
    """Lock and note what refers to *keys*, whoever may see it; return where something does."""
    held = []
    for referrer in target.referrers:
        key = keys.get(referrer.key)
        if key is None:
            continue
        other = target_of(asking, asking.state.entities[referrer.entity])
        values = {"merge": merge_id, "entity": other.stored.entity_id, "spared": list(spared)}
        values |= {"column": referrer.column, "key": key}
        noted = 0
        for sql in _note_statements(other, referrer.column):
            noted += (await conn.execute(sql, values)).rowcount
        if noted:
            held.append(referrer)
    return held


async def linked(
    conn: AsyncConnection[Any], asking: Asking, target: Target, merge_id: UUID
) -> list[Referrer]:
    """Return the columns in which a merge has noted links."""
    sql = (
        f"SELECT DISTINCT l.entity_id, l.column_name FROM {target.config_sql('merge_link')} l"
        " WHERE l.merge_id = %s"
    )
    found = set(await (await conn.execute(sql.encode(), [merge_id])).fetchall())
    entities = asking.state.entities
    return [r for r in target.referrers if (entities[r.entity].entity_id, r.column) in found]


def _note_statements(other: Target, column: str) -> list[bytes]:
    found = []
    proposal = 'x."_sys_submitted_at" FROM (SELECT e.* FROM {edit} e WHERE e.{held} AND NOT'
    row = "NULL FROM (SELECT r.* FROM {main} r WHERE r.{held} AND NOT"
    held = f'"{column}" = %(key)s::{other.type_of(column)}'
    shapes = [("true", proposal, "e"), ("false", row, "r")]
    for is_proposal, shape, alias in shapes:
        if is_proposal == "true" and not other.entity.approval_required:
            continue
        source = shape.format(edit=other.table_sql(Role.EDIT), main=other.main_sql, held=held)
        found.append(
            (
                f"INSERT INTO {other.config_sql('merge_link')}"
                " (merge_id, entity_id, column_name, is_proposal, row_id, submitted_at)"
                " SELECT %(merge)s::uuid, %(entity)s::bigint, %(column)s::text,"
                f' {is_proposal}, x."_sys_id", {source} {alias}."_sys_id" = ANY (%(spared)s::uuid[])'
                f' ORDER BY {alias}."_sys_id" FOR UPDATE OF {alias}) x'
            ).encode()
        )
    return found


def noted_links(
    asking: Asking, merge_id: UUID, held: Sequence[Referrer], detail: Mapping[str, Any]
) -> Narrowing:
    """Return the narrowing to what a merge has noted in the columns *held*; a proposal that was
    written again since is no part of it."""
    link = (
        f'EXISTS (SELECT FROM "{asking.schemas.config}".merge_link l'
        " WHERE l.merge_id = %(merge)s::uuid AND l.entity_id = %(link_entity)s::bigint"
        " AND l.column_name = %(link_column)s::text"
    )
    return Narrowing(
        rows=f'{link} AND NOT l.is_proposal AND l.row_id = r."_sys_id")',
        proposals=f'{link} AND l.is_proposal AND l.row_id = e."_sys_id"'
        ' AND l.submitted_at = e."_sys_submitted_at")',
        values={"merge": merge_id},
        detail=detail,
        links=frozenset((referrer.entity, referrer.column) for referrer in held),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLink:
    """A row that was relinked and refers to something else by now."""

    entity: str
    row_id: UUID
    column: str


async def changed_links(
    conn: AsyncConnection[Any],
    asking: Asking,
    target: Target,
    *,
    merge_id: UUID,
    keys: Mapping[str, Any],
    take: int,
) -> list[ChangedLink]:
    """Return links of a merge that no longer hold one of *keys*, of the rows the caller may see."""
    found: list[ChangedLink] = []
    for referrer in await linked(conn, asking, target, merge_id):
        entity = asking.state.entities[referrer.entity].definition
        visible = _visible_or_none(asking, entity)
        if visible is None or _is_masked(asking, entity, referrer.column):
            continue
        condition, placed = visible
        values = {**predicate_values(asking, placed), "merge": merge_id, "take": take}
        values |= {
            "entity": asking.state.entities[referrer.entity].entity_id,
            "column": referrer.column,
            "key": keys.get(referrer.key),
        }
        sql = (
            f'SELECT r."_sys_id" FROM "{asking.schemas.data}"."{referrer.entity}" r WHERE'
            f' r."{referrer.column}" IS DISTINCT FROM %(key)s::{target.type_of(referrer.key)}'
            f" AND {_linked_sql(asking, '%(column)s')} AND {condition}"
            ' ORDER BY r."_sys_id" LIMIT %(take)s'
        )
        column = entity.column_by_name[referrer.column].name
        for (row_id,) in await (await conn.execute(sql.encode(), values)).fetchall():
            found.append(ChangedLink(entity=entity.name, row_id=row_id, column=column))
    return found


async def has_unknown_links(
    conn: AsyncConnection[Any], asking: Asking, target: Target, merge_id: UUID
) -> bool:
    """Whether a merge relinked columns that no longer refer to the entity under that name."""
    known = [
        (asking.state.entities[referrer.entity].entity_id, referrer.column)
        for referrer in target.referrers
    ]
    sql = (
        f"SELECT EXISTS (SELECT FROM {target.config_sql('merge_link')} l WHERE l.merge_id = %(merge)s"
        " AND NOT EXISTS (SELECT FROM unnest(%(entities)s::bigint[], %(columns)s::text[]) k(e, c)"
        " WHERE k.e = l.entity_id AND k.c = l.column_name))"
    )
    values = {
        "merge": merge_id,
        "entities": [entity for entity, _ in known],
        "columns": [column for _, column in known],
    }
    [found] = await (await conn.execute(sql.encode(), values)).fetchone() or (False,)
    return bool(found)


# --- the record -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecord:
    merge_id: UUID
    survivor_id: UUID
    duplicate_id: UUID
    state: str
    survivor_version: int
    duplicate_version: int
    given: Mapping[str, str | None]
    columns: Sequence[Mapping[str, Any]]
    keep_later_edits: bool
    proposed_by: str


_RECORD: Final = (
    "merge_id, survivor_id, duplicate_id, state, survivor_version, duplicate_version, given,"
    " columns, keep_later_edits, proposed_by"
)


async def held_record(
    conn: AsyncConnection[Any], target: Target, merge_id: UUID
) -> MergeRecord | None:
    """Lock the record until the transaction ends and return it, if it is one of this entity."""
    sql = (
        f"SELECT {_RECORD} FROM {target.config_sql('merge')}"
        " WHERE merge_id = %s AND entity_id = %s FOR UPDATE"
    )
    cursor = await conn.execute(sql.encode(), [merge_id, target.stored.entity_id])
    record = await cursor.fetchone()
    if record is None:
        return None
    names = [name.strip() for name in _RECORD.split(",")]
    return MergeRecord(**dict(zip(names, record, strict=True)))


async def standing_merge(
    conn: AsyncConnection[Any], target: Target, duplicate_id: UUID
) -> tuple[UUID, UUID] | None:
    """Return merge and survivor of the last merge of a row that counts."""
    sql = (
        f"SELECT g.merge_id, g.survivor_id FROM {target.config_sql('merge')} g"
        f" WHERE g.duplicate_id = %s AND {STANDS} ORDER BY g.seq DESC LIMIT 1"
    )
    found: tuple[UUID, UUID] | None = await (
        await conn.execute(sql.encode(), [duplicate_id])
    ).fetchone()
    return found


async def keep_record(
    conn: AsyncConnection[Any], target: Target, values: Mapping[str, Any]
) -> None:
    """Insert a merge; *values* go by the names of the table's columns."""
    given = {**values, "entity_id": target.stored.entity_id}
    columns = ", ".join(given)
    holders = ", ".join(_holder(name) for name in given)
    sql = f"INSERT INTO {target.config_sql('merge')} ({columns}) VALUES ({holders})"
    await conn.execute(sql.encode(), {name: _as_json(value) for name, value in given.items()})


async def change_record(
    conn: AsyncConnection[Any], target: Target, merge_id: UUID, values: Mapping[str, Any]
) -> None:
    assignments = ", ".join(f"{name} = {_holder(name)}" for name in values)
    sql = f"UPDATE {target.config_sql('merge')} SET {assignments} WHERE merge_id = %(merge)s"
    given = {name: _as_json(value) for name, value in values.items()}
    await conn.execute(sql.encode(), {**given, "merge": merge_id})


def _holder(name: str) -> str:
    return "statement_timestamp()" if name == "proposed_at" else f"%({name})s"


def _as_json(value: Any) -> Any:
    return Jsonb(value) if isinstance(value, dict | list) else value
