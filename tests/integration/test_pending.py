"""Listing what waits: proposals with their changes, pages, filters, masks and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import approving
from tests.support.approving import ROOT, Lab, problem

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lab(approving_url: str) -> AsyncIterator[Lab]:
    async with approving.opened_copy(approving_url) as lab:
        yield lab


async def listed(lab: Lab, who: str = "ann", entity: str = "part", **params: Any) -> Any:
    answer = await lab.send(who, "GET", f"{entity}/pending", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def items(lab: Lab, who: str = "ann", **params: Any) -> list[Any]:
    found: list[Any] = (await listed(lab, who, **params))["items"]
    return found


async def in_batch(lab: Lab, name: str, *row_ids: str) -> None:
    await lab.conn.execute(
        "UPDATE mdm_data.part__edit SET _sys_batch_name = %s WHERE _sys_id = ANY (%s)",
        [name, list(row_ids)],
    )


async def test_a_creation_with_what_it_would_bring(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", price="2.50", seen="2026-01-02T03:04:05Z")
    page = await listed(lab, ROOT)
    [item] = page.pop("items")
    assert page == {
        "skip": 0,
        "take": 100,
        "hasMore": False,
        "nextAfter": None,
        "totalCount": None,
    }
    row = item.pop("row")
    assert row == await lab.pending(row_id)
    assert item.pop("submittedAt") == row["_sys_submitted_at"]
    assert item == {
        "id": row_id,
        "operation": "create",
        "state": "pending",
        "submittedBy": "apikey:ann",
        "decidedBy": None,
        "decidedAt": None,
        "batchName": None,
        "comment": None,
        "baseVersion": None,
        "isStale": False,
        "changes": {
            "code": {"old": None, "new": "P1"},
            "rank": {"old": None, "new": 7},
            "seen": {"old": None, "new": "2026-01-02T03:04:05Z"},
            "price": {"old": None, "new": 2.5},
        },
    }


async def test_an_update_with_what_it_would_change(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="a", rank=1, room="1")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"Label": "b", "room": None, "rank": 1})
    [item] = await items(lab, ROOT)
    assert (item["operation"], item["baseVersion"], item["isStale"]) == ("update", 1, False)
    assert item["changes"] == {
        "Label": {"old": "a", "new": "b"},
        "room": {"old": "1", "new": None},
    }
    # Compared with what is approved now, also when that is not what the author has seen.
    await lab.conn.execute("UPDATE mdm_data.part SET _sys_version = 2, rank = 5, label = 'b'")
    [item] = await items(lab, ROOT)
    assert item["isStale"] is True
    assert item["changes"] == {
        "room": {"old": "1", "new": None},
        "rank": {"old": 5, "new": 1},
    }


async def test_deletions_and_restorations_change_no_value(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    for path, operation in (("?soft=true", "soft_delete"), ("", "delete")):
        await lab.send("ann", "DELETE", f"part/data/{row_id}{path}")
        [item] = await items(lab, ROOT)
        assert (item["operation"], item["changes"]) == (operation, {})
    await lab.send("ann", "DELETE", f"part/data/{row_id}?soft=true")
    await lab.send("bob", "POST", f"part/approve/{row_id}")
    await lab.send("ann", "POST", f"part/data/{row_id}/restore")
    [item] = await items(lab, ROOT)
    assert (item["operation"], item["changes"]) == ("restore", {})


async def test_states(lab: Lab) -> None:
    waiting = await lab.propose("ann", code="P1")
    rejected = await lab.propose("ann", code="P2")
    await lab.send("bob", "POST", f"part/reject/{rejected}", {"comment": "no"})
    assert [item["id"] for item in await items(lab)] == [waiting]
    [item] = await items(lab, state="rejected")
    assert (item["id"], item["state"], item["comment"]) == (rejected, "rejected", "no")
    assert item["decidedBy"] == "apikey:bob" and item["decidedAt"] > item["submittedAt"]
    assert item["row"]["_sys_state"] == "rejected"
    assert [item["id"] for item in await items(lab, state="all")] == [waiting, rejected]
    answer = await lab.send("ann", "GET", "part/pending?state=active")
    assert problem(answer) == (400, "REQUEST_INVALID")


async def test_an_entity_that_needs_no_approval_has_nothing_pending(lab: Lab) -> None:
    page = await listed(lab, entity="maker", count="true")
    assert (page["items"], page["totalCount"]) == ([], 0)
    answer = await lab.send("ann", "GET", "maker/pending/batches")
    assert answer.json()["items"] == []
    assert problem(await lab.send("ann", "GET", "nope/pending")) == (404, "ENTITY_NOT_FOUND")
    assert problem(await lab.send("ann", "GET", "nope/pending/batches")) == (
        404,
        "ENTITY_NOT_FOUND",
    )


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", ["", "-code", "room,-code", "-_sys_last_modified_at", "-seen"])
async def test_pages_hold_each_proposal_once(lab: Lab, sort: str) -> None:
    for n in range(11):
        await lab.propose(
            "ann", code=f"P{n}", room=str(n % 3) if n % 4 else None, seen="2026-01-01T00:00:00Z"
        )
    whole = await listed(lab, sort=sort, count="true")
    assert whole["totalCount"] == 11
    everything = [item["id"] for item in whole["items"]]
    assert len(set(everything)) == 11
    found, after = [], ""
    while True:
        page = await listed(lab, sort=sort, take=3, after=after, count="true")
        assert page["totalCount"] == 11
        found += [item["id"] for item in page["items"]]
        after = page["nextAfter"]
        assert page["hasMore"] == bool(after)
        if not after:
            break
    assert found == everything
    skipped = await items(lab, sort=sort, skip=4, take=3)
    assert [item["id"] for item in skipped] == everything[4:7]
    codes = [item["row"]["code"] for item in whole["items"]]
    if sort == "-code":
        assert codes == sorted(codes, reverse=True)


async def test_a_cursor_is_bound_to_its_list(lab: Lab) -> None:
    for n in range(3):
        await lab.propose("ann", code=f"P{n}")
    after = (await listed(lab, take=1))["nextAfter"]
    assert len(await items(lab, after=after)) == 2
    for other in ({"state": "all"}, {"sort": "-code"}, {"batchName": "b"}, {"skip": 1}):
        answer = await lab.send("ann", "GET", "part/pending", params={"after": after, **other})
        assert problem(answer) == (400, "REQUEST_INVALID")
    answer = await lab.send("ann", "GET", "part/data", params={"after": after, "state": "pending"})
    assert problem(answer) == (400, "REQUEST_INVALID")


@pytest.mark.parametrize("query", ["take=0", "take=1001", "skip=-1", "sort=nope", "tkae=1"])
async def test_wrong_queries(lab: Lab, query: str) -> None:
    answer = await lab.send("ann", "GET", f"part/pending?{query}")
    assert problem(answer) == (400, "REQUEST_INVALID")


async def test_filters_are_of_the_row_as_it_is_proposed(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", room="1")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"room": "2"})
    assert await items(lab, filter="[room] = '1'") == []
    assert len(await items(lab, filter="[room] = '2' AND [_sys_version] = 1")) == 1
    assert (await listed(lab, filter="[room] = '1'", count="true"))["totalCount"] == 0
    answer = await lab.send("ann", "GET", "part/pending?filter=[nope]=1")
    assert problem(answer) == (400, "FILTER_INVALID")


# --- who sees what --------------------------------------------------------------------------------


async def test_both_images_must_be_visible(lab: Lab) -> None:
    into = await lab.approved(code="P1", room="2")
    out_of = await lab.approved(code="P2", room="1")
    inside = await lab.approved(code="P3", room="1")
    for row_id, values in ((into, {"room": "1"}), (out_of, {"room": "2"}), (inside, {"rank": 1})):
        await lab.send("ann", "PUT", f"part/data/{row_id}", values)
    await lab.propose("ann", code="P4", room="2")
    mine = await lab.propose("ann", code="P5", room="1")
    page = await listed(lab, "room1", count="true")
    assert [item["id"] for item in page["items"]] == [inside, mine]
    assert page["totalCount"] == 2
    assert (await listed(lab, "ann", count="true"))["totalCount"] == 5


async def test_a_masked_column_tells_nothing(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    await lab.conn.execute("UPDATE mdm_data.part SET secret = 'abc'")
    seen = []
    for values in ({"secret": "xyz"}, {"rank": 1, "secret": "abc"}):
        await lab.send(ROOT, "PUT", f"part/data/{row_id}", values)
        [item] = await items(lab, "ann")
        seen.append(item["changes"]["secret"])
        assert item["row"]["secret"] == "***"
    assert seen == [{"old": "***", "new": "***"}] * 2
    await lab.send(ROOT, "PUT", f"part/data/{row_id}", {"secret": "xyz"})
    [item] = await items(lab, "seer")
    assert item["changes"]["secret"] == {"old": "abc", "new": "xyz"}
    for query in ("filter=[secret]='xyz'", "sort=secret"):
        answer = await lab.send("ann", "GET", f"part/pending?{query}")
        assert problem(answer) == (403, "COLUMN_RESTRICTED")
    assert len(await items(lab, "seer", filter="[secret] = 'xyz'")) == 1


# --- batches --------------------------------------------------------------------------------------


async def test_batches(lab: Lab) -> None:
    ids = [await lab.propose(who, code=f"P{n}") for n, who in enumerate(("ann", "bob", "ann"))]
    row_id = await lab.approved(code="P7")
    await lab.send("cat", "PUT", f"part/data/{row_id}", {"rank": 1})
    gone = await lab.approved(code="P8")
    await lab.send("cat", "DELETE", f"part/data/{gone}")
    alone = await lab.propose("ann", code="P9")
    await in_batch(lab, "first", *ids)
    await in_batch(lab, "second", row_id, gone)
    await lab.conn.execute("UPDATE mdm_data.part SET _sys_version = 2 WHERE code = 'P7'")
    answer = await lab.send("ann", "GET", "part/pending/batches")
    found = answer.json()["items"]
    moments = [(item.pop("submittedAt"), item.pop("lastSubmittedAt")) for item in found]
    assert all(first < last for first, last in moments)
    assert found == [
        {
            "batchName": "second",
            "count": 2,
            "submittedBy": "apikey:cat",
            "submitters": 1,
            "creates": 0,
            "updates": 1,
            "others": 1,
            "stale": 1,
        },
        {
            "batchName": "first",
            "count": 3,
            "submittedBy": "apikey:ann",
            "submitters": 2,
            "creates": 3,
            "updates": 0,
            "others": 0,
            "stale": 0,
        },
    ]
    assert {item["id"] for item in await items(lab, batchName="first")} == set(ids)
    assert await items(lab, batchName="third") == []
    page = (await lab.send("ann", "GET", "part/pending/batches?take=1&skip=1")).json()
    assert ([b["batchName"] for b in page["items"]], page["hasMore"]) == (["first"], False)
    page = (await lab.send("ann", "GET", "part/pending/batches?take=1")).json()
    assert ([b["batchName"] for b in page["items"]], page["hasMore"]) == (["second"], True)
    await lab.send("bob", "POST", f"part/reject/{alone}")


async def test_batches_count_what_the_caller_sees(lab: Lab) -> None:
    mine = await lab.propose("ann", code="P1", room="1")
    other = await lab.propose("ann", code="P2", room="2")
    hidden = await lab.propose("ann", code="P3", room="2")
    await in_batch(lab, "both", mine, other)
    await in_batch(lab, "none", hidden)
    answer = await lab.send("room1", "GET", "part/pending/batches")
    assert [(b["batchName"], b["count"]) for b in answer.json()["items"]] == [("both", 1)]


async def test_a_correction_stays_in_its_batch(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1")
    await in_batch(lab, "b", row_id)
    await lab.send("bob", "POST", f"part/reject/{row_id}")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 1})
    assert [item["id"] for item in await items(lab, batchName="b")] == [row_id]
