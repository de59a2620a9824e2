"""What the statements of a seed file do to live rows: exact values, careful with persons' work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from psycopg import AsyncConnection, errors

from mdm_gitops.model import Seed, SeedMode
from mdm_gitops.plan.changes import ApplySeed, SeedCounts, UserColumn
from mdm_gitops.plan.physical import PhysicalColumn
from mdm_gitops.plan.seeds import SeedQuestion
from mdm_gitops.warehouse.ddl import statements
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.seed_counts import count_seed

pytestmark = pytest.mark.anyio

USER = """code text NOT NULL, name text, price numeric(10,2), parent text, born date,
    seen timestamptz, open boolean, extra jsonb, big bigint, ref uuid"""
SYSTEM = """_sys_version integer NOT NULL, _sys_created_at timestamptz NOT NULL,
    _sys_created_by text NOT NULL, _sys_last_modified_at timestamptz NOT NULL,
    _sys_last_modified_by text NOT NULL, _sys_is_deleted boolean NOT NULL,
    _sys_deleted_at timestamptz"""
TABLES = f"""
    CREATE TABLE mdm_data.item (_sys_id uuid PRIMARY KEY, {USER}, {SYSTEM});
    CREATE UNIQUE INDEX item__uq_code ON mdm_data.item (code);
    ALTER TABLE mdm_data.item ADD CONSTRAINT fk_parent FOREIGN KEY (parent)
        REFERENCES mdm_data.item (code) DEFERRABLE INITIALLY IMMEDIATE;
    CREATE TABLE mdm_data.item__history (
        _sys_id uuid, {USER}, {SYSTEM}, _sys_valid_from timestamptz NOT NULL,
        _sys_valid_to timestamptz NOT NULL, _sys_action text NOT NULL,
        PRIMARY KEY (_sys_id, _sys_version)
    );
    INSERT INTO mdm.entity (entity_id, name, state, desired_hash, prevent_remove, record)
    VALUES (1, 'item', 'deployed', '', false, '{{}}');
