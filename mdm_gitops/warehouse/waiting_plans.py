"""Plans that wait for a person: put down by the operator, decided by people, applied if still the same.

What a plan holds is kept as its document for a reader; it is never acted on. What is applied is made
anew under the lock, and must have the same id.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Json

from mdm_gitops.errors import Conflict, NotFound
from mdm_gitops.warehouse.connect import Connection, in_our_words
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.reconciliation import note_event, notify

KEPT: Final = 200  # that have ended
_COLUMNS: Final = (
    "number, plan_id, commit_id AS commit, state, reason, entities, domains, is_wider, changes,"
    " created_at, decided_at, decided_by, comment, ended_at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPlan:
    number: int
    plan_id: str
    commit: str | None
    state: str  # waiting, approved, rejected, applied, superseded
    reason: str
    entities: tuple[str, ...]
    domains: tuple[str, ...]
    is_wider: bool  # it changes what belongs to no entity, so no domain's admin may decide
    changes: int
    created_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    comment: str
    ended_at: datetime | None
    document: dict[str, Any] | None = None  # None where it was not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A plan as the operator puts it down."""

    plan_id: str
    commit: str | None
    reason: str
    document: dict[str, Any]
    entities: Collection[str]
    domains: Collection[str]
    is_wider: bool
    changes: int


_SUPERSEDE: Final = """
UPDATE {config}.waiting_plan SET state = 'superseded', ended_at = now()
 WHERE state IN ('waiting', 'approved', 'rejected') AND plan_id <> %(plan_id)s
"""
_OFFER: Final = """
INSERT INTO {config}.waiting_plan
       (plan_id, commit_id, reason, document, entities, domains, is_wider, changes)
VALUES (%(plan_id)s, %(commit)s, %(reason)s, %(document)s, %(entities)s, %(domains)s,
        %(is_wider)s, %(changes)s)
ON CONFLICT (plan_id) WHERE state IN ('waiting', 'approved', 'rejected')
DO UPDATE SET commit_id = excluded.commit_id, reason = excluded.reason
 WHERE (waiting_plan.commit_id, waiting_plan.reason)
       IS DISTINCT FROM (excluded.commit_id, excluded.reason)
RETURNING (xmax = 0) AS is_new
"""
_END: Final = """
UPDATE {config}.waiting_plan SET state = 'applied', ended_at = now()
 WHERE state IN ('waiting', 'approved', 'rejected') AND plan_id = %(plan_id)s
"""
_FORGET: Final = """
DELETE FROM {config}.waiting_plan
 WHERE state IN ('applied', 'superseded')
   AND number <= (SELECT max(number) FROM {config}.waiting_plan) - %(kept)s
"""
_APPROVED: Final = f"SELECT {_COLUMNS} FROM {{config}}.waiting_plan WHERE state = 'approved'"
_LIST: Final = f"""
SELECT {_COLUMNS} FROM {{config}}.waiting_plan
 WHERE %(all)s OR state IN ('waiting', 'approved', 'rejected')
 ORDER BY number DESC LIMIT %(take)s
"""
_ONE: Final = f"""
SELECT {_COLUMNS}, document FROM {{config}}.waiting_plan
 WHERE plan_id = %(plan_id)s ORDER BY number DESC LIMIT 1
"""
_DECIDE: Final = """
UPDATE {config}.waiting_plan
   SET state = %(state)s, decided_at = now(), decided_by = %(actor)s, comment = %(comment)s
 WHERE number = %(number)s AND state IN ('waiting', %(other)s)
RETURNING number
"""


async def offer_plan(conn: Connection, offer: Offer, *, schemas: Schemas) -> bool:
    """Put *offer* down in place of any other; whether it was not there yet.

    One that somebody has decided stays decided.
    """
    async with conn.transaction():
        await _rows(conn, _SUPERSEDE, schemas, plan_id=offer.plan_id)
        found = await _rows(
            conn,
            _OFFER,
            schemas,
            plan_id=offer.plan_id,
            commit=offer.commit,
            reason=offer.reason,
            document=Json(offer.document),
            entities=sorted(offer.entities),
            domains=sorted(offer.domains),
            is_wider=offer.is_wider,
            changes=offer.changes,
        )
        await _rows(conn, _FORGET, schemas, kept=KEPT)
    return bool(found and found[0]["is_new"])


async def end_plans(conn: Connection, *, schemas: Schemas, applied: str = "") -> None:
    """Nothing waits any more: what was *applied* has been, the others are out of date."""
    if applied:
        await _rows(conn, _END, schemas, plan_id=applied)
    await _rows(conn, _SUPERSEDE, schemas, plan_id=applied)


async def approved_plan(conn: Connection, *, schemas: Schemas) -> WaitingPlan | None:
    found = await _rows(conn, _APPROVED, schemas)
    return _plan(found[0]) if found else None


async def list_plans(
    conn: Connection, *, schemas: Schemas, ended: bool = False, take: int = 100
) -> tuple[WaitingPlan, ...]:
    """Return the plans that wait, newest first; with *ended* those of the past as well."""
    found = await _rows(conn, _LIST, schemas, all=ended, take=take)
    return tuple(_plan(row) for row in found)


async def find_plan(conn: Connection, plan_id: str, *, schemas: Schemas) -> WaitingPlan:
    """Return the last plan of this id, with its document.

    Raises:
        NotFound: there is none (``PLAN_NOT_FOUND``).
    """
    usable = plan_id.isascii() and plan_id.isalnum()
    found = await _rows(conn, _ONE, schemas, plan_id=plan_id) if usable else []
    if not found:
        raise no_such_plan(plan_id)
    return _plan(found[0])


async def decide_plan(
    conn: Connection,
    plan: WaitingPlan,
    *,
    schemas: Schemas,
    approve: bool,
    actor: str,
    comment: str = "",
) -> None:
    """Approve or reject *plan*; the other decision can still be changed until it is applied.

    Raises:
        Conflict: it is decided so already, or out of date (``PLAN_STALE``).
    """
    state, other = ("approved", "rejected") if approve else ("rejected", "approved")
    async with conn.transaction():
        values = {"number": plan.number, "state": state, "other": other}
        if not await _rows(conn, _DECIDE, schemas, actor=actor, comment=comment, **values):
            raise Conflict(
                f"plan {plan.plan_id} does not wait any more: it is {plan.state}",
                hint="GET /api/v1/plans lists those that do",
                code="PLAN_STALE",
            )
        message = f"plan {plan.plan_id} {state}" + (f": {comment}" if comment else "")
        await note_event(
            conn, schemas=schemas, kind=state, actor=actor, commit=plan.commit, message=message
        )
        await notify(conn, schemas=schemas)


def no_such_plan(plan_id: str) -> NotFound:
    return NotFound(
        f"there is no plan {plan_id[:80]!r}",
        hint="GET /api/v1/plans lists those that wait",
        code="PLAN_NOT_FOUND",
    )


def _plan(row: dict[str, Any]) -> WaitingPlan:
    lists = {"entities": tuple(row["entities"]), "domains": tuple(row["domains"])}
    return WaitingPlan(**{**row, **lists})


async def _rows(
    conn: Connection, query: str, schemas: Schemas, **parameters: Any
) -> list[dict[str, Any]]:
    statement = sql.SQL(query).format(config=sql.Identifier(schemas.config))
    with in_our_words("asking for waiting plans"):
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement, parameters)
            return await cursor.fetchall() if cursor.description else []
