"""What a plan says of access, worked out in the plan's own snapshot of the warehouse.

``inspector`` makes the function that ``warehouse.planning`` calls and decides whether there is
anything to look at; the look is ``data.access_inspection``. It stands here because permissions and row
filters have one evaluation, and that one is above the warehouse.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.plan.access_report import MAX_PAIRS, NO_REPORT, AccessReport
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import Drafted, Inspect

STATEMENT_TIMEOUT_S: Final = 10.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


def inspector(
    settings: Settings,
    *,
    effects: bool = True,
    always: bool = True,
    max_pairs: int = MAX_PAIRS,
    statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    now: Callable[[], datetime] = _utc_now,
) -> Inspect:
    """Return what judges the tests of access and, with *effects*, counts who gains and loses rows.

    Without *always*, tests are left alone by a plan that changes nobody's rights.
    """

    async def inspect(
        conn: AsyncConnection[Any], drafted: Drafted, *, schemas: Schemas
    ) -> AccessReport:
        has_tests = bool(drafted.definitions.access_tests.tests)
        asks = (has_tests and always) or (drafted.touches_rights and (has_tests or effects))
        if not asks:
            return NO_REPORT
        # What reads rows is loaded where somebody's rights are looked at: few plans touch them.
        from mdm_gitops.data.access_inspection import report, seen_by

        seen = await seen_by(conn, drafted, settings, schemas=schemas, now=now())
        await conn.execute(f"SET LOCAL statement_timeout = {round(statement_timeout_s * 1000)}")
        return await report(conn, seen, effects=effects, max_pairs=max_pairs)

    return inspect
