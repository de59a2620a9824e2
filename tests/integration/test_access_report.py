"""The access report of a plan: who gains and who loses which rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access import principal_named
from mdm_gitops.data.access_report import inspector
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.rows import ListRequest, list_rows
from mdm_gitops.errors import NotFound
from mdm_gitops.plan.access_report import AccessEffect
from mdm_gitops.plan.markdown import render_markdown
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.text import render_text
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.store import read_state
from tests.support import access_lab, by_hand
from tests.support.access_lab import (
    MORE,
    PERMISSIONS,
    RENAMED,
    definitions,
    planned,
    test,
    verdicts,
)
from tests.support.customers import FILES

pytestmark = pytest.mark.anyio
warehouse_url, warehouse = access_lab.warehouse_url, access_lab.warehouse


def told(plan: Plan) -> dict[tuple[str, str, str], AccessEffect]:
    return {(e.principal, e.entity, e.action.value): e for e in plan.access.effects}


def numbers(effect: AccessEffect) -> tuple[int, ...]:
    assert effect.rows is not None
    rows = effect.rows
    return (rows.before, rows.after, rows.gained, rows.lost, rows.total)


async def test_a_plan_counts_who_gains_and_loses_rows(warehouse: AsyncConnection[Any]) -> None:
    after = (
        PERMISSIONS.replace("\"[country] = 'CH'\"", "\"[code] IN ('C1', 'C3')\"")
        .replace("[wide]", "[other]")
        .replace("[country].[region] = 'AS'", "[country].[region] = 'EU'")
    )
    wanted = definitions(permissions=after)
    plan = await planned(warehouse, wanted)
    effects = told(plan)
    assert {key: numbers(e) for key, e in effects.items() if e.rows} == {
        ("group:swiss", "customer", "read"): (6, 2, 1, 5, 8),
        ("group:swiss", "customer", "write"): (6, 2, 1, 5, 8),
        ("ana", "customer", "read"): (3, 6, 5, 2, 8),
        ("wide", "customer", "read"): (8, 0, 0, 8, 8),
        ("other", "customer", "read"): (0, 8, 8, 0, 8),
    }
    assert not effects["wide", "customer", "viewrestricted"].has
    assert effects["other", "customer", "viewrestricted"].has
    assert plan.access.uncounted == 0
    text = " ".join(render_text(plan, colour=False, width=100).split())
    assert "group:swiss · customer: read, write gains 1, loses 5 of 8 rows" in text
    assert "wide · customer: read may no longer: 8 of 8 rows" in text
    page = render_markdown(plan)
    assert "| `ana` | `customer` | read | gains 5, loses 2 of 8 rows" in page
    cut = await planned(warehouse, wanted, max_pairs=1)
    assert (len({e.principal for e in cut.access.effects}), cut.access.uncounted) == (1, 3)
    assert "3 further pairs of principal and entity or more: not counted" in render_text(
        cut, colour=False, width=100
    )
    unasked = await planned(warehouse, wanted, effects=False)
    assert unasked.access.effects == () and unasked.plan_id == plan.plan_id


async def test_an_entity_that_opens_or_moves_changes_what_people_reach(
    warehouse: AsyncConnection[Any],
) -> None:
    restricted = FILES["entities/customer.yaml"].replace(
        b"domain: crm\n", b"domain: crm\naccess: {mode: restricted}\n"
    )
    plan = await planned(
        warehouse, definitions(files={**FILES, "entities/customer.yaml": restricted})
    )
    assert {key: numbers(e) for key, e in told(plan).items() if e.rows} == {
        ("root", "customer", "read"): (8, 0, 0, 8, 8),
        ("root", "customer", "write"): (8, 0, 0, 8, 8),
        ("root", "customer", "approve"): (8, 0, 0, 8, 8),
        ("wide", "customer", "read"): (8, 0, 0, 8, 8),
    }


async def test_what_the_plan_itself_takes_away_or_nobody_may_count_is_told_so(
    warehouse: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path: data for path, data in FILES.items() if "customer" not in path}
    gone = [each for each in PERMISSIONS.splitlines() if "customer" not in each]
    gone = [each for each in gone if "rowFilterDsl" not in each]
    plan = await planned(warehouse, definitions(permissions="\n".join(gone), files=files))
    assert not [key for key in told(plan) if key[1] == "customer"]  # the entity goes, with its rows
    # Where the tier has no row filters, a filter leaves nothing.
    after = PERMISSIONS.replace('"[email] = me() OR', '"[_sys_created_by] = me() OR')
    community = await planned(
        warehouse, definitions(permissions=after), settings=Settings(Tier="Community")
    )
    assert numbers(told(community)["ana", "customer", "read"]) == (0, 0, 0, 0, 8)
    plan = await planned(warehouse, definitions(permissions=after))
    assert numbers(told(plan)["ana", "customer", "read"]) == (3, 2, 0, 1, 8)
    monkeypatch.setattr("mdm_gitops.data.access_effects._BUDGET_S", -1.0)
    late = await planned(warehouse, definitions(permissions=after))
    assert told(late)["ana", "customer", "read"].reason == "counting took too long"


async def test_a_warehouse_without_a_store_has_nothing_to_judge_by(
    empty_database_url: str,
) -> None:
    async with await connect(empty_database_url, application_name="test") as conn:
        plan = await planned(conn, definitions(test("rows", "wide", "{rows: [C1]}")))
    assert verdicts(plan) == {"rows": ("unchecked", "customer is not deployed yet")}
    assert plan.access.effects == ()


async def test_a_table_that_somebody_changed_by_hand_is_drift_and_no_failure(
    warehouse: AsyncConnection[Any],
) -> None:
    """The plan that sets it right must not fail on the way."""
    await warehouse.execute("ALTER TABLE mdm_data.customer DROP COLUMN email CASCADE")
    wanted = definitions(test("one", "ana", "{count: 3}"), permissions=MORE.replace("AS'", "EU'"))
    plan = await planned(warehouse, wanted)
    assert plan.drift and not plan.refusals
    assert verdicts(plan)["one"] == ("unchecked", "its table is not as it was deployed")
    effects = told(plan)
    assert effects["ana", "customer", "read"].reason == "its table is not as it was deployed"


async def test_an_effect_over_columns_to_come_says_so(warehouse: AsyncConnection[Any]) -> None:
    after = PERMISSIONS.replace("\"[country] = 'CH'\"", '"[part] IS NULL"')
    files = {**FILES, "entities/customer.yaml": RENAMED}
    plan = await planned(warehouse, definitions(permissions=after, files=files))
    effect = told(plan)["group:swiss", "customer", "read"]
    assert effect.rows is None and "not deployed yet" in effect.reason
    assert "other rows (its row filter" in render_text(plan, colour=False, width=120)


async def test_a_plan_without_tests_and_with_the_same_grants_asks_nothing_more(
    warehouse: AsyncConnection[Any],
) -> None:
    inspect, asked = inspector(Settings()), []

    async def watched(conn: Any, drafted: Any, *, schemas: Schemas) -> Any:
        execute, conn.execute = conn.execute, None  # whatever asks, fails
        try:
            report = await inspect(conn, drafted, schemas=schemas)
        finally:
            conn.execute = execute
        asked.append(report)
        return report

    await make_plan(warehouse, definitions(), schemas=Schemas(), inspect=watched)
    assert len(asked) == 1 and asked[0].tests == ()


ON_CUSTOMER = "{{users: [ana], domains: [crm], entities: [customer], {}}}"
VARIANTS = (
    "{users: [ana], domains: [crm], actions: [read]}",
    "{users: [ana], domains: [ref], actions: [read]}",
    ON_CUSTOMER.format("actions: [write], rowFilterDsl: \"[country] = 'CH'\""),
    ON_CUSTOMER.format(
        "actions: [read], rowFilterDsl: \"[country].[region] = 'AS' OR [email] = me()\""
    ),
    # Null for all rows but one, for which it is false: nobody is reached.
    ON_CUSTOMER.format("actions: [read], rowFilterDsl: \"[email] <> 'ana'\""),
)


async def test_what_is_gained_and_lost_is_what_lists_show_before_and_after(
    warehouse: AsyncConnection[Any],
) -> None:
    sides = [definitions(permissions=f"permissions:\n  - {each}\n") for each in VARIANTS]
    shown = []
    for side in sides:
        await by_hand.set_grants(warehouse, side)
        shown.append(await listed(warehouse, "ana"))
    assert [len(rows) for rows in shown] == [8, 0, 6, 3, 0]
    for before, had in zip(sides, shown, strict=True):
        await by_hand.set_grants(warehouse, before)
        for after, has in zip(sides, shown, strict=True):
            found = told(await planned(warehouse, after)).get(("ana", "customer", "read"))
            expected = (len(had), len(has), len(has - had), len(had - has), 8)
            assert (numbers(found) if found else None) == (expected if before != after else None)


async def listed(conn: AsyncConnection[Any], name: str) -> set[str]:
    """Return the keys of the customers that a list shows *name*; none where it is refused."""
    state = await read_state(conn, schemas=Schemas())
    asking = Asking(
        principal=principal_named(name), state=state, schemas=Schemas(), now=datetime.now(UTC)
    )
    try:
        page = await list_rows(conn, asking=asking, entity="customer", request=ListRequest())
    except NotFound:
        return set()
    return {json.loads(row)["code"] for row in page.rows}
