"""What a plan says of access, worked out in the plan's own snapshot of the warehouse.

``inspector`` makes the function that ``warehouse.planning`` calls: it stands here because permissions
and row filters have one evaluation, and that one is above the warehouse.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.access import Tier
from mdm_gitops.data.access_effects import MAX_PAIRS, access_effects
from mdm_gitops.data.access_prospect import Prospect, prospect
from mdm_gitops.data.access_tests import run_test
from mdm_gitops.model import fold
from mdm_gitops.plan.access_report import NO_REPORT, AccessEffect, AccessReport
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.migrate import store_exists
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import Drafted, Inspect
from mdm_gitops.warehouse.store import StoreState, read_state_within

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
        seen = prospect(
            await _state(conn, schemas),
            drafted,
            schemas=schemas,
            now=now(),
            tier=Tier(settings.Tier),
            admin_role=settings.Auth.AdminRole,
        )
        await conn.execute(f"SET LOCAL statement_timeout = {round(statement_timeout_s * 1000)}")
        return await _report(conn, seen, effects=effects, max_pairs=max_pairs)

    return inspect


async def _state(conn: AsyncConnection[Any], schemas: Schemas) -> StoreState:
    if not await store_exists(conn, config_schema=schemas.config):
        return StoreState(revision=0, entities={}, removed=(), grants={}, keys={})
    return await read_state_within(conn, schemas=schemas)


async def _report(
    conn: AsyncConnection[Any], seen: Prospect, *, effects: bool, max_pairs: int
) -> AccessReport:
    tests = [
        test
        for test in seen.definitions.access_tests.tests
        if seen.drafted.changes_access or seen.drafted.is_meant(fold(test.entity))
    ]
    results = [await run_test(conn, test, seen) for test in tests]
    found: tuple[AccessEffect, ...] = ()
    uncounted = 0
    if effects and seen.drafted.touches_rights:
        found, uncounted = await access_effects(conn, seen, max_pairs=max_pairs)
    return AccessReport(tests=tuple(results), effects=found, uncounted=uncounted)
