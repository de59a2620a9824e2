"""How long exports take beside a plain ``COPY`` of the same columns by psql, and what memory they need.

The export comes over HTTP from the real server, with an API key, rights and a total order; the plain
copy has none of these. Run by itself: ``python benchmarks/bench_export.py [rows]``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from figures import Figure, best_s, resident_mb
from served import KEY, serving
from warehouse import SCHEMAS, Server, environment, opened

from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.embedded import acquire_server
from mdm_gitops.warehouse.embedded_binaries import find_binaries

ROWS: Final = 1_000_000
SHEET_ROWS: Final = 100_000
_TYPES: Final = {
    "code": "string",
    "name": "string",
    "street": "string",
    "city": "string",
    "zip": "string",
    "email": "string",
    "credit": "int",
    "external": "long",
    "amount": "decimal",
    "active": "bool",
    "since": "date",
    "checked": "datetime",
}
_ENTITY: Final = {
    "name": "customer",
    "domain": "bench",
    "keyColumns": ["code"],
    "columns": [
        {"name": name, "dataType": data_type, **({"nullable": False} if name == "code" else {})}
        for name, data_type in _TYPES.items()
    ],
}
_FILL: Final = """
INSERT INTO mdm_data.customer (_sys_id, {names}, _sys_created_at, _sys_created_by,
  _sys_last_modified_at, _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'C' || lpad(n::text, 8, '0'), 'Name of customer ' || n,
       'Street ' || n % 1000 || ' No. ' || n % 77,
       (array['Zürich', 'Bern', 'Genève', 'Basel'])[1 + n % 4], lpad((n % 10000)::text, 4, '0'),
       CASE WHEN n % 10 > 0 THEN 'user' || n || '@example.com' END, n % 5000, n::bigint * 1000,
       n * 1.25, n % 2 = 0, date '2000-01-01' + n % 9000,
       timestamptz '2020-01-01Z' + n * interval '1 second 123 microseconds',
       now(), 'bench', now(), 'bench'
  FROM generate_series(1, {rows}) n"""


async def measure(server: Server, *, rows: int = ROWS) -> list[Figure]:
    url = await _filled(server, rows)
    return await asyncio.to_thread(_measured, url, rows)


def _measured(url: str, rows: int) -> list[Figure]:
    with serving(url) as (address, pid):
        return _figures(url, address, pid, rows)


def _figures(url: str, address: str, pid: int, rows: int) -> list[Figure]:
    columns = ", ".join(_TYPES)
    plain = f"COPY (SELECT {columns} FROM mdm_data.customer) TO STDOUT"
    as_json = (
        f"COPY (SELECT row_to_json(r) FROM (SELECT {columns} FROM mdm_data.customer) r) TO STDOUT"
    )
    sheet = {"format": "xlsx", "take": str(SHEET_ROWS)}
    _download(address, {"take": "1"})
    idle = resident_mb(pid)
    figures = []
    for name, statement, asked in (
        ("csv", plain, {"format": "csv"}),
        ("json", as_json, {"format": "json"}),
    ):
        ours, theirs = _taking_turns(url, address, statement, asked)
        note = f"{ours:.2f} s, psql {theirs:.2f} s"
        case = f"export {name}, {rows:,} rows x 12 / COPY by psql"
        figures.append(Figure(case=case, value=ours / theirs, unit="ratio", limit=1.5, note=note))
    figures.append(_growth("exports csv and json", pid, idle, limit=50.0))
    seconds = best_s(lambda: _download(address, sheet), rounds=3)
    case = f"export xlsx, {min(rows, SHEET_ROWS):,} rows x 12"
    figures.append(Figure(case=case, value=seconds, unit="s", limit=8.0))
    figures.append(_growth("export xlsx", pid, idle, limit=60.0))
    return figures


def _taking_turns(
    url: str, address: str, statement: str, asked: dict[str, str]
) -> tuple[float, float]:
    """Return the least seconds of ours and of psql's, measured in turns: a busy machine hits both."""
    ours, theirs = [], []
    for _ in range(5):
        theirs.append(best_s(lambda: _psql(url, statement), rounds=1))
        ours.append(best_s(lambda: _download(address, asked), rounds=1))
    return min(ours), min(theirs)


def _growth(case: str, pid: int, idle: float, *, limit: float) -> Figure:
    peak = _peak_mb(pid)
    note = f"{idle:.0f} MB idle, {peak:.0f} MB at most"
    name = f"memory of the API above idle, {case}"
    return Figure(case=name, value=peak - idle, unit="MB", limit=limit, note=note)


def _peak_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def _psql(url: str, statement: str) -> None:
    psql = find_binaries(major=18).program("psql")
    command = [str(psql), "-X", "-q", "-c", statement, url]
    subprocess.run(command, env=environment({}), stdout=subprocess.DEVNULL, check=True)


def _download(address: str, asked: dict[str, str]) -> int:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    path = f"/api/v1/entities/customer/data/export?{query}"
    connection.request("GET", path, headers={"X-API-Key": KEY})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    buffer, size = bytearray(1_048_576), 0
    while got := response.readinto(buffer):
        size += got
    connection.close()
    return size


async def _filled(server: Server, rows: int) -> str:
    url = await server.fresh_database()
    project = {"name": "bench", "apiVersion": "mdm-gitops/v1", "domains": [{"name": "bench"}]}
    files = {
        "mdm.yaml": json.dumps(project).encode(),
        "entities/customer.yaml": json.dumps(_ENTITY).encode(),
        "permissions.yaml": b"permissions:\n  - {users: [a], domains: ['*'], actions: [admin]}\n",
    }
    async with opened(url) as conn:
        await apply_plan(
            conn, read_tree(files), None, schemas=SCHEMAS, actor="user:bench", approved=True
        )
        await conn.execute(_FILL.format(names=", ".join(_TYPES), rows=rows))
        await conn.execute("VACUUM ANALYZE mdm_data.customer")
    return url


async def _main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        server = await acquire_server(Path(folder))
        try:
            started = time.perf_counter()
            for each in await measure(Server(server.url), rows=rows):
                print(f"{each.case:<62} {each.text:>10} {each.limit_text:>12}  {each.note}")
            print(f"{time.perf_counter() - started:.0f} s in all")
        finally:
            await server.aclose()


if __name__ == "__main__":
    asyncio.run(_main())
