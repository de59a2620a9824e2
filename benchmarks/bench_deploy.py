"""Plan and apply of many entities: alone, against psql, and as their number grows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import corpus
from figures import Figure, best_of, best_s
from warehouse import SCHEMAS, Server, opened, run_program_s, run_psql_s

from mdm_gitops.model import Definitions
from mdm_gitops.plan.structural import structural_plan
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.psql import to_psql
from mdm_gitops.warehouse.script import build_script

GROWTH = (10, 100, 1_000, 3_000)
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, in a store of that many entities."""

    unchanged_plan: float
    one_changed_plan: float
    one_changed_apply: float
    between_revisions: float


async def measure(server: Server, folder: Path) -> list[Figure]:
    root = corpus.write(folder / "thousand", 1_000)
    figures = await _against_psql(server, folder, root)
    for count in GROWTH:
        figures += await _growth(server, folder / f"growth-{count}", count)
    return figures


async def _against_psql(server: Server, folder: Path, root: Path) -> list[Figure]:
    definitions = read_folder(root)
    ours, theirs, program, url = [], [], [], ""
    for _ in range(ROUNDS):
        url = await server.fresh_database()
        async with opened(url) as conn:
            plan = await make_plan(conn, definitions, schemas=SCHEMAS)
            script = folder / "thousand.sql"
            script.write_text(to_psql(build_script(plan, schemas=SCHEMAS, actor="user:bench")))
            theirs.append(run_psql_s(await server.fresh_database(), script))
            started = time.perf_counter()
            await apply(conn, definitions)
            ours.append(time.perf_counter() - started)
        other = await server.fresh_database()
        program.append(run_program_s("apply", root, "--auto-approve", url=other))
    unchanged = min(run_program_s("plan", root, url=url) for _ in range(5))
    return [
        Figure(
            case="apply of 1,000 new entities / psql running the same SQL",
            value=min(ours) / min(theirs),
            unit="ratio",
            limit=1.5,
            note=f"{min(ours):.1f} s; psql {min(theirs):.1f} s",
        ),
        Figure(
            case="the command `apply`, files read and plan made twice / psql",
            value=min(program) / min(theirs),
            unit="ratio",
            limit=1.5,
            note=f"{min(program):.1f} s",
        ),
        Figure(
            case="the command `plan`, 1,000 entities, no change",
            value=unchanged,
            unit="s",
            limit=1.5,
            note="files read, PostgreSQL asked",
        ),
    ]


async def apply(conn: Connection, definitions: Definitions) -> None:
    await apply_plan(conn, definitions, None, schemas=SCHEMAS, actor="user:bench", approved=True)


async def _growth(server: Server, root: Path, count: int) -> list[Figure]:
    times = await _times(server, root, count)
    cases = (
        ("plan, no change", times.unchanged_plan),
        ("plan of one change", times.one_changed_plan),
        ("apply of one change, plan and all", times.one_changed_apply),
        ("plan between two revisions, one change", times.between_revisions),
    )
    return [
        Figure(case=f"{case}, {count:,} entities", value=seconds * 1000, unit="ms")
        for case, seconds in cases
    ]


async def _times(server: Server, root: Path, count: int) -> Times:
    before = read_folder(corpus.write(root, count))
    corpus.path_of(root, count // 2).write_text(corpus.text(count // 2, length=101))
    after = read_folder(root)
    async with opened(await server.fresh_database()) as conn:
        await apply(conn, before)
        await conn.execute("ANALYZE")
        unchanged = await best_of(lambda: make_plan(conn, before, schemas=SCHEMAS))
        one = await best_of(lambda: make_plan(conn, after, schemas=SCHEMAS))
        applied = []
        for definitions in (after, before) * ROUNDS:
            started = time.perf_counter()
            await apply(conn, definitions)
            applied.append(time.perf_counter() - started)
    between = best_s(lambda: structural_plan(before, after))
    return Times(
        unchanged_plan=unchanged,
        one_changed_plan=one,
        one_changed_apply=min(applied),
        between_revisions=between,
    )
