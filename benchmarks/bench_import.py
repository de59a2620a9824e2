"""A million rows in: over HTTP, judged by all rules, with events and history, beside COPY alone.

The limit is ``COPY`` of the same bytes into a table with the same twelve columns and the same rules
(not null, checks, unique key, foreign key with its index), as one client of the same server can do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench_deploy import apply
from figures import Figure, parent_of, processor_s, resident_mb
from locations import FILES, LIMIT_TABLE, countries, write_csv
from served import KEY, serving
from warehouse import Server, opened

from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.connect import Connection

ROWS: Final = 1_000_000


async def measure(server: Server, folder: Path, *, rows: int = ROWS) -> list[Figure]:
    root = folder / "import"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    clean, dirty, half = (folder / f"{name}.csv" for name in ("clean", "dirty", "half"))
    write_csv(clean, rows)
    write_csv(dirty, rows, bad=0.01)
    write_csv(half, rows, changed=0.5)
    url = await server.fresh_database()
    async with opened(url) as conn:
        await apply(conn, read_folder(root))
        with serving(url) as (address, pid):
            api = _Api(address, pid, postmaster=parent_of(conn.info.backend_pid))
            api.post("country", "bulk", countries())
            limits = [await _copied(conn, clean)]
            imported = api.imported(clean, rows)
            limits.append(await _copied(conn, clean))
            upserted = api.imported(half, rows, "mode=upsert")
            limits.append(await _copied(conn, clean))
            await _empty(conn)
            with_errors = api.imported(dirty, rows)
            limits.append(await _copied(conn, clean))
    limit = _Cost(wall_s=min(c.wall_s for c in limits), cpu_s=min(c.cpu_s for c in limits))
    grown = max(imported.grown_mb, upserted.grown_mb, with_errors.grown_mb)
    return [
        _ratio(f"bulk-csv, {rows:,} rows / COPY", imported, limit, 3.0),
        _ratio("the same, 1 % of the rows bad / the clean one", with_errors, imported, 1.15),
        _ratio("upsert, 50 % of the rows unchanged / COPY", upserted, limit, 4.0),
        Figure(case="API worker during imports, above idle", value=grown, unit="MB", limit=50.0),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What something took: by the clock, and of the processors, client and server together."""

    wall_s: float
    cpu_s: float
    grown_mb: float = 0.0


def _ratio(case: str, ours: _Cost, theirs: _Cost, limit: float) -> Figure:
    """Return the ratio by the clock; that of processor time stands beside it, since others who work
    on the same machine make the clock run, for each of the two, but the processors less so."""
    note = (
        f"{ours.wall_s:.1f} s to {theirs.wall_s:.1f} s; of processors {ours.cpu_s:.1f} s to"
        f" {theirs.cpu_s:.1f} s, {ours.cpu_s / theirs.cpu_s:.2f} x"
    )
    ratio = ours.wall_s / theirs.wall_s
    return Figure(case=case, value=ratio, unit="ratio", limit=limit, note=note)


async def _copied(conn: Connection, file: Path) -> _Cost:
    await conn.execute(LIMIT_TABLE.encode())
    server, client = processor_s(conn.info.backend_pid), time.process_time()
    started = time.perf_counter()
    statement = b"COPY mdm_data.bench_limit FROM STDIN (FORMAT csv, HEADER)"
    with file.open("rb") as source:
        async with conn.cursor() as cursor, cursor.copy(statement) as copy:
            while chunk := source.read(262_144):
                await copy.write(chunk)
    wall_s = time.perf_counter() - started
    used = processor_s(conn.info.backend_pid) - server + time.process_time() - client
    return _Cost(wall_s=wall_s, cpu_s=used)


async def _empty(conn: Connection) -> None:
    await conn.execute(
        "TRUNCATE mdm_data.location, mdm_data.location__history, mdm.event, mdm.change_set"
    )


@dataclass(frozen=True, slots=True)
class _Api:
    address: str
    pid: int
    postmaster: int

    def imported(self, file: Path, rows: int, query: str = "") -> _Cost:
        """Return what an import costs, and how far the memory of the worker rose during it."""
        before, used = resident_mb(self.pid), self._used_s()
        with _highest_mb(self.pid) as highest:
            started = time.perf_counter()
            with file.open("rb") as body:
                answer = self.post("location", f"bulk-csv?{query}", body, file.stat().st_size)
            wall_s = time.perf_counter() - started
        assert answer["received"] == rows, answer
        cpu_s = self._used_s() - used
        return _Cost(wall_s=wall_s, cpu_s=cpu_s, grown_mb=max(highest) - before)

    def _used_s(self) -> float:
        """Return the processor time of the worker and of all sessions that have ended, as that of an
        import does; what the server does beside them (vacuum) counts against us, too."""
        time.sleep(0.2)
        return processor_s(self.pid) + processor_s(self.postmaster, ended_children=True)

    def post(self, entity: str, kind: str, body: Any, size: int | None = None) -> Any:
        media_type = "text/csv" if kind.startswith("bulk-csv") else "application/json"
        request = urllib.request.Request(
            f"{self.address}/api/v1/entities/{entity}/data/{kind}",
            data=body,
            headers={
                "X-API-Key": KEY,
                "Content-Type": media_type,
                "Content-Length": str(size if size is not None else len(body)),
            },
        )
        with urllib.request.urlopen(request, timeout=3_600) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def _highest_mb(pid: int) -> Iterator[list[float]]:
    seen, stop = [resident_mb(pid)], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            seen.append(resident_mb(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


async def _alone(rows: int) -> None:
    """Run only this benchmark: python benchmarks/bench_import.py [ROWS]."""
    import tempfile

    from mdm_gitops.warehouse.embedded import acquire_server

    with tempfile.TemporaryDirectory(prefix="mdm-bench-") as name:
        embedded = await acquire_server(Path(name))
        try:
            for each in await measure(Server(embedded.url), Path(name), rows=rows):
                print(
                    f"{each.case:<62} {each.text:>10} {each.limit_text:>10} {each.verdict} {each.note}"
                )
        finally:
            await embedded.aclose()


if __name__ == "__main__":
    asyncio.run(_alone(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
