"""``/changes`` over HTTP: what each write leaves in the feed, paging, windows, tiers, expiry."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mdm_gitops.data.retention import remove_expired
from mdm_gitops.warehouse.names import Schemas
from tests.support.changes import Event, write_events
from tests.support.changes_lab import Lab, at, entity_id, opened, utc
from tests.support.serving import problem

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(changes_url: str) -> str:
    return changes_url


@pytest.fixture
async def lab(database_url: str) -> AsyncIterator[Lab]:
    async with opened(database_url) as lab:
        yield lab


# --- entries --------------------------------------------------------------------------------------


async def test_each_write_is_one_entry(lab: Lab) -> None:
    row = await lab.create("site", code="A", Region="N")
    await lab.send("PUT", f"site/data/{row}", {"rank": 1})
    await lab.send("DELETE", f"site/data/{row}?soft=true")
    await lab.send("POST", f"site/data/{row}/restore")
    await lab.send("DELETE", f"site/data/{row}")
    entries = await lab.changes()
    assert [entry["id"] for entry in entries] == [1, 2, 3, 4, 5]
    assert await lab.told() == [
        ("data_created", row),
        ("data_updated", row),
        ("data_soft_deleted", row),
        ("data_restored", row),
        ("data_deleted", row),
    ]
    assert list(entries[0]) == [
        "id", "occurredUtc", "entityName", "recordId", "action", "user", "commit"]  # fmt: skip
    assert re.fullmatch(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", entries[0]["occurredUtc"])
    assert (entries[0]["entityName"], entries[0]["user"]) == ("Site", "apikey:bootstrap")
    assert entries[0]["commit"] is None


async def test_a_proposal_is_an_entry_and_so_is_its_approval(lab: Lab) -> None:
    row = await lab.create("part", code="P", Region="N")
    await lab.send("POST", f"part/approve/{row}")
    await lab.send("PUT", f"part/data/{row}", {"Region": "S"})
    await lab.send("POST", f"part/reject/{row}", {"comment": "no"})
    told = [action for action, _ in await lab.told()]
    assert told == ["data_edited", "data_created", "data_edited", "data_rejected"]


async def test_an_entry_names_the_commit_it_ran_under(lab: Lab) -> None:
    await lab.conn.execute("UPDATE mdm.project SET commit_id = 'c0ffee'")
    await lab.create("site", code="A")
    assert [entry["commit"] for entry in await lab.changes()] == ["c0ffee"]


async def test_any_name_of_a_user_is_json(lab: Lab) -> None:
    name = 'user:"quo\\ted"\u0001 ☃'
    await write_events(lab.conn, [Event(entity_id=1), Event(actor=name)], actor=name)
    assert [entry["user"] for entry in await lab.changes()] == [name, name]


async def test_both_paths_answer_the_same_bytes(lab: Lab) -> None:
    await lab.create("site", code="A")
    versioned = await lab.get("root", take=5)
    plain = await lab.get("root", path="/api/changes", take=5)
    assert versioned.content == plain.content
    assert versioned.headers["content-type"] == "application/json"
    assert versioned.headers["cache-control"] == "no-store"
    assert list(versioned.json()) == ["entries", "nextAfterId", "hasMore", "totalCount"]


# --- paging ---------------------------------------------------------------------------------------


async def test_the_consumption_loop(lab: Lab) -> None:
    rows = [await lab.create("site", code=f"S{n}") for n in range(7)]
    seen, after, sizes = [], 0, []
    while True:
        page = (await lab.get("root", afterId=after, take=3)).json()
        seen += [entry["recordId"] for entry in page["entries"]]
        sizes.append((len(page["entries"]), page["totalCount"], page["hasMore"]))
        after = page["nextAfterId"]
        if not page["hasMore"]:
            break
    assert seen == rows
    assert sizes == [(3, 7, True), (3, 4, True), (1, 1, False)]
    idle = (await lab.get("root", afterId=after)).json()
    assert idle == {"entries": [], "nextAfterId": 7, "hasMore": False, "totalCount": 0}
    last = await lab.create("site", code="later")
    assert await lab.told(afterId=after) == [("data_created", last)]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"take": 0}, "take"),
        ({"take": 501}, "take"),
        ({"take": "many"}, "take"),
        ({"afterId": -1}, "afterId"),
        ({"afterId": "1.5"}, "afterId"),
        ({"afterId": 2**62}, "afterId"),
        ({"fromUtc": "yesterday"}, "fromUtc"),
        ({"toUtc": "2026-13-01T00:00:00Z"}, "toUtc"),
        ({"fromUtc": "2026-01-02T00:00:00Z", "toUtc": "2026-01-01T00:00:00Z"}, "fromUtc"),
        ({"skip": 1}, "skip"),
    ],
)
async def test_wrong_parameters(lab: Lab, query: dict[str, Any], parameter: str) -> None:
    answer = await lab.get("root", **query)
    assert problem(answer) == (400, "REQUEST_INVALID")
    assert answer.json()["parameter"] == parameter


async def test_take_has_a_default_and_a_most(lab: Lab) -> None:
    await write_events(lab.conn, [Event() for _ in range(600)])
    assert len((await lab.get("root")).json()["entries"]) == 100
    assert len((await lab.get("root", take=500)).json()["entries"]) == 500


# --- windows --------------------------------------------------------------------------------------


async def test_without_a_window_the_last_day_is_meant(lab: Lab) -> None:
    old, new = await at(lab, 25), await at(lab, 23)
    page = (await lab.get("root")).json()
    assert [entry["recordId"] for entry in page["entries"]] == [new]
    assert page["totalCount"] == 1
    assert [record for _, record in await lab.told(fromUtc=utc(26), afterId=0)] == [old, new]


async def test_a_reader_who_was_away_for_long_misses_nothing(lab: Lab) -> None:
    """With afterId the last day is not meant."""
    records = [await at(lab, hours) for hours in (200, 100, 72, 1)]
    assert [record for _, record in await lab.told(afterId=1)] == records[1:]


async def test_a_window_has_its_beginning_and_not_its_end(lab: Lab) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=5)
    event = Event()
    await write_events(lab.conn, [event], occurred_at=moment)
    text = moment.isoformat().replace("+00:00", "Z")
    later = (moment + timedelta(seconds=1)).isoformat()
    assert len((await lab.get("root", fromUtc=text)).json()["entries"]) == 1
    assert len((await lab.get("root", toUtc=text)).json()["entries"]) == 0
    assert len((await lab.get("root", toUtc=later)).json()["entries"]) == 1
    assert len((await lab.get("root", fromUtc=text, toUtc=later)).json()["entries"]) == 1


async def test_who_begins_now_goes_on_from_now(lab: Lab) -> None:
    """An empty window gives a position, from which nothing old comes and nothing new is missed."""
    await at(lab, 30)
    for who in ("root", "lab", "north"):
        page = (await lab.get(who)).json()
        assert (page["entries"], page["hasMore"]) == ([], False)
        position = page["nextAfterId"]
        row = await lab.create("site", code=f"new {who}", Region="N")
        assert await lab.told(who, afterId=position) == [("data_created", row)]
        await lab.conn.execute("UPDATE mdm.change_set SET occurred_at = now() - interval '30 h'")
        await lab.conn.execute(
            "UPDATE mdm.feed_block SET first_occurred = now() - interval '30 h',"
            " last_occurred = now() - interval '30 h'"
        )


async def test_a_window_that_has_ended_does_not_move_the_position_past_later_changes(
    lab: Lab,
) -> None:
    await at(lab, 10)
    later = await at(lab, 1)
    page = (await lab.get("root", fromUtc=utc(12), toUtc=utc(8))).json()
    assert len(page["entries"]) == 1
    assert [r for _, r in await lab.told(afterId=page["nextAfterId"])] == [later]


# --- tiers and expiry -----------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["Community", "Professional"])
async def test_below_its_tier_the_feed_is_not_there(database_url: str, tier: str) -> None:
    async with opened(database_url, tier=tier) as lab:
        for path in ("/api/v1/changes", "/api/changes"):
            absent = await lab.get("root", path=path)
            nothing = await lab.get("root", path="/api/v1/nothing")
            assert problem(absent) == problem(nothing) == (404, "NOT_FOUND")
            assert {**absent.json(), "traceId": ""} == {**nothing.json(), "traceId": ""}
        assert problem(await lab.get("root", path="/api/v1/audit")) == (403, "TIER_REQUIRED")


async def test_who_needs_what_was_removed_is_told(lab: Lab) -> None:
    site, person = await entity_id(lab, "site"), await entity_id(lab, "person")
    old = datetime.now(UTC) - timedelta(days=400)
    await write_events(lab.conn, [Event(entity_id=site)] * 2, occurred_at=old)
    await write_events(lab.conn, [Event(entity_id=person)] * 2, occurred_at=old)
    await write_events(lab.conn, [Event(entity_id=site)])
    assert len(await lab.changes()) == 5
    removed = await remove_expired(lab.conn, schemas=Schemas(), days=365)
    assert removed.changes == 4
    for after in (0, 3):
        answer = await lab.get("root", afterId=after)
        assert problem(answer) == (410, "CHANGES_EXPIRED")
        assert "nextAfterId" in answer.json()["hint"]
    assert [entry["id"] for entry in await lab.changes("root", afterId=4)] == [5]
    # Who may see sites alone has missed nothing behind the last site that was removed.
    assert problem(await lab.get("lab", afterId=1)) == (410, "CHANGES_EXPIRED")
    assert [entry["id"] for entry in await lab.changes("lab", afterId=2)] == [5]
    assert [entry["id"] for entry in await lab.changes("root", afterId=2, entity="site")] == [5]
    # A window is what there is of it.
    found = (await lab.get("root", fromUtc="1970-01-01T00:00:00Z")).json()
    assert ([entry["id"] for entry in found["entries"]], found["totalCount"]) == ([5], 1)


# --- numbering ------------------------------------------------------------------------------------


async def test_when_nothing_is_new_nobody_waits(lab: Lab) -> None:
    await lab.create("site", code="A")
    assert len(await lab.changes()) == 1
    async with lab.conn.transaction():
        await lab.conn.execute("SELECT last_id FROM mdm.feed_position FOR UPDATE")
        async with asyncio.timeout(2):
            assert len(await lab.changes()) == 1


async def test_who_numbers_for_long_is_not_waited_for(lab: Lab) -> None:
    """A deployment may hold the lock for as long as it runs; readers get what has ids already."""
    row = await lab.create("site", code="A")
    assert await lab.told() == [("data_created", row)]
    await lab.create("site", code="B")
    async with lab.conn.transaction():
        await lab.conn.execute("SELECT last_id FROM mdm.feed_position FOR UPDATE")
        async with asyncio.timeout(8):
            page = (await lab.get("root", afterId=0)).json()
        assert [entry["recordId"] for entry in page["entries"]] == [row]
        assert (page["nextAfterId"], page["hasMore"]) == (1, True)
    assert len(await lab.told(afterId=1)) == 1


async def test_all_that_was_committed_before_a_call_is_in_it(lab: Lab) -> None:
    """Many calls at once number what many others have just written; none overlooks its own row."""

    async def write_and_read(number: int) -> bool:
        row = await lab.create("site", code=f"C{number}")
        entries = (await lab.get("root", afterId=0, take=500)).json()["entries"]
        return row in {entry["recordId"] for entry in entries}

    assert all(await asyncio.gather(*(write_and_read(n) for n in range(40))))
