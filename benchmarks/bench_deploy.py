"""Plan and apply of 1,000 entities, alone and against psql. How both grow is measured with what else grows."""

from __future__ import annotations

import time
from pathlib import Path

import corpus
from figures import Figure
from warehouse import SCHEMAS, Server, opened, run_program_s, run_psql_s, statements_of

from mdm_gitops.model import Definitions
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.psql import to_psql
from mdm_gitops.warehouse.script import build_script

ROUNDS = 3


async def measure(server: Server, folder: Path, *, rounds: int = ROUNDS) -> list[Figure]:
    root = corpus.write(folder / "thousand", 1_000)
    return await _against_psql(server, folder, root, rounds)


async def _against_psql(server: Server, folder: Path, root: Path, rounds: int) -> list[Figure]:
    definitions = read_folder(root)
    ours, theirs, program, url = [], [], [], ""
    for _ in range(rounds):
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
    async with opened(url) as conn:
        asked = await statements_of(conn, lambda: make_plan(conn, definitions, schemas=SCHEMAS))
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
        Figure(case="plan, no change, queries, 1,000 entities", value=asked, unit="n", limit=12.0),
    ]


async def apply(conn: Connection, definitions: Definitions) -> None:
    await apply_plan(conn, definitions, None, schemas=SCHEMAS, actor="user:bench", approved=True)
