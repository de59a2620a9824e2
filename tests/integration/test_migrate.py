"""The config store moves forward in whole steps, once, however many programs try."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import WarehouseError, WarehouseLocked
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.lock import lock_key
from mdm_gitops.warehouse.migrate import Migration, bundled_migrations, migrate

pytestmark = pytest.mark.anyio

FIRST = Migration(
    version=1,
    name="first",
    text="CREATE SCHEMA {data}; CREATE TABLE {config}.a (t text DEFAULT '{x} 100%');",
)
SECOND = Migration(version=2, name="second", text="CREATE TABLE {config}.b (a int);")
BROKEN = Migration(version=3, name="broken", text="CREATE TABLE {config}.c (); SELECT 1 / 0;")

# Two of these at once: each says which migrations it ran itself.
MIGRATOR = """
import asyncio, sys
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.migrate import Migration, migrate

async def main():
    steps = [
        Migration(version=n, name=f"step", text=f"CREATE TABLE {{config}}.t{n} (); SELECT pg_sleep(0.02)")
        for n in range(1, 16)
    ]
    async with await connect(sys.argv[1], application_name="migrator") as conn:
        print("ready", flush=True)
        sys.stdin.readline()
        ran = await migrate(conn, config_schema="c", data_schema="d", migrations=steps)
        print(len(ran))

asyncio.run(main())
"""


async def _open(url: str) -> AsyncConnection[Any]:
    return await connect(url, application_name="test")


async def _run(
    conn: AsyncConnection[Any],
    *migrations: Migration,
    config_schema: str = "mdm",
    data_schema: str = "mdm_data",
) -> list[str]:
    return await migrate(
        conn, config_schema=config_schema, data_schema=data_schema, migrations=migrations
    )


async def _tables(conn: AsyncConnection[Any], schema: str = "mdm") -> list[str]:
    query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
    return sorted(name for (name,) in await (await conn.execute(query, [schema])).fetchall())


async def test_it_runs_what_is_missing_and_records_it(empty_database_url: str) -> None:
    async with await _open(empty_database_url) as conn:
        assert await _run(conn, FIRST) == ["0001_first"]
        assert await _run(conn, FIRST, SECOND) == ["0002_second"]
        assert await _run(conn, FIRST, SECOND) == []
        assert await _tables(conn) == ["a", "b", "migration"]
        cursor = await conn.execute("SELECT version, name, sha256 FROM mdm.migration ORDER BY 1")
        assert await cursor.fetchall() == [
            (1, "first", FIRST.sha256),
            (2, "second", SECOND.sha256),
        ]


async def test_only_the_two_placeholders_are_replaced(empty_database_url: str) -> None:
    async with await _open(empty_database_url) as conn:
        await _run(conn, FIRST, config_schema='we"ird', data_schema="d{config}")
        cursor = await conn.execute('INSERT INTO "we""ird".a DEFAULT VALUES RETURNING t')
        assert await cursor.fetchone() == ("{x} 100%",)
        cursor = await conn.execute("SELECT 'd{config}'::regnamespace::text")
        assert await cursor.fetchone() == ('"d{config}"',)


async def test_a_current_store_costs_one_query(conn: AsyncConnection[Any]) -> None:
    queries: list[object] = []
    execute = conn.execute

    async def counting(query: Any, *args: Any, **kwargs: Any) -> Any:
        queries.append(query)
        return await execute(query, *args, **kwargs)

    conn.execute = counting  # type: ignore[method-assign]
    assert await migrate(conn, config_schema="mdm", data_schema="mdm_data") == []
    assert len(queries) == 1


async def test_a_broken_migration_leaves_nothing_of_itself(empty_database_url: str) -> None:
    async with await _open(empty_database_url) as conn:
        with pytest.raises(WarehouseError, match="division by zero"):
            await _run(conn, FIRST, SECOND, BROKEN)
        assert await _tables(conn) == ["a", "b", "migration"]
        mended = replace(BROKEN, text="CREATE TABLE {config}.c ()")
        assert await _run(conn, FIRST, SECOND, mended) == ["0003_broken"]


@pytest.mark.parametrize(
    ("known", "message"),
    [
        pytest.param(
            [FIRST], "is at version 2, this program knows versions up to 1$", id="newer-store"
        ),
        pytest.param(
            [FIRST, replace(SECOND, text="CREATE TABLE {config}.b ()")],
            "was made by another 0002_second than this program holds$",
            id="changed-migration",
        ),
    ],
)
async def test_a_store_of_other_code_is_refused(
    empty_database_url: str, known: list[Migration], message: str
) -> None:
    async with await _open(empty_database_url) as conn:
        await _run(conn, FIRST, SECOND)
        with pytest.raises(WarehouseError, match=message) as caught:
            await _run(conn, *known)
        assert caught.value.kind_code == "WAREHOUSE_UNUSABLE"
        assert caught.value.hint
        assert await _tables(conn) == ["a", "b", "migration"]


async def test_two_programs_at_once_run_each_step_once(empty_database_url: str) -> None:
    async with await _open(empty_database_url) as conn:
        await conn.execute("CREATE SCHEMA c")
    counts = await asyncio.to_thread(_race, empty_database_url)
    assert sorted(counts) == [0, 0, 15]
    async with await _open(empty_database_url) as conn:
        assert len(await _tables(conn, "c")) == 16


def _race(url: str) -> list[int]:
    command = [sys.executable, "-c", MIGRATOR, url]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    return [int(racer.communicate("go\n")[0]) for racer in racers if _go(racer)]


def _go(racer: subprocess.Popen[str]) -> bool:
    assert racer.stdin is not None
    racer.stdin.write("go\n")
    racer.stdin.flush()
    return True


async def test_a_migrator_that_hangs_is_told_not_waited_for(empty_database_url: str) -> None:
    async with await _open(empty_database_url) as other, await _open(empty_database_url) as conn:
        key = lock_key("migrate", "mdm")
        await other.execute("SELECT pg_advisory_lock(%s)", [key])
        with pytest.raises(WarehouseLocked, match="another program is migrating schema mdm"):
            await migrate(
                conn,
                config_schema="mdm",
                data_schema="mdm_data",
                migrations=[FIRST],
                lock_timeout_s=0.2,
            )
        await other.execute("SELECT pg_advisory_unlock(%s)", [key])
        assert await _run(conn, FIRST) == ["0001_first"]


async def test_a_role_without_rights_gets_a_hint(
    make_database: Callable[..., str], empty_database_url: str
) -> None:
    async with await _open(empty_database_url) as conn:
        await conn.execute("CREATE SCHEMA mdm")
        await conn.execute("CREATE TABLE mdm.migration (version int, sha256 text)")
        await conn.execute("REVOKE ALL ON mdm.migration FROM CURRENT_USER")
        with pytest.raises(WarehouseError, match="permission denied") as caught:
            await _run(conn, FIRST)
        assert "GRANT CREATE ON DATABASE" in caught.value.hint


async def test_a_transaction_of_the_caller_is_refused(database_url: str) -> None:
    async with await AsyncConnection.connect(database_url) as conn:
        with pytest.raises(ValueError, match="autocommit"):
            await migrate(conn, config_schema="mdm", data_schema="mdm_data")


def test_the_bundled_migrations_are_numbered_without_gaps() -> None:
    versions = [migration.version for migration in bundled_migrations()]
    assert versions == list(range(1, len(versions) + 1))
    assert versions, "the config store has tables"
