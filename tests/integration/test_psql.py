"""The printed script under the real ``psql``: nothing in a value or a name is read as a command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.model import ChangeClass, Seed, SeedMode, Webhook
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.changes import Change, SeedCounts
from mdm_gitops.plan.physical import Check, Index, PhysicalColumn, RuleKind
from mdm_gitops.plan.plan import Assessment, Plan, PlannedChange
from mdm_gitops.warehouse.embedded_binaries import find_binaries
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.psql import to_psql
from mdm_gitops.warehouse.script import build_script

pytestmark = pytest.mark.anyio

HOSTILE = "it's \\q :name :'name' $$ \\echo ; -- /* \n\\! touch {mark}\n\\gexec {{}} %s"
TABLE = """
    CREATE TABLE mdm_data.item (
        _sys_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), code text, size text,
        _sys_version integer, _sys_created_at timestamptz, _sys_created_by text,
        _sys_last_modified_at timestamptz, _sys_last_modified_by text,
        _sys_is_deleted boolean DEFAULT false, _sys_deleted_at timestamptz
    );
    CREATE UNIQUE INDEX item__uq_code ON mdm_data.item (code);
    INSERT INTO mdm_data.item (code, size) VALUES ('a', '1'), ('b', '2');
    INSERT INTO mdm.entity (entity_id, name, state, desired_hash, prevent_remove, record)
    VALUES (1, 'item', 'deployed', '', false, '{}');
"""


def printed(*changes: Change, project: str = "p") -> str:
    cost = Assessment(change_class=ChangeClass.SAFE)
    planned = tuple(
        PlannedChange(number=n, change=change, assessment=cost)
        for n, change in enumerate(changes, start=1)
    )
    plan = Plan(
        project=project,
        base_commit=None,
        desired_hash="",
        live_fingerprint="",
        changes=planned,
        plan_id="x",
    )
    return to_psql(build_script(plan, schemas=Schemas(), actor="user:ann"))


@pytest.fixture
async def item(conn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    await conn.execute(TABLE)
    return conn


@pytest.fixture
def psql(pg_major: int, database_url: str, tmp_path: Path) -> Any:
    program = find_binaries(major=pg_major).program("psql")

    def run(script: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "plan.sql"
        file.write_text(script)
        arguments = [program, "--no-psqlrc", "--quiet", "-f", file, database_url]
        return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=60)

    return run


async def _all(conn: AsyncConnection[Any], query: str) -> list[Any]:
    return await (await conn.execute(query)).fetchall()


async def test_hostile_values_arrive_as_they_are(
    item: AsyncConnection[Any], psql: Any, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    hostile = HOSTILE.format(mark=mark)
    seed = c.ApplySeed(
        entity="item",
        seed=Seed.of("item", ({"code": hostile},)),
        mode=SeedMode.UPSERT,
        table="item",
        history_table=None,
        user_columns=tuple(c.UserColumn(name=each, shown=each) for each in ("code", "size")),
        key_columns=("code",),
        columns=(PhysicalColumn(name="code", type="text"),),
        counts=SeedCounts(),
        group=1,
    )
    webhook = Webhook(name=hostile, url="https://example.org")
    allowed = Check(
        name="ck_size_allowed", column="size", rule=RuleKind.ALLOWED, argument=("1", "2", hostile)
    )
    pattern = Check(
        name="ck_code_pattern", column="code", rule=RuleKind.PATTERN, argument=r"[\s\S]*"
    )
    ran = psql(
        printed(
            seed,
            c.AddWebhook(webhook=webhook),
            c.AddCheck(table="item", check=allowed, column_type="text", online=True),
            c.AddCheck(table="item", check=pattern, column_type="text", online=True),
            project=hostile,
        )
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert not mark.exists()
    stored = await _all(item, "SELECT code FROM mdm_data.item WHERE _sys_version = 1")
    assert stored == [(hostile,)]
    assert await _all(item, "SELECT name FROM mdm.webhook") == [(hostile,)]
    await item.execute("UPDATE mdm_data.item SET size = %s", [hostile])
    deployed = await _all(item, "SELECT plan_id, actor, state FROM mdm.deployment")
    assert deployed == [("x", "user:ann", "succeeded")]


async def test_a_retype_runs_by_hand_too(item: AsyncConnection[Any], psql: Any) -> None:
    change = c.RetypeColumn(
        entity="item",
        column="size",
        source="size",
        archived_as="_arch_1_size",
        old_type="text",
        new=PhysicalColumn(name="size", type="timestamp with time zone"),
        main_table="item",
        tables=("item",),
        filling=c.Filling(
            entity="item",
            source="size",
            target="_new_size",
            taken_from=None,
            exists=False,
            tables=("item",),
        ),
    )
    index = Index(name="item__uq_size", columns=("size", "code"), unique=True)
    await item.execute("UPDATE mdm_data.item SET size = '2024-01-02T03:04:05'")
    ran = psql(printed(change, c.AddIndex(table="item", index=index, online=True)))

    assert (ran.returncode, ran.stderr) == (0, "")
    sizes = await _all(item, "SELECT size::text, _arch_1_size FROM mdm_data.item")
    assert sizes == [("2024-01-02 03:04:05+00", "2024-01-02T03:04:05")] * 2
    looks = await _all(
        item, "SELECT objects -> 'indexes' ? 'item__uq_size' FROM mdm.deployed_relation"
    )
    assert looks == [(True,)]


async def test_it_stops_at_the_first_error(item: AsyncConnection[Any], psql: Any) -> None:
    length = Check(name="ck_code_length", column="code", rule=RuleKind.LENGTH, argument=1)
    await item.execute("UPDATE mdm_data.item SET code = 'too long' WHERE code = 'a'")
    webhook = Webhook(name="w", url="https://example.org")
    ran = psql(
        printed(
            c.AddWebhook(webhook=webhook),
            c.AddCheck(table="item", check=length, column_type="text", online=True),
            c.SetRequired(table="item", column="size", online=True),
        )
    )
    assert ran.returncode == 3
    assert "is violated by some row" in ran.stderr
    assert await _all(item, "SELECT name FROM mdm.webhook") == [("w",)]  # the flip was before it
    assert await _all(item, "SELECT plan_id FROM mdm.deployment") == []
    required = "SELECT attnotnull FROM pg_attribute WHERE attname = 'size' AND attnum > 0"
    assert await _all(item, f"{required} AND attrelid = 'mdm_data.item'::regclass") == [(False,)]
