"""The benchmarks: ``make bench`` (about ten minutes) and ``make bench-full``.

Run: python benchmarks/run.py [--full] [--replace] [PART ...]

Without names all parts run, but for those that need what most do not have. Figures are printed as they
come, and kept in results.json as soon as a part is done; RESULTS.md and the plots are made from that
file, ``--render`` does only this. ``--replace`` lets a small run take the place of a full one. Exit code 1
when a part failed, 3 when a target is missed for which reasons.toml tells no reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import rendering
import results
from figures import Figure, Told
from parts import PARTS, Part, Run
from warehouse import Server, opened

from mdm_gitops.warehouse.embedded import acquire_server

FAILED, MISSED = 1, 3
_PACKAGES: Final = ("psycopg", "sqlglot", "pydantic", "starlette", "uvicorn", "uvloop", "orjson")
_LOOK_S: Final = 2.0


def main() -> None:
    options = _options()
    if options.into:
        [part] = _named(options.parts)
        options.into.write_text(json.dumps(asyncio.run(_measure(part, is_full=options.full))))
        return
    failed = [] if options.render else _run(options)
    rendering.write()
    unexplained = rendering.unexplained()
    for case in unexplained:
        print(f"missed without a reason in {rendering.REASONS.name}: {case}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        raise SystemExit(FAILED)
    if unexplained:
        raise SystemExit(MISSED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure, and tell what was measured.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(p.name for p in PARTS))
    parser.add_argument("--full", action="store_true", help="at the sizes of the targets")
    parser.add_argument("--replace", action="store_true", help="keep a small run over a full one")
    parser.add_argument("--render", action="store_true", help="write RESULTS.md, measure nothing")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # one part, in this process
    return parser.parse_args()


def _named(names: Sequence[str]) -> list[Part]:
    if unknown := set(names) - {part.name for part in PARTS}:
        told = ", ".join(part.name for part in PARTS)
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {told}")
    return [part for part in PARTS if (part.name in names if names else not part.is_extra)]


def _run(options: argparse.Namespace) -> list[str]:
    """Measure part after part, each in a process of its own; return the names of those that failed."""
    failed = []
    for part in _named(options.parts):
        with tempfile.TemporaryDirectory(prefix="mdm-bench-") as folder:
            into = Path(folder) / "told.json"
            command = [sys.executable, __file__, part.name, "--into", str(into)]
            entry = _entry(part.name, [*command, *(["--full"] if options.full else [])], into)
        if entry is None:
            failed.append(part.name)
        elif results.keep(entry, replaces_full=options.replace):
            rendering.write()
        else:
            print(f"{part.name}: the figures of the last full run stay (--replace replaces them)")
    return failed


def _entry(name: str, command: Sequence[str], into: Path) -> results.Entry | None:
    busy, started = _busy(), time.monotonic()
    print(f"--- {name} (processors {busy:.0%} busy before)", flush=True)
    done = subprocess.run(command, check=False)
    if done.returncode:
        return None
    seconds = time.monotonic() - started
    print(f"    {seconds:.0f} s", flush=True)
    told = json.loads(into.read_text())
    found = [results.from_json(each) for each in told["told"]]
    return results.Entry(
        part=name,
        size=results.FULL if "--full" in command else results.SMALL,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        seconds=round(seconds),
        busy_before=round(busy, 2),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        versions=told["versions"],
        figures=tuple(each for each in found if isinstance(each, Figure)),
        curves=tuple(each for each in found if not isinstance(each, Figure)),
    )


def _busy() -> float:
    """Return the share of the processors that is used while we only wait; 0 where nobody tells."""
    before = _ticks()
    time.sleep(_LOOK_S)
    used, whole = (now - then for now, then in zip(_ticks(), before, strict=True))
    return used / whole if whole else 0.0


def _ticks() -> tuple[int, int]:
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and waiting for a disk


async def _measure(part: Part, *, is_full: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mdm-bench-") as name:
        embedded = await acquire_server(Path(name))
        try:
            server = Server(embedded.url)
            run = Run(server=server, folder=Path(name) / "part", is_full=is_full)
            run.folder.mkdir()
            told = await part.measure(run)
            for each in told:
                _print(each)
            versions = await _versions(server)
        finally:
            await embedded.aclose()
    return {"told": [results.to_json(each) for each in told], "versions": versions}


def _print(told: Told) -> None:
    if isinstance(told, Figure):
        verdict = f"{told.limit_text:>12}  {told.verdict:<6}"
        print(f"{told.case:<72} {told.text:>10} {verdict}  {told.note}", flush=True)
        return
    for series in told.series:
        points = "  ".join(f"{x:,.0f}: {y:,.4g}" for x, y in series.points)
        print(f"{told.title}, {series.name}: {points} ({told.y})", flush=True)


async def _versions(server: Server) -> dict[str, str]:
    async with opened(server.url) as conn:
        row = await (await conn.execute("SHOW server_version")).fetchone()
    assert row is not None
    told = {"Python": platform.python_version(), "PostgreSQL": str(row[0])}
    return told | {name: version(name) for name in _PACKAGES}


if __name__ == "__main__":
    main()
