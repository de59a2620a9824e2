"""Removing one entity on a person's word, and destroying archives: the only call that destroys."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import Conflict, InputError, NotFound, PlanRefused, WarehouseLocked
from mdm_gitops.model import Definitions
from mdm_gitops.warehouse.apply import LOCK_PURPOSE, Patience
from mdm_gitops.warehouse.lifecycle import Dropped, drop_archives, plan_removal, remove_entity
from mdm_gitops.warehouse.lock import lock_key
from tests.support import warehouses as on
from tests.support.scenario import column, definitions, entity
from tests.support.warehouse_state import state

pytestmark = pytest.mark.anyio

COUNTRY = entity("country", column("name"))
CITY = entity("city", column("country", reference={"entity": "country"}), historyEnabled=True)
ITEM = entity("item", column("name"), column("old"), historyEnabled=True)
ALL = definitions(COUNTRY, CITY, ITEM)


async def removed(conn: AsyncConnection[Any], name: str, given: Definitions = ALL) -> None:
    await remove_entity(conn, given, entity=name, schemas=on.SCHEMAS, actor="user:ann")


async def dropped(conn: AsyncConnection[Any], name: str, **options: Any) -> Dropped:
    options = {"confirm": name, **options}
    return await drop_archives(conn, entity=name, schemas=on.SCHEMAS, actor="user:ann", **options)


async def tables(conn: AsyncConnection[Any]) -> set[str]:
    found = await conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'mdm_data'")
    return {name for (name,) in await found.fetchall()}


async def test_a_removed_entity_comes_back_with_its_rows(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, ALL)
    await on.fill(conn, ALL, chance=random.Random(1), count=4)
    before = await on.rows(conn, ALL)
    await removed(conn, "Item")
    assert "item" not in await tables(conn)
    await on.apply(conn, ALL)
    assert await on.rows(conn, ALL) == before


async def test_a_removal_touches_nothing_else(conn: AsyncConnection[Any]) -> None:
    """Definitions that have changed meanwhile, of this and of other entities, are not deployed."""
    await on.apply(conn, ALL)
    changed = definitions(
        entity("country", column("name"), column("new")), CITY, entity("item", column("name"))
    )
    plan = await plan_removal(conn, changed, entity="item", schemas=on.SCHEMAS)
    assert {item.change.entity for item in plan.changes} == {"item"}
    await removed(conn, "item", changed)
    assert "new" not in str((await on.catalog(conn))["mdm_data.country"])


@pytest.mark.parametrize("name", ["nothing", "item__history", ""])
async def test_what_is_not_deployed_cannot_be_removed(
    name: str, conn: AsyncConnection[Any]
) -> None:
    await on.apply(conn, ALL)
    with pytest.raises(NotFound):
        await removed(conn, name)


async def test_what_others_refer_to_cannot_be_removed(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, ALL)
    with pytest.raises(Conflict, match="city refers to it"):
        await removed(conn, "country")
    await removed(conn, "city")
    await removed(conn, "country")


async def test_what_refers_to_itself_can_be_removed(conn: AsyncConnection[Any]) -> None:
    tree = definitions(entity("tree", column("up", reference={"entity": "tree"})), COUNTRY)
    await on.apply(conn, tree)
    await removed(conn, "tree", tree)


async def test_a_protected_entity_cannot_be_removed(conn: AsyncConnection[Any]) -> None:
    kept = definitions(entity("item", lifecycle={"preventRemove": True}), COUNTRY)
    await on.apply(conn, kept)
    before = await state(conn)
    with pytest.raises(PlanRefused, match="preventRemove"):
        await removed(conn, "item", kept)
    assert await state(conn) == before


# --- dropping -------------------------------------------------------------------------------------


async def test_archived_columns_are_dropped_and_nothing_else(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, ALL)
    await on.fill(conn, ALL, chance=random.Random(2), count=4)
    smaller = definitions(COUNTRY, CITY, entity("item", column("name"), historyEnabled=True))
    await on.apply(conn, smaller)
    before = await on.rows(conn, smaller)
    found = await dropped(conn, "Item")
    assert found.tables == ()
    assert set(found.columns) == {"item._arch_1_old", "item__history._arch_1_old"}
    assert await on.rows(conn, smaller) == before
    plan = await on.plan(conn, smaller)
    assert (plan.changes, plan.drift) == ((), ())
    await on.apply(conn, ALL)
    gone = await conn.execute("SELECT count(old) FROM mdm_data.item")
    assert await gone.fetchone() == (0,), "what was dropped does not come back"
    assert (await on.plan(conn, ALL)).is_empty


async def test_archives_of_satellites_that_are_off_go_with_their_columns(
    conn: AsyncConnection[Any],
) -> None:
    """A table that is archived is dropped whole; its archived columns need no thought."""
    await on.apply(conn, ALL)
    off = definitions(COUNTRY, CITY, entity("item", column("name")))
    await on.apply(conn, off)
    found = await dropped(conn, "item")
    assert found.tables == ("item__archive_1_h",)
    assert (await on.plan(conn, off)).is_empty
    await on.apply(conn, ALL)
    assert (await on.plan(conn, ALL)).is_empty


async def test_a_removed_entity_is_dropped_with_all_its_namesakes(
    conn: AsyncConnection[Any],
) -> None:
    await on.apply(conn, ALL)
    await removed(conn, "item")
    left = await tables(conn)
    found = await dropped(conn, "item")
    assert set(found.tables) == {"item__archive_1", "item__archive_1_h"}
    assert await tables(conn) == left - set(found.tables)
    with pytest.raises(NotFound):
        await dropped(conn, "item")
    await on.apply(conn, ALL)
    assert (await on.plan(conn, ALL)).is_empty


async def test_an_archive_whose_main_table_was_dropped_by_hand(
    conn: AsyncConnection[Any],
) -> None:
    await on.apply(conn, ALL)
    await conn.execute("DROP TABLE mdm_data.item")
    await on.apply(conn, ALL)
    await dropped(conn, "item")
    assert await tables(conn) == {"country", "city", "city__history", "item", "item__history"}
    assert (await on.plan(conn, ALL)).is_empty


async def test_an_entity_without_archives_loses_nothing(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, ALL)
    before = await state(conn)
    assert await dropped(conn, "item") == Dropped(tables=(), columns=())
    assert await state(conn) == before


async def test_a_column_that_is_being_filled_is_not_dropped(conn: AsyncConnection[Any]) -> None:
    from mdm_gitops.plan.changes import Phase
    from mdm_gitops.warehouse.script import build_script

    await on.apply(conn, ALL)
    await on.fill(conn, ALL, chance=random.Random(4), count=2)
    await conn.execute("UPDATE mdm_data.item SET name = '7'")
    await conn.execute("UPDATE mdm_data.item__history SET name = '7'")
    retyped = definitions(
        COUNTRY, CITY, entity("item", column("name", "int"), column("old"), historyEnabled=True)
    )
    plan = await on.plan(conn, retyped)
    step = build_script(plan, schemas=on.SCHEMAS, actor="x").of(Phase.PREPARE)[0]
    async with conn.transaction():
        for statement in step.statements:
            await conn.execute(statement.sql.encode())
    assert await dropped(conn, "item") == Dropped(tables=(), columns=())
    await on.apply(conn, retyped)
    values = await conn.execute("SELECT DISTINCT name FROM mdm_data.item")
    assert await values.fetchall() == [(7,)]


@pytest.mark.parametrize("confirm", ["", "country", "item ", "ITEMS"])
async def test_dropping_must_be_confirmed_by_the_name(
    confirm: str, conn: AsyncConnection[Any]
) -> None:
    await on.apply(conn, ALL)
    await removed(conn, "item")
    with pytest.raises(InputError, match="must be confirmed") as refused:
        await dropped(conn, "item", confirm=confirm)
    assert refused.value.kind_code == "CONFIRMATION_REQUIRED"
    assert "item__archive_1" in await tables(conn)


async def test_dropping_is_in_the_history_of_deployments(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, ALL)
    await removed(conn, "item")
    await dropped(conn, "item")
    found = await conn.execute(
        "SELECT plan_id, actor, state, entities, summary FROM mdm.deployment"
        " ORDER BY deployment_id DESC LIMIT 1"
    )
    assert await found.fetchone() == (
        "drop-archives",
        "user:ann",
        "succeeded",
        ["item"],
        {"dropped": {"tables": ["item__archive_1", "item__archive_1_h"], "columns": []}},
    )


@pytest.mark.parametrize("what", ["lock", "reader"])
async def test_dropping_waits_for_nobody(
    what: str, conn: AsyncConnection[Any], database_url: str
) -> None:
    await on.apply(conn, ALL)
    await removed(conn, "item")
    with psycopg.connect(database_url) as other:
        if what == "lock":
            other.execute("SELECT pg_advisory_lock(%s)", [lock_key(LOCK_PURPOSE, "mdm")])
        else:
            other.execute("SELECT count(*) FROM mdm_data.item__archive_1_h")
        with pytest.raises(WarehouseLocked):
            await dropped(conn, "item", patience=Patience(table_lock_s=0.2))
    assert {"item__archive_1", "item__archive_1_h"} <= await tables(conn), "all or nothing"
    await dropped(conn, "item")


async def test_a_strangers_view_on_an_archive_keeps_it(conn: AsyncConnection[Any]) -> None:
    """Nothing that is not ours is taken down with ours."""
    await on.apply(conn, ALL)
    await conn.execute("CREATE VIEW public.theirs AS SELECT * FROM mdm_data.item")
    await removed(conn, "item")
    before = await state(conn)
    with pytest.raises(Conflict, match=r"view public\.theirs depends on table"):
        await dropped(conn, "item")
    assert await state(conn) == before
