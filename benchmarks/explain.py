"""What requests cost in PostgreSQL: the plans of the very statements they send, at 1,000,000 rows.

Run: ``python benchmarks/explain.py [rows]``; it writes docs/concepts/cost-of-requests.md. The requests go
through the application in this process, whose statements are noted and then explained with the same values,
in a transaction that is rolled back.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
from bench_deploy import apply
from bench_requests import AS_ROW_FILTER, DATA, FILTER, RIGHTS, ROW, fill
from locations import FILES
from psycopg import AsyncConnection, AsyncRawCursor
from served import KEY, serving
from warehouse import Server, opened

from mdm_api.app import create_app
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse import prepared
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.embedded import acquire_server

PAGE: Final = Path(__file__).parents[1] / "docs" / "concepts" / "cost-of-requests.md"
_EXPLAIN: Final = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
_EXPLAINED: Final = ("select", "with", "insert", "update", "delete", "(")
_SETTINGS: Final = {"RateLimit": {"Enabled": False}, "Auth": {"BootstrapApiKey": KEY}}
_SEARCHED: Final = """\
historyEnabled: true
search: {enabled: true, columns: [name, city]}
similarity: {enabled: true, columns: [{name: name}, {name: city}]}
"""
_HEAD: Final = """\
# What a request costs in PostgreSQL

Written by `benchmarks/explain.py` on {date}: PostgreSQL {version}, {rows:,} rows of 12 columns with history, audit
and indexes for search and matching. These are the statements of real requests, explained with their own values, everything in
memory. *Rows* are those that scans read, used or not; *pages* are blocks of 8 KB that the statement touched.
The figures to watch are rows and pages: they stay what they are when the table grows, times do not.

| request | statements | rows | pages | ms | read by |
|---|---:|---:|---:|---:|---|
"""
_TAIL: Final = """
A request sends these statements and nothing else, but for `SET`, `BEGIN` and `COMMIT` where there are several. The
revision of the store is read in the statement that reads the rows. A scan of the small tables of the store
(`revision`, `feed_position`) is one page.

- Indexed are ids, what is unique (`keyColumns`, `unique`, `uniqueConstraints`) and references. A filter or a sort
  by other columns reads rows until the page is full: few where many match, all where few do or where all must be
  sorted.
- A write touches a page or two per index of the table, and those of history and events.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    path: str
    method: str = "GET"
    body: Any = None
    key: str = "editor"
    undo: str = ""  # what makes it something to write again


@dataclass(frozen=True, slots=True)
class Noted:
    """A statement as it was sent; *is_raw* has numbers for its values, the other names."""

    sql: str
    values: Any
    is_raw: bool = False


async def measure(url: str) -> str:
    """Return the page for the warehouse at *url*."""
    async with opened(url) as conn, _client(url) as client:
        keys = {name: await _key(client, name) for name in ("editor", "filtered")}
        await _warm(conn)
        lines = []
        for case in await _cases(conn, client):
            plans = await _plans(conn, client, case, keys[case.key])
            lines.append(_line(case, plans))
            print(lines[-1], flush=True)
        return await _head(conn) + "\n".join(lines) + "\n" + _TAIL


async def _warm(conn: Connection) -> None:
    for table in (b"location", b"location__history"):
        await conn.execute(b"VACUUM ANALYZE mdm_data." + table)
    await conn.execute(b"VACUUM ANALYZE mdm.event")


async def _head(conn: Connection) -> str:
    query = b"SELECT count(*), current_setting('server_version') FROM mdm_data.location"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return _HEAD.format(date=f"{datetime.now(UTC):%Y-%m-%d}", rows=row[0], version=row[1])


async def _cases(conn: Connection, client: httpx2.AsyncClient) -> Sequence[Case]:
    found = await conn.execute(b"SELECT _sys_id::text FROM mdm_data.location ORDER BY code LIMIT 9")
    ids = [row_id for (row_id,) in await found.fetchall()]
    before = datetime.now(UTC).isoformat()
    for row_id in ids:  # so that there is a past
        body = {"city": "Bern"}
        await _ask(client, Case(name="", path=f"{DATA}/{row_id}", method="PUT", body=body), KEY)
    found = await conn.execute(b"SELECT count(*) / 2 FROM mdm.event")
    middle = (await found.fetchall())[0][0]
    page = (await _ask(client, Case(name="", path=f"{DATA}?sort=code&take=100"), KEY)).json()
    after = quote(page["nextAfter"]) if page.get("nextAfter") else ""
    return (
        Case(name="read by id", path=f"{DATA}/{ids[0]}"),
        Case(name="list 100", path=f"{DATA}?take=100"),
        Case(name="next page in the order of the key", path=f"{DATA}?sort=code&after={after}"),
        Case(
            name="list, filter on two columns and sort",
            path=f"{DATA}?filter={quote(FILTER)}&sort=-amount",
        ),
        Case(name="list, filtered by the caller", path=f"{DATA}?filter={quote(AS_ROW_FILTER)}"),
        Case(name="list under the same as a row filter", path=DATA, key="filtered"),
        Case(name="search for a word", path="/api/v1/search/data?q=Bern&entity=location"),
        Case(name="list as of a moment", path=f"{DATA}?asOfUtc={quote(before)}"),
        Case(name="page of 500 of the feed", path=f"/api/v1/changes?afterId={middle}&take=500"),
        Case(
            name="create",
            path=DATA,
            method="POST",
            body={"code": "Z0000001", **ROW},
            undo="DELETE FROM mdm_data.location WHERE code = 'Z0000001'",
        ),
        Case(
            name="update",
            path=f"{DATA}/{ids[1]}",
            method="PUT",
            body={"city": "Chur"},
            undo="UPDATE mdm_data.location SET city = 'Bern' WHERE city = 'Chur'",
        ),
        Case(
            name="delete",
            path=f"{DATA}/{ids[2]}",
            method="DELETE",
            undo="UPDATE mdm_data.location SET _sys_is_deleted = false WHERE _sys_is_deleted",
        ),
    )


