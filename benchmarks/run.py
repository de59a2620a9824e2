"""All benchmarks: ``make bench``. Prints each figure beside its target and writes RESULTS.md.

Run: python benchmarks/run.py [--full] [validate] [start] [reconcile] [memory] [deploy] [choices] [requests]
[import] [bulk] [export] [feed] [webhooks] [time-travel] [access] [search] [matching]; with --full imports,
bulk actions, similar and exports have 1,000,000 rows instead of 200,000. Without names all of them, and
only then is RESULTS.md written. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import bench_access
import bench_bulk
import bench_choices
import bench_deploy
import bench_export
import bench_feed
import bench_import
import bench_matching
import bench_memory
import bench_reconcile
import bench_requests
import bench_search
import bench_start
import bench_time_travel
import bench_validate
import bench_webhooks
from figures import Figure
from warehouse import Server, opened

from mdm_gitops.warehouse.embedded import acquire_server

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
PARTS: Final = (
    "validate",
    "start",
    "reconcile",
    "memory",
    "deploy",
    "choices",
    "requests",
    "import",
    "bulk",
    "export",
    "feed",
    "webhooks",
    "time-travel",
    "access",
    "search",
    "matching",
)
_INTRODUCTION: Final = """\
# Measured figures

Written by `make bench`. A ratio compares two things measured in the same run on the same machine;
times are the least of several rounds. Cases without a target show how something grows.

"""


def main() -> None:
    is_full = "--full" in sys.argv[1:]
    chosen = [each for each in sys.argv[1:] if each != "--full"] or PARTS
    if unknown := set(chosen) - set(PARTS):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures, facts = asyncio.run(_measure(chosen, rows=1_000_000 if is_full else 200_000))
    if tuple(chosen) == PARTS:
        RESULTS.write_text(_INTRODUCTION + _facts(facts) + _table(figures))
        print(f"written to {RESULTS.name}")
    if not all(figure.is_met for figure in figures):
        raise SystemExit(1)


async def _measure(
    chosen: tuple[str, ...] | list[str], *, rows: int
) -> tuple[list[Figure], dict[str, str]]:
    figures: list[Figure] = []

    def tell(found: list[Figure]) -> None:
        figures.extend(found)
        for each in found:
            verdict = f"{each.limit_text:>12}  {each.verdict:<6}"
            print(f"{each.case:<62} {each.text:>10} {verdict}  {each.note}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mdm-bench-") as name:
        folder = Path(name)
        if "access" in chosen:
            tell(bench_access.measure())
        if "validate" in chosen:
            tell(bench_validate.measure())
        if "start" in chosen:
            tell(await bench_start.measure(folder))
        embedded = await acquire_server(folder)
        try:
            server = Server(embedded.url)
            if "reconcile" in chosen:
                tell(await bench_reconcile.measure(server, folder))
            if "memory" in chosen:
                tell(await bench_memory.measure(server, folder))
            if "deploy" in chosen:
                tell(await bench_deploy.measure(server, folder))
            if "choices" in chosen:
                tell(await bench_choices.measure(server))
            if "requests" in chosen:
                tell(await bench_requests.measure(server))
            if "import" in chosen:
                tell(await bench_import.measure(server, folder, rows=rows))
            if "bulk" in chosen:
                tell(await bench_bulk.measure(server, folder, rows=rows))
            if "export" in chosen:
                tell(await bench_export.measure(server, rows=rows))
            if "feed" in chosen:
                tell(await bench_feed.measure(server))
            if "webhooks" in chosen:
                tell(await bench_webhooks.measure(server))
            if "time-travel" in chosen:
                tell(await bench_time_travel.measure(server))
            if "search" in chosen:
                tell(await bench_search.measure(server))
            if "matching" in chosen:
                tell(await bench_matching.measure(server, folder, rows=rows))
            return figures, await _versions(server)
        finally:
            await embedded.aclose()


async def _versions(server: Server) -> dict[str, str]:
    async with opened(server.url) as conn:
        row = await (await conn.execute("SHOW server_version")).fetchone()
    assert row is not None
    one, five, _ = os.getloadavg()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "Python": platform.python_version(),
        "PostgreSQL": f"{row[0]}, embedded, durable, on the same machine",
        "packages": ", ".join(f"{p} {version(p)}" for p in ("psycopg", "sqlglot", "pydantic")),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "load": f"{one:.1f} at the end, {five:.1f} over five minutes, this run's own included",
    }


def _facts(facts: dict[str, str]) -> str:
    return "".join(f"- {name}: {text}\n" for name, text in facts.items()) + "\n"


def _table(figures: list[Figure]) -> str:
    lines = ["| case | measured | target | | |\n", "|---|---:|---:|---|---|\n"]
    lines += [
        f"| {f.case} | {f.text} | {f.limit_text} | {f.verdict} | {f.note} |\n" for f in figures
    ]
    return "".join(lines)


if __name__ == "__main__":
    main()
