"""What reading and writing costs while an entity, its history and the change feed grow.

Rows are made by SQL in the form that writing leaves: each has one closed version, and as many changes are in
the feed. A thousand rows share a batch, however many rows there are.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from bench_search import SEARCHED, fill_search, search_definitions, word_of_one
from figures import best_of
from growing import FLAT, LINEAR, Growing, Law
from warehouse import SCHEMAS, Server, opened

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.feed import ChangesRequest, number_changes, read_changes
from mdm_gitops.data.rows import ListRequest, RowShape, get_row, list_rows
from mdm_gitops.data.search import SearchRequest, search_rows
from mdm_gitops.data.writing import RowWriter
from mdm_gitops.model import Definitions
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.connect import Connection, connection_pool
from mdm_gitops.warehouse.store import read_state

CALLS: Final = 15
WARM_UPS: Final = 3
FEED_PAGE: Final = 500
READING: Final = "Reading 100 rows or one"
FIRST, DEEP = "first page", "page behind nine tenths"
_SHAPE: Final = RowShape()
_MIDDLE: Final = datetime(2025, 1, 1, 12, tzinfo=UTC)
_FILES: Final = {
    "mdm.yaml": {"name": "bench", "apiVersion": "mdm-gitops/v1", "domains": [{"name": "d"}]},
    "entities/batch.yaml": {
        "name": "batch",
        "domain": "d",
        "keyColumns": ["code"],
        "columns": [{"name": "code", "dataType": "string", "nullable": False}],
    },
    "entities/thing.yaml": {
        "name": "thing",
        "domain": "d",
        "historyEnabled": True,
        "keyColumns": ["code"],
        "columns": [
            {"name": "code", "dataType": "string", "nullable": False},
            {"name": "name", "dataType": "string", "maxLength": 100},
            {"name": "batch", "dataType": "string", "reference": {"entity": "batch"}},
            {"name": "amount", "dataType": "int"},
        ],
    },
}
_BATCHES: Final = """
INSERT INTO mdm_data.batch (_sys_id, code, _sys_created_at, _sys_created_by, _sys_last_modified_at,
       _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'B' || n, now(), 'bench', now(), 'bench'
  FROM generate_series({first} / 1000, ({last} - 1) / 1000) n"""
_ROWS: Final = """
INSERT INTO mdm_data.{table} (_sys_id, code, name, batch, amount, _sys_version, _sys_created_at,
       _sys_created_by, _sys_last_modified_at, _sys_last_modified_by, _sys_is_deleted{more})
SELECT rpad(lpad(to_hex(n), 12, '0') || '7000800000000000', 32, '0')::uuid, 'T' || lpad(n::text, 8, '0'),
       'Name of thing ' || n, 'B' || {first} / 1000 + n % (({last} - {first}) / 1000), n % 977,
       {version}, '2025-01-01Z', 'bench', '{at}', 'bench', false{values}
  FROM generate_series({first}, {last} - 1) n"""
_CHANGES: Final = """
WITH s AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor)
  SELECT nextval('mdm.change_set_key'), 500, now(), 'bench'
    FROM generate_series(1, {count} / 500) RETURNING key)
INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version, new)
SELECT key, n, (SELECT entity_id FROM mdm.entity WHERE name = 'thing'), gen_random_uuid(),
       'data_created', 1, '{{"code":"T","name":"Name"}}' FROM s, generate_series(0, 499) n"""

Work = Callable[[], Awaitable[object]]


async def measure(server: Server, sizes: Sequence[int], searched: Sequence[int]) -> list[Growing]:
    """*sizes* are numbers of rows, *searched* those of the entity that is searched."""
    reading = Growing(
        title=READING,
        x="rows",
        laws={
            FIRST: FLAT,
            DEEP: FLAT,
            "one row by id": FLAT,
            # Of a thousand rows all have it, so there any page will do; of more, they must be found.
            "1,000 rows of a reference, first page": Law(slack=4.0),
            "first page of the past": FLAT,
        },
    )
    looking = Growing(
        title="What looks at each row",
        x="rows",
        laws={"first page and the count of all": LINEAR, "filter without an index": LINEAR},
    )
    writing = Growing(title="Writing one row", x="rows", laws={"create": FLAT, "update": FLAT})
    feed = Growing(
        title="500 changes of the feed",
        x="changes",
        laws={"first page": FLAT, "last page": FLAT, "nothing new": FLAT},
    )
    url = await server.fresh_database()
    async with opened(url) as conn, writer_of(url) as writer:
        await deploy(conn, definitions())
        done = 0
        for size in sizes:
            await fill(conn, done, size)
            done = size
            asking = await asking_of(conn)
            await _read(conn, asking, reading, looking, size)
            await _write(writer, asking, writing, size)
            await _page_feed(conn, asking, feed, size)
    return [reading, looking, writing, feed, await _search(server, searched)]


def definitions() -> Definitions:
    return read_tree({path: json.dumps(document).encode() for path, document in _FILES.items()})


async def fill(conn: Connection, first: int, last: int) -> None:
    """Add the rows *first* to *last*, multiples of 1,000, with their past and their changes."""
    now, then = (
        {"version": 2, "at": "2025-01-02Z", "more": "", "values": ""},
        {
            "version": 1,
            "at": "2025-01-01Z",
            "more": ", _sys_valid_from, _sys_valid_to, _sys_action",
            "values": ", '2025-01-01Z', '2025-01-02Z', 'data_updated'",
        },
    )
    await conn.execute(_BATCHES.format(first=first, last=last).encode())
    await conn.execute(_ROWS.format(table="thing", first=first, last=last, **now).encode())
    await conn.execute(
        _ROWS.format(table="thing__history", first=first, last=last, **then).encode()
    )
    await conn.execute(_CHANGES.format(count=last - first).encode())
    while await number_changes(conn, schemas=SCHEMAS):
        pass
    await conn.execute(b"VACUUM ANALYZE")


async def deploy(conn: Connection, wanted: Definitions) -> None:
    await apply_plan(conn, wanted, None, schemas=SCHEMAS, actor="user:bench", approved=True)


async def asking_of(conn: Connection, user: str = "bench", **options: Any) -> Asking:
    options = options or {"is_global_admin": True}
    return Asking(
        principal=Principal(kind=PrincipalKind.USER, name=user, **options),
        state=await read_state(conn, schemas=SCHEMAS),
        schemas=SCHEMAS,
        now=datetime.now(UTC),
    )


@asynccontextmanager
async def writer_of(url: str) -> AsyncIterator[RowWriter]:
    async with connection_pool(url, application_name="bench", max_size=2) as pool:
        writer = RowWriter(pool)
        try:
            yield writer
        finally:
            await writer.aclose()


async def ms(work: Work, *, rounds: int = CALLS) -> float:
    """Return the least milliseconds; statements are prepared and pages warm by then."""
    for _ in range(WARM_UPS):
        await work()
    return 1_000 * await best_of(work, rounds=rounds)


async def _read(
    conn: Connection, asking: Asking, reading: Growing, looking: Growing, size: int
) -> None:
    def listed(**asked: Any) -> Work:
        async def run() -> None:
            request = ListRequest(shape=_SHAPE, **asked)
            assert (await list_rows(conn, asking=asking, entity="thing", request=request)).rows

        return run

    async def one() -> None:
        row_id = UUID(hex=f"{size // 2:012x}7000800000000000".ljust(32, "0"))
        await get_row(conn, asking=asking, entity="thing", row_id=row_id, shape=_SHAPE)

    before = ListRequest(shape=_SHAPE, skip=size * 9 // 10 - 1, take=1)
    found = await list_rows(conn, asking=asking, entity="thing", request=before)
    batch = f"[batch] = 'B{size // 1_000 - 1}'"
    for name, work in (
        (FIRST, listed()),
        (DEEP, listed(after=found.next_after)),
        ("one row by id", one),
        ("1,000 rows of a reference, first page", listed(filter=batch)),
        ("first page of the past", listed(as_of=_MIDDLE)),
    ):
        reading.add(name, size, await ms(work))
    rounds = 3 if size > 100_000 else CALLS
    needle = f"[name] = 'Name of thing {size - 1}'"
    looking.add(
        "first page and the count of all", size, await ms(listed(count=True), rounds=rounds)
    )
    looking.add("filter without an index", size, await ms(listed(filter=needle), rounds=rounds))


async def _write(writer: RowWriter, asking: Asking, writing: Growing, size: int) -> None:
    create, numbers = creating(writer, asking, size * 10), iter(range(10_000))
    made = await create()

    async def update() -> None:
        await writer.update(asking, "thing", made.row_id, {"amount": next(numbers)})

    writing.add("create", size, await ms(create))
    writing.add("update", size, await ms(update))


def creating(writer: RowWriter, asking: Asking, first: int) -> Callable[[], Awaitable[Any]]:
    """Return what creates another row each time, with numbers from *first* on."""
    numbers = iter(range(first, first + 10_000))

    async def create() -> Any:
        row = {"code": f"N{next(numbers)}", "name": "New", "batch": "B0", "amount": 1}
        return await writer.create(asking, "thing", row)

    return create


async def _page_feed(conn: Connection, asking: Asking, feed: Growing, size: int) -> None:
    async def page(after: int) -> Any:
        request = ChangesRequest(after=after, take=FEED_PAGE)
        return await read_changes(conn, asking=asking, request=request)

    last = (await page(0)).total
    for name, after in (("first page", 0), ("last page", last - FEED_PAGE), ("nothing new", last)):
        feed.add(name, size, await ms(lambda after=after: page(after)))


async def _search(server: Server, sizes: Sequence[int]) -> Growing:
    search = Growing(
        title="Searching",
        x="rows",
        laws={"a word of one row": FLAT, "a word of four rows in ten": LINEAR},
    )
    async with opened(await server.fresh_database()) as conn:
        await deploy(conn, search_definitions())
        done = 0
        for size in sizes:
            await fill_search(conn, done, size)
            done = size
            await conn.execute(f"VACUUM ANALYZE mdm_data.{SEARCHED}".encode())
            asking = await asking_of(conn)

            async def run(q: str, asking: Asking = asking) -> None:
                request = SearchRequest(q=q, entity=SEARCHED)
                assert (await search_rows(conn, asking=asking, request=request)).found

            for name, q in (
                ("a word of one row", word_of_one(size // 2)),
                ("a word of four rows in ten", "gmbh"),
            ):
                search.add(name, size, await ms(lambda q=q: run(q)))
    return search