"""
TYPES = {
    "code": "text",
    "name": "text",
    "price": "numeric(10,2)",
    "parent": "text",
    "born": "date",
    "seen": "timestamp with time zone",
    "open": "boolean",
    "extra": "jsonb",
    "big": "bigint",
    "ref": "uuid",
}
PERSON = "UPDATE mdm_data.item SET _sys_version = _sys_version + 1, _sys_last_modified_by = 'ann'"


def seed(
    *rows: Mapping[str, Any],
    mode: SeedMode = SeedMode.UPSERT,
    history: bool = True,
    defaults: Mapping[str, Any] = {},
) -> ApplySeed:
    given = dict.fromkeys(name.lower() for row in rows for name in row)
    columns = (PhysicalColumn(name=n, type=TYPES[n], default=defaults.get(n)) for n in given)
    return ApplySeed(
        entity="item",
        seed=Seed.of("item", rows),
        mode=mode,
        table="item",
        history_table="item__history" if history else None,
        user_columns=tuple(
            UserColumn(name=name, shown=name.title(), is_moment=type_.startswith("timestamp"))
            for name, type_ in TYPES.items()
        ),
        key_columns=("code",),
        columns=tuple(columns),
        counts=SeedCounts(),
        group=1,
    )


async def apply(conn: AsyncConnection[Any], change: ApplySeed) -> None:
    async with conn.transaction():
        for statement in statements(change, schemas=Schemas()):
            await conn.execute(statement.sql)


async def rows(conn: AsyncConnection[Any], columns: str, table: str = "item") -> list[Any]:
    query = f"SELECT {columns} FROM mdm_data.{table} ORDER BY code, _sys_version"
    return await (await conn.execute(query)).fetchall()


@pytest.fixture
async def item(conn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    await conn.execute(TABLES)
    return conn


async def test_values_arrive_exactly(item: AsyncConnection[Any]) -> None:
    written = {
        "Code": "it's \\ :x %s {y}\n$$ \U0001f600",
        "price": Decimal("12345678.90"),
        "born": "2024-02-29",
        "seen": "2024-02-29T01:02:03.000004",
        "open": "TRUE",
        "extra": {"a": [1, Decimal("1.10"), None, True, "ü'"], "n": 12345678901234567890123},
        "big": "9223372036854775807",
        "ref": "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}",
    }
    await item.execute("SET timezone = 'Asia/Tokyo'")
    await apply(item, seed(written))
    await item.execute("SET timezone = 'UTC'")

    [row] = await rows(item, "code, price, born::text, seen, open, extra::text, big, ref::text")
    assert row == (
        written["Code"],
        Decimal("12345678.90"),
        "2024-02-29",
        datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
        True,
        '{"a": [1, 1.10, null, true, "ü\'"], "n": 12345678901234567890123}',
        9223372036854775807,
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    )
    [audit] = await rows(
        item,
        "_sys_version, _sys_created_by, _sys_last_modified_by, _sys_is_deleted,"
        " substring(_sys_id::text, 15, 1), _sys_created_at = _sys_last_modified_at",
    )
    assert audit == (1, "system:seed", "system:seed", False, "7", True)


async def test_the_same_file_again_writes_nothing(item: AsyncConnection[Any]) -> None:
    change = seed({"code": "a", "price": Decimal("1.5"), "extra": {"b": 1, "a": 2}}, {"code": "b"})
    await apply(item, change)
    before = await rows(item, "xmin::text, _sys_version")
    await apply(item, change)
    assert await rows(item, "xmin::text, _sys_version") == before
    assert await rows(item, "code", "item__history") == []


async def test_a_changed_row_gets_a_version_and_keeps_the_old_one(
    item: AsyncConnection[Any],
) -> None:
    await apply(item, seed({"code": "a", "name": "old", "price": 1}, {"code": "b", "name": "same"}))
    await item.execute("UPDATE mdm_data.item SET big = 5")  # a column that the file does not give
    await apply(item, seed({"code": "a", "name": "new", "price": 1}, {"code": "b", "name": "same"}))

    assert await rows(item, "code, name, big, _sys_version") == [
        ("a", "new", 5, 2),
        ("b", "same", 5, 1),
    ]
    kept = "code, name, price, big, _sys_version, _sys_action, _sys_valid_from < _sys_valid_to"
    assert await rows(item, kept, "item__history") == [
        ("a", "old", Decimal("1.00"), 5, 1, "data_updated", True)
    ]
    [(valid_to,)] = await rows(item, "_sys_valid_to", "item__history")
    assert (valid_to,) == (await rows(item, "_sys_last_modified_at"))[0]


async def test_no_moment_has_two_versions(item: AsyncConnection[Any]) -> None:
    """Also where the clock says that the row was written later than now, or a person has written it
    while this transaction was under way, and where a file is applied twice in one."""
    await apply(item, seed({"code": "a", "name": "1"}))
    await item.execute(
        "UPDATE mdm_data.item SET _sys_last_modified_at = clock_timestamp() + interval '1 hour'"
    )
    async with item.transaction():
        await apply(item, seed({"code": "a", "name": "2"}))
        await apply(item, seed({"code": "a", "name": "3"}))
    versions = await rows(item, "name, _sys_valid_from, _sys_valid_to", "item__history")
    [(present,)] = await rows(item, "_sys_last_modified_at")
    assert [name for name, _, _ in versions] == ["1", "2"]
    (_, one, two), (_, also_two, three) = versions
    assert one < two == also_two < three == present


async def events(conn: AsyncConnection[Any], *columns: str) -> list[Any]:
    query = f"""
        SELECT {", ".join(columns)} FROM mdm.change_set c JOIN mdm.event e ON e.change_set = c.key
          JOIN mdm.entity n USING (entity_id) ORDER BY c.seq, coalesce(e.new, e.old) ->> 'Code'"""
    return await (await conn.execute(query)).fetchall()


async def test_each_row_that_is_written_has_one_event(item: AsyncConnection[Any]) -> None:
    await apply(item, seed({"code": "a", "name": "old"}, {"code": "b", "name": "same"}))
    await apply(item, seed({"code": "a", "name": "new"}, {"code": "b", "name": "same"}))
    await item.execute("UPDATE mdm_data.item SET _sys_is_deleted = true WHERE code = 'b'")
    await apply(item, seed({"code": "a", "name": "new"}, {"code": "b", "name": "same"}))
    await apply(item, seed({"code": "a", "name": "new"}, {"code": "b", "name": "same"}))
    told = "n.name", "action", "version", "old ->> 'Name'", "new ->> 'Name'", "c.actor", "c.events"
    assert await events(item, *told) == [
        ("item", "data_created", 1, None, "old", "system:seed", 2),
        ("item", "data_created", 1, None, "same", "system:seed", 2),
        ("item", "data_updated", 2, "old", "new", "system:seed", 1),
        ("item", "data_restored", 2, "same", "same", "system:seed", 1),
    ]
    found = await item.execute(
        "SELECT change_set, array_agg(ordinal ORDER BY ordinal) FROM mdm.event GROUP BY 1 ORDER BY 1"
    )
    assert [ordinals for _, ordinals in await found.fetchall()] == [[0, 1], [0], [0]]


async def test_an_event_tells_the_row_as_the_definition_spells_it(
    item: AsyncConnection[Any],
) -> None:
    given = {"code": "a", "price": "1.50", "seen": "2024-02-29T01:02:03.5", "extra": {"n": 1}}
    await item.execute("SET timezone = 'Asia/Tokyo'")
    await apply(item, seed(given))
    [(new,)] = await events(item, "new::text")
    assert json.loads(new) == {
        **{name.title(): None for name in TYPES},
        "Code": "a",
        "Price": 1.5,
        "Seen": "2024-02-29T01:02:03.5Z",
        "Extra": {"n": 1},
    }
    assert '"Price":1.50' in new


async def test_what_persons_have_written_is_not_told_again(item: AsyncConnection[Any]) -> None:
    await apply(item, seed({"code": "a", "name": "1"}))
    await item.execute(f"{PERSON}, name = 'mine'")
    await apply(item, seed({"code": "a", "name": "2"}))
    assert await events(item, "action") == [("data_created",)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (SeedMode.CREATE, [("a", "mine", 2), ("b", "old", 1), ("c", "new", 1)]),
        (SeedMode.UPSERT, [("a", "mine", 2), ("b", "new", 2), ("c", "new", 1)]),
        (SeedMode.ENFORCE, [("a", "new", 3), ("b", "new", 2), ("c", "new", 1)]),
    ],
)
@pytest.mark.parametrize("history", [True, False])
async def test_the_mode_says_what_may_be_overwritten(
    item: AsyncConnection[Any], mode: SeedMode, expected: list[Any], history: bool
) -> None:
    old, new = [[{"code": c, "name": name} for c in "abc"] for name in ("old", "new")]
    await apply(item, seed(*old[:2]))
    await item.execute(f"{PERSON}, name = 'mine' WHERE code = 'a'")
    await apply(item, seed(*new, mode=mode, history=history))
    assert await rows(item, "code, name, _sys_version") == expected
    updated = {"create": 0, "upsert": 1, "enforce": 2}[mode.value] if history else 0
    assert len(await rows(item, "code", "item__history")) == updated


async def test_enforce_brings_a_deleted_row_back(item: AsyncConnection[Any]) -> None:
    await apply(item, seed({"code": "a"}))
    await item.execute(f"{PERSON}, _sys_is_deleted = true, _sys_deleted_at = now()")
    await apply(item, seed({"code": "a"}))
    assert await rows(item, "_sys_is_deleted") == [(True,)]
    await apply(item, seed({"code": "a"}, mode=SeedMode.ENFORCE))
    assert await rows(item, "_sys_is_deleted, _sys_deleted_at") == [(False, None)]
    assert await rows(item, "_sys_action", "item__history") == [("data_restored",)]


async def test_rows_may_refer_to_rows_that_come_later(item: AsyncConnection[Any]) -> None:
    await apply(item, seed({"code": "a", "parent": "b"}, {"code": "b", "parent": "a"}))
    assert await rows(item, "code, parent") == [("a", "b"), ("b", "a")]
    with pytest.raises(errors.ForeignKeyViolation):
        await apply(item, seed({"code": "c", "parent": "nobody"}))
    assert len(await rows(item, "code")) == 2


async def test_a_row_that_lacks_a_column_gets_its_default(item: AsyncConnection[Any]) -> None:
    given = [{"code": "a", "name": "x", "big": 1}, {"code": "b", "name": None}, {"code": "c"}]
    await apply(item, seed(*given, defaults={"name": "nameless"}))
    assert await rows(item, "code, name, big") == [
        ("a", "x", 1),
        ("b", None, None),
        ("c", "nameless", None),
    ]


async def test_a_long_file_comes_in_pieces(item: AsyncConnection[Any]) -> None:
    many = [{"code": f"c{n:05}", "parent": f"c{(n + 1) % 12_001:05}"} for n in range(12_001)]
    change = seed(*many)
    titles = [each.title for each in statements(change, schemas=Schemas())]
    assert titles[1:4] == [
        "seed item, rows 1 to 5000 of 12001",
        "seed item, rows 5001 to 10000 of 12001",
        "seed item, rows 10001 to 12001 of 12001",
    ]
    await apply(item, change)
    assert len(await rows(item, "code")) == 12_001


@pytest.mark.parametrize("mode", list(SeedMode))
async def test_what_is_counted_before_is_what_happens(
    item: AsyncConnection[Any], mode: SeedMode
) -> None:
    """A file that the plan holds to differ must differ for the statements, or plans never end."""
    await item.execute("ALTER TABLE mdm_data.item ALTER COLUMN price TYPE numeric")
    exact = {"price": "1.0", "extra": {"n": Decimal("2.50")}, "seen": "2024-01-02"}
    await apply(item, seed(*({"code": code, **exact} for code in "abcd")))
    await item.execute(f"{PERSON}, name = 'mine', price = 3 WHERE code = 'a'")
    await item.execute(f"{PERSON}, _sys_is_deleted = true WHERE code = 'b'")
    same = {"price": "1.00", "extra": {"n": Decimal("2.5")}, "seen": "2024-01-02T01:00:00+01:00"}
    change = seed(
        *({"code": code, **same} for code in "abc"),
        {"code": "d", **same, "price": "9"},
        {"code": "e", **same},
        mode=mode,
    )
    question = SeedQuestion(
        change=change, live_table="item", present={name: name for name in TYPES}
    )
    before = await rows(item, "code, _sys_version")

    expected = await count_seed(item, question, schemas=Schemas())
    await apply(item, change)

    after = await rows(item, "code, _sys_version")
    assert len(after) - len(before) == expected.inserted == 1
    assert sum(1 for row in before if row not in after) == expected.updated
    assert (expected.updated, expected.left_alone, expected.unchanged) == {
        SeedMode.CREATE: (0, 3, 1),
        SeedMode.UPSERT: (1, 2, 1),
        SeedMode.ENFORCE: (3, 0, 1),
    }[mode]
    again = await count_seed(item, question, schemas=Schemas())
    assert (again.inserted, again.updated) == (0, 0)


async def test_the_file_is_noted_with_its_rows(item: AsyncConnection[Any]) -> None:
    for change in (seed({"code": "a"}), seed({"code": "b"})):
        await apply(item, change)
        noted = await item.execute("SELECT entity_id, content_hash FROM mdm.seed")
        assert await noted.fetchall() == [(1, change.seed.content_hash)]


async def test_an_empty_file_is_noted_too(item: AsyncConnection[Any]) -> None:
    await apply(item, seed())
    assert await rows(item, "code") == []
    noted = await item.execute("SELECT count(*) FROM mdm.seed")
    assert await noted.fetchone() == (1,)


async def test_hundreds_of_columns_are_compared(item: AsyncConnection[Any]) -> None:
    names = [f"c{n}" for n in range(500)]
    await item.execute(
        "ALTER TABLE mdm_data.item " + ", ".join(f"ADD COLUMN {name} text" for name in names)
    )
    TYPES.update(dict.fromkeys(names, "text"))
    try:
        change = seed({"code": "a", **dict.fromkeys(names, "x")}, history=False)
        await apply(item, change)
        await apply(item, seed({"code": "a", **dict.fromkeys(names, "y")}, history=False))
    finally:
        for name in names:
            del TYPES[name]
    assert await rows(item, "c0, c499, _sys_version") == [("y", "y", 2)]
