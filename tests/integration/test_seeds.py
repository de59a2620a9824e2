"""Seed files through plan and apply: modes, persons' work, order, history, what blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import MdmError, PartlyApplied, PlanRefused
from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import ApplySeed, SeedCounts
from tests.support import warehouses as on
from tests.support.scenario import Documents, column, definitions, entity

pytestmark = pytest.mark.anyio


def country(mode: str, rows: Sequence[Documents], **fields: Any) -> Definitions:
    wanted = entity("country", column("name"), column("note"), seed={"mode": mode}, **fields)
    return definitions(wanted, seeds={"country": list(rows)})


def row(code: str, name: str) -> Documents:
    return {"code": code, "name": name}


FIRST = [row("CH", "Switzerland"), row("DE", "Germany")]
SECOND = [row("CH", "Schweiz"), row("DE", "Deutschland"), row("FR", "France")]


async def rows(conn: AsyncConnection[Any], *columns: str) -> list[Any]:
    names = ", ".join(columns or ("code", "name"))
    query = f"SELECT {names} FROM mdm_data.country ORDER BY code"
    return await (await conn.execute(query.encode())).fetchall()


async def counts(conn: AsyncConnection[Any], wanted: Definitions) -> SeedCounts | None:
    """Return what the plan says of the seed, None where it is not in the plan."""
    plan = await on.plan(conn, wanted)
    found = [item.change for item in plan.changes if isinstance(item.change, ApplySeed)]
    return found[0].counts if found else None


async def edit(conn: AsyncConnection[Any], code: str, name: str) -> None:
    """Do what a person does through the product."""
    await conn.execute(
        "UPDATE mdm_data.country SET name = %s, _sys_version = _sys_version + 1,"
        " _sys_last_modified_by = 'user:ann', _sys_last_modified_at = now() WHERE code = %s",
        [name, code],
    )


MODES = {
    # mode: (first apply, then after a person edited CH and the file became SECOND)
    "create": (
        SeedCounts(inserted=1, left_alone=2, left_alone_keys=("CH", "DE")),
        [("CH", "Mine"), ("DE", "Germany"), ("FR", "France")],
    ),
    "upsert": (
        SeedCounts(inserted=1, updated=1, left_alone=1, left_alone_keys=("CH",)),
        [("CH", "Mine"), ("DE", "Deutschland"), ("FR", "France")],
    ),
    "enforce": (
        SeedCounts(inserted=1, updated=2),
        [("CH", "Schweiz"), ("DE", "Deutschland"), ("FR", "France")],
    ),
}


@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_says_what_happens_to_persons_work(
    mode: str, conn: AsyncConnection[Any]
) -> None:
    await on.apply(conn, country(mode, FIRST))
    assert await rows(conn) == [("CH", "Switzerland"), ("DE", "Germany")]
    assert (await on.plan(conn, country(mode, FIRST))).is_empty
    await edit(conn, "CH", "Mine")
    expected, after = MODES[mode]
    assert await counts(conn, country(mode, SECOND)) == expected
    await on.apply(conn, country(mode, SECOND))
    assert await rows(conn) == after
    assert (await on.plan(conn, country(mode, SECOND))).is_empty


async def test_only_enforce_looks_again_at_a_file_that_did_not_change(
    conn: AsyncConnection[Any],
) -> None:
    for mode, changed in (("create", False), ("upsert", False), ("enforce", True)):
        await on.apply(conn, country(mode, FIRST))
        await edit(conn, "CH", "Mine")
        assert ((await counts(conn, country(mode, FIRST))) is not None) is changed
        await on.apply(conn, country(mode, FIRST))
    assert await rows(conn) == [("CH", "Switzerland"), ("DE", "Germany")]


async def test_rows_that_the_file_does_not_name_stay(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("enforce", SECOND))
    await on.apply(conn, country("enforce", FIRST[:1]))
    assert [code for (code,) in await rows(conn, "code")] == ["CH", "DE", "FR"]


async def test_columns_that_the_file_does_not_name_stay(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("upsert", FIRST))
    await conn.execute("UPDATE mdm_data.country SET note = 'kept'")
    await on.apply(conn, country("upsert", SECOND))
    assert await rows(conn, "note") == [("kept",), ("kept",), (None,)]


async def test_a_change_is_a_version_with_its_history(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("upsert", FIRST, historyEnabled=True))
    await on.apply(conn, country("upsert", SECOND, historyEnabled=True))
    written = await rows(conn, "code", "_sys_version", "_sys_last_modified_by")
    assert written == [
        ("CH", 2, "system:seed"),
        ("DE", 2, "system:seed"),
        ("FR", 1, "system:seed"),
    ]
    history = await conn.execute(
        "SELECT code, name, _sys_version FROM mdm_data.country__history ORDER BY code"
    )
    assert await history.fetchall() == [("CH", "Switzerland", 1), ("DE", "Germany", 1)]


async def test_the_merge_is_the_approval(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("upsert", FIRST, approvalRequired=True))
    assert len(await rows(conn)) == 2
    pending = await conn.execute("SELECT count(*) FROM mdm_data.country__edit")
    assert await pending.fetchone() == (0,)


async def test_a_file_comes_with_the_column_it_needs(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, definitions(entity("country", column("size"))))
    await on.apply(conn, country("upsert", FIRST))
    wider = entity("country", column("name"), column("note"), column("size", "int"))
    seeded = definitions(wider, seeds={"country": [{"code": "CH", "size": 7}]})
    assert await counts(conn, seeded) == SeedCounts(updated=1)
    await on.apply(conn, seeded)
    assert await rows(conn, "code", "name", "size") == [
        ("CH", "Switzerland", 7),
        ("DE", "Germany", None),
    ]


async def test_entities_are_seeded_after_those_they_refer_to(conn: AsyncConnection[Any]) -> None:
    """Also in a circle, and also to rows that stand later in the same file."""
    a = entity("a", column("b", reference={"entity": "b"}))
    b = entity("b", column("a", reference={"entity": "a"}), column("up", reference={"entity": "b"}))
    c = entity("c", column("b", reference={"entity": "b"}))
    wanted = definitions(
        a,
        b,
        c,
        seeds={
            "a": [{"code": "a1", "b": "b1"}],
            "b": [{"code": "b1", "a": "a1", "up": "b2"}, {"code": "b2", "a": "a1"}],
            "c": [{"code": "c1", "b": "b2"}],
        },
    )
    await on.apply(conn, wanted)
    found = await conn.execute("SELECT count(*) FROM mdm_data.c JOIN mdm_data.b ON b.code = c.b")
    assert await found.fetchone() == (1,)


async def test_a_reference_to_what_only_the_seed_brings(conn: AsyncConnection[Any]) -> None:
    """Rows stand, a foreign key comes, its targets come in the same commit."""
    item = entity("item", column("country"))
    await on.apply(conn, definitions(item))
    await conn.execute(
        "INSERT INTO mdm_data.item (_sys_id, code, country, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by)"
        " VALUES (mdm.uuid_v7(), 'i1', 'CH', now(), 'a', now(), 'a')"
    )
    linked = entity("item", column("country", reference={"entity": "country"}))
    without = definitions(linked, entity("country"), seeds={"country": [{"code": "DE"}]})
    with pytest.raises(PlanRefused, match=r"country refers? to nothing|refer to nothing"):
        await on.apply(conn, without)
    await on.apply(
        conn, definitions(linked, entity("country"), seeds={"country": [{"code": "CH"}]})
    )


async def test_a_seed_that_breaks_against_live_rows_is_partly_applied_and_goes_on(
    conn: AsyncConnection[Any],
) -> None:
    """Only the database knows the person's row that takes a unique value of the file."""
    unique = entity("country", column("name", unique=True), column("note"))
    await on.apply(conn, definitions(unique, seeds={"country": FIRST[:1]}))
    await conn.execute(
        "INSERT INTO mdm_data.country (_sys_id, code, name, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by)"
        " VALUES (mdm.uuid_v7(), 'XX', 'Germany', now(), 'user:ann', now(), 'user:ann')"
    )
    wanted = definitions(
        entity("country", column("name", unique=True), column("note"), column("more")),
        seeds={"country": FIRST},
    )
    with pytest.raises(MdmError) as refused:
        await on.apply(conn, wanted)
    assert isinstance(refused.value, PartlyApplied)
    assert "seed country" in str(refused.value)
    assert await rows(conn, "code") == [("CH",), ("XX",)]
    await conn.execute("UPDATE mdm_data.country SET name = 'Other' WHERE code = 'XX'")
    await on.apply(conn, wanted)
    assert await rows(conn, "code") == [("CH",), ("DE",), ("XX",)]
    assert (await on.plan(conn, wanted)).is_empty


