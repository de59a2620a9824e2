"""Taking hold of proposals before anything is decided about them, and whether the caller may decide.

The rows of the edit table are locked first, in one order for all: of several who decide on the same
proposal the first one does, and the others find that it is gone. What is then known of a proposal is
read by a second statement, because the first one may have waited.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, row_filter
from mdm_gitops.data.row_json import moment_sql
from mdm_gitops.data.selecting import (
    Placed,
    predicate_sql,
    predicate_values,
    proposals_sql,
    revision_table,
)
from mdm_gitops.data.target import Target
from mdm_gitops.errors import AccessDenied, NotFound
from mdm_gitops.model import Action, Entity
from mdm_gitops.plan.physical import Role

PENDING: Final = ("pending",)
PENDING_OR_REJECTED: Final = ("pending", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A proposal that is locked. *needs* and *brings* are values of columns that rows of the same
    entity refer to each other by."""

    row_id: UUID
    operation: str
    state: str
    author: str  # who wrote last
    is_own: bool  # whether the caller wrote any of what is proposed
    submitted_at: str  # as lists show it
    is_current: bool
    may_decide: bool
    needs: frozenset[tuple[str, str]] = frozenset()
    brings: frozenset[tuple[str, str]] = frozenset()


async def claim(
    conn: AsyncConnection[Any],
    *,
    asking: Asking,
    target: Target,
    row_ids: Sequence[UUID],
    states: Collection[str] = PENDING,
) -> dict[UUID, Claim]:
    """Lock the proposals for *row_ids* until the transaction ends; return those that the caller may
    see and that are in *states*.

    Raises:
        StateMoved: ask again with a newer state.
    """
    statement = asking.state.remember(
        ("claim", target.name, asking.cache_key), lambda: _statement(asking, target)
    )
    sql, placed = statement
    given = {
        **predicate_values(asking, placed),
        "ids": list(row_ids),
        "states": list(states),
        "actor": asking.principal.actor,
    }
    async with conn.pipeline():
        locked = await conn.execute(_lock_sql(target).encode(), {"ids": list(row_ids)})
        cursor = await conn.execute(sql, given)
        # What was proposed between the two statements is seen by the second, but is not held.
        held = {record[0] for record in await locked.fetchall()}
        records = await cursor.fetchall()
    if records[0][0] != asking.state.revision:
        raise StateMoved
    return {record[1]: _claim(target, record) for record in records if record[1] in held}


def _lock_sql(target: Target) -> str:
    return (
        f'SELECT e."_sys_id" FROM {target.table_sql(Role.EDIT)} e'
        ' WHERE e."_sys_id" = ANY (%(ids)s::uuid[]) ORDER BY e."_sys_id" FOR UPDATE OF e'
    )


def _statement(asking: Asking, target: Target) -> tuple[bytes, tuple[Placed, ...]]:
    entity = target.entity
    placed: list[Placed] = []

    def passes(action: Action, prefix: str, alias: str) -> str:
        typed = row_filter(asking, entity, action)
        if typed is None:
            return "true"
        placed.append((prefix, alias, typed))
        return f"({predicate_sql(asking, typed, prefix=prefix, alias=alias)}) IS TRUE"

    approved = passes(Action.READ, "a", "m")
    visible = passes(Action.READ, "p", "p")
    decide = f"{_may(asking, entity)} AND {passes(Action.APPROVE, 'b', 'p')} AND" + (
        f' (o."_sys_id" IS NULL OR {passes(Action.APPROVE, "c", "o")})'
    )
    states = "'pending', 'rejected'"
    proposals = proposals_sql(target.schemas, target.name, states=states, approved=approved)
    needs, brings = _own_references(target)
    sql = f"""SELECT v.value, c.* FROM {revision_table(asking)} v LEFT JOIN (
SELECT p."_sys_id", p."_sys_operation", p."_sys_state", p."_sys_submitted_by",
    {moment_sql('p."_sys_submitted_at"')}, p."_sys_base_version" IS NOT DISTINCT FROM o."_sys_version", {decide},
    p."_sys_submitted_by" = %(actor)s OR ({_has_written(target)}),
    ARRAY[{needs}]::text[], ARRAY[{brings}]::text[]
  FROM ({proposals}) p LEFT JOIN {target.main_sql} o ON o."_sys_id" = p."_sys_id"
 WHERE p."_sys_id" = ANY (%(ids)s::uuid[]) AND p."_sys_state" = ANY (%(states)s::text[])
   AND {visible}) c ON true"""
    return sql.encode(), tuple(placed)


