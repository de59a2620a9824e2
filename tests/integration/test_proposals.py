"""Writing to an entity that needs approval: what becomes a proposal, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support import approving
from tests.support.approving import ROOT, Lab, problem

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lab(approving_url: str) -> AsyncIterator[Lab]:
    async with approving.opened_copy(approving_url) as lab:
        yield lab


async def told(lab: Lab) -> list[tuple[Any, ...]]:
    return [(e["action"], e["actor"], e["version"]) for e in await lab.events()]


# --- each write becomes a proposal ----------------------------------------------------------------


async def test_a_creation_waits(lab: Lab) -> None:
    answer = await lab.send("ann", "POST", "part/data", {"code": "P1", "price": "1.5"})
    assert answer.status_code == 202
    body = answer.json()
    row_id = body["_sys_id"]
    assert answer.headers["etag"] == '"v0"'
    assert answer.headers["location"] == f"/api/v1/entities/part/data/{row_id}?state=pending"
    assert (body["_sys_state"], body["_sys_operation"], body["_sys_version"]) == (
        "pending",
        "create",
        0,
    )
    assert (body["rank"], body["price"], body["_sys_submitted_by"]) == (7, 1.5, "apikey:ann")
    assert await lab.row(row_id) is None
    assert (await lab.send(ROOT, "GET", "part/data?state=all")).json()["items"] == []
    assert await lab.pending(row_id) == {**body, "secret": None}
    [event] = await lab.events()
    assert (event["action"], event["version"], event["old"]) == ("data_edited", 0, None)
    assert (event["new"]["code"], event["new"]["rank"], event["id"]) == ("P1", 7, row_id)


async def test_an_update_waits_and_the_approved_row_stays(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="old")
    await lab.forget_events()
    before = await lab.row(row_id)
    answer = await lab.send("bob", "PUT", f"part/data/{row_id}", {"Label": "new"})
    assert (answer.status_code, answer.headers["etag"]) == (202, '"v1"')
    assert answer.json()["Label"] == "new"
    assert answer.json()["_sys_created_by"] == "apikey:ann"
    assert await lab.row(row_id) == before
    assert (await lab.pending(row_id))["_sys_operation"] == "update"
    [event] = await lab.events()
    assert (event["action"], event["version"]) == ("data_edited", 1)
    assert (event["old"]["Label"], event["new"]["Label"]) == ("old", "new")


@pytest.mark.parametrize(("query", "operation"), [("?soft=true", "soft_delete"), ("", "delete")])
async def test_a_deletion_waits(lab: Lab, query: str, operation: str) -> None:
    row_id = await lab.approved(code="P1", rank=3)
    await lab.forget_events()
    answer = await lab.send("ann", "DELETE", f"part/data/{row_id}{query}")
    assert answer.status_code == 202
    assert (answer.json()["_sys_operation"], answer.json()["rank"]) == (operation, 3)
    assert (await lab.row(row_id))["_sys_state"] == "active"
    [event] = await lab.events()
    assert (event["action"], event["new"], event["old"]) == (
        "data_edited",
        event["old"],
        event["new"],
    )


async def test_a_restoration_waits(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    refused = await lab.send("ann", "POST", f"part/data/{row_id}/restore")
    assert problem(refused) == (409, "ROW_NOT_DELETED")
    await lab.send("ann", "DELETE", f"part/data/{row_id}?soft=true")
    await lab.send("bob", "POST", f"part/approve/{row_id}")
    for method, path in (("PUT", ""), ("DELETE", "?soft=true")):
        refused = await lab.send("ann", method, f"part/data/{row_id}{path}", {})
        assert problem(refused) == (409, "ROW_DELETED")
    answer = await lab.send("ann", "POST", f"part/data/{row_id}/restore")
    assert (answer.status_code, answer.json()["_sys_operation"]) == (202, "restore")
    assert (await lab.row(row_id))["_sys_state"] == "deleted"
    assert answer.json()["_sys_is_deleted"] is True


async def test_the_state_of_a_row_that_is_not_there(lab: Lab) -> None:
    nobody = "01890000-0000-7000-8000-000000000000"
    for method, path in (
        ("PUT", ""),
        ("DELETE", ""),
        ("DELETE", "?soft=true"),
        ("POST", "/restore"),
    ):
        answer = await lab.send("ann", method, f"part/data/{nobody}{path}", {})
        assert problem(answer) == (404, "ROW_NOT_FOUND")
    only_proposed = await lab.propose("ann", code="P1")
    answer = await lab.send("ann", "POST", f"part/data/{only_proposed}/restore")
    assert problem(answer) == (404, "ROW_NOT_FOUND")


# --- one proposal per row -------------------------------------------------------------------------


async def test_a_further_write_is_laid_over_what_is_proposed(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="a", rank=1)
    await lab.forget_events()
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"Label": "b"})
    answer = await lab.send("bob", "PATCH", f"part/data/{row_id}", {"rank": 2})
    assert (answer.json()["Label"], answer.json()["rank"]) == ("b", 2)
    assert answer.json()["_sys_submitted_by"] == "apikey:bob"
    assert len(await lab.edit()) == 1
    first, second = await lab.events()
    assert [e["old"]["Label"] for e in (first, second)] == ["a", "b"]
    assert [e["new"]["rank"] for e in (first, second)] == [1, 2]
    assert [e["actor"] for e in (first, second)] == ["apikey:ann", "apikey:bob"]


async def test_a_proposal_that_is_out_of_date_starts_over(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="a", rank=1)
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"Label": "b"})
    # Something beyond approvals writes the approved row, as a seed of the repository does.
    await lab.conn.execute("UPDATE mdm_data.part SET _sys_version = 2, rank = 5")
    await lab.forget_events()
    answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {"serial": "s"})
    body = answer.json()
    assert (body["Label"], body["rank"], body["serial"], body["_sys_version"]) == ("a", 5, "s", 2)
    [event] = await lab.events()
    assert event["old"]["Label"] == "b", "what was pending until now"


async def test_what_was_rejected_is_pending_again_when_written(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", rank=1)
    await lab.send("bob", "POST", f"part/reject/{row_id}", {"comment": "why"})
    await lab.forget_events()
    answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {"Label": "x"})
    assert answer.status_code == 202
    [row] = await lab.edit()
    assert (row["_sys_state"], row["_sys_comment"], row["_sys_decided_by"]) == (
        "pending",
        None,
        None,
    )
    assert (row["rank"], row["label"]) == (1, "x")
    [event] = await lab.events()
    assert event["old"] is None, "neither approved nor pending"


async def test_a_deletion_replaces_an_update_and_the_reverse(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="a")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"Label": "b"})
    answer = await lab.send("ann", "DELETE", f"part/data/{row_id}?soft=true")
    assert (answer.json()["_sys_operation"], answer.json()["Label"]) == ("soft_delete", "a")
    answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 9})
    body = answer.json()
    assert (body["_sys_operation"], body["Label"], body["rank"]) == ("update", "a", 9)
    assert len(await lab.edit()) == 1


async def test_nothing_is_proposed_where_nothing_would_change(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", rank=1)
    await lab.forget_events()
    answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 1})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"v1"')
    assert answer.json() == {**await lab.row(row_id), "secret": "***"}
    assert await lab.edit() == [] and await lab.events() == []
    # Where something waits, the way back is a proposal, too: it replaces what waits.
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 2})
    assert (await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 1})).status_code == 202


async def test_a_creation_that_only_waits_is_withdrawn_by_deleting(lab: Lab) -> None:
    for query in ("", "?soft=true"):
        row_id = await lab.propose("ann", code="P1")
        if query:
            await lab.send("bob", "POST", f"part/reject/{row_id}")
        await lab.forget_events()
        answer = await lab.send("ann", "DELETE", f"part/data/{row_id}{query}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert await lab.edit() == []
        [event] = await lab.events()
        assert (event["action"], event["detail"]) == ("data_rejected", {"withdrawn": True})
        assert (event["old"], event["new"]["code"], event["version"]) == (None, "P1", 0)


# --- what is refused ------------------------------------------------------------------------------


async def test_if_match_is_the_approved_version(lab: Lab) -> None:
    def match(version: int) -> dict[str, Any]:
        return {"headers": {"If-Match": f'"v{version}"'}}

    fresh = await lab.propose("ann", code="P1")
    stale = await lab.send("ann", "PUT", f"part/data/{fresh}", {"rank": 1}, **match(1))
    assert problem(stale) == (412, "ROW_VERSION_CONFLICT")
    good = await lab.send("ann", "PUT", f"part/data/{fresh}", {"rank": 1}, **match(0))
    assert good.status_code == 202
    stale = await lab.send("ann", "DELETE", f"part/data/{fresh}", **match(1))
    assert problem(stale) == (412, "ROW_VERSION_CONFLICT")
    row_id = await lab.approved(code="P2")
    for version, status in ((1, 202), (0, 412), (2, 412), (1, 202)):
        answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 1}, **match(version))
        assert answer.status_code == status
    assert (await lab.send("ann", "DELETE", f"part/data/{row_id}", **match(2))).status_code == 412


async def test_the_rules_are_those_of_direct_writes(lab: Lab) -> None:
    given = {"code": "x", "maker": "M9", "rank": 100, "seen": "never", "nope": 1, "_sys_version": 3}
    answer = await lab.send("ann", "POST", "part/data", given)
    assert answer.status_code == 400
    assert {(e["column"], e["code"]) for e in answer.json()["errors"]} == {
        ("code", "ENTITY_VALIDATION_PATTERN"),
        ("maker", "ENTITY_VALIDATION_REFERENCE"),
        ("rank", "ENTITY_VALIDATION_RANGE"),
        ("seen", "ENTITY_VALIDATION_TYPE"),
        ("nope", "ENTITY_VALIDATION_UNKNOWN_COLUMN"),
        ("_sys_version", "ENTITY_VALIDATION_SYSTEM_COLUMN"),
    }
    answer = await lab.send("ann", "POST", "part/data", {})
    assert problem(answer) == (400, "ENTITY_VALIDATION_REQUIRED_FIELD")
    assert await lab.edit() == [] and await lab.events() == []


async def test_a_value_of_an_approved_row_is_taken(lab: Lab) -> None:
    first = await lab.approved(code="P1", serial="s", room="1", slot=1)
    for values in ({"code": "P1"}, {"serial": "s"}, {"room": "1", "slot": "01"}):
        answer = await lab.send("ann", "POST", "part/data", {"code": "P2", **values})
        assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
        assert answer.json()["rowId"] == first
        assert "another row" in answer.json()["detail"]
    await lab.send("ann", "DELETE", f"part/data/{first}?soft=true")
    await lab.send("bob", "POST", f"part/approve/{first}")
    answer = await lab.send("ann", "POST", "part/data", {"code": "P1"})
    assert problem(answer) == (409, "ROW_KEY_DELETED")


async def test_a_value_of_a_pending_row_is_taken(lab: Lab) -> None:
    first = await lab.propose("ann", code="P1", serial="s", room="1", slot=1)
    for values in ({"code": "P1"}, {"serial": "s"}, {"room": "1", "slot": 1}):
        answer = await lab.send("bob", "POST", "part/data", {"code": "P2", **values})
        assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
        assert answer.json()["rowId"] == first
        assert "a row that is pending" in answer.json()["detail"]
    second = await lab.approved(code="P2")
    answer = await lab.send("bob", "PUT", f"part/data/{second}", {"serial": "s"})
    assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
    # Its own values are no one else's, and those of a rejected row are free.
    assert (await lab.send("ann", "PUT", f"part/data/{first}", {"serial": "s"})).status_code == 202
    await lab.send("bob", "POST", f"part/reject/{first}")
    assert (await lab.send("bob", "POST", "part/data", {"code": "P1"})).status_code == 202
    answer = await lab.send("ann", "PUT", f"part/data/{first}", {"rank": 1})
    assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")


async def test_an_approved_row_keeps_its_values_until_its_change_is_approved(lab: Lab) -> None:
    first = await lab.approved(code="P1")
    await lab.send("ann", "PUT", f"part/data/{first}", {"code": "P2"})
    for code in ("P1", "P2"):
        answer = await lab.send("ann", "POST", "part/data", {"code": code})
        assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")


async def test_a_reference_may_lead_to_a_row_that_waits(lab: Lab) -> None:
    refused = await lab.send("ann", "POST", "part/data", {"code": "P1", "kind": "K1"})
    assert problem(refused) == (400, "ENTITY_VALIDATION_REFERENCE")
    kind = await lab.propose("ann", "kind", code="K1")
    parent = await lab.propose("ann", code="P1", kind="K1")
    assert await lab.propose("ann", code="P2", parent="P1")
    assert await lab.propose("ann", code="P3", parent="P3"), "a row may refer to itself"
    for entity, row_id in (("kind", kind), ("part", parent)):
        await lab.send("bob", "POST", f"{entity}/reject/{row_id}")
    for values in ({"kind": "K1"}, {"parent": "P1"}):
        refused = await lab.send("ann", "POST", "part/data", {"code": "P4", **values})
        assert problem(refused) == (400, "ENTITY_VALIDATION_REFERENCE")
    # An entity that needs no approval takes approved rows only.
    refused = await lab.send("ann", "POST", "shelf/data", {"code": "S", "part": "P2"})
    assert problem(refused) == (400, "ENTITY_VALIDATION_REFERENCE")


async def test_a_row_that_others_refer_to_cannot_be_proposed_for_removal(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    await lab.send("ann", "POST", "shelf/data", {"code": "S", "part": "P1"})
    refused = await lab.send("ann", "DELETE", f"part/data/{row_id}")
    assert problem(refused) == (409, "ROW_REFERENCED")
    assert (await lab.send("ann", "DELETE", f"part/data/{row_id}?soft=true")).status_code == 202


async def test_who_may_propose(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    for who in ("reader", "approver"):
        for method, path in (("POST", ""), ("PUT", f"/{row_id}"), ("DELETE", f"/{row_id}")):
            answer = await lab.send(who, method, f"part/data{path}", {"code": "P2"})
            assert problem(answer) == (403, "ACCESS_DENIED")
    assert await lab.propose("writer", code="P2")
    assert await lab.propose(ROOT, code="P3"), "a Global Admin's changes wait as anybody's"


# --- row filters ----------------------------------------------------------------------------------


async def test_a_writer_reaches_only_rows_that_pass_before_and_after(lab: Lab) -> None:
    mine = await lab.approved(code="P1", room="1")
    other = await lab.approved(code="P2", room="2")
    answer = await lab.send("room1", "PUT", f"part/data/{other}", {"rank": 1})
    assert problem(answer) == (404, "ROW_NOT_FOUND")
    answer = await lab.send("room1", "PUT", f"part/data/{mine}", {"room": "2"})
    assert problem(answer) == (403, "ACCESS_DENIED")
    answer = await lab.send("room1", "POST", "part/data", {"code": "P3", "room": "2"})
    assert problem(answer) == (403, "ACCESS_DENIED")
    assert (await lab.send("room1", "PUT", f"part/data/{mine}", {"rank": 1})).status_code == 202
    answer = await lab.send("room1", "PUT", f"part/data/{other}", {"rank": 1})
    assert problem(answer) == (404, "ROW_NOT_FOUND")


async def test_a_proposal_that_is_hidden_is_not_written_over(lab: Lab) -> None:
    mine = await lab.approved(code="P1", room="1", Label="a")
    await lab.send("ann", "PUT", f"part/data/{mine}", {"room": "2", "Label": "not for room1"})
    for method, path in (("PUT", ""), ("DELETE", ""), ("DELETE", "?soft=true")):
        answer = await lab.send("room1", method, f"part/data/{mine}{path}", {"rank": 1})
        assert problem(answer) == (403, "ACCESS_DENIED")
        assert "not for room1" not in answer.text
    hidden = await lab.propose("ann", code="P2", room="2")
    for method in ("PUT", "DELETE"):
        answer = await lab.send("room1", method, f"part/data/{hidden}", {"rank": 1})
        assert problem(answer) == (404, "ROW_NOT_FOUND")
    assert len(await lab.edit()) == 2


async def test_a_proposal_for_a_hidden_row_is_hidden(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", room="2", Label="secret of room 2")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"room": "1"})
    page = await lab.send("room1", "GET", "part/data?state=pending&count=true")
    assert (page.json()["items"], page.json()["totalCount"]) == ([], 0)
    one = await lab.send("room1", "GET", f"part/data/{row_id}?state=pending")
    assert problem(one) == (404, "ROW_NOT_FOUND")
    control = await lab.send("ann", "GET", "part/data?state=pending&count=true")
    assert control.json()["totalCount"] == 1


async def test_the_holder_of_a_value_is_not_named_to_those_who_may_not_see_it(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", room="2", Label="hidden")
    answer = await lab.send("room1", "POST", "part/data", {"code": "P1", "room": "1"})
    assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
    assert row_id not in answer.text
    seen = await lab.send("ann", "POST", "part/data", {"code": "P1"})
    assert seen.json()["rowId"] == row_id


async def test_a_pending_row_that_is_hidden_cannot_be_referred_to(lab: Lab) -> None:
    await lab.propose("ann", "kind", code="K1", label="hidden")
    await lab.propose("ann", "kind", code="K2", label="shown")
    refused = await lab.send(
        "room1", "POST", "part/data", {"code": "P1", "room": "1", "kind": "K1"}
    )
    assert problem(refused) == (400, "ENTITY_VALIDATION_REFERENCE")
    good = await lab.send("room1", "POST", "part/data", {"code": "P1", "room": "1", "kind": "K2"})
    assert good.status_code == 202


# --- masking --------------------------------------------------------------------------------------


async def test_a_masked_value_is_kept_when_stars_come_back(lab: Lab) -> None:
    row_id = await lab.propose(ROOT, code="P1", secret="42")
    answer = await lab.send("ann", "GET", f"part/data/{row_id}?state=pending")
    assert answer.json()["secret"] == "***"
    sent = {name: value for name, value in answer.json().items() if not name.startswith("_sys_")}
    answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {**sent, "rank": 1})
    assert (answer.status_code, answer.json()["secret"]) == (202, "***")
    assert (await lab.pending(row_id))["secret"] == "42"


# --- at the same time -----------------------------------------------------------------------------


async def test_of_many_that_want_the_same_value_one_gets_it(lab: Lab) -> None:
    answers = await asyncio.gather(
        *(lab.send("ann", "POST", "part/data", {"code": f"P{n % 10}"}) for n in range(200))
    )
    assert Counter(answer.status_code for answer in answers) == {202: 10, 409: 190}
    for answer in answers:
        if answer.status_code == 409:
            assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
    assert sorted(row["code"] for row in await lab.edit()) == [f"P{n}" for n in range(10)]
    assert len(await lab.events()) == 10


async def test_writes_to_one_row_follow_each_other(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", rank=0)
    answers = await asyncio.gather(
        *(lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": n}) for n in range(1, 40))
    )
    assert {answer.status_code for answer in answers} == {202}
    events = await lab.events()
    assert len(events) == 40
    for before, after in pairwise(events):
        assert after["old"] == before["new"]


async def test_each_of_a_batch_gets_its_own_answer(lab: Lab) -> None:
    good = await lab.approved(code="P0")
    work = []
    for n in range(1, 41):
        match n % 4:
            case 0:
                work.append((400, lab.send("ann", "POST", "part/data", {"code": f"p{n}"})))
            case 1:
                work.append((202, lab.send("ann", "POST", "part/data", {"code": f"P{n}"})))
            case 2:
                given = {"code": f"P{n}", "maker": "M9"}
                work.append((400, lab.send("bob", "POST", "part/data", given)))
            case _:
                given = {"code": f"P{n}", "serial": f"s{n}"}
                work.append((202, lab.send("bob", "POST", "part/data", given)))
    work.append((412, lab.send("ann", "PUT", f"part/data/{good}", {"rank": 1},
                               headers={"If-Match": '"v9"'})))  # fmt: skip
    answers = await asyncio.gather(*(sending for _, sending in work))
    assert [answer.status_code for answer in answers] == [status for status, _ in work]
    submitted = {row["code"]: row["_sys_submitted_by"] for row in await lab.edit()}
    assert submitted == {
        f"P{n}": "apikey:ann" if n % 4 == 1 else "apikey:bob" for n in range(1, 41) if n % 2
    }
