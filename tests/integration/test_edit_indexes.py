"""The indexes of edit and history tables, and those of matching: they come and go with what needs them,
and older deployments get them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.model import Definitions
from mdm_gitops.model.values import canonical_json
from mdm_gitops.plan.changes import AddIndex
from mdm_gitops.plan.physical import reference_targets
from tests.support import warehouses as on
from tests.support.scenario import column, definitions, entity

pytestmark = pytest.mark.anyio
BATCHES = "item__edit__ix__sys_batch_name"
COLUMNS = (column("b", unique=True), column("c", reference={"entity": "item"}))
ALL = {"item__edit__ix_code", "item__edit__ix_b", "item__edit__ix_c", BATCHES}


def items(*columns: Any, name: str = "item", **fields: Any) -> Definitions:
    return definitions(entity(name, *columns, **{"approvalRequired": True, **fields}))


async def indexes(conn: AsyncConnection[Any], like: str = "%__edit%") -> set[str]:
    cursor = await conn.execute(
        "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
        " JOIN pg_class t ON t.oid = x.indrelid"
        " WHERE t.relname LIKE %s AND NOT x.indisprimary AND x.indisvalid",
        [like],
    )
    return {name for (name,) in await cursor.fetchall()}


async def propose(conn: AsyncConnection[Any], code: str) -> None:
    await conn.execute(
        "INSERT INTO mdm_data.item__edit (_sys_id, code, _sys_operation, _sys_state,"
        " _sys_submitted_at, _sys_submitted_by)"
        " VALUES (gen_random_uuid(), %s, 'create', 'pending', now(), 'x')",
        [code],
    )


async def test_they_are_there_from_the_start_and_follow_columns(conn: Any) -> None:
    await on.apply(conn, items(*COLUMNS))
    assert await indexes(conn) == ALL
    assert (await on.plan(conn, items(*COLUMNS))).is_empty
    renamed = (column("bb", unique=True, renamedFrom="b"), COLUMNS[1])
    await on.apply(conn, items(*renamed))
    assert await indexes(conn) == ALL - {"item__edit__ix_b"} | {"item__edit__ix_bb"}
    await on.apply(conn, items(renamed[0]))
    assert await indexes(conn) == {"item__edit__ix_code", "item__edit__ix_bb", BATCHES}
    await on.apply(conn, items(column("bb")))
    assert await indexes(conn) == {"item__edit__ix_code", BATCHES}
    assert (await on.plan(conn, items(column("bb")))).is_empty


async def test_they_follow_the_entity(conn: Any) -> None:
    await on.apply(conn, items())
    await on.apply(conn, items(name="thing", renamedFrom="item"))
    assert await indexes(conn) == {
        "thing__edit__ix_code",
        "thing__edit__ix__sys_batch_name",
    }


@pytest.mark.parametrize("with_rows", [False, True])
async def test_they_go_with_approval_and_come_back(conn: Any, with_rows: bool) -> None:
    await on.apply(conn, items(*COLUMNS))
    off = items(*COLUMNS, approvalRequired=False)
    if with_rows:
        await propose(conn, "a")
    await on.apply(conn, off)
    assert await indexes(conn, "%__archive%") == set()
    assert (await on.plan(conn, off)).is_empty
    plan = await on.plan(conn, items(*COLUMNS))
    built = [one.change for one in plan.changes if isinstance(one.change, AddIndex)]
    assert {(change.index.name, change.online) for change in built} == {
        (name, with_rows) for name in ALL
    }
    assert plan.drift == ()
    await on.apply(conn, items(*COLUMNS))
    assert await indexes(conn) == ALL
    assert (await on.plan(conn, items(*COLUMNS))).is_empty


async def test_a_removed_entity_keeps_them_for_its_return(conn: Any) -> None:
    await on.apply(conn, items(*COLUMNS))
    await on.apply(conn, definitions())
    assert len(await indexes(conn, "item__archive%_e")) == len(ALL)
    await on.apply(conn, items(*COLUMNS))
    assert await indexes(conn) == ALL
    assert (await on.plan(conn, items(*COLUMNS))).is_empty


async def test_an_entity_that_was_deployed_before_gets_them_online(conn: Any) -> None:
    """As an earlier version left it: no indexes, and a hash that knew nothing of them."""
    await on.apply(conn, items(*COLUMNS))
    await propose(conn, "a")
    for name in ALL:
        await conn.execute(f"DROP INDEX mdm_data.{name}")
    await conn.execute("SELECT mdm.remember_relation(ARRAY['mdm_data'], ARRAY['item__edit'])")
    await conn.execute(
        "UPDATE mdm.entity SET desired_hash = 'before',"
        " record = jsonb_set(record, '{desiredHash}', '\"before\"')"
    )
    plan = await on.plan(conn, items(*COLUMNS))
    assert plan.drift == ()
    assert {one.change.index.name for one in plan.changes} == ALL  # type: ignore[attr-defined]
    assert all(one.change.online for one in plan.changes)  # type: ignore[attr-defined]
    await on.apply(conn, items(*COLUMNS))
    assert await indexes(conn) == ALL
    assert (await on.plan(conn, items(*COLUMNS))).is_empty


async def test_one_that_was_dropped_by_hand_is_drift_and_is_built_again(conn: Any) -> None:
    await on.apply(conn, items())
    await conn.execute(f"DROP INDEX mdm_data.{BATCHES}")
    plan = await on.plan(conn, items())
    assert [item.object for item in plan.drift] == [f"index {BATCHES}"]
    await on.apply(conn, items())
    assert BATCHES in await indexes(conn)


# --- versions -------------------------------------------------------------------------------------

HISTORY = {"approvalRequired": False, "historyEnabled": True}
VERSIONS = {"item__history__ix_code", "item__history__ix_b", "item__history__ix_c"}


async def keep_version(conn: AsyncConnection[Any]) -> None:
    await conn.execute(
        "INSERT INTO mdm_data.item__history (_sys_id, code, _sys_version, _sys_created_at,"
        " _sys_created_by, _sys_last_modified_at, _sys_last_modified_by, _sys_is_deleted,"
        " _sys_valid_from, _sys_valid_to, _sys_action)"
        " VALUES (gen_random_uuid(), 'a', 1, now(), 'x', now(), 'x', false, now(), now(), 'x')"
    )


async def test_versions_have_them_as_long_as_there_is_a_history(conn: Any) -> None:
    wanted, off = items(*COLUMNS, **HISTORY), items(*COLUMNS, approvalRequired=False)
    await on.apply(conn, wanted)
    assert await indexes(conn, "%__history") == VERSIONS
    assert (await on.plan(conn, wanted)).is_empty
    await keep_version(conn)
    await on.apply(conn, off)
    assert await indexes(conn, "%__archive%") == set()
    assert (await on.plan(conn, off)).is_empty
    await on.apply(conn, wanted)
    assert await indexes(conn, "%__history") == VERSIONS
    assert (await on.plan(conn, wanted)).is_empty


async def test_versions_that_were_deployed_before_get_them_online(conn: Any) -> None:
    wanted = items(*COLUMNS, **HISTORY)
    await on.apply(conn, wanted)
    await keep_version(conn)
    for name in VERSIONS:
        await conn.execute(f"DROP INDEX mdm_data.{name}")
    await conn.execute("SELECT mdm.remember_relation(ARRAY['mdm_data'], ARRAY['item__history'])")
    [stored] = await (await conn.execute("SELECT desired_hash FROM mdm.entity")).fetchone()
    before = sha256_of_before(wanted)
    assert stored != before
    await conn.execute(
        "UPDATE mdm.entity SET desired_hash = %(hash)s,"
        " record = jsonb_set(record, '{desiredHash}', to_jsonb(%(hash)s::text))",
        {"hash": before},
    )
    plan = await on.plan(conn, wanted)
    assert plan.drift == ()
    assert {one.change.index.name for one in plan.changes} == VERSIONS  # type: ignore[attr-defined]
    assert all(one.change.online for one in plan.changes)  # type: ignore[attr-defined]
    await on.apply(conn, wanted)
    assert await indexes(conn, "%__history") == VERSIONS
    assert (await on.plan(conn, wanted)).is_empty


def sha256_of_before(wanted: Definitions) -> str:
    """Return the hash that the version before gave: it knew nothing of indexes of a history."""
    [entity] = wanted.entities.values()
    targets = dict(reference_targets(entity, wanted))
    return hashlib.sha256(canonical_json([entity.content_hash(), targets]).encode()).hexdigest()


# --- keys for matching ----------------------------------------------------------------------------


async def test_rules_of_similarity_that_were_deployed_before_get_their_index_online(
    conn: Any,
) -> None:
    rules = {"similarity": {"columns": [{"name": "name"}]}}
    wanted = items(column("name"), approvalRequired=False, **rules)
    await on.apply(conn, wanted)
    await conn.execute(
        "INSERT INTO mdm_data.item (_sys_id, code, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by)"
        " VALUES (gen_random_uuid(), 'a', now(), 'x', now(), 'x')"
    )
    [name] = {name for name in await indexes(conn, "item") if "match" in name}
    await conn.execute(f"DROP INDEX mdm_data.{name}")
    await conn.execute("SELECT mdm.remember_relation(ARRAY['mdm_data'], ARRAY['item'])")
    [item] = wanted.entities.values()
    await conn.execute(
        "UPDATE mdm.entity SET desired_hash = %(hash)s,"
        " record = jsonb_set(record, '{desiredHash}', to_jsonb(%(hash)s::text))",
        {"hash": item.content_hash()},
    )
    plan = await on.plan(conn, wanted)
    assert plan.drift == ()
    assert [(one.change.index.name, one.change.online) for one in plan.changes] == [  # type: ignore[attr-defined]
        (name, True)
    ]
    await on.apply(conn, wanted)
    assert name in await indexes(conn, "item")
    assert (await on.plan(conn, wanted)).is_empty
