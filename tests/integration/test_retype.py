"""A retype on live tables: filled online, no write missed, archived values exact, run twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from psycopg import AsyncConnection, errors

from mdm_gitops.model import ChangeClass, Definitions, Entity, Project
from mdm_gitops.plan.changes import AbandonFilling, Change, Filling, Phase, RetypeColumn
from mdm_gitops.plan.physical import PhysicalColumn
from mdm_gitops.plan.plan import Assessment, Plan, PlannedChange
from mdm_gitops.warehouse.ddl import Statement
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.script import ScriptStep, build_script
from tests.support import warehouses as on

pytestmark = pytest.mark.anyio

MAIN, HISTORY = "item", "item__history"
TABLES = """
    CREATE TABLE mdm_data.item (
        _sys_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name text, code text
    );
    CREATE TABLE mdm_data.item__history (
        _sys_id uuid, _sys_version integer, name text, code text,
        PRIMARY KEY (_sys_id, _sys_version)
    );
"""


def retype(old: str, new: str, **more: Any) -> RetypeColumn:
    taken = more.pop("taken_from", None)
    change = RetypeColumn(
        entity="item",
        column="code",
        source="code",
        archived_as="_arch_9_code",
        old_type=old,
        new=PhysicalColumn(name="code", type=new),
        main_table=MAIN,
        tables=(MAIN, HISTORY),
        filling=Filling(
            entity="item",
            source="code",
            target="_new_code",
            taken_from=taken,
            exists=False,
            tables=(MAIN, HISTORY),
        ),
    )
    return replace(change, restored_from=taken, **more)


def steps_of(*changes: Change) -> tuple[ScriptStep, ...]:
    cost = Assessment(change_class=ChangeClass.SAFE)
    planned = tuple(
        PlannedChange(number=n, change=change, assessment=cost)
        for n, change in enumerate(changes, start=1)
    )
    plan = Plan(
        project="p", base_commit=None, desired_hash="", live_fingerprint="", changes=planned
    )
    return build_script(plan, schemas=Schemas(), actor="test").steps


async def run(conn: AsyncConnection[Any], steps: Sequence[ScriptStep]) -> None:
    for step in steps:
        async with conn.transaction():
            for statement in step.statements:
                await conn.execute(statement.sql)


def prepare(change: RetypeColumn) -> list[ScriptStep]:
    return [step for step in steps_of(change) if step.phase is Phase.PREPARE]


def flip(change: RetypeColumn) -> list[ScriptStep]:
    return [step for step in steps_of(change) if step.phase is Phase.FLIP]


async def values(conn: AsyncConnection[Any], *columns: str, table: str = MAIN) -> list[Any]:
    query = f"SELECT {', '.join(columns)} FROM mdm_data.{table} ORDER BY name"
    return await (await conn.execute(query)).fetchall()


@pytest.fixture
async def item(conn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    await conn.execute(TABLES)
    return conn


async def test_all_tables_get_the_cast_values_and_keep_the_old_ones(
    item: AsyncConnection[Any],
) -> None:
    await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('a', '007'), ('b', NULL)")
    await item.execute(
        "INSERT INTO mdm_data.item__history VALUES (gen_random_uuid(), 1, 'a', '12'),"
        " (gen_random_uuid(), 1, 'b', '13')"
    )
    await run(item, steps_of(retype("text", "integer")))

    assert await values(item, "code", "_arch_9_code") == [(7, "007"), (None, None)]
    assert await values(item, "code", table=HISTORY) == [(12,), (13,)]
    left = await item.execute(
        "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
        " AND tgrelid IN ('mdm_data.item'::regclass, 'mdm_data.item__history'::regclass)"
        " UNION ALL SELECT conname FROM pg_constraint WHERE contype = 'c'"
        " AND connamespace = 'mdm_data'::regnamespace"
        " UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'mdm_data'::regnamespace"
    )
    assert await left.fetchall() == []


async def test_writes_while_it_is_filled_are_not_missed(item: AsyncConnection[Any]) -> None:
    await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('a', '1'), ('b', '2')")
    change = retype("text", "integer")
    steps = prepare(change)
    guards = next(n for n, step in enumerate(steps) if step.statements[0].batch)
    await run(item, steps[:guards])
    await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('c', '3')")
    await item.execute("UPDATE mdm_data.item SET code = '20' WHERE name = 'b'")
    with pytest.raises(errors.CheckViolation):  # a value that could not come along
        await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('d', 'x')")
    assert await values(item, "_new_code") == [(None,), (20,), (3,)]

    await run(item, steps[guards:])
    await item.execute("UPDATE mdm_data.item SET code = '10' WHERE name = 'a'")
    await run(item, flip(change))
    assert await values(item, "code") == [(10,), (20,), (3,)]


async def test_a_value_that_cannot_be_cast_stops_it_before_anything_is_seen(
    item: AsyncConnection[Any],
) -> None:
    await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('a', '1'), ('b', 'x')")
    with pytest.raises(errors.CheckViolation):
        await run(item, prepare(retype("text", "integer")))
    assert await values(item, "code", "_new_code") == [("1", 1), ("x", None)]


async def test_each_step_may_run_again(item: AsyncConnection[Any]) -> None:
    """After a crash the next plan says that the column exists, and does the rest again."""
    await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('a', '1'), ('b', '2')")
    change = retype("text", "integer")
    assert change.filling is not None
    again = replace(change, filling=replace(change.filling, exists=True))
    for stop in range(1, len(prepare(change))):
        await run(item, prepare(change)[:stop])
        await run(item, prepare(again))
        assert await values(item, "_new_code") == [(1,), (2,)]
        await item.execute("DROP TABLE mdm_data.item, mdm_data.item__history")
        await item.execute(TABLES)
        await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('a', '1'), ('b', '2')")
    await run(item, prepare(change))
    await run(item, steps_of(again))
    assert await values(item, "code") == [(1,), (2,)]


async def test_archived_values_come_back_exactly_where_nobody_edited(
    item: AsyncConnection[Any],
) -> None:
    for table in (MAIN, HISTORY):
        await item.execute(f"ALTER TABLE mdm_data.{table} RENAME code TO _arch_1_code")
        await item.execute(f"ALTER TABLE mdm_data.{table} ADD COLUMN code integer")
    await item.execute(
        "INSERT INTO mdm_data.item (name, _arch_1_code, code) VALUES"
        " ('a', '007', 7), ('b', '08', 80), ('c', NULL, 3), ('d', '09', NULL), ('e', 'x', NULL)"
    )
    change = retype("integer", "text", taken_from="_arch_1_code", chain=("text", "integer"))
    steps = prepare(change)
    await run(item, steps[:-4])
    await item.execute("UPDATE mdm_data.item SET name = name, code = code")  # writes nothing new
    await run(item, steps[-4:])
    await item.execute("UPDATE mdm_data.item SET code = 30 WHERE name = 'c'")
    await run(item, flip(change))

    assert await values(item, "code") == [("007",), ("80",), ("30",), (None,), (None,)]


async def test_a_longer_chain_is_followed(item: AsyncConnection[Any]) -> None:
    for table in (MAIN, HISTORY):
        await item.execute(f"ALTER TABLE mdm_data.{table} RENAME code TO _arch_1_code")
        await item.execute(f"ALTER TABLE mdm_data.{table} ADD COLUMN code text")
    await item.execute(
        "INSERT INTO mdm_data.item (name, _arch_1_code, code) VALUES"
        " ('a', ' 1', NULL), ('b', '2024-01-02', '2024-01-02T00:00:00Z'), ('c', '2024-01-03', 'x')"
    )
    chain = ("text", "date", "timestamp with time zone", "text")
    change = retype("text", "text", taken_from="_arch_1_code", chain=chain)
    await run(item, steps_of(change))
    assert await values(item, "code") == [(None,), ("2024-01-02",), ("x",)]


async def test_values_of_a_removed_column_stand_where_none_are_now(
    item: AsyncConnection[Any],
) -> None:
    for table in (MAIN, HISTORY):
        await item.execute(f"ALTER TABLE mdm_data.{table} ADD COLUMN _arch_1_code integer")
    await item.execute(
        "INSERT INTO mdm_data.item (name, _arch_1_code, code) VALUES"
        " ('a', 1, NULL), ('b', 2, '20'), ('c', 3, '30')"
    )
    change = retype("text", "integer", taken_from="_arch_1_code", keep_archived_where_null=True)
    steps = prepare(change)
    await run(item, steps)
    await item.execute("UPDATE mdm_data.item SET code = NULL WHERE name = 'c'")
    await run(item, steps[1:])  # again, as after a crash: what a person emptied stays empty
    await run(item, flip(change))
    assert await values(item, "code") == [(1,), (20,), (None,)]


async def test_batches_reach_every_row_once(item: AsyncConnection[Any]) -> None:
    await item.execute(
        "INSERT INTO mdm_data.item__history SELECT gen_random_uuid(), v, v::text, n::text"
        " FROM generate_series(1, 100) n, generate_series(1, 3) v"
    )
    steps = prepare(retype("text", "integer"))
    fills = [statement for step in steps for statement in step.statements if statement.batch]
    await run(item, [step for step in steps if not step.statements[0].batch][:-2])

    written = await _in_batches(item, fills[1], rows=70)
    again = await _in_batches(item, fills[1], rows=70)

    assert sum(written) == 300
    assert len(written) == 5 and max(written) <= 72  # versions of one row stay together
    assert sum(again) == 0
    assert await _in_batches(item, fills[0], rows=70) == [0]


async def _in_batches(conn: AsyncConnection[Any], statement: Statement, *, rows: int) -> list[int]:
    batch, after, written = statement.batch, None, []
    assert batch is not None
    while True:
        found = await (await conn.execute(batch.next_bound_sql(after, rows))).fetchone()
        bound = found[0] if found else None
        written.append((await conn.execute(batch.update_sql(after, bound))).rowcount)
        if bound is None:
            return written
        after = bound


async def test_a_filling_that_is_given_up_becomes_an_archive(item: AsyncConnection[Any]) -> None:
    """And another one may begin under its name in the same run."""
    await item.execute("INSERT INTO mdm_data.item (name, code) VALUES ('a', '1')")
    await run(item, prepare(retype("text", "integer")))
    abandon = AbandonFilling(
        entity="item",
        column="code",
        target="_new_code",
        archived_as="_arch_3_code",
        tables=(MAIN, HISTORY),
        source="code",
    )
    await run(item, steps_of(retype("text", "numeric(5,2)"), abandon))
    [(code, archived, given_up)] = await values(item, "code", "_arch_9_code", "_arch_3_code")
    assert (str(code), archived, given_up) == ("1.00", "1", 1)


async def test_without_rows_the_columns_just_change_places(item: AsyncConnection[Any]) -> None:
    new = PhysicalColumn(name="code", type="integer", not_null=True, default=5)
    change = replace(retype("text", "integer"), filling=None, new=new, had_not_null=True)
    await item.execute("ALTER TABLE mdm_data.item ALTER COLUMN code SET NOT NULL")
    assert [step.phase for step in steps_of(change)] == [Phase.FLIP]
    await run(item, steps_of(change))
    await item.execute("INSERT INTO mdm_data.item (name) VALUES ('a')")
    assert await values(item, "code", "_arch_9_code") == [(5, None)]


# --- with real plans ------------------------------------------------------------------------------


def definitions(data_type: str, *, history: bool = True) -> Definitions:
    document = {
        "name": "item",
        "domain": "sales",
        "historyEnabled": history,
        "columns": [
            {"name": "name", "dataType": "string"},
            {"name": "code", "dataType": data_type},
        ],
    }
    project = {"name": "p", "apiVersion": "mdm-gitops/v1", "domains": [{"name": "sales"}]}
    return Definitions(
        project=Project.model_validate(project),
        entities=MappingProxyType({"item": Entity.model_validate(document)}),
    )


async def begin(conn: AsyncConnection[Any], wanted: Definitions, *, steps: int | None) -> None:
    """Run the prepare phase of the plan for *wanted*, or only its first *steps*, and no more."""
    plan = await on.plan(conn, wanted)
    script = build_script(plan, schemas=Schemas(), actor="test")
    await run(conn, script.of(Phase.PREPARE)[:steps])


async def deployed(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, definitions("string"))
    await conn.execute(
        "INSERT INTO mdm_data.item (_sys_id, name, code, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by)"
        " SELECT mdm.uuid_v7(), n, '0' || n, now(), 'ann', now(), 'ann'"
        " FROM unnest(ARRAY['1', '2']) n"
    )


async def settled(conn: AsyncConnection[Any], wanted: Definitions) -> None:
    await on.apply(conn, wanted)
    after = await on.plan(conn, wanted)
    assert (after.changes, after.drift) == ((), ())
    left = await conn.execute(
        "SELECT conname FROM pg_constraint WHERE contype = 'c'"
        " AND connamespace = 'mdm_data'::regnamespace"
        " UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'mdm_data'::regnamespace"
        " UNION ALL SELECT attname FROM pg_attribute WHERE attname LIKE '\\_new\\_%'"
    )
    assert await left.fetchall() == []
    recorded = await conn.execute("SELECT record FROM mdm.entity")
    [(document,)] = await recorded.fetchall()
    physical = [column["physical"] for column in document["columns"]]
    live = await conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'mdm_data.item'::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_sys\\_%'"
    )
    assert sorted(physical) == sorted([name for (name,) in await live.fetchall()])


@pytest.mark.parametrize("steps", range(1, 8))
async def test_a_filling_that_was_interrupted_goes_on(
    conn: AsyncConnection[Any], steps: int
) -> None:
    await deployed(conn)
    await begin(conn, definitions("int"), steps=steps)
    await settled(conn, definitions("int"))
    assert await values(conn, "code") == [(1,), (2,)]


@pytest.mark.parametrize("steps", range(1, 8))
async def test_a_filling_that_is_withdrawn_leaves_nothing_in_the_way(
    conn: AsyncConnection[Any], steps: int
) -> None:
    await deployed(conn)
    await begin(conn, definitions("int"), steps=steps)
    await settled(conn, definitions("string"))
    await conn.execute("UPDATE mdm_data.item SET code = 'not a number' WHERE name = '1'")
    assert await values(conn, "code") == [("not a number",), ("02",)]


@pytest.mark.parametrize("more", range(9))
@pytest.mark.parametrize("steps", [1, 3, 7])
async def test_another_type_may_be_wanted_in_between(
    conn: AsyncConnection[Any], steps: int, more: int
) -> None:
    await deployed(conn)
    await begin(conn, definitions("int"), steps=steps)
    await begin(conn, definitions("decimal"), steps=more)
    await settled(conn, definitions("decimal"))
    assert [str(code) for (code,) in await values(conn, "code")] == ["1", "2"]


@pytest.mark.parametrize("steps", range(1, 8))
async def test_the_way_back_may_be_interrupted_too(conn: AsyncConnection[Any], steps: int) -> None:
    await deployed(conn)
    await on.apply(conn, definitions("int"))
    await begin(conn, definitions("string"), steps=steps)
    await conn.execute("UPDATE mdm_data.item SET code = 20 WHERE name = '2'")
    await settled(conn, definitions("string"))
    assert await values(conn, "code") == [("01",), ("20",)]
