"""Merges of an entity that needs approval: nobody merges approved rows alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import approving
from tests.support.approving import Lab, problem

pytestmark = pytest.mark.anyio
AT = "part/data/deduplicate"


@pytest.fixture
async def lab(database_url: str) -> AsyncIterator[Lab]:
    async with approving.opened(database_url) as lab:
        yield lab


async def proposed(lab: Lab, who: str = "ann") -> tuple[str, str, str]:
    """Return survivor and duplicate, and the merge that *who* proposed."""
    survivor = await lab.approved(code="P1", Label="a", room="1")
    duplicate = await lab.approved(code="P2", maker="M1", room="1", slot=1)
    await lab.send("root", "POST", "shelf/data", {"code": "SH", "part": "P2"})
    await lab.approved(code="P3", parent="P2")
    await lab.forget_events()
    body = {"survivorId": survivor, "duplicateId": duplicate}
    answer = await lab.send(who, "POST", AT, body)
    assert answer.status_code == 202, answer.text
    assert (answer.json()["state"], answer.json()["survivor"]["maker"]) == ("pending", "M1")
    assert answer.json()["relinked"] == {"part": 1, "shelf": 1}
    return survivor, duplicate, answer.json()["mergeId"]


async def test_a_merge_waits_for_another_person(lab: Lab) -> None:
    survivor, duplicate, merge_id = await proposed(lab)
    assert await lab.events() == []
    assert (await lab.row(survivor))["maker"] is None
    assert (await lab.row(duplicate))["_sys_state"] == "active"
    listed = (await lab.send("bob", "GET", AT, params={"state": "pending"})).json()["items"]
    assert [(each["mergeId"], each["proposedBy"]) for each in listed] == [(merge_id, "apikey:ann")]
    own = await lab.send("ann", "POST", f"{AT}/{merge_id}/approve")
    assert problem(own) == (403, "APPROVAL_SAME_AUTHOR")
    for who in ("reader", "writer"):
        answer = await lab.send(who, "POST", f"{AT}/{merge_id}/approve")
        assert problem(answer) == (403, "ACCESS_DENIED")
    undo = await lab.send("bob", "POST", f"{AT}/{merge_id}/undo")
    assert problem(undo) == (409, "MERGE_NOT_STANDING")
    answer = await lab.send("approver", "POST", f"{AT}/{merge_id}/approve", {"comment": "yes"})
    assert answer.status_code == 200, answer.text
    row = await lab.row(survivor)
    assert (row["maker"], row["_sys_last_modified_by"]) == ("M1", "apikey:ann")
    assert (await lab.row(duplicate))["redirectedFrom"] == duplicate
    events = await lab.events()
    assert {(e["actor"], e["detail"].get("submittedBy", "apikey:ann")) for e in events} == {
        ("apikey:approver", "apikey:ann")
    }
    assert sorted(e["action"] for e in events) == ["data_soft_deleted", *3 * ["data_updated"]]
    found = (await lab.send("ann", "GET", f"{AT}/{merge_id}")).json()
    assert (found["mergedBy"], found["comment"]) == ("apikey:approver", "yes")
    again = await lab.send("bob", "POST", f"{AT}/{merge_id}/approve")
    assert problem(again) == (409, "MERGE_NOT_PENDING")


async def test_an_undo_waits_for_another_person(lab: Lab) -> None:
    survivor, duplicate, merge_id = await proposed(lab)
    await lab.send("bob", "POST", f"{AT}/{merge_id}/approve")
    answer = await lab.send("bob", "POST", f"{AT}/{merge_id}/undo")
    assert (answer.status_code, answer.json()["state"]) == (202, "undo_pending")
    assert (await lab.row(duplicate))["_sys_id"] == survivor  # it still stands
    own = await lab.send("bob", "POST", f"{AT}/{merge_id}/approve")
    assert problem(own) == (403, "APPROVAL_SAME_AUTHOR")
    answer = await lab.send("cat", "POST", f"{AT}/{merge_id}/reject")
    assert answer.json() == {"mergeId": merge_id, "state": "merged"}
    await lab.send("bob", "POST", f"{AT}/{merge_id}/undo")
    answer = await lab.send("ann", "POST", f"{AT}/{merge_id}/approve")
    assert (answer.status_code, answer.json()["state"]) == (200, "undone")
    assert (await lab.row(duplicate))["_sys_id"] == duplicate
    assert (await lab.row(survivor))["maker"] is None
    cursor = await lab.conn.execute("SELECT part FROM mdm_data.shelf")
    assert await cursor.fetchall() == [("P2",)]


async def test_a_merge_that_was_rejected_has_no_effect(lab: Lab) -> None:
    survivor, duplicate, merge_id = await proposed(lab)
    for who in ("reader", "writer"):
        answer = await lab.send(who, "POST", f"{AT}/{merge_id}/reject")
        assert problem(answer) == (403, "ACCESS_DENIED")
    answer = await lab.send("ann", "POST", f"{AT}/{merge_id}/reject")  # its author takes it back
    assert answer.json()["state"] == "rejected"
    for what in ("approve", "reject"):
        answer = await lab.send("bob", "POST", f"{AT}/{merge_id}/{what}")
        assert problem(answer) == (409, "MERGE_NOT_PENDING")
    assert (await lab.row(duplicate))["_sys_id"] == duplicate
    assert (await lab.row(survivor))["_sys_version"] == 1


async def test_a_row_that_changed_since_makes_the_proposal_stale(lab: Lab) -> None:
    _, duplicate, merge_id = await proposed(lab)
    await lab.send("ann", "PUT", f"part/data/{duplicate}", {"rank": 1})
    answer = await lab.send("bob", "POST", f"{AT}/{merge_id}/approve")
    assert problem(answer) == (409, "ROW_PENDING")
    await lab.send("bob", "POST", f"part/approve/{duplicate}")
    answer = await lab.send("bob", "POST", f"{AT}/{merge_id}/approve")
    assert problem(answer) == (409, "APPROVAL_STALE")


async def test_of_two_proposals_for_the_same_rows_one_has_an_effect(lab: Lab) -> None:
    survivor, duplicate, first = await proposed(lab)
    body = {"survivorId": duplicate, "duplicateId": survivor}
    second = (await lab.send("ann", "POST", AT, body)).json()["mergeId"]
    assert (await lab.send("bob", "POST", f"{AT}/{second}/approve")).status_code == 200
    answer = await lab.send("bob", "POST", f"{AT}/{first}/approve")
    assert problem(answer) == (409, "APPROVAL_STALE")


async def test_rows_with_pending_changes_are_not_merged(lab: Lab) -> None:
    survivor = await lab.approved(code="P1")
    duplicate = await lab.approved(code="P2")
    new = await lab.propose("ann", code="P3")
    await lab.send("ann", "PUT", f"part/data/{duplicate}", {"rank": 1})
    for ids in ((survivor, duplicate), (duplicate, survivor)):
        body = dict(zip(("survivorId", "duplicateId"), ids, strict=True))
        answer = await lab.send("ann", "POST", AT, body)
        assert problem(answer) == (409, "ROW_PENDING")
        assert answer.json()["rowId"] == duplicate
    body = {"survivorId": survivor, "duplicateId": new}
    assert problem(await lab.send("ann", "POST", AT, body)) == (404, "ROW_NOT_FOUND")


async def test_a_refused_merge_is_no_proposal(lab: Lab) -> None:
    survivor = await lab.approved(code="P1")
    duplicate = await lab.approved(code="P2")
    body = {"survivorId": survivor, "duplicateId": duplicate, "values": {"rank": 100}}
    answer = await lab.send("ann", "POST", AT, body)
    assert problem(answer) == (400, "ENTITY_VALIDATION_RANGE")
    assert (await lab.send("ann", "GET", AT)).json()["items"] == []


async def test_who_approves_must_reach_both_rows(lab: Lab) -> None:
    survivor = await lab.approved(code="P1", room="2")
    duplicate = await lab.approved(code="P2", room="1")
    body = {"survivorId": survivor, "duplicateId": duplicate}
    merge_id = (await lab.send("ann", "POST", AT, body)).json()["mergeId"]
    for what in ("approve", "reject"):
        answer = await lab.send("some", "POST", f"{AT}/{merge_id}/{what}")
        assert problem(answer) == (403, "ACCESS_DENIED"), what
        answer = await lab.send("room1", "POST", f"{AT}/{merge_id}/{what}")
        assert problem(answer) == (404, "MERGE_NOT_FOUND"), what


async def test_authors_approve_where_the_entity_lets_them(lab: Lab) -> None:
    ids = []
    for code in ("A", "B"):
        row_id = await lab.propose("ann", "free", code=code)
        await lab.send("ann", "POST", f"free/approve/{row_id}")
        ids.append(row_id)
    at = "free/data/deduplicate"
    body = {"survivorId": ids[0], "duplicateId": ids[1]}
    merge_id = (await lab.send("ann", "POST", at, body)).json()["mergeId"]
    assert (await lab.send("ann", "POST", f"{at}/{merge_id}/approve")).status_code == 200
