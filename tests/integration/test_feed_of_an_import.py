"""A page of the feed reads its own changes, also where one import has written most of all there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data import feed_sql
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.feed import ChangesRequest, number_changes, read_changes
from mdm_gitops.deliver.pages import Pages
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.conftest import Prepare
from tests.support.meter import cost_of

pytestmark = pytest.mark.anyio

EVENTS: Final = 20_000
TAKE: Final = 50
_SET: Final = """
WITH s AS (INSERT INTO mdm.change_set (key, events, occurred_at, actor)
  SELECT nextval('mdm.change_set_key'), {events}, now(), 'test' FROM generate_series(1, {sets})
  RETURNING key)
INSERT INTO mdm.event (change_set, ordinal, entity_id, record_id, action, version, new)
SELECT key, n, 1, gen_random_uuid(), 'data_created', 1, '{{"code":"T"}}'
  FROM s, generate_series(0, {events} - 1) n"""


async def _imported(conn: AsyncConnection[Any]) -> None:
    await conn.execute("INSERT INTO mdm.entity_name (entity_id, name) VALUES (1, 'one')")
    for events, sets in ((1, 2), (EVENTS, 1), (1, 2)):
        await conn.execute(_SET.format(events=events, sets=sets).encode())
    while await number_changes(conn, schemas=Schemas()):
        pass
    await conn.execute("VACUUM ANALYZE mdm.event, mdm.change_set")


@pytest.fixture
async def conn(shared_copy_of: Callable[[Prepare], str]) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(shared_copy_of(_imported), application_name="test") as conn:
        yield conn


async def _rows_for_a_page(conn: AsyncConnection[Any]) -> int:
    """Read one as where PostgreSQL takes a join of all changes for the better way, as it did among 1,000,000."""
    await conn.execute("SET enable_nestloop = off")
    root = Principal(kind=PrincipalKind.USER, name="root", is_global_admin=True)
    state = await read_state(conn, schemas=Schemas())
    asking = Asking(principal=root, schemas=Schemas(), state=state, now=datetime.now(UTC))
    request = ChangesRequest(after=EVENTS // 2, take=TAKE)

    async def read() -> None:
        assert (await read_changes(conn, asking=asking, request=request)).count == TAKE

    return (await cost_of(conn, read)).rows


async def test_a_page_for_a_reader(conn: AsyncConnection[Any]) -> None:
    assert await _rows_for_a_page(conn) < 4 * TAKE


async def test_without_the_fence_all_changes_are_read(
    conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced = feed_sql.events_of_set

    def free(*arguments: str) -> str:
        return fenced(*arguments).removesuffix("OFFSET 0")

    monkeypatch.setattr(feed_sql, "events_of_set", free)
    assert await _rows_for_a_page(conn) > EVENTS


async def test_a_page_for_a_webhook(conn: AsyncConnection[Any]) -> None:
    pages = Pages(conn, turn=asyncio.Lock(), schemas=Schemas())
    pages.share_among(1)
    after = iter(range(EVENTS // 2, EVENTS))  # a page that was read is kept

    async def read() -> None:
        page = await pages.page(next(after), EVENTS)
        assert len(page.events) > 0
        sizes.append(len(page.events))

    sizes: list[int] = []
    cost = await cost_of(conn, read)
    assert cost.rows < 4 * sizes[-1] + 100
