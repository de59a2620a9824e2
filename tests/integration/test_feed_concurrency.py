"""I5: a reader who pages by id sees each committed change exactly once, in order, while others write.

The same load is put on a naive feed (an id from a sequence, in the row of the log), which loses
changes: so the load and the judgement find what they look for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.feed import ChangesPage, ChangesRequest, number_changes, read_changes
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.support.changes import Event, new_key, write_events
from tests.support.feed_campaign import Campaign, Change, Feed, Findings

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()


class OurFeed:
    is_gapless = True

    async def prepare(self, conn: AsyncConnection[Any]) -> None:
        self.asking = Asking(
            principal=Principal(kind=PrincipalKind.USER, name="root", is_global_admin=True),
            state=await read_state(conn, schemas=SCHEMAS),
            schemas=SCHEMAS,
            now=datetime.now(UTC),
        )

    async def begin(self, conn: AsyncConnection[Any]) -> int:
        return await new_key(conn)

    async def log(self, conn: AsyncConnection[Any], changes: Sequence[Change], begun: int) -> None:
        events = [Event(record_id=record, version=version) for record, version in changes]
        await write_events(conn, events, key=begun)

    async def page(self, conn: AsyncConnection[Any], after: int, take: int) -> list[int]:
        page = await self.read(conn, ChangesRequest(after=after, take=take))
        ids = [entry["id"] for entry in json.loads(b"[" + page.entries + b"]")]
        assert page.next_after == (ids[-1] if ids else after)
        return ids

    async def read(self, conn: AsyncConnection[Any], request: ChangesRequest) -> ChangesPage:
        while True:
            try:
                return await read_changes(conn, asking=self.asking, request=request)
            except StateMoved:  # something was deployed
                state = await read_state(conn, schemas=SCHEMAS)
                self.asking = replace(self.asking, state=state)

    async def changes(self, conn: AsyncConnection[Any]) -> dict[int, Change]:
        query = """SELECT c.first_id + e.ordinal, e.record_id, e.version
                     FROM mdm.change_set c JOIN mdm.event e ON e.change_set = c.key"""
        rows = await (await conn.execute(query)).fetchall()
        return {number: (record, version) for number, record, version in rows}


class NaiveFeed:
    """What comes to mind first: the log has a serial id, readers ask for larger ones."""

    is_gapless = False  # a transaction that is rolled back takes its ids along

    async def prepare(self, conn: AsyncConnection[Any]) -> None:
        await conn.execute(
            "CREATE TABLE mdm_data.log (id bigserial PRIMARY KEY, record_id uuid, version int)"
        )

    async def begin(self, conn: AsyncConnection[Any]) -> int:
        return 0

    async def log(self, conn: AsyncConnection[Any], changes: Sequence[Change], begun: int) -> None:
        for change in changes:
            query = "INSERT INTO mdm_data.log (record_id, version) VALUES (%s, %s)"
            await conn.execute(query, change)

    async def page(self, conn: AsyncConnection[Any], after: int, take: int) -> list[int]:
        query = "SELECT id FROM mdm_data.log WHERE id > %s ORDER BY id LIMIT %s"
        return [row[0] for row in await (await conn.execute(query, [after, take])).fetchall()]

    async def changes(self, conn: AsyncConnection[Any]) -> dict[int, Change]:
        rows = await (
            await conn.execute("SELECT id, record_id, version FROM mdm_data.log")
        ).fetchall()
        return {number: (record, version) for number, record, version in rows}


async def findings(campaign: Campaign, *, at_least: int) -> list[Findings]:
    outcome = await campaign.run()
    print(campaign.seed, dict(outcome.counts), len(outcome.committed))
    assert len(outcome.committed) >= at_least, "the load was too small to tell anything"
    assert outcome.counts["rolled back"]
    return [outcome.judge(ids, gapless=campaign.feed.is_gapless) for ids in outcome.seen]


async def test_each_change_is_seen_once_and_in_order(database_url: str) -> None:
    campaign = Campaign(url=database_url, feed=OurFeed(), seed=1)
    assert all(each.is_clean for each in await findings(campaign, at_least=150))


async def test_a_naive_feed_fails_under_the_same_load(database_url: str) -> None:
    campaign = Campaign(url=database_url, feed=NaiveFeed(), seed=1, seconds=2)
    assert all(each.lost > 0 for each in await findings(campaign, at_least=100))


async def test_writers_and_readers_may_die_at_any_moment(database_url: str) -> None:
    campaign = Campaign(url=database_url, feed=OurFeed(), seed=2, seconds=2, kills_per_second=20)
    assert all(each.is_clean for each in await findings(campaign, at_least=100))


async def test_deployments_that_number_changes_are_in_nobodys_way(database_url: str) -> None:
    """A new subscription begins at the position of now, so its deployment numbers what is new, and
    keeps others from numbering until it ends. If it is rolled back, so are the numbers."""
    campaign = Campaign(url=database_url, feed=OurFeed(), seed=3, seconds=2, deployers=2)
    outcome = await campaign.run()
    assert outcome.counts["deployments"] > 3 and outcome.counts["deployments rolled back"] > 0
    assert len(outcome.committed) >= 100
    assert all(outcome.judge(ids, gapless=True).is_clean for ids in outcome.seen)


@pytest.mark.parametrize("is_void", [False, True], ids=["committed", "rolled back"])
async def test_a_reader_is_answered_while_a_deployment_numbers(
    database_url: str, conn: AsyncConnection[Any], is_void: bool
) -> None:
    feed = OurFeed()
    await feed.prepare(conn)
    record = Event().record_id
    await write_events(conn, [Event(record_id=record, version=1)])
    assert await feed.page(conn, 0, 10) == [1]
    # It waits for two seconds in life.
    await conn.execute("ALTER FUNCTION mdm.number_changes SET lock_timeout = '50ms'")
    async with await connect(database_url, application_name="deployer") as deployer:
        async with deployer.transaction(force_rollback=is_void):
            await write_events(conn, [Event(record_id=record, version=2)])
            await deployer.execute("INSERT INTO mdm.webhook (name, definition) VALUES ('a', '{}')")
            await write_events(conn, [Event(record_id=record, version=3)])
            assert await feed.page(conn, 1, 10) == [], "not numbered, or not yet to be seen"
            page = await feed.read(conn, ChangesRequest(after=1, take=10))
            assert page.has_more and page.next_after == 1, "so that it asks again"
        assert await feed.page(conn, 1, 10) == [2, 3]
        rows = await (await conn.execute("SELECT position FROM mdm.webhook_cursor")).fetchall()
        assert rows == ([] if is_void else [(2,)]), "what was committed before it is not sent"
    assert {version for _, version in (await feed.changes(conn)).values()} == {1, 2, 3}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("kills", [0, 10], ids=["quiet", "kills"])
async def test_for_a_long_time(database_url: str, seed: int, kills: float) -> None:
    campaign = Campaign(
        url=database_url,
        feed=OurFeed(),
        seed=seed,
        readers=4,
        seconds=60,
        kills_per_second=kills,
    )
    assert all(each.is_clean for each in await findings(campaign, at_least=2_000))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 13))
async def test_a_naive_feed_fails_for_a_long_time(database_url: str, seed: int) -> None:
    campaign = Campaign(url=database_url, feed=NaiveFeed(), seed=seed, readers=4, seconds=60)
    assert all(each.lost > 0 for each in await findings(campaign, at_least=2_000))


class FlawedFeed(OurFeed):
    """Ours, with a text of the function that numbers replaced by another."""

    def __init__(self, right: str, wrong: str) -> None:
        self._texts = right, wrong

    async def prepare(self, conn: AsyncConnection[Any]) -> None:
        await super().prepare(conn)
        query = "SELECT pg_get_functiondef('mdm.number_changes'::regproc)"
        row = await (await conn.execute(query)).fetchone()
        assert row is not None and self._texts[0] in row[0]
        await conn.execute(row[0].replace(*self._texts).encode())


# With how long readers pause: the more is numbered at a time, the more the order matters.
FLAWS = {
    "in the order of keys": ("ORDER BY c.seq", "ORDER BY c.key", 0.5),
    "slow writers are forgotten": (
        "pg_snapshot_xmin(pg_current_snapshot()) >= standing.next_xid",
        "true",
        0.01,
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_flaw_in_numbering_is_found(database_url: str, flaw: str) -> None:
    right, wrong, pause_s = FLAWS[flaw]
    campaign = Campaign(
        url=database_url,
        feed=FlawedFeed(right, wrong),
        seed=20,
        readers=4,
        seconds=20,
        pause_s=pause_s,
    )
    found = await findings(campaign, at_least=500)
    assert any(not each.is_clean for each in found)


def test_the_judgement_finds_each_kind_of_wrong() -> None:
    from uuid import UUID

    from tests.support.feed_campaign import Outcome

    a, b = UUID(int=1), UUID(int=2)
    outcome = Outcome(
        committed={(a, 1), (a, 2), (b, 1)},
        meaning={1: (a, 1), 2: (b, 1), 3: (a, 2), 4: (b, 9), 5: (a, 1)},
    )
    assert outcome.judge([1, 2, 3], gapless=True).is_clean
    assert outcome.judge([1, 3], gapless=True) == Findings(lost=1, gaps=1)
    assert outcome.judge([1, 2, 3, 5], gapless=False) == Findings(twice=1, inverted=1)
    assert outcome.judge([3, 1, 2], gapless=True) == Findings(inverted=1)
    assert outcome.judge([1, 2, 3, 4], gapless=True) == Findings(invented=1)


async def test_a_number_is_given_in_the_order_of_the_rows_locks(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    """Who waited for the row comes later, also when its transaction and its key are older."""
    await conn.execute("CREATE TABLE mdm_data.t (id int PRIMARY KEY, v int)")
    await conn.execute("INSERT INTO mdm_data.t VALUES (1, 0)")
    record = Event().record_id
    async with (
        await connect(database_url, application_name="test") as older,
        await connect(database_url, application_name="test") as younger,
        older.transaction(),
    ):
        await older.execute("SELECT nextval('mdm.change_set_key'), pg_current_xact_id()")
        async with younger.transaction():
            await younger.execute("UPDATE mdm_data.t SET v = 1 WHERE id = 1")
            await write_events(younger, [Event(record_id=record, version=1)])
        assert not await number_changes(conn, schemas=SCHEMAS)
        await older.execute("UPDATE mdm_data.t SET v = 2 WHERE id = 1")
        await write_events(older, [Event(record_id=record, version=2)])
    await number_changes(conn, schemas=SCHEMAS)
    query = """SELECT e.version FROM mdm.change_set c JOIN mdm.event e ON e.change_set = c.key
                ORDER BY c.first_id"""
    assert await (await conn.execute(query)).fetchall() == [(1,), (2,)]


_: Feed = OurFeed()
