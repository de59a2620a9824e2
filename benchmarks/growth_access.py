"""What a check, a row filter and webhooks cost while assignments, values and webhooks grow."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Sequence

from bench_access import checked_s
from bench_webhooks import delivered, receiving
from growing import FLAT, LINEAR, Growing
from growth_rows import WARM_UPS, asking_of, creating, definitions, deploy, fill, ms, writer_of
from psycopg.types.json import Jsonb
from warehouse import Server, opened

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.rows import ListRequest, list_rows
from mdm_gitops.warehouse.connect import Connection

VALUES_PER_FILTER = 1_000  # as many as one IN list may have
ROWS = 20_000
EVENTS = 10  # that each webhook gets at a time
DELIVERIES = 2_000  # at least
_GRANT = b"""
INSERT INTO mdm.permission (principal, domain, entity, actions, row_filter)
VALUES (%s, 'd', 'thing', '{read}', %s)"""
_WEBHOOKS = b"""
INSERT INTO mdm.webhook (name, definition)
SELECT 'w' || n, %s::jsonb || jsonb_build_object('name', 'w' || n) FROM generate_series(1, %s) n"""


def assignments(sizes: Sequence[int]) -> Growing:
    growing = Growing(
        title="Permission check",
        x="assignments",
        y="us",
        laws={"not asked before": FLAT, "asked before": FLAT},
    )
    gc.collect()
    for size in sizes:
        for kind, seconds in checked_s(size).items():
            growing.add(kind, size, 1e6 * seconds)
    return growing


async def filter_values(server: Server, sizes: Sequence[int]) -> Growing:
    """The caller's row filters, of a thousand values each, are of as many groups."""
    growing = Growing(
        title="First page under a row filter",
        x="values",
        laws={"list of 100 rows": LINEAR},
        note="each value is sent with each request",
    )
    async with opened(await server.fresh_database()) as conn:
        await deploy(conn, definitions())
        await fill(conn, 0, ROWS)
        for size in sizes:
            groups = await _granted(conn, size)
            asking = await asking_of(conn, groups=groups)
            growing.add("list of 100 rows", size, await ms(_listing(conn, asking)))
    return growing


async def _granted(conn: Connection, size: int) -> tuple[str, ...]:
    """Grant reading under filters of *size* values in all; return the groups that have them."""
    await conn.execute(b"DELETE FROM mdm.permission")
    for first in range(0, size, VALUES_PER_FILTER):
        numbers = range(first, min(first + VALUES_PER_FILTER, size))
        await conn.execute(_GRANT, [f"g{first}", f"[amount] IN ({','.join(map(str, numbers))})"])
    return tuple(f"g{first}" for first in range(0, size, VALUES_PER_FILTER))


def _listing(conn: Connection, asking: Asking) -> Callable[[], Awaitable[object]]:
    async def listed() -> None:
        page = await list_rows(conn, asking=asking, entity="thing", request=ListRequest())
        assert len(page.rows) == 100

    return listed


async def webhooks(server: Server, sizes: Sequence[int]) -> list[Growing]:
    written = Growing(title="Writing beside webhooks", x="webhooks", laws={"create one row": FLAT})
    sent = Growing(
        title="Delivering one change to one webhook",
        x="webhooks",
        laws={"processor time of the dispatcher": FLAT},
        note=f"{EVENTS} changes at a time go to each webhook",
    )
    for size in sizes:
        url = await server.fresh_database()
        rounds = -(-DELIVERIES // (size * EVENTS))
        with receiving() as port:
            async with opened(url) as conn, writer_of(url) as writer:
                await deploy(conn, definitions())
                await fill(conn, 0, 1_000)
                await conn.execute(_WEBHOOKS, [Jsonb({"url": f"http://127.0.0.1:{port}/"}), size])
                create = creating(writer, await asking_of(conn), 0)
                written.add("create one row", size, await ms(create, rounds=5))
                seconds = await delivered(
                    conn,
                    url,
                    port,
                    webhooks=size,
                    waiting=WARM_UPS + 5,
                    events=EVENTS,
                    rounds=rounds,
                )
        each = 1_000 * seconds / (size * EVENTS)
        sent.add("processor time of the dispatcher", size, each)
    return [written, sent]
