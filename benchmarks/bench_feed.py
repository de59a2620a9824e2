"""How fast a consumer reads the change feed, what it costs to keep up, and how soon a change is seen.

Over HTTP from the real server, with an API key and rights, by one client that parses what it gets.
Client, server and database share the machine. Run by itself: ``python benchmarks/bench_feed.py``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import orjson
from figures import Figure, best_s, resident_mb
from served import KEY, serving
from warehouse import SCHEMAS, Server, opened

from mdm_gitops.data.feed import number_changes
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.embedded import acquire_server

CHANGES: Final = 200_000
PER_SECOND: Final = 100_000
WRITERS: Final = 8
LOAD_S: Final = 5.0
_FILES: Final = {
    "mdm.yaml": b"name: bench\napiVersion: mdm-gitops/v1\ndomains: [{name: bench}]\n",
    **{
        f"entities/{name}.yaml": json.dumps(
            {
                "name": name,
                "domain": "bench",
                "keyColumns": ["code"],
                "columns": [{"name": "code", "dataType": "string", "nullable": False}],
            }
        ).encode()
        for name in ("customer", "rare")
    },
}
# Changes of single rows, of which each hundredth is of the rare entity; then those of one import.
_SINGLE: Final = """
WITH k AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor, commit_id)
  SELECT nextval('mdm.change_set_key'), 1, now(), 'apikey:bench', repeat('a', 40)
    FROM generate_series(1, {changes}) RETURNING key)
INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version, old, new)
SELECT key, 0, (SELECT entity_id FROM mdm.entity
                 WHERE name = CASE WHEN key % 100 = 0 THEN 'rare' ELSE 'customer' END),
       gen_random_uuid(), 'data_updated', 2, {image}, {image} FROM k"""
_IMPORT: Final = """
WITH k AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor, commit_id)
  VALUES (nextval('mdm.change_set_key'), {changes}, now(), 'apikey:bench', repeat('a', 40))
  RETURNING key)
INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version, new)
SELECT key, n - 1, (SELECT entity_id FROM mdm.entity WHERE name = 'customer'),
       gen_random_uuid(), 'data_created', 1, {image} FROM k, generate_series(1, {changes}) n"""
_IMAGE: Final = "json_build_object('code', gen_random_uuid(), 'name', repeat('x', 80))"


async def measure(server: Server, *, changes: int = CHANGES) -> list[Figure]:
    url = await server.fresh_database()
    async with opened(url) as conn:
        definitions = read_tree(_FILES)
        await apply_plan(
            conn, definitions, None, schemas=SCHEMAS, actor="user:bench", approved=True
        )
        for text in (_SINGLE, _IMPORT):
            await conn.execute(text.format(changes=changes, image=_IMAGE).encode())
        numbering_s = await _numbering_s(conn)
        await conn.execute("VACUUM ANALYZE")
    figures = [
        Figure(
            case=f"feed: ids for {changes:,} changes of single rows and one import of as many",
            value=numbering_s,
            unit="s",
            note=f"{2 * changes / numbering_s:,.0f}/s, in portions",
        )
    ]
    return figures + await asyncio.to_thread(_measured, url, changes)


async def _numbering_s(conn: Connection) -> float:
    started = time.perf_counter()
    while await number_changes(conn, schemas=SCHEMAS):
        pass
    return time.perf_counter() - started


def _measured(url: str, changes: int) -> list[Figure]:
    with serving(url) as (base, pid):
        address = base.removeprefix("http://")
        reader = _Reader(address)
        reader.page(0)
        idle = resident_mb(pid)
        figures = [
            _reading("changes of single rows", reader, 0, changes),
            _reading("changes of an import", reader, changes, 2 * changes),
            _rare(reader, changes),
            _polling(reader),
            Figure(
                case="memory of the API above idle, feed",
                value=resident_mb(pid) - idle,
                unit="MB",
                limit=50.0,
            ),
        ]
        figures.append(_seen(address))
        return figures


class _Reader:
    """A consumer: one connection, the last position."""

    def __init__(self, address: str) -> None:
        self._conn = http.client.HTTPConnection(address)

    def page(self, after: int, query: str = "") -> dict[str, Any]:
        path = f"/api/v1/changes?take=500&afterId={after}{query}"
        self._conn.request("GET", path, headers={"X-API-Key": KEY})
        answer = self._conn.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        found: dict[str, Any] = orjson.loads(body)
        return found

    def end(self) -> int:
        """Return the last id: nothing was removed, and there are no gaps."""
        return int(self.page(0)["totalCount"])

    def read(self, after: int, until: int, query: str = "") -> int:
        count = 0
        while after < until:
            page = self.page(after, query)
            count += len(page["entries"])
            after = page["nextAfterId"]
            if not page["hasMore"]:
                break
        return count


def _reading(what: str, reader: _Reader, start: int, end: int) -> Figure:
    seconds = best_s(lambda: reader.read(start, end), rounds=3)
    rate = (end - start) / seconds
    return Figure(
        case=f"feed: entries in pages of 500, {what}",
        value=rate,
        unit="per_s",
        limit=PER_SECOND,
        is_floor=True,
    )


def _rare(reader: _Reader, changes: int) -> Figure:
    """One change in a hundred is asked for: the others are passed over."""
    seconds = best_s(lambda: reader.read(0, changes, "&entity=rare"), rounds=3)
    rate = changes / 100 / seconds
    return Figure(
        case="feed: 1,000 entries of an entity with each hundredth change",
        value=1_000 / rate,
        unit="s",
        note=f"{rate:,.0f} entries/s",
    )


def _polling(reader: _Reader) -> Figure:
    last = reader.end()
    seconds = best_s(lambda: [reader.page(last) for _ in range(200)], rounds=5) / 200
    return Figure(case="feed: a call when nothing is new", value=seconds * 1000, unit="ms")


def _seen(address: str) -> Figure:
    """Write over HTTP with several clients while one reads; compare the moments."""
    written: dict[str, float] = {}
    seen: dict[str, float] = {}
    stop = threading.Event()
    writers = [
        threading.Thread(target=_write, args=(address, n, written, stop)) for n in range(WRITERS)
    ]
    reader = _Reader(address)
    position = reader.end()
    for each in writers:
        each.start()
    end = time.monotonic() + LOAD_S
    while not stop.is_set() or len(seen) < len(written):
        if time.monotonic() > end and not stop.is_set():
            stop.set()
            for each in writers:
                each.join()
        page = reader.page(position)
        moment = time.monotonic()
        seen.update((entry["recordId"], moment) for entry in page["entries"])
        position = page["nextAfterId"]
    waits = sorted(max(0.0, seen[each] - written[each]) * 1000 for each in written)
    return Figure(
        case=f"feed: from the answer to a write until it is seen, {WRITERS} writers, p99",
        value=waits[len(waits) * 99 // 100],
        unit="ms",
        limit=50.0,
        note=f"{len(waits) / LOAD_S:,.0f} writes/s, median {waits[len(waits) // 2]:.1f} ms",
    )


def _write(address: str, number: int, written: dict[str, float], stop: threading.Event) -> None:
    conn = http.client.HTTPConnection(address)
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    count = 0
    while not stop.is_set():
        body = json.dumps({"code": f"W{number}-{count}"})
        conn.request("POST", "/api/v1/entities/customer/data", body=body, headers=headers)
        answer = conn.getresponse()
        text = answer.read()
        assert answer.status == 201, text
        written[orjson.loads(text)["_sys_id"]] = time.monotonic()
        count += 1


async def _alone() -> None:
    with tempfile.TemporaryDirectory() as name:
        embedded = await acquire_server(Path(name))
        try:
            changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
            for each in await measure(Server(embedded.url), changes=changes):
                print(f"{each.case:<72} {each.text:>10} {each.limit_text:>10} {each.note}")
        finally:
            await embedded.aclose()


if __name__ == "__main__":
    asyncio.run(_alone())
