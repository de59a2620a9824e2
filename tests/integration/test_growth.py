"""What may grow with the number of entities, in counts: seconds are told by ``make bench``.

Each test does the same in a small and in a larger store and compares what was sent to PostgreSQL
and what came back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection, AsyncCursor, sql

from mdm_gitops.model import Definitions
from mdm_gitops.plan.structural import structural_plan
from mdm_gitops.settings import load_settings
from mdm_gitops.warehouse.script import build_script
from mdm_operator import Reconciler
from mdm_operator.state import Outcome
from tests.conftest import DatabaseMaker
from tests.support import warehouses as on
from tests.support.many import files_of_many, many
from tests.support.meter import Cost, cost_of

pytestmark = pytest.mark.anyio

FEW, MORE = 10, 120
CHANGED = {
    "e5": {
        "columns": [
            {"name": "code", "dataType": "string", "nullable": False, "maxLength": 20},
            {"name": "note", "dataType": "string", "pattern": "[;'%]*", "default": "';%'"},
            {"name": "up", "dataType": "string", "reference": {"entity": "e2"}},
            {"name": "more", "dataType": "int"},
        ]
    }
}


@dataclass
class Traffic:
    """The statements that went to PostgreSQL, each with the number of rows that came back."""

    statements: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def rows_of(self, words: str) -> list[int]:
        pairs = zip(self.statements, self.rows, strict=True)
        return [count for statement, count in pairs if words in statement]


@asynccontextmanager
async def _counted(conn: AsyncConnection[Any]) -> AsyncIterator[Traffic]:
    """Write down what is sent over *conn*, but for BEGIN and COMMIT."""
    traffic = Traffic()

    class Counting(AsyncCursor[Any]):
        async def execute(self, query: Any, *arguments: Any, **options: Any) -> Counting:
            await super().execute(query, *arguments, **options)
            text = query.as_string(conn) if isinstance(query, sql.Composable) else query
            traffic.statements.append(text if isinstance(text, str) else text.decode())
            traffic.rows.append(self.rowcount)
            return self

    before, conn.cursor_factory = conn.cursor_factory, Counting
    try:
        yield traffic
    finally:
        conn.cursor_factory = before


@asynccontextmanager
async def _store(make_database: DatabaseMaker, deployed: Definitions) -> AsyncIterator[Any]:
    async with on.opened(make_database()) as conn:
        await on.apply(conn, deployed)
        yield conn


async def _plan_traffic(
    make_database: DatabaseMaker, count: int, wanted: Definitions, *, changes: int
) -> Traffic:
    async with _store(make_database, many(count)) as conn, _counted(conn) as traffic:
        plan = await on.plan(conn, wanted)
    assert len(plan.changes) == changes
    return traffic


async def test_a_plan_without_changes_asks_the_same_few_questions(
    make_database: DatabaseMaker,
) -> None:
    few = await _plan_traffic(make_database, FEW, many(FEW), changes=0)
    more = await _plan_traffic(make_database, MORE, many(MORE), changes=0)
    assert more.statements == few.statements
    assert len(more.statements) + len(("BEGIN", "COMMIT")) <= 12
    # The one answer that grows: how each relation looks.
    assert sorted(set(more.rows) - set(few.rows)) == [2 * MORE]


async def test_a_plan_of_one_change_reads_that_entity_and_what_it_refers_to(
    make_database: DatabaseMaker,
) -> None:
    few = await _plan_traffic(make_database, FEW, many(FEW, **CHANGED), changes=2)
    more = await _plan_traffic(make_database, MORE, many(MORE, **CHANGED), changes=2)
    assert more.statements == few.statements
    assert len(more.statements) + len(("BEGIN", "COMMIT")) <= 15
    # e5 and its history, e2 that it refers to.
    assert few.rows_of("live_relation(") == more.rows_of("live_relation(") == [3]


async def test_the_definitions_of_unchanged_entities_are_not_read_back(
    make_database: DatabaseMaker,
) -> None:
    spoilt = (
        "UPDATE mdm.entity SET record = jsonb_set(record, '{definition}', '0') WHERE name <> 'e5'"
    )
    async with _store(make_database, many(FEW)) as conn:
        await conn.execute(spoilt)
        plan = await on.plan(conn, many(FEW, **CHANGED))
    assert {item.change.entity for item in plan.changes} == {"e5"}


async def test_an_apply_of_one_change_does_the_same_in_a_larger_store(
    make_database: DatabaseMaker,
) -> None:
    found = []
    for count in (FEW, MORE):
        async with _store(make_database, many(count)) as conn, _counted(conn) as traffic:
            applied = await on.apply(conn, many(count, **CHANGED))
        assert applied.steps == 1
        found.append(len(traffic.statements))
    assert found[0] == found[1]


async def test_new_entities_need_a_bounded_number_of_messages(
    make_database: DatabaseMaker,
) -> None:
    async with on.opened(make_database()) as conn, _counted(conn) as traffic:
        await on.apply(conn, many(MORE))
    plan = structural_plan(many(0), many(MORE))
    script = build_script(plan, schemas=on.SCHEMAS, actor="user:test")
    statements = sum(len(step.statements) for step in script.steps)
    assert statements > 3 * 200
    assert len(traffic.statements) < 200 + 30


async def _unchanged(url: str, root: Path, count: int) -> tuple[Cost, Cost]:
    """Return what a look costs when nothing has changed, and when a file has."""
    for path, text in files_of_many(count).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text)
    reconciler = Reconciler(root, url=url, settings=load_settings(root), approve_first=True)
    try:
        deployed = await reconciler.step()
        assert deployed is not None and deployed.outcome is Outcome.APPLIED
        assert reconciler.connection is not None
        same = await cost_of(reconciler.connection, reconciler.step)
        with (root / "mdm.yaml").open("a") as file:
            file.write("\n# changed\n")
        return same, await cost_of(reconciler.connection, reconciler.step, warm_ups=0)
    finally:
        await reconciler.aclose()


async def test_an_unchanged_commit_asks_the_same_and_reads_no_definition(
    make_database: DatabaseMaker, tmp_path: Path
) -> None:
    few, few_changed = await _unchanged(make_database(), tmp_path / "few", 3)
    more, more_changed = await _unchanged(make_database(), tmp_path / "more", 30)
    assert few == more
    assert more.statements <= 3
    assert more.rows < 30, "not one for each entity"
    assert min(few_changed.statements, more_changed.statements) > 3
    assert more_changed.rows > few_changed.rows, "what the guard is there to see"


def test_statements_grow_in_step_with_the_new_entities() -> None:
    counts = []
    for count in (10, 20, 40):
        plan = structural_plan(many(0), many(count))
        [step] = build_script(plan, schemas=on.SCHEMAS, actor="user:test").steps
        counts.append(len(step.statements))
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


def test_a_plan_between_two_sets_of_definitions_looks_at_what_differs() -> None:
    plan = structural_plan(many(MORE), many(MORE, **CHANGED))
    assert {item.change.entity for item in plan.changes} == {"e5"}
    assert [record.name for record in plan.records] == ["e5"]


def test_what_commands_return_is_short_in_print() -> None:
    """asyncio prints the result of a task, to throw the text away, on its way out of ``run``."""
    definitions = many(MORE)
    plan = structural_plan(many(0), definitions)
    script = build_script(plan, schemas=on.SCHEMAS, actor="user:test")
    assert len(repr((definitions, plan, script))) < 2_000