# --- what is sent ---------------------------------------------------------------------------------


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(database_url=url, settings=Settings.model_validate(_SETTINGS))
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://bench", timeout=600) as client,
    ):
        yield client


async def _ask(client: httpx2.AsyncClient, case: Case, key: str) -> httpx2.Response:
    answer = await client.request(
        case.method, case.path, json=case.body, headers={"X-API-Key": key, "If-Match": "*"}
    )
    assert answer.is_success, f"{case.path}: {answer.status_code} {answer.text[:500]}"
    return answer


async def _key(client: httpx2.AsyncClient, name: str) -> str:
    asked = Case(name="", path="/api/v1/api-keys", method="POST", body={"name": name})
    return str((await _ask(client, asked, KEY)).json()["key"])


@contextmanager
def _noting() -> Iterator[list[Noted]]:
    """Note what is sent on any connection; both ways that there are."""
    noted: list[Noted] = []
    execute, run = AsyncConnection.execute, prepared.run_prepared

    async def noting_execute(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        text = query if isinstance(query, str | bytes) else query.as_string(self)
        text = text.decode() if isinstance(text, bytes) else text
        noted.append(Noted(text, params))
        return await execute(self, query, params, **options)

    async def noting_run(conn: Any, statement: Any, values: Any) -> Any:
        text = statement.sql.decode() if isinstance(statement.sql, bytes) else statement.sql
        noted.append(Noted(text, [values[name] for name in statement.names], True))
        return await run(conn, statement, values)

    holders = [m for m in list(sys.modules.values()) if getattr(m, "run_prepared", None) is run]
    AsyncConnection.execute = noting_execute  # type: ignore[method-assign]
    for module in holders:
        module.run_prepared = noting_run  # type: ignore[attr-defined]
    try:
        yield noted
    finally:
        AsyncConnection.execute = execute  # type: ignore[method-assign]
        for module in holders:
            module.run_prepared = run  # type: ignore[attr-defined]


async def _plans(conn: Connection, client: httpx2.AsyncClient, case: Case, key: str) -> list[Any]:
    reads = case.method == "GET"
    if reads:  # else what it writes is there already
        await _ask(client, case, key)
    with _noting() as noted:
        await _ask(client, case, key)
    return [await _explained(conn, each, case.undo) for each in noted if _is_explained(each)]


def _is_explained(noted: Noted) -> bool:
    text = noted.sql.strip().lower()
    return text.startswith(_EXPLAINED) and "from" in text


async def _explained(conn: Connection, noted: Noted, undo: str) -> Any:
    async with conn.transaction(force_rollback=True):
        if undo:
            await conn.execute(undo.encode())
        cursor = AsyncRawCursor(conn) if noted.is_raw else conn.cursor()
        await cursor.execute((_EXPLAIN + noted.sql).encode(), noted.values)
        row = await cursor.fetchone()
        assert row is not None
        document = row[0] if isinstance(row[0], list) else json.loads(row[0])
        return document[0]


# --- what is told ---------------------------------------------------------------------------------


def _line(case: Case, plans: Sequence[Any]) -> str:
    nodes = [node for plan in plans for node in _nodes(plan["Plan"])]
    scans = [node for node in nodes if "Scan" in node["Node Type"] and _relation(node)]
    rows = sum(_rows(node) for node in scans)
    pages = sum(_pages(plan["Plan"]) for plan in plans)
    ms = sum(plan["Execution Time"] for plan in plans)
    ways = dict.fromkeys(_way(node) for node in scans if _rows(node) > 0)
    return (
        f"| {case.name} | {len(plans)} | {rows:,.0f} | {pages:,} | {ms:.1f} |"
        f" {'; '.join(ways) or 'nothing'} |"
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _relation(node: Any) -> str:
    return str(node.get("Relation Name") or node.get("Index Name") or "")


def _rows(node: Any) -> float:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


def _pages(node: Any) -> int:
    return int(node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0))


def _way(node: Any) -> str:
    kind = node["Node Type"].lower().replace(" scan", "").replace("seq", "all of")
    if "Index Name" in node:
        return f"{kind} `{node['Index Name']}`"
    return f"{kind} `{node['Relation Name']}`"


async def _alone() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="mdm-bench-") as folder:
        embedded = await acquire_server(Path(folder))
        try:
            url = await Server(embedded.url).fresh_database()
            async with opened(url) as conn:
                await apply(conn, read_tree(_definitions()))
            with serving(url) as (address, _):
                fill(address, rows)
            PAGE.write_text(await measure(url))
        finally:
            await embedded.aclose()


def _definitions() -> dict[str, bytes]:
    files = {**FILES, "permissions.yaml": RIGHTS}
    location = files["entities/location.yaml"].replace("historyEnabled: true\n", _SEARCHED)
    return {
        name: text.encode() for name, text in {**files, "entities/location.yaml": location}.items()
    }


if __name__ == "__main__":
    asyncio.run(_alone())
