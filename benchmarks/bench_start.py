"""How long a person waits: for help, for the database to start again, for everything from nothing."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from figures import Figure
from warehouse import run_program_s

from mdm_gitops.warehouse.embedded import acquire_server

EXAMPLE = Path(__file__).parents[1] / "examples" / "reference-data"


async def measure(folder: Path) -> list[Figure]:
    again = folder / "again"
    again.mkdir()
    up = min(_up_s(folder / f"up-{number}") for number in range(3))
    return [
        Figure(
            case="`mdm-gitops --help`",
            value=min(run_program_s("--help") for _ in range(10)),
            unit="s",
            limit=0.12,
        ),
        Figure(
            case="embedded PostgreSQL, start again",
            value=min([await _again_s(again) for _ in range(4)][1:]),
            unit="s",
            limit=1.0,
        ),
        Figure(
            case="`mdm-gitops up --once`, from nothing to ready",
            value=up,
            unit="s",
            limit=6.0,
            note="examples/reference-data, 13,000 rows of seeds",
        ),
    ]


async def _again_s(folder: Path) -> float:
    started = time.perf_counter()
    server = await acquire_server(folder)
    taken = time.perf_counter() - started
    await server.aclose()
    return taken


def _up_s(folder: Path) -> float:
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".mdm"))
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return run_program_s("up", folder, "--once")
