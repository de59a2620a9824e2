"""A look at the access of a plan: the store before and after it, its tests, who gains and loses.

``data.access_report`` says when it is worth one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.access import Tier
from mdm_gitops.data.access_effects import access_effects
from mdm_gitops.data.access_prospect import Prospect, prospect
from mdm_gitops.data.access_tests import run_test
from mdm_gitops.model import fold
from mdm_gitops.plan.access_report import AccessEffect, AccessReport
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.migrate import store_exists
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import Drafted
from mdm_gitops.warehouse.store import StoreState, read_state_within


async def seen_by(
    conn: AsyncConnection[Any],
    drafted: Drafted,
    settings: Settings,
    *,
    schemas: Schemas,
    now: datetime,
) -> Prospect:
    """Return the two states that *drafted* leads from and to, as *settings* judge callers."""
    return prospect(
        await _state(conn, schemas),
        drafted,
        schemas=schemas,
        now=now,
        tier=Tier(settings.Tier),
        admin_role=settings.Auth.AdminRole,
    )


async def _state(conn: AsyncConnection[Any], schemas: Schemas) -> StoreState:
    if not await store_exists(conn, config_schema=schemas.config):
        return StoreState(revision=0, entities={}, removed=(), grants={}, keys={})
    return await read_state_within(conn, schemas=schemas)


async def report(
    conn: AsyncConnection[Any], seen: Prospect, *, effects: bool, max_pairs: int
) -> AccessReport:
    """Judge the tests of access that the plan is about and, with *effects*, count rows."""
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
