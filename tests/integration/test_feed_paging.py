"""Paging is filtering: whatever the takes, a reader gets what the whole feed holds for it, and no more.

An oracle filters the list of all changes in Python. The feed is built of small and of large change
sets, numbered in portions, so that pages begin and end everywhere in sets and blocks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data import feed_statement
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.audit import AuditRequest, read_audit
from mdm_gitops.data.feed import ChangesRequest, number_changes, read_changes
from mdm_gitops.data.retention import remove_expired
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.support import by_hand
from tests.support.changes import Event, write_events
from tests.support.countries import FILES

pytestmark = pytest.mark.anyio
SCHEMAS = Schemas()
NOW = datetime.now(UTC).replace(microsecond=0)
COUNTRY, PERSON = 1, 2
NAMES = {COUNTRY: "country", PERSON: "person"}
ACTIONS = ("data_created", "data_updated", "data_soft_deleted")
ACTORS = ("user:anna", 'user:b"ert\\', "apikey:c")
# Who sees which entities; swiss sees the country CH alone.
USERS = {"reader": {COUNTRY, PERSON}, "hr": {PERSON}, "swiss": {COUNTRY, PERSON}, "nobody": set()}


@dataclass(frozen=True, kw_only=True)
class Entry:
    id: int
    entity_id: int
    record_id: UUID
    action: str
    actor: str
    occurred_at: datetime


class Lab:
    """A warehouse with a feed, and all that is in it."""

    def __init__(self, conn: AsyncConnection[Any], chance: random.Random) -> None:
        self.conn = conn
        self.chance = chance
        self.entries: list[Entry] = []
        self.swiss: set[UUID] = set()

    async def build(self, *, sets: int, large: int) -> None:
        await by_hand.deploy(self.conn, read_tree(FILES))
        countries = [{"code": "CH" if n == 0 else f"C{n}"} for n in range(8)]
        ids = [UUID(each) for each in await by_hand.insert(self.conn, "country", countries)]
        self.swiss = {ids[0]}
        people = await by_hand.insert(self.conn, "person", [{"login": f"p{n}"} for n in range(8)])
        records = {COUNTRY: ids, PERSON: [UUID(each) for each in people]}
        sizes = [self.chance.choice((1, 1, 1, 2, 5)) for _ in range(sets)]
        sizes += [self.chance.randint(300, 1_500) for _ in range(large)]
        self.chance.shuffle(sizes)
        for number, size in enumerate(sizes):
            await self._write(records, size, number / len(sizes))
            if self.chance.random() < 0.1:
                await self._number_some()
        while await number_changes(self.conn, schemas=SCHEMAS):
            pass
        self.entries = await self._all()

    async def _write(self, records: dict[int, list[UUID]], size: int, progress: float) -> None:
        pick = self.chance.choice
        one = pick((COUNTRY, COUNTRY, COUNTRY, PERSON))
        events = []
        for _ in range(size):
            entity = one if size > 5 else pick((one, COUNTRY))
            actor = pick((None, None, pick(ACTORS)))
            events.append(
                Event(
                    entity_id=entity,
                    record_id=pick(records[entity]),
                    action=pick(ACTIONS),
                    actor=actor,
                )
            )
        moment = (
            NOW - timedelta(days=4) * (1 - progress) + timedelta(hours=self.chance.random() * 3)
        )
        await write_events(
            self.conn, events, actor=pick(ACTORS), occurred_at=moment, commit="c0ffee"
        )

    async def _number_some(self) -> None:
        portion = [self.chance.randint(1, 4), self.chance.randint(1, 50)]
        await self.conn.execute("SELECT mdm.number_changes(%s, %s)", portion)

    async def _all(self) -> list[Entry]:
        query = """SELECT c.first_id + e.ordinal, e.entity_id, e.record_id, e.action,
                          coalesce(e.actor, c.actor), c.occurred_at
                     FROM mdm.change_set c JOIN mdm.event e ON e.change_set = c.key ORDER BY 1"""
        rows = await (await self.conn.execute(query)).fetchall()
        names = ("id", "entity_id", "record_id", "action", "actor", "occurred_at")
        return [Entry(**dict(zip(names, row, strict=True))) for row in rows]

    async def asking(self, user: str) -> Asking:
        """Return who asks: a Global Admin is called root."""
        return Asking(
            principal=Principal(kind=PrincipalKind.USER, name=user, is_global_admin=user == "root"),
            state=await read_state(self.conn, schemas=SCHEMAS),
            schemas=SCHEMAS,
            now=NOW,
        )

    def visible(self, user: str, request: ChangesRequest) -> list[Entry]:
        """Return what the oracle finds for *request*, whatever its take."""
        since = request.since
        if since is None and request.until is None and request.after is None:
            since = NOW - timedelta(hours=24)
        return [
            each
            for each in self.entries
            if each.id > (request.after or 0)
            and (since is None or each.occurred_at >= since)
            and (request.until is None or each.occurred_at < request.until)
            and (not request.entity or NAMES[each.entity_id] == request.entity.lower())
            and (user == "root" or each.entity_id in USERS[user])
            and (user != "swiss" or each.entity_id != COUNTRY or each.record_id in self.swiss)
        ]

    def random_request(self, user: str) -> ChangesRequest:
        chance, last = self.chance, len(self.entries)
        moment = NOW - timedelta(days=4) * chance.random()
        entities = ["", "", *(NAMES[each] for each in USERS.get(user, NAMES))]
        return ChangesRequest(
            entity=chance.choice(entities),
            after=chance.choice((None, 0, chance.randint(0, last), last, last + 5)),
            since=chance.choice((None, None, moment)),
            until=chance.choice((None, None, moment + timedelta(days=2) * chance.random())),
            take=chance.choice((97, 250, 500, 500)),
        )


def entries_of(text: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(b"[" + text + b"]")
    return found


async def all_pages(
    lab: Lab, user: str, request: ChangesRequest, expected: Sequence[Entry]
) -> list[int]:
    """Page to the end as a consumer does; hold what each page says of itself."""
    asking, ids = await lab.asking(user), list[int]()
    window = request
    if request.after is None and request.since is None and request.until is None:
        window = replace(request, since=NOW - timedelta(hours=24))
    while True:
        page = await read_changes(lab.conn, asking=asking, request=request)
        found = [entry["id"] for entry in entries_of(page.entries)]
        assert len(found) == page.count <= request.take
        behind = request.after or 0
        assert page.total == sum(each.id > behind for each in expected)
        ids += found
        assert page.next_after >= max([behind, *found]) or page.next_after == request.after
        if not page.has_more:
            return ids
        assert page.next_after > behind, "the reader would turn in circles"
        request = replace(window, after=page.next_after)


@pytest.mark.parametrize("most_blocks", [64, 1], ids=["", "block by block"])
async def test_pages_are_what_the_whole_feed_holds(
    conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch, most_blocks: int
) -> None:
    monkeypatch.setattr(feed_statement, "_MAX_BLOCKS", most_blocks)
    lab = Lab(conn, random.Random(7))
    await lab.build(sets=150, large=5)
    assert [each.id for each in lab.entries] == list(range(1, len(lab.entries) + 1))
    assert len(lab.entries) > 3 * 1_024
    found = 0
    for _ in range(40):
        user = lab.chance.choice(("root", "reader", "hr", "swiss", "swiss", "nobody"))
        request = lab.random_request(user)
        expected = lab.visible(user, request)
        ids = await all_pages(lab, user, request, expected)
        assert ids == [each.id for each in expected], (user, request)
        found += bool(expected)
    assert found > 15, "the requests must find something"


async def test_the_blocks_are_what_the_ids_hold(conn: AsyncConnection[Any]) -> None:
    lab = Lab(conn, random.Random(8))
    await lab.build(sets=60, large=2)
    query = """
      SELECT block, entity_id, action, actor, events, first_occurred, last_occurred FROM mdm.feed_block
      EXCEPT ALL
      SELECT (c.first_id + e.ordinal) >> 10, e.entity_id, e.action, coalesce(e.actor, c.actor),
             count(*), min(c.occurred_at), max(c.occurred_at)
        FROM mdm.change_set c JOIN mdm.event e ON e.change_set = c.key GROUP BY 1, 2, 3, 4"""
    assert await (await conn.execute(query)).fetchall() == []
    totals = "SELECT sum(events), (SELECT last_id FROM mdm.feed_position) FROM mdm.feed_block"
    row = await (await conn.execute(totals)).fetchone()
    assert row is not None and row[0] == row[1] == len(lab.entries)


async def test_a_page_begins_inside_of_a_set_whose_start_is_removed(
    conn: AsyncConnection[Any],
) -> None:
    """The same law when retention has taken the beginning away."""
    lab = Lab(conn, random.Random(9))
    await lab.build(sets=60, large=3)
    await remove_expired(conn, schemas=SCHEMAS, days=2, batch=333)
    row = await (await conn.execute("SELECT removed_id FROM mdm.feed_retention")).fetchone()
    assert row is not None and 0 < row[0] < len(lab.entries)
    lab.entries = [each for each in lab.entries if each.id > row[0]]
    for user in ("root", "reader", "swiss", "hr"):
        for request in (
            ChangesRequest(since=NOW - timedelta(days=9), take=500),
            ChangesRequest(after=row[0], take=500),
            ChangesRequest(after=row[0] + 40, take=500, entity="person"),
        ):
            expected = lab.visible(user, request)
            assert await all_pages(lab, user, request, expected) == [each.id for each in expected]


# --- the audit, by the same oracle ----------------------------------------------------------------


async def test_the_audit_is_what_all_changes_are_newest_first(conn: AsyncConnection[Any]) -> None:
    lab = Lab(conn, random.Random(10))
    await lab.build(sets=120, large=3)
    asking = await lab.asking("root")
    await conn.execute("DELETE FROM mdm.audit")
    for _ in range(40):
        chance = lab.chance
        moment = NOW - timedelta(days=4) * chance.random()
        request = AuditRequest(
            entity=chance.choice(("", "", "country", "person")),
            user=chance.choice(("", "", *ACTORS)),
            action=chance.choice(("", "", *ACTIONS)),
            record_id=chance.choice((None, None, chance.choice(lab.entries).record_id)),
            since=chance.choice((None, None, moment)),
            until=chance.choice((None, None, moment + timedelta(days=1))),
            skip=chance.choice((0, 0, 10, 700)),
            take=chance.choice((1, 50, 1_000)),
        )
        expected = [
            each
            for each in lab.entries
            if (not request.entity or NAMES[each.entity_id] == request.entity)
            and (not request.user or each.actor == request.user)
            and (not request.action or each.action == request.action)
            and (not request.record_id or each.record_id == request.record_id)
            and (not request.since or each.occurred_at >= request.since)
            and (not request.until or each.occurred_at < request.until)
        ]
        expected.sort(key=lambda each: (each.occurred_at, each.id), reverse=True)
        page = await read_audit(conn, asking=asking, request=request)
        chosen = expected[request.skip : request.skip + request.take]
        found = entries_of(page.entries)
        assert [each["id"] for each in found] == [f"change:{each.id}" for each in chosen], request
        assert [each["user"] for each in found] == [each.actor for each in chosen]
        assert (page.total, page.count) == (len(expected), len(chosen))
