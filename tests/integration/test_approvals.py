"""Approving, rejecting and withdrawing proposals one by one over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.support import approving
from tests.support.approving import ROOT, Lab, problem

pytestmark = pytest.mark.anyio
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
async def lab(approving_url: str) -> AsyncIterator[Lab]:
    async with approving.opened_copy(approving_url) as lab:
        yield lab


async def approve(lab: Lab, row_id: str, who: str = "bob", **body: Any) -> httpx2.Response:
    return await lab.send(who, "POST", f"part/approve/{row_id}", body or None)


async def reject(lab: Lab, row_id: str, who: str = "bob", **body: Any) -> httpx2.Response:
    return await lab.send(who, "POST", f"part/reject/{row_id}", body or None)


async def versions(lab: Lab) -> list[tuple[Any, ...]]:
    cursor = await lab.conn.execute(
        "SELECT _sys_version, _sys_action, _sys_last_modified_by, _sys_is_deleted,"
        " _sys_valid_from < _sys_valid_to FROM mdm_data.part__history ORDER BY _sys_valid_to"
    )
    return await cursor.fetchall()


# --- each operation -------------------------------------------------------------------------------


async def test_an_approved_creation_is_a_row(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", price="2.50", seen="2026-01-02T03:04:05Z")
    await lab.forget_events()
    answer = await approve(lab, row_id, comment="well done")
    assert (answer.status_code, answer.headers["etag"]) == (200, '"v1"')
    row = await lab.row(row_id)
    assert answer.json() == {**row, "secret": "***"}
    assert (row["_sys_state"], row["_sys_version"]) == ("active", 1)
    assert (row["_sys_created_by"], row["_sys_last_modified_by"]) == ("apikey:ann", "apikey:ann")
    assert (row["price"], row["seen"]) == (2.5, "2026-01-02T03:04:05Z")
    assert await lab.edit() == []
    [event] = await lab.events()
    assert (event["action"], event["actor"], event["version"]) == ("data_created", "apikey:bob", 1)
    assert event["detail"] == {"submittedBy": "apikey:ann", "comment": "well done"}
    assert (event["old"], event["new"]["code"]) == (None, "P1")


async def test_an_approved_update_is_a_new_version(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="a")
    await lab.send("cat", "PUT", f"part/data/{row_id}", {"Label": "b"})
    await lab.forget_events()
    answer = await approve(lab, row_id)
    assert (answer.status_code, answer.headers["etag"]) == (200, '"v2"')
    row = await lab.row(row_id)
    assert (row["Label"], row["_sys_created_by"]) == ("b", "apikey:ann")
    assert row["_sys_last_modified_by"] == "apikey:cat"
    [event] = await lab.events()
    assert (event["action"], event["actor"], event["version"]) == ("data_updated", "apikey:bob", 2)
    assert event["detail"] == {"submittedBy": "apikey:cat"}
    assert (event["old"]["Label"], event["new"]["Label"]) == ("a", "b")
    assert await versions(lab) == [(1, "data_updated", "apikey:ann", False, True)]


async def test_an_update_that_changes_nothing_is_a_version_when_it_is_approved(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", rank=1)
    for rank in (2, 1):
        await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": rank})
    await lab.forget_events()
    assert (await approve(lab, row_id)).headers["etag"] == '"v2"'
    assert [event["action"] for event in await lab.events()] == ["data_updated"]
    assert await lab.edit() == []


async def test_deletions_and_restorations(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    await lab.forget_events()
    await lab.send("ann", "DELETE", f"part/data/{row_id}?soft=true")
    answer = await approve(lab, row_id)
    assert (answer.json()["_sys_state"], answer.headers["etag"]) == ("deleted", '"v2"')
    await lab.send("ann", "POST", f"part/data/{row_id}/restore")
    answer = await approve(lab, row_id)
    assert (answer.json()["_sys_state"], answer.headers["etag"]) == ("active", '"v3"')
    await lab.send("ann", "DELETE", f"part/data/{row_id}")
    answer = await approve(lab, row_id)
    assert answer.status_code == 200
    assert answer.json() == {"_sys_id": row_id, "_sys_state": "deleted"}
    assert await lab.row(row_id) is None and await lab.edit() == []
    events = await lab.events()
    assert [(e["action"], e["version"], e["actor"]) for e in events] == [
        ("data_edited", 1, "apikey:ann"),
        ("data_soft_deleted", 2, "apikey:bob"),
        ("data_edited", 2, "apikey:ann"),
        ("data_restored", 3, "apikey:bob"),
        ("data_edited", 3, "apikey:ann"),
        ("data_deleted", 3, "apikey:bob"),
    ]
    assert events[-1]["new"] is None
    assert [(v, action, deleted) for v, action, _, deleted, _ in await versions(lab)] == [
        (1, "data_soft_deleted", False),
        (2, "data_restored", True),
        (3, "data_deleted", False),
    ]


async def test_a_rejected_proposal_is_kept_with_its_reason(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", Label="a")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"Label": "b"})
    await lab.forget_events()
    answer = await reject(lab, row_id, comment="not like this")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["_sys_state"], body["_sys_comment"], body["Label"]) == (
        "rejected",
        "not like this",
        "b",
    )
    [kept] = await lab.edit()
    assert (kept["_sys_state"], kept["_sys_decided_by"]) == ("rejected", "apikey:bob")
    assert kept["_sys_decided_at"] is not None
    assert (await lab.row(row_id))["Label"] == "a"
    [event] = await lab.events()
    assert (event["action"], event["actor"], event["version"]) == ("data_rejected", "apikey:bob", 1)
    assert (event["old"]["Label"], event["new"]["Label"]) == ("a", "b")
    assert event["detail"] == {"reason": "not like this", "submittedBy": "apikey:ann"}
    for again in (await reject(lab, row_id), await approve(lab, row_id)):
        assert problem(again) == (404, "PENDING_NOT_FOUND")
    assert await lab.pending(row_id) is None, "it waits no more"
    assert len(await lab.events()) == 1


# --- what stands against it -----------------------------------------------------------------------


async def test_nobody_approves_his_own(lab: Lab) -> None:
    for who in ("ann", ROOT):
        row_id = await lab.propose(who, code="P1")
        await lab.forget_events()
        answer = await approve(lab, row_id, who)
        assert problem(answer) == (403, "APPROVAL_SAME_AUTHOR")
        assert await lab.row(row_id) is None and await lab.events() == []
        # What another one lays over it makes it no other's.
        await lab.send("cat", "PUT", f"part/data/{row_id}", {"rank": 1})
        for author in (who, "cat"):
            assert problem(await approve(lab, row_id, author)) == (403, "APPROVAL_SAME_AUTHOR")
        assert (await reject(lab, row_id, "cat")).status_code == 200, "rejecting his own is free"
        await lab.send("cat", "DELETE", f"part/data/{row_id}")


async def test_only_what_is_laid_over_has_the_authors_of_both(lab: Lab) -> None:
    """Whose proposal was withdrawn, decided, or is not in what waits, has no part in it."""
    own = (403, "APPROVAL_SAME_AUTHOR")
    row_id = await lab.approved(code="P1", rank=1)
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 2})
    await lab.send("ann", "DELETE", f"part/pending/{row_id}")
    await lab.send("cat", "PUT", f"part/data/{row_id}", {"rank": 3})
    assert (await approve(lab, row_id, "ann")).status_code == 200, "withdrawn"
    await lab.send("cat", "PUT", f"part/data/{row_id}", {"rank": 4})
    assert (await approve(lab, row_id, "ann")).status_code == 200, "approved before"
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 5})
    assert (await reject(lab, row_id, "cat")).status_code == 200
    await lab.send("cat", "PUT", f"part/data/{row_id}", {"label": "c"})
    assert problem(await approve(lab, row_id, "ann")) == own, "rejected, and proposed again"
    await lab.send("cat", "DELETE", f"part/data/{row_id}?soft=true")
    assert (await approve(lab, row_id, "ann")).status_code == 200, "the deletion is cat's alone"


async def test_neither_a_relinking_nor_an_import_hides_an_author(lab: Lab) -> None:
    kind = await lab.approved("kind", code="K1")
    row_id = await lab.approved(code="P1", kind="K1")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 2})
    await lab.send("ann", "PUT", f"kind/data/{kind}", {"code": "K2"})
    await lab.send("bob", "POST", f"kind/approve/{kind}")
    imported = [{"code": "P1", "Label": "c"}]
    await lab.send("cat", "POST", "part/data/bulk?mode=upsert&keyColumns=code", imported)
    for author in ("ann", "cat"):
        assert problem(await approve(lab, row_id, author)) == (403, "APPROVAL_SAME_AUTHOR")
    answer = await approve(lab, row_id)
    assert (answer.status_code, answer.json()["rank"], answer.json()["Label"]) == (200, 2, "c")


async def test_authors_approve_where_the_entity_lets_them(lab: Lab) -> None:
    row_id = await lab.propose("ann", "free", code="F1")
    answer = await lab.send("ann", "POST", f"free/approve/{row_id}")
    assert answer.status_code == 200
    assert (await lab.events())[-1]["actor"] == "apikey:ann"


async def test_what_rests_on_an_older_version_is_stale(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", rank=1)
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 2})
    await lab.conn.execute("UPDATE mdm_data.part SET _sys_version = 2, rank = 5")
    await lab.forget_events()
    assert problem(await approve(lab, row_id)) == (409, "APPROVAL_STALE")
    assert (await lab.row(row_id))["rank"] == 5
    assert len(await lab.edit()) == 1 and await lab.events() == []
    # The author writes again, on top of what is there.
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 2})
    assert (await approve(lab, row_id)).headers["etag"] == '"v3"'


async def test_what_was_written_again_since_it_was_seen_is_refused(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", rank=1)
    seen = (await lab.send("bob", "GET", "part/pending")).json()["items"][0]["submittedAt"]
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 99})
    for moment in (seen, "x"):
        answer = await approve(lab, row_id, submittedAt=moment)
        assert problem(answer) == (409, "APPROVAL_STALE")
    now = (await lab.send("bob", "GET", "part/pending")).json()["items"][0]["submittedAt"]
    assert (await approve(lab, row_id, submittedAt=now)).status_code == 200


async def test_a_proposal_for_a_row_that_is_gone_is_stale_and_can_be_rejected(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 2})
    await lab.conn.execute("DELETE FROM mdm_data.part")
    assert problem(await approve(lab, row_id)) == (409, "APPROVAL_STALE")
    answer = await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 3})
    assert problem(answer) == (404, "ROW_NOT_FOUND")
    assert (await reject(lab, row_id)).status_code == 200


async def test_rules_are_checked_again(lab: Lab) -> None:
    """The approved rows have changed since, as a seed or an entity without approval can do."""
    first = await lab.propose("ann", code="P1", maker="M1", serial="s")
    await lab.conn.execute("DELETE FROM mdm_data.maker WHERE code = 'M1'")
    answer = await approve(lab, first)
    assert problem(answer) == (400, "ENTITY_VALIDATION_REFERENCE")
    assert answer.json()["errors"][0]["column"] == "maker"
    await lab.conn.execute("UPDATE mdm_data.part__edit SET rank = 100, maker = NULL, secret = %s", [
        "far too long for it"])  # fmt: skip
    answer = await approve(lab, first)
    assert {e["code"] for e in answer.json()["errors"]} == {
        "ENTITY_VALIDATION_RANGE",
        "ENTITY_VALIDATION_LENGTH",
    }
    seen = await approve(lab, first, "seer")
    assert "secret breaks a rule" in answer.text and "secret ***" in seen.text
    assert "far too" not in answer.text + seen.text, "errors tell no restricted value"
    assert len(await lab.edit()) == 1


async def test_a_unique_value_may_be_taken_meanwhile(lab: Lab) -> None:
    waiting = await lab.propose("ann", code="P1", secret="x")
    await lab.conn.execute(
        "INSERT INTO mdm_data.part (_sys_id, code, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by)"
        " VALUES (%s, 'P1', now(), 'x', now(), 'x')",
        [NOBODY],
    )
    answer = await approve(lab, waiting)
    assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
    assert answer.json()["rowId"] == NOBODY
    await lab.conn.execute("UPDATE mdm_data.part SET _sys_is_deleted = true")
    assert problem(await approve(lab, waiting)) == (409, "ROW_KEY_DELETED")
    assert len(await lab.edit()) == 1


async def test_a_row_that_refers_to_a_pending_one_waits_for_it(lab: Lab) -> None:
    kind = await lab.propose("ann", "kind", code="K1")
    parent = await lab.propose("ann", code="P1", kind="K1")
    child = await lab.propose("ann", code="P2", parent="P1")
    answer = await approve(lab, child)
    assert problem(answer) == (409, "APPROVAL_REFERENCE_PENDING")
    assert answer.json()["errors"][0]["column"] == "parent"
    assert problem(await approve(lab, parent)) == (409, "APPROVAL_REFERENCE_PENDING")
    assert (await lab.send("bob", "POST", f"kind/approve/{kind}")).status_code == 200
    assert (await approve(lab, parent)).status_code == 200
    assert (await approve(lab, child)).status_code == 200
    itself = await lab.propose("ann", code="P3", parent="P3")
    assert (await approve(lab, itself)).status_code == 200


async def test_a_row_whose_target_was_rejected_cannot_be_approved(lab: Lab) -> None:
    parent = await lab.propose("ann", code="P1")
    child = await lab.propose("ann", code="P2", parent="P1")
    await reject(lab, parent)
    assert problem(await approve(lab, child)) == (400, "ENTITY_VALIDATION_REFERENCE")


async def test_a_removal_waits_until_nobody_refers_to_the_row(lab: Lab) -> None:
    row_id = await lab.approved(code="P1")
    await lab.send("ann", "DELETE", f"part/data/{row_id}")
    shelf = await lab.send("ann", "POST", "shelf/data", {"code": "S", "part": "P1"})
    assert problem(await approve(lab, row_id)) == (409, "ROW_REFERENCED")
    await lab.send("ann", "DELETE", f"shelf/data/{shelf.json()['_sys_id']}")
    assert (await approve(lab, row_id)).status_code == 200


async def test_who_may_decide(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1")
    for decide in (approve, reject):
        for who in ("writer", "reader"):
            assert problem(await decide(lab, row_id, who)) == (403, "ACCESS_DENIED")
    assert problem(await lab.send("bob", "POST", f"maker/approve/{row_id}")) == (
        409,
        "APPROVAL_NOT_REQUIRED",
    )
    for nothing in (NOBODY, "x", "%20"):
        assert problem(await approve(lab, nothing)) == (404, "PENDING_NOT_FOUND")
        assert problem(await reject(lab, nothing)) == (404, "PENDING_NOT_FOUND")
    assert problem(await lab.send("bob", "POST", f"nope/approve/{row_id}")) == (
        404,
        "ENTITY_NOT_FOUND",
    )
    assert (await approve(lab, row_id, "approver")).status_code == 200


@pytest.mark.parametrize("body", ["[]", '{"comment": 1}', '{"reason": "x"}', "{", '"x"'])
async def test_wrong_bodies(lab: Lab, body: str) -> None:
    row_id = await lab.propose("ann", code="P1")
    for path in ("approve", "reject"):
        answer = await lab.send("bob", "POST", f"part/{path}/{row_id}", content=body)
        assert problem(answer) == (400, "REQUEST_INVALID")
    assert len(await lab.edit()) == 1


# --- row filters ----------------------------------------------------------------------------------


async def test_an_approver_reaches_the_row_as_it_is_and_as_it_is_proposed(lab: Lab) -> None:
    """``some`` reads all and approves room 1."""
    outside = await lab.propose("ann", code="P1", room="2")
    into = await lab.approved(code="P2", room="2")
    out_of = await lab.approved(code="P3", room="1")
    inside = await lab.approved(code="P4", room="1")
    for row_id, values in ((into, {"room": "1"}), (out_of, {"room": "2"}), (inside, {"rank": 1})):
        await lab.send("ann", "PUT", f"part/data/{row_id}", values)
    for row_id in (outside, into, out_of):
        for decide in (approve, reject):
            assert problem(await decide(lab, row_id, "some")) == (403, "ACCESS_DENIED")
    assert (await approve(lab, inside, "some")).status_code == 200
    assert len(await lab.edit()) == 3


async def test_what_an_approver_may_not_see_is_not_there(lab: Lab) -> None:
    """``room1`` reads, writes and approves room 1 alone."""
    outside = await lab.propose("ann", code="P1", room="2")
    into = await lab.approved(code="P2", room="2")
    await lab.send("ann", "PUT", f"part/data/{into}", {"room": "1"})
    for row_id in (outside, into, NOBODY):
        for decide in (approve, reject):
            assert problem(await decide(lab, row_id, "room1")) == (404, "PENDING_NOT_FOUND")
        answer = await lab.send("room1", "DELETE", f"part/pending/{row_id}")
        assert problem(answer) == (404, "PENDING_NOT_FOUND")
    inside = await lab.propose("ann", code="P3", room="1")
    assert (await approve(lab, inside, "room1")).status_code == 200


# --- withdrawing ----------------------------------------------------------------------------------


async def test_an_author_or_an_approver_withdraws(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", rank=1)
    for who, author in (("ann", "ann"), ("bob", "ann"), ("writer", "writer"), ("approver", "ann")):
        await lab.send(author, "PUT", f"part/data/{row_id}", {"rank": 2})
        await lab.forget_events()
        answer = await lab.send(who, "DELETE", f"part/pending/{row_id}")
        assert answer.status_code == 204
        assert await lab.edit() == []
        [event] = await lab.events()
        assert (event["action"], event["actor"]) == ("data_rejected", f"apikey:{who}")
        assert event["detail"] == {"withdrawn": True, "submittedBy": f"apikey:{author}"}
        assert (event["old"]["rank"], event["new"]["rank"], event["version"]) == (1, 2, 1)
    assert (await lab.row(row_id))["rank"] == 1


async def test_what_cannot_be_withdrawn(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1")
    for who in ("reader", "writer"):
        answer = await lab.send(who, "DELETE", f"part/pending/{row_id}")
        assert problem(answer) == (403, "ACCESS_DENIED")
    answer = await lab.send("ann", "DELETE", f"part/pending/{NOBODY}")
    assert problem(answer) == (404, "PENDING_NOT_FOUND")
    answer = await lab.send("ann", "DELETE", f"maker/pending/{NOBODY}")
    assert problem(answer) == (409, "APPROVAL_NOT_REQUIRED")
    await reject(lab, row_id)
    assert (await lab.send("ann", "DELETE", f"part/pending/{row_id}")).status_code == 204


# --- keys that others refer to --------------------------------------------------------------------


async def test_an_approved_key_takes_rows_along_that_refer_to_it(lab: Lab) -> None:
    parent = await lab.approved(code="P1")
    child = await lab.approved(code="P2", parent="P1")
    shelf = await lab.send("ann", "POST", "shelf/data", {"code": "S", "part": "P1"})
    await lab.send("ann", "PUT", f"part/data/{parent}", {"code": "P9"})
    await lab.forget_events()
    answer = await approve(lab, parent)
    assert (answer.status_code, answer.json()["code"]) == (200, "P9")
    row = await lab.row(child)
    assert (row["parent"], row["_sys_version"]) == ("P9", 2)
    assert row["_sys_last_modified_by"] == "apikey:ann"
    assert (await lab.row(shelf.json()["_sys_id"], "shelf"))["part"] == "P9"
    events = await lab.events()
    assert [(e["entity"], e["action"], e["actor"]) for e in events] == [
        ("part", "data_updated", "apikey:bob"),
        ("part", "data_updated", "apikey:bob"),
        ("shelf", "data_updated", "apikey:bob"),
    ]
    assert await lab.edit() == []


async def test_proposals_are_carried_along_with_a_key(lab: Lab) -> None:
    kind = await lab.approved("kind", code="K1")
    creation = await lab.propose("ann", code="P1", kind="K1")
    moved = await lab.approved(code="P2", kind="K1")
    moving = await lab.approved(code="P3")
    rejected = await lab.propose("ann", code="P4", kind="K1")
    await lab.send("ann", "PUT", f"part/data/{moved}", {"rank": 1})
    await lab.send("ann", "PUT", f"part/data/{moving}", {"kind": "K1"})
    await reject(lab, rejected)
    await lab.send("ann", "PUT", f"kind/data/{kind}", {"code": "K2"})
    await lab.forget_events()
    answer = await lab.send("bob", "POST", f"kind/approve/{kind}")
    assert answer.status_code == 200
    proposals = {row["code"]: row for row in await lab.edit()}
    assert {row["kind"] for row in proposals.values()} == {"K2"}
    assert proposals["P2"]["_sys_base_version"] == 2, "what relinking made of it"
    assert proposals["P4"]["_sys_state"] == "rejected"
    events = await lab.events()
    assert sorted((e["action"], e["old"]["code"]) for e in events if e["entity"] == "part") == [
        ("data_edited", "P1"),
        ("data_edited", "P2"),
        ("data_edited", "P3"),
        ("data_edited", "P4"),
        ("data_updated", "P2"),
    ]
    edited = [e for e in events if e["action"] == "data_edited"]
    assert {(e["old"]["kind"], e["new"]["kind"], e["actor"]) for e in edited} == {
        ("K1", "K2", "apikey:bob")
    }
    assert {e["detail"]["relinkedFrom"] for e in edited} == {"K1"}
    for row_id in (creation, moved, moving):
        answer = await approve(lab, row_id)
        assert (answer.status_code, answer.json()["kind"]) == (200, "K2")


async def test_a_direct_change_of_a_key_carries_proposals_too(lab: Lab) -> None:
    row_id = await lab.propose("ann", code="P1", maker="M1")
    makers = (await lab.send(ROOT, "GET", "maker/data?filter=[code]='M1'")).json()["items"]
    answer = await lab.send("ann", "PUT", f"maker/data/{makers[0]['_sys_id']}", {"code": "M7"})
    assert answer.status_code == 200
    assert (await lab.pending(row_id))["maker"] == "M7"
    assert (await approve(lab, row_id)).status_code == 200


async def test_a_row_that_refers_to_itself_by_its_key_follows_it(lab: Lab) -> None:
    row_id = await lab.approved(code="P1", parent="P1")
    await lab.send("ann", "PUT", f"part/data/{row_id}", {"code": "P2"})
    await lab.forget_events()
    assert (await approve(lab, row_id)).status_code == 200
    row = await lab.row(row_id)
    assert (row["code"], row["parent"]) == ("P2", "P2")
    assert {e["action"] for e in await lab.events()} == {"data_updated"}
    assert await lab.edit() == []
