"""``plan --prove``: the plan is carried out on a copy of the structure, which then has to be right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest
from psycopg import AsyncConnection, sql

from mdm_gitops.errors import MdmError, PlanStale, WarehouseError
from mdm_gitops.model import Definitions
from mdm_gitops.plan.document import to_document
from mdm_gitops.plan.document_schema import plan_schema
from mdm_gitops.plan.markdown import render_markdown
from mdm_gitops.plan.plan import Plan
from mdm_gitops.plan.proof import Proof, ProofState
from mdm_gitops.plan.structural import structural_plan
from mdm_gitops.plan.text import render_text
from mdm_gitops.warehouse.apply import Progress, apply_plan
from mdm_gitops.warehouse.comparing import plan_between
from mdm_gitops.warehouse.lock import lock_key
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.proving import Place, prove, prove_between
from mdm_gitops.warehouse.scratch import scratch_databases, sweep
from tests.support import scenario
from tests.support.scenario import column, definitions, entity
from tests.support.warehouses import SCHEMAS, apply

pytestmark = pytest.mark.anyio
PROGRAM = Path(sys.executable).with_name("mdm-gitops")
Prove = Callable[..., Awaitable[Proof]]


async def _scratches(conn: AsyncConnection[Any]) -> list[str]:
    query = "SELECT datname FROM pg_database WHERE datname LIKE 'mdm\\_scratch%'"
    return [name for (name,) in await (await conn.execute(query)).fetchall()]


@pytest.fixture
async def proof_of(conn: AsyncConnection[Any], database_url: str) -> AsyncIterator[Prove]:
    """Plan definitions on the database of the test and prove the plan beside it."""

    async def run(wanted: Definitions, plan: Plan | None = None, **options: Any) -> Proof:
        target = options.get("target", ())
        made = plan or await make_plan(conn, wanted, schemas=SCHEMAS, target=target)
        place = Place(url=database_url, name="the server of the test")
        return await prove(made, wanted, live=conn, schemas=SCHEMAS, place=place, **options)

    yield run
    assert await _scratches(conn) == []


async def test_the_first_deployment(proof_of: Prove) -> None:
    proof = await proof_of(scenario.a())
    assert (proof.state, proof.problems) == (ProofState.PROVEN, ())
    assert proof.statements > proof.relations > 3


async def test_every_phase_with_rows_in_the_warehouse_and_back(
    conn: AsyncConnection[Any], proof_of: Prove
) -> None:
    await apply(conn, scenario.a())
    await scenario.fill(conn)
    there = await proof_of(scenario.b())
    assert (there.state, there.problems) == (ProofState.PROVEN, ())
    await apply(conn, scenario.b())
    back = await proof_of(scenario.a())
    assert (back.state, back.problems) == (ProofState.PROVEN, ())


async def test_without_a_database_between_two_revisions(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    for old, new in ((scenario.a(), scenario.b()), (scenario.b(), scenario.a())):
        plan = structural_plan(old, new)
        place = Place(url=database_url, name="x")
        proof = await prove_between(plan, old, new, schemas=SCHEMAS, place=place)
        assert (proof.state, proof.problems) == (ProofState.PROVEN, ())
    assert await _scratches(conn) == []


# --- what a proof finds: the negative controls ---


async def test_a_change_that_is_left_out_is_found(
    conn: AsyncConnection[Any], proof_of: Prove
) -> None:
    await apply(conn, definitions(entity("item", column("name"))))
    wanted = definitions(entity("item", column("name", maxLength=9), column("more")))
    plan = await make_plan(conn, wanted, schemas=SCHEMAS)
    kinds = {item.change.kind for item in plan.changes}
    for kind in kinds - {"change-definition", "change-properties"}:
        forgetful = replace(plan, changes=tuple(i for i in plan.changes if i.change.kind != kind))
        proof = await proof_of(wanted, forgetful)
        assert proof.state is ProofState.FAILED, kind
        assert proof.problems, kind


async def test_what_is_too_much_is_found(conn: AsyncConnection[Any], proof_of: Prove) -> None:
    less = definitions(entity("item", column("name")))
    more = definitions(entity("item", column("name", unique=True), column("more")))
    live = (await make_plan(conn, less, schemas=SCHEMAS)).live_fingerprint
    plan = replace(structural_plan(definitions(), more), live_fingerprint=live)
    proof = await proof_of(less, plan)
    assert proof.state is ProofState.FAILED
    assert any("is too much" in problem for problem in proof.problems), proof.problems


async def test_a_statement_that_postgresql_refuses_is_told(
    conn: AsyncConnection[Any], proof_of: Prove
) -> None:
    await apply(conn, definitions(entity("item", column("name"))))
    elsewhere = structural_plan(
        definitions(entity("item", column("gone"))), definitions(entity("item"))
    )
    live = (await make_plan(conn, definitions(entity("item")), schemas=SCHEMAS)).live_fingerprint
    proof = await proof_of(definitions(entity("item")), replace(elsewhere, live_fingerprint=live))
    assert proof.state is ProofState.FAILED
    assert "gone" in proof.problems[0]


async def test_blocked_and_empty_plans_are_not_carried_out(
    conn: AsyncConnection[Any], proof_of: Prove
) -> None:
    protected = definitions(entity("item", lifecycle={"preventRemove": True}))
    await apply(conn, protected)
    assert "empty" in (await proof_of(protected)).problems[0]
    blocked = await proof_of(definitions())
    assert blocked.state is ProofState.NOT_MADE
    assert "blocked" in blocked.problems[0]


async def test_a_warehouse_that_moved_makes_the_plan_stale(
    conn: AsyncConnection[Any], proof_of: Prove
) -> None:
    first, second = (definitions(entity("item", column(name))) for name in ("a", "b"))
    plan = await make_plan(conn, second, schemas=SCHEMAS)
    await apply(conn, first)
    with pytest.raises(PlanStale):
        await proof_of(second, plan)


# --- warehouses that are not as a textbook has them ---


async def test_a_warehouse_that_was_changed_by_hand(
    conn: AsyncConnection[Any], proof_of: Prove
) -> None:
    await apply(conn, scenario.a())
    for statement in (
        "ALTER TABLE mdm_data.customer ADD COLUMN of_somebody int",
        "CREATE INDEX of_somebody ON mdm_data.customer (of_somebody)",
        "CREATE TABLE mdm_data.not_ours (id int)",
        "CREATE FUNCTION mdm_data.nothing() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ):
        await conn.execute(statement.encode())
    proof = await proof_of(scenario.b())
    assert (proof.state, proof.problems) == (ProofState.PROVEN, ())


async def test_a_retype_that_was_interrupted(conn: AsyncConnection[Any], proof_of: Prove) -> None:
    old, new = (definitions(entity("item", column("n", kind))) for kind in ("int", "long"))
    await apply(conn, old)
    for number in range(3):
        await conn.execute(
            "INSERT INTO mdm_data.item (_sys_id, code, n, _sys_created_at, _sys_created_by,"
            " _sys_last_modified_at, _sys_last_modified_by)"
            " VALUES (mdm.uuid_v7(), %s, 1, now(), 'x', now(), 'x')",
            [str(number)],
        )

    def stop(progress: Progress) -> None:
        if progress.number == 2:
            raise MdmError("stopped by the test")

    with pytest.raises(MdmError):
        await apply_plan(
            conn, new, None, schemas=SCHEMAS, actor="user:test", approved=True, tell=stop
        )
    for wanted in (new, old):
        proof = await proof_of(wanted)
        assert (proof.state, proof.problems) == (ProofState.PROVEN, ())


async def test_a_part_of_the_entities(conn: AsyncConnection[Any], proof_of: Prove) -> None:
    one, two = entity("one"), entity("two")
    await apply(conn, definitions(one, two))
    wanted = definitions(entity("one", column("x")), entity("two", column("y")))
    proof = await proof_of(wanted, target=("one",))
    assert (proof.state, proof.relations) == (ProofState.PROVEN, 1)


# --- scratch databases ---


async def test_what_a_lost_machine_left_behind_is_dropped_and_what_is_in_use_is_not(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    query = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    left, used, other = (
        f"mdm_scratch_{oid}_{token * 12}_0"
        for oid, token in ((row[0], "a"), (row[0], "b"), (1, "a"))
    )
    for name in (left, used, other):
        await conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    async with await AsyncConnection.connect(database_url, autocommit=True) as user:
        await user.execute("SELECT pg_advisory_lock(%s)", [lock_key("scratch", "b" * 12)])
        assert await sweep(conn) == [left]
        async with scratch_databases(database_url) as make:
            await make()
            assert len(await _scratches(conn)) == 3
    # A session that was closed holds its lock until the server has noticed.
    await _until(conn, lambda found: found == [other], sweeping=True)
    await conn.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(other)))


async def test_an_error_inside_leaves_nothing(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with (
            scratch_databases(database_url) as make,
            await AsyncConnection.connect(await make()),
        ):
            raise ZeroDivisionError
    assert await _scratches(conn) == []


async def test_where_no_database_can_be_made_it_is_told_what_to_do(database_url: str) -> None:
    only_reading = f"{database_url}%20-c%20default_transaction_read_only%3Don"
    with pytest.raises(WarehouseError) as caught:
        async with scratch_databases(only_reading) as make:
            await make()
    assert "--prove-on embedded" in caught.value.hint


def _run(folder: Path, url: str, *arguments: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith("mdm_")}
    return subprocess.Popen(
        [str(PROGRAM), "plan", *arguments],
        cwd=folder,
        env={**kept, "Mdm__Database__Url": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _write(folder: Path, *entities: Any) -> None:
    for path, content in scenario.tree(*entities).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


async def test_a_killed_command_leaves_nothing(
    conn: AsyncConnection[Any], database_url: str, tmp_path: Path
) -> None:
    _write(tmp_path, *(entity(f"e{n}", column("x")) for n in range(60)))
    (tmp_path / "json.py").write_text("raise SystemExit('run from a folder of definitions')\n")
    process = _run(tmp_path, database_url, "--prove")
    await _until(conn, lambda found: bool(found))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    await _until(conn, lambda found: not found)


async def _until(
    conn: AsyncConnection[Any], holds: Callable[[list[str]], bool], *, sweeping: bool = False
) -> None:
    deadline = time.monotonic() + 60
    while not holds(await _scratches(conn)):
        assert time.monotonic() < deadline
        if sweeping:
            await sweep(conn)
        await asyncio.sleep(0.02)


# --- the command ---


def test_the_command_proves_beside_the_warehouse_and_without_one(
    empty_database_url: str, tmp_path: Path
) -> None:
    _write(tmp_path, entity("item", column("name")))
    shown = _run(tmp_path, empty_database_url, "--prove", "--json")
    out, err = shown.communicate(timeout=120)
    assert shown.returncode == 0, err
    assert json.loads(out)["proof"]["state"] == "proven"
    with psycopg.connect(empty_database_url) as conn:
        found = conn.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'mdm%'")
        assert found.fetchone() == (0,)
    for arguments in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "first"),
    ):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    _write(tmp_path, entity("item", column("name", maxLength=9), column("more")))
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    shown = _run(tmp_path, nowhere, "--against", "HEAD", "--prove")
    out, err = shown.communicate(timeout=120)
    assert shown.returncode == 0, err
    assert "Proof: carried out on an embedded PostgreSQL" in out
    assert not (tmp_path / ".mdm" / "scratch").exists()


@pytest.mark.parametrize(
    "arguments", [("--prove-on", "server"), ("--with-data",), ("--against", "x", "--target", "y")]
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], tmp_path: Path) -> None:
    shown = _run(tmp_path, "postgresql://nobody@127.0.0.1:1/none", *arguments)
    shown.communicate(timeout=60)
    assert shown.returncode == 64


def test_all_formats_tell_the_proof() -> None:
    plan = structural_plan(definitions(), definitions(entity("item")))
    good = Proof(state=ProofState.PROVEN, place="here", steps=1, statements=2, relations=3)
    bad = Proof(state=ProofState.FAILED, place="here", problems=("item: column x_y is missing",))
    assert "proof" not in to_document(plan)
    for proof, words in ((good, "a second plan is empty"), (bad, "does not lead where it should")):
        jsonschema.validate(to_document(plan, proof=proof), plan_schema())
        text = render_text(plan, colour=False, width=200, proof=proof)
        assert words in text
        assert words in render_markdown(plan, proof=proof)
        assert all(problem in text for problem in proof.problems)
        assert all(
            problem in to_document(plan, proof=proof)["proof"]["problems"]
            for problem in proof.problems
        )
    assert "x\\_y" in render_markdown(plan, proof=bad)


# --- between two revisions, with rows ---


async def test_rows_are_asked_between_two_revisions(conn: AsyncConnection[Any]) -> None:
    old = definitions(entity("item", column("name"), column("size", "int")))
    await apply(conn, old)
    for name in ("short", "rather long", "very long indeed"):
        await conn.execute(
            "INSERT INTO mdm_data.item (_sys_id, code, name, _sys_created_at, _sys_created_by,"
            " _sys_last_modified_at, _sys_last_modified_by)"
            " VALUES (mdm.uuid_v7(), %s, %s, now(), 'x', now(), 'x')",
            [name, name],
        )
    new = definitions(entity("item", column("name", maxLength=6), column("size", "int")))
    plan = await plan_between(conn, old, new, schemas=SCHEMAS)
    assert [result.violations for result in plan.failed_checks] == [2]
    assert (plan.is_blocked, plan.notes) == (True, ())
    assert structural_plan(old, new).checks == ()
    # From a revision that was never deployed: told, counted where that means something.
    elsewhere = definitions(
        entity("item", column("name"), column("color")), entity("other", column("x"))
    )
    tight = definitions(
        entity("item", column("name", maxLength=6), column("color", maxLength=2)),
        entity("other", column("x", maxLength=2)),
    )
    plan = await plan_between(conn, elsewhere, tight, schemas=SCHEMAS)
    assert [result.check.column for result in plan.failed_checks] == ["name"]
    assert "of 2 of 2 entities" in plan.notes[0]
    assert plan.notes[1].endswith("item.color, other.x")