async def test_a_soft_deleted_row_of_the_file_comes_back(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("upsert", FIRST))
    await conn.execute(
        "UPDATE mdm_data.country SET _sys_is_deleted = true, _sys_deleted_at = now()"
        " WHERE code = 'CH'"
    )
    await on.apply(conn, country("upsert", SECOND))
    assert await rows(conn, "code", "_sys_is_deleted") == [
        ("CH", False),
        ("DE", False),
        ("FR", False),
    ]


async def test_a_seed_that_is_gone_deletes_nothing(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("upsert", FIRST))
    without = definitions(
        entity("country", column("name"), column("note"), seed={"mode": "upsert"})
    )
    assert (await on.plan(conn, without)).is_empty
    assert len(await rows(conn)) == 2


async def test_large_files_go_in_pieces(conn: AsyncConnection[Any]) -> None:
    many = [row(f"c{n}", f"Name {n}") for n in range(12_001)]
    await on.apply(conn, country("upsert", many))
    await on.apply(conn, country("upsert", [*many[1:], row("c0", "Changed")]))
    found = await conn.execute("SELECT count(*), max(_sys_version) FROM mdm_data.country")
    assert await found.fetchone() == (12_001, 2)
    changed = await conn.execute("SELECT count(*) FROM mdm_data.country WHERE _sys_version = 2")
    assert await changed.fetchone() == (1,)


async def test_another_mode_alone_moves_no_row(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, country("upsert", FIRST))
    await edit(conn, "CH", "Mine")
    await on.apply(conn, country("create", FIRST))
    assert (await rows(conn))[0] == ("CH", "Mine")
