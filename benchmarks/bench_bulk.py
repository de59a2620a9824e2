"""A bulk update over HTTP, judged and with history and events, beside a plain UPDATE with psql.

The limit is ``UPDATE`` of the same rows and columns in a table with the same rules and indexes, which keeps
no history and tells nobody. The preview is measured beside it: it reads each row and hashes it.
"""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from bench_deploy import apply
from figures import Figure, resident_mb
from locations import FILES, LIMIT_TABLE, countries, write_csv
from served import KEY, serving
from warehouse import Server, opened, run_psql_s

from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.connect import Connection

ROWS: Final = 200_000
_UPDATE: Final = (
    "UPDATE mdm_data.bench_limit SET kind = 'air', pieces = {n}, note = 'changed {n}';\n"
)
_ROUNDS: Final = 2


async def measure(server: Server, folder: Path, *, rows: int = ROWS) -> list[Figure]:
    root, source = folder / "bulk", folder / "bulk.csv"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    write_csv(source, rows)
    url = await server.fresh_database()
    async with opened(url) as conn:
        await apply(conn, read_folder(root))
        with serving(url) as (address, pid):
            location = _Location(address, pid, rows)
            location.fill(source)
            await _fill_limit(conn, source.read_bytes())
            limits, times = [], []
            for n in range(_ROUNDS):
                await conn.execute("VACUUM ANALYZE mdm_data.location, mdm_data.bench_limit")
                values = {"kind": "air", "pieces": n, "note": f"changed {n}"}
                times.append(location.timed({"action": "update", "set": values}))
                script = folder / "update.sql"
                script.write_text(_UPDATE.format(n=n))
                limits.append(run_psql_s(url, script))
            _, deleted = location.timed({"action": "delete", "soft": True})
    limit = min(limits)
    previewed, updated = (min(each) for each in zip(*times, strict=True))
    return [
        Figure(
            case=f"bulk update of {rows:,} rows, history and events / UPDATE by psql",
            value=updated / limit,
            unit="ratio",
            limit=6.0,
            note=f"{updated:.1f} s to {limit:.1f} s",
        ),
        Figure(case="its preview", value=previewed, unit="s", limit=rows * 5e-6),
        Figure(case="the same rows deleted softly", value=deleted, unit="s"),
        Figure(
            case="API worker during bulk actions, above idle",
            value=location.highest_mb - location.idle_mb,
            unit="MB",
            limit=30.0,
        ),
    ]


async def _fill_limit(conn: Connection, content: bytes) -> None:
    await conn.execute(LIMIT_TABLE.encode())
    statement = b"COPY mdm_data.bench_limit FROM STDIN (FORMAT csv, HEADER)"
    async with conn.cursor() as cursor, cursor.copy(statement) as copy:
        await copy.write(content)


class _Location:
    """The entity, as a client of its bulk actions sees it, who also looks at the worker's memory."""

    def __init__(self, address: str, pid: int, rows: int) -> None:
        self._address = address
        self._pid = pid
        self._rows = rows
        self.idle_mb = self.highest_mb = 0.0

    def fill(self, source: Path) -> None:
        self._post("country/data/bulk", countries())
        self._post("location/data/bulk-csv", source.read_bytes(), media_type="text/csv")
        self.idle_mb = self.highest_mb = resident_mb(self._pid)

    def timed(self, action: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds of a preview and of its execution for all rows."""
        started = time.perf_counter()
        [seen] = self._bulk_action("preview", {**action, "all": True})
        between = time.perf_counter()
        assert seen["matchCount"] == self._rows, seen
        token = {"previewToken": seen["previewToken"]}
        *_, last = self._bulk_action("execute", {**action, "all": True, **token})
        ended = time.perf_counter()
        done = last["result"]
        assert done["updated"] + done["deleted"] == self._rows, done
        return between - started, ended - between

    def _bulk_action(self, what: str, body: dict[str, Any]) -> list[Any]:
        return self._post(f"location/data/bulk-action/{what}", json.dumps(body).encode())

    def _post(self, path: str, body: bytes, *, media_type: str = "application/json") -> list[Any]:
        headers = {"X-API-Key": KEY, "Content-Type": media_type, "Accept": "application/x-ndjson"}
        request = urllib.request.Request(
            f"{self._address}/api/v1/entities/{path}", data=body, headers=headers
        )
        found = []
        with urllib.request.urlopen(request, timeout=3_600) as answer:
            for line in answer:
                found.append(json.loads(line))
                self.highest_mb = max(self.highest_mb, resident_mb(self._pid))
        return found
