"""``/changes`` over HTTP: what each write leaves in the feed, who sees it, windows, tiers, expiry."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.retention import remove_expired
from mdm_gitops.model import Definitions
from mdm_gitops.settings import RateLimitSettings, Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.lifecycle import drop_archives, remove_entity
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import Prepare
from tests.integration.test_api_basics import KEY, Client, add_key, problem, served
from tests.support.changes import Event, write_events
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: lab}, {name: hr}]
""",
    "entities/site.yaml": b"""
name: Site
displayName: Place of work
domain: lab
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Region, dataType: string}
  - {name: rank, dataType: int}
""",
    "entities/part.yaml": b"""
name: part
domain: lab
approvalRequired: true
allowSameAuthorApproval: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Region, dataType: string}
""",
    "entities/person.yaml": b"""
name: person
domain: hr
keyColumns: [login]
columns:
  - {name: login, dataType: string, nullable: false}
  - {name: salary, dataType: int, classification: restricted}
""",
    "permissions.yaml": b"""
permissions:
  - {users: [root], domains: ["*"], actions: [admin]}
  - {users: ["apikey:lab"], domains: [lab], actions: [read]}
  - {users: ["apikey:hr"], domains: [hr], actions: [read]}
  - {users: ["apikey:north"], domains: [lab], entities: [site, part], actions: [read],
     rowFilterDsl: "[Region] = 'N'"}
""",
}


