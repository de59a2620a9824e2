"""Apply beside others: stale plans, two appliers, locked tables, rows that come in between.

What is refused changes nothing; what was done in part says so, and the next run goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import (
    MdmError,
    PartlyApplied,
    PlanRefused,
    PlanStale,
    WarehouseError,
    WarehouseLocked,
)
from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import Phase
from mdm_gitops.warehouse.apply import LOCK_PURPOSE, Applied, Patience, Progress, apply_plan
from mdm_gitops.warehouse.lock import alone
from mdm_gitops.warehouse.planning import make_plan
from tests.conftest import DatabaseMaker, Prepare
from tests.support import warehouses as on
from tests.support.scenario import column, definitions, entity
from tests.support.warehouse_state import state

pytestmark = pytest.mark.anyio

PATIENT = Patience(batch_rows=2)  # also with a vacuum that holds a table for a moment
QUICK = Patience(table_lock_s=0.3, lock_retries=1, batch_rows=2)
COUNTRY = entity("country")


def item(*columns: Any, **fields: Any) -> Definitions:
    return definitions(entity("item", *columns, **fields), COUNTRY)


BEFORE = item(column("name"), column("size"), column("country"))
ADDED = item(column("name"), column("size"), column("country"), column("more"))
REQUIRED = item(column("name", nullable=False), column("size"), column("country"))
UNIQUE = item(column("name", unique=True), column("size"), column("country"))
CHECKED = item(column("name", maxLength=3), column("size"), column("country"))
LINKED = item(column("name"), column("size"), column("country", reference={"entity": "country"}))
RETYPED = item(column("name"), column("size", "int"), column("country"))

_INSERT = """
INSERT INTO mdm_data.item (_sys_id, code, name, size, country, _sys_created_at, _sys_created_by,
    _sys_last_modified_at, _sys_last_modified_by)
SELECT mdm.uuid_v7(), %s, %s, %s, %s, now(), 'a', now(), 'a'
"""
_COUNTRY = """
INSERT INTO mdm_data.country (_sys_id, code, _sys_created_at, _sys_created_by,
    _sys_last_modified_at, _sys_last_modified_by)
