"""The journal of deployments: what was begun, which step ran, how it ended.

Writes only. A step's end is written in the step's own transaction where it has one, so the journal
never claims more than what stands. ``warehouse.store`` reads it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.types.json import Jsonb

from mdm_gitops.errors import MdmError
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.plan import Plan
from mdm_gitops.warehouse.names import Schemas

_INTERRUPTED = """
UPDATE {config}.deployment SET state = 'interrupted', finished_at = now() WHERE state = 'running'
"""

_BEGIN = """
INSERT INTO {config}.deployment (plan_id, commit_id, actor, state, entities, summary)
VALUES (%(plan_id)s, %(commit)s, %(actor)s, 'running', %(entities)s, %(summary)s)
RETURNING deployment_id
"""

# Triggers of the store write down who changed permissions (migration 0004).
_ACTING = """
SELECT set_config('mdm.actor', %(actor)s, false), set_config('mdm.commit', %(commit)s, false)
"""

_END = """
UPDATE {config}.deployment SET state = %(state)s, error = %(error)s, finished_at = now()
 WHERE deployment_id = %(id)s
"""

_START = """
INSERT INTO {config}.deployment_step (deployment_id, number, phase, title, state)
VALUES (%(id)s, %(number)s, %(phase)s, %(title)s, 'running')
"""

_ROWS = """
UPDATE {config}.deployment_step SET rows_done = %(rows)s
 WHERE deployment_id = %(id)s AND number = %(number)s
"""

_FINISH = """
UPDATE {config}.deployment_step SET state = 'done', finished_at = clock_timestamp()
 WHERE deployment_id = %(id)s AND number = %(number)s
"""

_FAIL_STEP = """
UPDATE {config}.deployment_step SET state = 'failed', finished_at = now()
 WHERE deployment_id = %(id)s AND state = 'running'
"""


class Journal:
    """The journal of one apply; *conn* is the one that applies."""

    def __init__(self, conn: AsyncConnection[Any], schemas: Schemas) -> None:
        self._conn = conn
        self._schemas = schemas
        self._id = 0

    async def close_interrupted(self) -> None:
        """Mark what a killed program left running. The caller holds the writer's lock."""
        await self._run(_INTERRUPTED)

    async def begin(self, plan: Plan, *, actor: str) -> int:
        kinds: dict[str, int] = {}
        for item in plan.changes:
            kinds[item.change.kind] = kinds.get(item.change.kind, 0) + 1
        cursor = await self._run(
            _BEGIN,
            plan_id=plan.plan_id,
            commit=plan.base_commit,
            actor=actor,
            entities=sorted({i.change.entity for i in plan.changes if i.change.entity}),
            summary=Jsonb({"changes": kinds, "drift": len(plan.drift)}),
        )
        row = await cursor.fetchone()
        assert row is not None
        self._id = row[0]
        await self._run(_ACTING, actor=actor, commit=plan.base_commit or "")
        return self._id

    async def start(self, number: int, phase: Phase, title: str) -> None:
        await self._run(_START, number=number, phase=phase.value, title=title)

    async def rows_done(self, number: int, rows: int) -> None:
        await self._run(_ROWS, number=number, rows=rows)

    async def finish(self, number: int) -> None:
        await self._run(_FINISH, number=number)

    async def succeed(self) -> None:
        await self._run(_END, state="succeeded", error=None)
        await self._run(_ACTING, actor="", commit="")

    async def fail(self, error: MdmError) -> None:
        """Write the failure down if that is still possible: the connection may be the cause."""
        with contextlib.suppress(psycopg.Error):
            details = Jsonb({"code": error.kind_code, "message": str(error), "hint": error.hint})
            await self._run(_FAIL_STEP)
            await self._run(_END, state="failed", error=details)
            await self._run(_ACTING, actor="", commit="")

    async def _run(self, query: str, **parameters: Any) -> psycopg.AsyncCursor[Any]:
        composed = sql.SQL(query).format(config=sql.Identifier(self._schemas.config))
        return await self._conn.execute(composed, {"id": self._id, **parameters})