@dataclass
class Lab:
    conn: AsyncConnection[Any]
    client: Client
    keys: dict[str, str]
    app: Starlette

    async def get(self, who: str, path: str = "/api/v1/changes", **query: Any) -> httpx2.Response:
        return await self.client.get(path, params=query, headers={"X-API-Key": self.keys[who]})

    async def changes(self, who: str = "root", **query: Any) -> list[dict[str, Any]]:
        answer = await self.get(who, **{"afterId": 0, "take": 500, **query})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["totalCount"] == len(document["entries"])
        assert document["hasMore"] is False
        found: list[dict[str, Any]] = document["entries"]
        return found

    async def told(self, who: str = "root", **query: Any) -> list[tuple[str, str]]:
        return [(e["action"], e["recordId"]) for e in await self.changes(who, **query)]

    async def send(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self.client.request(
            method, f"/api/v1/entities/{path}", json=body, headers={"X-API-Key": KEY}
        )
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    async def create(self, entity: str, **values: Any) -> str:
        return str((await self.send("POST", f"{entity}/data", values))["_sys_id"])


KEYS: dict[str, str] = {"root": KEY}  # the others are made with the warehouse that is copied


async def prepare(conn: AsyncConnection[Any]) -> None:
    await apply(conn, definitions())
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    for name in ("lab", "hr", "north", "nobody"):
        KEYS[name] = await add_key(conn, name)


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(prepare)


@asynccontextmanager
async def opened(url: str, *, tier: str = "Enterprise") -> AsyncIterator[Lab]:
    settings = Settings(
        Tier=tier,  # type: ignore[arg-type]
        RateLimit=RateLimitSettings(Enabled=False),
        AuditRetentionDays=0,  # the tests remove by themselves
    )
    async with await connect(url, application_name="test") as conn:
        app = create_app(database_url=url, settings=settings)
        async with served(app) as client:
            yield Lab(conn=conn, client=client, keys=KEYS, app=app)


def definitions(**changes: bytes) -> Definitions:
    return read_tree({**FILES, **{f"entities/{n}.yaml": text for n, text in changes.items()}})


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


async def at(lab: Lab, hours_ago: float) -> str:
    moment = datetime.now(UTC) - timedelta(hours=hours_ago)
    event = Event()
    await write_events(lab.conn, [event], occurred_at=moment)
    return str(event.record_id)


def utc(hours_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


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


# --- entities -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Site", "sITE", "place OF work"])
async def test_an_entity_goes_by_its_name_or_display_name(lab: Lab, name: str) -> None:
    row = await lab.create("site", code="A")
    await lab.create("person", login="x")
    for who in ("root", "lab"):
        assert await lab.told(who, entity=name) == [("data_created", row)]


async def test_only_entities_that_may_be_read(lab: Lab) -> None:
    site = await lab.create("site", code="A")
    person = await lab.create("person", login="x")
    assert await lab.told("lab") == [("data_created", site)]
    assert await lab.told("hr") == [("data_created", person)]
    assert await lab.told("nobody") == []


async def test_a_hidden_entity_is_as_absent_as_one_that_is_not_there(lab: Lab) -> None:
    await lab.create("person", login="x")
    hidden = await lab.get("lab", entity="person")
    absent = await lab.get("lab", entity="xerson")
    assert problem(hidden) == problem(absent) == (404, "ENTITY_NOT_FOUND")
    texts = [{**a.json(), "traceId": ""} for a in (hidden, absent)]
    assert json.dumps(texts[0]).replace("person", "xerson") == json.dumps(texts[1])
    assert problem(await lab.get("root", entity="xerson")) == (404, "ENTITY_NOT_FOUND")


async def test_a_right_counts_from_the_moment_it_changes(lab: Lab) -> None:
    await lab.create("person", login="x")
    assert await lab.told("lab") == []
    grant = "INSERT INTO mdm.permission VALUES ('apikey:lab', 'hr', '', ARRAY['read'], '')"
    await lab.conn.execute(grant)
    assert len(await lab.told("lab", entity="person")) == 1
    await lab.conn.execute("DELETE FROM mdm.permission WHERE domain = 'hr'")
    assert await lab.told("lab") == []
    assert problem(await lab.get("lab", entity="person")) == (404, "ENTITY_NOT_FOUND")


async def test_the_name_of_an_entity_outlives_it(lab: Lab) -> None:
    row = await lab.create("person", login="x")
    # Removed by hand as by a commit: its archive stays, and is dropped later.
    schemas, actor = Schemas(), "user:test"
    await remove_entity(lab.conn, definitions(), entity="person", schemas=schemas, actor=actor)
    assert await lab.told("root", entity="person") == [("data_created", row)]
    assert await lab.told("hr") == []
    await drop_archives(lab.conn, entity="person", confirm="person", schemas=schemas, actor=actor)
    assert [entry["entityName"] for entry in await lab.changes("root")] == ["person"]
    assert await lab.told("root", entity="PERSON") == [("data_created", row)]
    assert problem(await lab.get("hr", entity="person")) == (404, "ENTITY_NOT_FOUND")


async def test_a_renamed_entity_goes_by_its_new_name(lab: Lab) -> None:
    row = await lab.create("site", code="A")
    text = FILES["entities/site.yaml"].replace(b"name: Site\n", b"name: Plant\nrenamedFrom: site\n")
    files = {**FILES, "entities/plant.yaml": text}
    del files["entities/site.yaml"]
    files["permissions.yaml"] = files["permissions.yaml"].replace(b"[site,", b"[plant,")
    await apply(lab.conn, read_tree(files))
    assert [(e["entityName"], e["recordId"]) for e in await lab.changes("lab")] == [("Plant", row)]
    assert await lab.told("north", entity="plant") == []


# --- row filters (I7) -----------------------------------------------------------------------------


async def test_only_changes_of_rows_that_pass(lab: Lab) -> None:
    north = await lab.create("site", code="N1", Region="N")
    await lab.create("site", code="S1", Region="S")
    assert await lab.told("north") == [("data_created", north)]
    assert len(await lab.told("lab")) == 2


async def test_a_row_is_judged_as_it_is_now(lab: Lab) -> None:
    row = await lab.create("site", code="A", Region="N")
    await lab.send("PUT", f"site/data/{row}", {"Region": "S"})
    assert await lab.told("north") == [], "it has left"
    await lab.send("PUT", f"site/data/{row}", {"Region": "N"})
    assert [action for action, _ in await lab.told("north")] == [
        "data_created",
        "data_updated",
        "data_updated",
    ]
    await lab.send("DELETE", f"site/data/{row}?soft=true")
    assert len(await lab.told("north")) == 4, "a soft-deleted row is still a row"


@pytest.mark.parametrize(("region", "seen"), [("N", 3), ("S", 0), (None, 0)])
async def test_a_deleted_row_is_judged_as_it_was_last(
    lab: Lab, region: str | None, seen: int
) -> None:
    row = await lab.create("site", code="A", Region="N" if seen == 0 else "S")
    await lab.send("PUT", f"site/data/{row}", {"Region": region})
    await lab.send("DELETE", f"site/data/{row}")
    assert len(await lab.told("north")) == seen
    assert len(await lab.told("lab")) == 3


async def test_a_proposed_row_is_judged_as_it_is_proposed(lab: Lab) -> None:
    north = await lab.create("part", code="P1", Region="N")
    south = await lab.create("part", code="P2", Region="S")
    assert await lab.told("north") == [("data_edited", north)]
    await lab.send("POST", f"part/reject/{south}", {"comment": "no"})
    await lab.send("POST", f"part/approve/{north}")
    assert await lab.told("north") == [("data_edited", north), ("data_created", north)]
    await lab.send("PUT", f"part/data/{north}", {"Region": "S"})
    assert len(await lab.told("north")) == 2, (
        "the proposal is hidden, as where proposals are listed"
    )
    await lab.send("POST", f"part/approve/{north}")
    assert await lab.told("north") == []


async def test_an_image_that_lacks_the_column_shows_nothing(lab: Lab) -> None:
    """A row that is gone cannot be asked what its column, which came later, would have held."""
    row = await lab.create("site", code="A")
    await lab.send("DELETE", f"site/data/{row}")
    site = FILES["entities/site.yaml"] + b"  - {name: area, dataType: string}\n"
    rights = FILES["permissions.yaml"].replace(b"[Region] = 'N'", b"[area] IS NULL", 1)
    files = {**FILES, "entities/site.yaml": site, "permissions.yaml": rights}
    part = FILES["entities/part.yaml"] + b"  - {name: area, dataType: string}\n"
    await apply(lab.conn, read_tree({**files, "entities/part.yaml": part}))
    assert await lab.told("north") == []
    kept = await lab.create("site", code="B")
    assert await lab.told("north") == [("data_created", kept)]


async def test_an_image_that_is_no_value_of_the_type_of_today_shows_nothing(lab: Lab) -> None:
    """A column's type changes; old images hold what no cast takes, and no query may fail on them."""
    record = Event().record_id
    image = {"code": "A", "Region": "N", "rank": "not a number"}
    await write_events(
        lab.conn,
        [
            Event(
                entity_id=await entity_id(lab, "site"),
                record_id=record,
                action="data_deleted",
                old=image,
            )
        ],
    )
    assert await lab.told("north") == [("data_deleted", str(record))]
    rights = FILES["permissions.yaml"].replace(b"[Region] = 'N'", b"[rank] IS NULL OR [rank] > 0")
    part = FILES["entities/part.yaml"] + b"  - {name: rank, dataType: int}\n"
    await apply(
        lab.conn, read_tree({**FILES, "permissions.yaml": rights, "entities/part.yaml": part})
    )
    assert await lab.told("north") == []


@pytest.mark.parametrize(
    ("text", "seen", "seen_when_gone"),
    [
        (b"[_sys_created_by] = 'apikey:bootstrap'", True, False),  # an image has no system columns
        (b"[extra] IS NULL", True, False),  # nor does it tell two nulls of JSON apart
        (b"[boss].[Region] = 'N'", True, True),
        (b"[boss].[Region] = 'S'", False, False),
        (b"[Region] = 'N' AND [code] IN ('A', 'B')", True, True),
        (b"[rank] IS NULL", False, False),
        (b"[rank] >= 3 AND [share] < 0.5", True, True),
    ],
    ids=lambda each: each.decode() if isinstance(each, bytes) else "",
)
async def test_filters_of_any_kind(lab: Lab, text: bytes, seen: bool, seen_when_gone: bool) -> None:
    site = FILES["entities/site.yaml"] + (
        b"  - {name: extra, dataType: json}\n"
        b"  - {name: share, dataType: decimal}\n"
        b"  - {name: boss, dataType: string, reference: {entity: site}}\n"
    )
    rights = FILES["permissions.yaml"].replace(b"[site, part]", b"[site]")
    rights = rights.replace(b"[Region] = 'N'", text)
    await apply(
        lab.conn, read_tree({**FILES, "entities/site.yaml": site, "permissions.yaml": rights})
    )
    boss = await lab.create("site", code="X", Region="N")
    row = await lab.create("site", code="A", Region="N", rank=3, share=0.25, boss="X")

    async def told() -> bool:
        return row in {record for _, record in await lab.told("north")}

    assert await told() is seen
    await lab.send("DELETE", f"site/data/{row}")
    assert await told() is seen_when_gone
    assert boss in {record for _, record in await lab.told("root")}


async def test_hidden_rows_change_no_byte(lab: Lab) -> None:
    """Nothing of the answer depends on what hidden rows hold, or on which of them are changed."""

    async def answers() -> list[bytes]:
        found = []
        for query in ({"afterId": 0}, {}, {"entity": "site", "take": 1}, {"afterId": 1, "take": 2}):
            found.append((await lab.get("north", **query)).content)
        return found

    hidden = [await lab.create("site", code=f"S{n}", Region="S") for n in range(3)]
    await lab.create("site", code="N1", Region="N")
    before = await answers()
    await lab.send("PUT", f"site/data/{hidden[0]}", {"rank": 3})
    await lab.send("DELETE", f"site/data/{hidden[1]}?soft=true")
    await lab.send("DELETE", f"site/data/{hidden[2]}")
    await lab.create("site", code="S9", Region="S")
    await lab.create("person", login="x")
    assert await answers() == before
    await lab.send("PUT", f"site/data/{hidden[0]}", {"Region": "N"})
    assert await answers() != before, "a change that is seen changes the answer"


async def entity_id(lab: Lab, name: str) -> int:
    query = "SELECT entity_id FROM mdm.entity WHERE name = %s"
    row = await (await lab.conn.execute(query, [name])).fetchone()
    assert row is not None
    return int(row[0])


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