# Proposals are laid over each other, so there may be several authors, and their events tell who. What was
# written before the row was last changed or withdrawn is no part of it; relinking writes nothing new.
_HAS_WRITTEN: Final = """p."_sys_operation" IN ('create', 'update') AND EXISTS (
  SELECT FROM {event} x JOIN {change_set} s ON s.key = x.change_set
   WHERE x.record_id = p."_sys_id" AND x.entity_id = {entity_id} AND x.action = 'data_edited'
     AND coalesce(x.actor, s.actor) = %(actor)s AND x.detail -> 'relinkedFrom' IS NULL
     AND s.seq > coalesce((SELECT max(b.seq) FROM {event} y JOIN {change_set} b ON b.key = y.change_set
       WHERE y.record_id = p."_sys_id" AND y.entity_id = {entity_id}
         AND CASE y.action WHEN 'data_edited' THEN false
           WHEN 'data_rejected' THEN y.detail -> 'withdrawn' IS NOT NULL
           ELSE y.detail -> 'relinkedFrom' IS NULL END), 0))"""


def _has_written(target: Target) -> str:
    return _HAS_WRITTEN.format(
        event=target.config_sql("event"),
        change_set=target.config_sql("change_set"),
        entity_id=target.stored.entity_id,
    )


def _may(asking: Asking, entity: Entity) -> str:
    return "true" if asking.rights(entity).may(Action.APPROVE) else "false"


def _own_references(target: Target) -> tuple[str, str]:
    """Return, for each reference of the entity to itself, the value that a proposal needs, and the
    one that it alone brings."""
    pairs = _own_pairs(target)
    needs = ", ".join(f'p."{column}"::text' for column, _ in pairs)
    brings = ", ".join(
        f'CASE WHEN p."{key}" IS DISTINCT FROM o."{key}" THEN p."{key}"::text END'
        for _, key in pairs
    )
    return needs, brings


def _own_pairs(target: Target) -> list[tuple[str, str]]:
    return [
        (column, key)
        for column, (entity, key) in target.references.items()
        if entity == target.name
    ]


def refers_to_itself(target: Target) -> bool:
    return bool(_own_pairs(target))


def _claim(target: Target, record: Sequence[Any]) -> Claim:
    _, row_id, operation, state, author, at, is_current, may_decide, is_own, needs, brings = record
    keys = [key for _, key in _own_pairs(target)]
    writes = operation in ("create", "update")

    def values(found: Sequence[str | None]) -> frozenset[tuple[str, str]]:
        pairs = zip(keys, found, strict=True)
        return frozenset((key, value) for key, value in pairs if value is not None and writes)

    return Claim(
        row_id=row_id,
        operation=operation,
        state=state,
        author=author,
        is_own=is_own,
        submitted_at=at,
        is_current=is_current,
        may_decide=may_decide,
        needs=values(needs),
        brings=values(brings),
    )


def no_such_proposal(entity: Entity, row_id: object) -> NotFound:
    """Return the one error for a proposal that is not there and for one that is hidden."""
    return NotFound(
        f"nothing is pending for row {str(row_id)[:60]} of {entity.name}", code="PENDING_NOT_FOUND"
    )


def not_yours_to_decide(entity: Entity) -> AccessDenied:
    return AccessDenied(
        f"the row is outside of what you may approve in {entity.name}",
        hint="the action approve must reach the row as it is and as it is proposed",
    )