VALUES (mdm.uuid_v7(), 'CH', now(), 'a', now(), 'a')
"""


async def _prepare(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, BEFORE)
    await conn.execute(_COUNTRY)
    for n in range(5):
        await conn.execute(_INSERT, [f"i{n}", f"n{n}", str(n), "CH"])


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(_prepare)


@pytest.fixture
def warehouse(conn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    return conn


async def apply(conn: AsyncConnection[Any], wanted: Definitions, **options: Any) -> Applied:
    options = {"plan": None, "patience": PATIENT, **options}
    plan = options.pop("plan")
    return await apply_plan(
        conn, wanted, plan, schemas=on.SCHEMAS, actor="user:test", approved=True, **options
    )


async def last_run(conn: AsyncConnection[Any]) -> Any:
    query = "SELECT state, error ->> 'code' FROM mdm.deployment ORDER BY deployment_id DESC LIMIT 1"
    return await (await conn.execute(query)).fetchone()


# --- stale plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by_hand", "moved"),
    [
        ("ALTER TABLE mdm_data.item ADD mine int", "the warehouse has changed"),
        ("DROP INDEX mdm_data.item__uq_code", "the warehouse has changed"),
        ("INSERT INTO mdm.permission VALUES ('x', 'lab', '', '{read}', '')", "the warehouse"),
        ("UPDATE mdm.counter SET value = value + 1", "the warehouse has changed"),
    ],
)
async def test_a_plan_is_stale_when_the_warehouse_moved(
    by_hand: str, moved: str, warehouse: AsyncConnection[Any]
) -> None:
    plan = await on.plan(warehouse, ADDED)
    await warehouse.execute(by_hand)
    before = await state(warehouse)
    with pytest.raises(PlanStale, match=moved):
        await apply(warehouse, ADDED, plan=plan)
    assert await state(warehouse) == before


async def test_a_plan_is_stale_when_the_definitions_moved(
    warehouse: AsyncConnection[Any],
) -> None:
    plan = await on.plan(warehouse, ADDED)
    with pytest.raises(PlanStale, match="the definitions have changed"):
        await apply(warehouse, REQUIRED, plan=plan)


async def test_a_plan_is_stale_when_what_its_seed_does_has_moved(
    make_database: DatabaseMaker,
) -> None:
    wanted = definitions(COUNTRY, seeds={"country": [{"code": "CH"}, {"code": "DE"}]})
    async with on.opened(make_database()) as conn:
        await on.apply(conn, definitions(COUNTRY))
        plan = await on.plan(conn, wanted)
        await conn.execute(_COUNTRY)
        with pytest.raises(PlanStale, match="the rows that it counted have changed"):
            await apply(conn, wanted, plan=plan)


async def test_a_plan_is_applied_once(warehouse: AsyncConnection[Any]) -> None:
    plan = await on.plan(warehouse, ADDED)
    applied = await apply(warehouse, ADDED, plan=plan)
    assert applied.steps and applied.plan.plan_id == plan.plan_id
    with pytest.raises(PlanStale):
        await apply(warehouse, ADDED, plan=plan)


async def test_other_rows_do_not_make_a_plan_stale(warehouse: AsyncConnection[Any]) -> None:
    plan = await on.plan(warehouse, ADDED)
    await warehouse.execute(_INSERT, ["i9", "n9", "9", "CH"])
    assert (await apply(warehouse, ADDED, plan=plan)).steps


# --- two appliers ---------------------------------------------------------------------------------


@asynccontextmanager
async def applying(url: str) -> Any:
    """Be another program that is applying."""
    async with (
        on.opened(url) as other,
        alone(other, purpose=LOCK_PURPOSE, schema="mdm", timeout_s=0, doing="applying a plan to"),
    ):
        yield


async def test_the_second_applier_is_told(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    before = await state(warehouse)
    async with applying(database_url):
        with pytest.raises(WarehouseLocked, match="another program is applying") as locked:
            await apply(warehouse, ADDED)
    assert locked.value.kind.exit_code == 5
    assert await state(warehouse) == before


async def test_the_second_applier_may_wait(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    async with applying(database_url):
        waiting = asyncio.create_task(
            apply(warehouse, ADDED, patience=Patience(writer_lock_s=10))
        )  # fmt: skip
        await asyncio.sleep(0.3)
        assert not waiting.done()
    assert (await waiting).steps


async def test_of_two_appliers_at_once_one_does_it(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    async with on.opened(database_url) as other:
        patience = Patience(writer_lock_s=10)
        both = [apply(conn, ADDED, patience=patience) for conn in (warehouse, other)]
        done = await asyncio.gather(*both)
    assert sorted(applied.steps > 0 for applied in done) == [False, True]
    assert (await on.plan(warehouse, ADDED)).is_empty


async def test_an_approved_plan_that_waited_too_long_is_stale(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    plan = await on.plan(warehouse, ADDED)
    async with on.opened(database_url) as other:
        await apply(other, ADDED)
    with pytest.raises(PlanStale):
        await apply(warehouse, ADDED, plan=plan)


# --- locked tables --------------------------------------------------------------------------------


@asynccontextmanager
async def reading(url: str, table: str = "item") -> Any:
    """Hold the weakest lock there is, as a long report does."""
    async with on.opened(url) as other, other.transaction():
        await other.execute(f"SELECT count(*) FROM mdm_data.{table}")
        yield


async def test_a_table_that_stays_locked_changes_nothing(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    before = await state(warehouse)
    async with reading(database_url):
        with pytest.raises(WarehouseLocked, match="stayed locked through 2 attempts") as locked:
            await apply(warehouse, ADDED, patience=QUICK)
    assert "pg_stat_activity" in locked.value.hint
    assert await state(warehouse) == before
    assert await last_run(warehouse) == ("failed", "WAREHOUSE_LOCKED")
    assert (await apply(warehouse, ADDED)).steps
    assert await last_run(warehouse) == ("succeeded", None)


async def test_a_table_that_is_free_again_is_changed_by_a_retry(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    patience = Patience(table_lock_s=0.2, lock_retries=100)
    async with reading(database_url):
        waiting = asyncio.create_task(apply(warehouse, ADDED, patience=patience))
        await asyncio.sleep(0.5)
        assert not waiting.done()
    assert (await waiting).steps


async def test_readers_wait_no_longer_than_the_lock_timeout(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    """A waiting ALTER makes readers queue behind it, but not until the report has ended."""
    waits: list[float] = []
    patience = Patience(table_lock_s=0.6, lock_retries=1, batch_rows=2)

    async def readers() -> None:
        async with on.opened(database_url) as other:
            while True:
                begun = time.monotonic()
                await other.execute("SELECT count(*) FROM mdm_data.item")
                waits.append(time.monotonic() - begun)
                await asyncio.sleep(0.005)

    async with reading(database_url):
        probe = asyncio.create_task(readers())
        with pytest.raises(WarehouseLocked):
            await apply(warehouse, ADDED, patience=patience)
        probe.cancel()
    # Each attempt was felt by another read: the pause between them let readers through.
    assert sum(wait > 0.1 for wait in waits) >= 2, waits
    assert max(waits) < 10, max(waits)


async def test_a_lock_after_the_flip_is_told_as_partly_applied(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    with psycopg.connect(database_url) as other:

        def lock(progress: Progress) -> None:
            if progress.phase is Phase.ENFORCE:
                other.execute("LOCK TABLE mdm_data.item IN ACCESS SHARE MODE")

        with pytest.raises(PartlyApplied, match="stayed locked") as partly:
            await apply(warehouse, REQUIRED, tell=lock, patience=QUICK)
        other.rollback()
    assert partly.value.kind.exit_code == 6
    assert partly.value.details["steps_done"] < partly.value.details["steps_total"]
    assert await last_run(warehouse) == ("failed", "PARTLY_APPLIED")
    await apply(warehouse, REQUIRED)
    assert (await on.plan(warehouse, REQUIRED)).is_empty


# --- rows that come in between --------------------------------------------------------------------


def at(phase: Phase, action: Callable[[], object]) -> Callable[[Progress], None]:
    """Return a listener that does *action* once, when *phase* begins."""
    left = [action]

    def tell(progress: Progress) -> None:
        if progress.phase is phase and left:
            left.pop()()

    return tell


CORRECTED = "UPDATE mdm_data.item SET name = 'ok', size = '1', country = 'CH' WHERE code = 'bad'"


@pytest.mark.parametrize(
    ("wanted", "row", "reason"),
    [
        (REQUIRED, [None, "1", "CH"], "ck_name_required"),
        (CHECKED, ["too long", "1", "CH"], "ck_name_length"),
        (UNIQUE, ["n1", "1", "CH"], "item__uq_name"),
        (LINKED, ["x", "1", "XX"], "fk_country"),
    ],
    ids=["required", "checked", "unique", "linked"],
)
async def test_a_row_that_comes_before_the_flip_and_breaks_the_new_rule(
    wanted: Definitions,
    row: list[Any],
    reason: str,
    warehouse: AsyncConnection[Any],
    database_url: str,
) -> None:
    """The flip goes in, the proof fails; the row stays and is named; when it is corrected, the next
    run goes on."""
    with psycopg.connect(database_url, autocommit=True) as other:
        tell = at(Phase.FLIP, lambda: other.execute(_INSERT, ["bad", *row]))
        with pytest.raises(PartlyApplied, match=reason):
            await apply(warehouse, wanted, tell=tell)
        with pytest.raises(MdmError) as again:
            await apply(warehouse, wanted)
        assert isinstance(again.value, PlanRefused), "the row is counted now"
        other.execute(CORRECTED)
    await apply(warehouse, wanted)
    after = await on.plan(warehouse, wanted)
    assert (after.changes, after.drift) == ((), ())
    assert await on.catalog(warehouse) == await _fresh_catalog(wanted, warehouse)


async def _fresh_catalog(wanted: Definitions, conn: AsyncConnection[Any]) -> dict[str, Any]:
    """Return the catalog with *wanted* deployed at once: here, after everything was thrown away."""
    await conn.execute("DROP SCHEMA mdm, mdm_data CASCADE")
    from mdm_gitops.warehouse.migrate import migrate

    await migrate(conn, config_schema="mdm", data_schema="mdm_data")
    await on.apply(conn, wanted)
    return await on.catalog(conn)


async def test_a_value_that_comes_before_the_filling_and_cannot_be_cast(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        row = ["bad", "x", "seven", "CH"]
        tell = at(Phase.PREPARE, lambda: other.execute(_INSERT, row))
        with pytest.raises(PlanStale, match="is cast failed"):
            await apply(warehouse, RETYPED, tell=tell)
        with pytest.raises(PlanRefused, match=r"do(es)? not fit the new type"):
            await apply(warehouse, RETYPED)
        other.execute(CORRECTED)
    await apply(warehouse, RETYPED)
    found = await warehouse.execute("SELECT size FROM mdm_data.item ORDER BY code")
    assert await found.fetchall() == [(1,), (0,), (1,), (2,), (3,), (4,)]


async def test_writers_go_on_while_a_column_is_filled(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        numbers = iter(range(100, 200))

        def write(progress: Progress) -> None:
            if progress.phase is Phase.PREPARE:
                n = next(numbers)
                other.execute(_INSERT, [f"w{n}", f"w{n}", str(n), "CH"])
                other.execute("UPDATE mdm_data.item SET size = '77' WHERE code = 'i0'")

        await apply(warehouse, RETYPED, tell=write)
        used = next(numbers) - 100
    query = "SELECT code, size FROM mdm_data.item WHERE code LIKE 'w%' OR code = 'i0' ORDER BY 1"
    found = await (await warehouse.execute(query)).fetchall()
    assert found == [("i0", 77), *((f"w{n}", n) for n in range(100, 100 + used))]
    assert used > 3


# --- the server has the last word -----------------------------------------------------------------


async def test_a_plan_that_takes_too_long_is_told_so(warehouse: AsyncConnection[Any]) -> None:
    with pytest.raises(WarehouseError, match="took longer than a statement may") as slow:
        await make_plan(warehouse, ADDED, schemas=on.SCHEMAS, statement_timeout_s=0.001)
    assert slow.value.kind_code == "QUERY_TIMEOUT"


async def test_a_role_without_rights_is_told_so(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    """The owner takes the rights from itself: the same words as for a role that never had them."""
    await warehouse.execute("REVOKE ALL ON mdm.entity FROM CURRENT_USER")
    with pytest.raises(WarehouseError, match="permission denied for table entity"):
        await apply(warehouse, ADDED)


async def test_a_lost_session_is_told_so(
    warehouse: AsyncConnection[Any], database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        end = "SELECT pg_terminate_backend(%s)"
        tell = at(Phase.FLIP, lambda: other.execute(end, [warehouse.info.backend_pid]))
        with pytest.raises(WarehouseError, match="connection to the warehouse was lost") as lost:
            await apply(warehouse, ADDED, tell=tell)
    assert lost.value.kind.exit_code == 1
    async with on.opened(database_url) as fresh:
        assert (await apply(fresh, ADDED)).steps
        states = await fresh.execute("SELECT state FROM mdm.deployment ORDER BY deployment_id")
        assert [s for (s,) in await states.fetchall()] == ["succeeded", "interrupted", "succeeded"]
