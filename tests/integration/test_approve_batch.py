"""Deciding on many proposals in one request: each by itself, in the order of what they refer to."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mdm_api.app import create_app
from mdm_gitops.data import approvals
from mdm_gitops.settings import RateLimitSettings, Settings
from tests.support import approving
from tests.support.approving import Lab, problem
from tests.support.serving import served

pytestmark = pytest.mark.anyio
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
async def lab(approving_url: str) -> AsyncIterator[Lab]:
    async with approving.opened_copy(approving_url) as lab:
        yield lab


async def decide(lab: Lab, what: str = "approve", who: str = "bob", **body: Any) -> Any:
    answer = await lab.send(who, "POST", f"part/{what}-batch", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def statuses(outcome: Any) -> dict[str, str]:
    return {each["id"]: each.get("code", each["status"]) for each in outcome["results"]}


async def insert_proposals(
    lab: Lab, rows: Sequence[tuple[str, str | None]], *, batch: str = "b", **more: Any
) -> list[str]:
    """Put creations of parts into the edit table: (code, parent)."""
    values = {"maker": None, "serial": None, "by": "apikey:ann", **more}
    cursor = await lab.conn.execute(
        "INSERT INTO mdm_data.part__edit (_sys_id, code, parent, maker, serial, rank,"
        " _sys_operation, _sys_state, _sys_batch_name, _sys_submitted_at, _sys_submitted_by)"
        " SELECT gen_random_uuid(), r.code, r.parent, %(maker)s, %(serial)s, 7, 'create',"
        " 'pending', %(batch)s, now(), %(by)s"
        " FROM unnest(%(codes)s::text[], %(parents)s::text[]) WITH ORDINALITY AS r(code, parent, n)"
        " ORDER BY r.n RETURNING _sys_id::text",
        {
            **values,
            "batch": batch,
            "codes": [code for code, _ in rows],
            "parents": [parent for _, parent in rows],
        },
    )
    return [row_id for (row_id,) in await cursor.fetchall()]


# --- each row by itself ---------------------------------------------------------------------------


async def test_a_batch_by_its_name(lab: Lab) -> None:
    ids = await insert_proposals(lab, [(f"P{n}", None) for n in range(7)])
    other = await insert_proposals(lab, [("P8", None)], batch="other")
    outcome = await decide(lab, batchName="b", comment="all fine")
    assert (outcome["approved"], outcome["rejected"], outcome["failed"]) == (7, 0, 0)
    assert statuses(outcome) == dict.fromkeys(ids, "approved")
    assert outcome["resultsTruncated"] is False
    assert [row["_sys_id"] for row in await lab.edit()] == other
    events = await lab.events()
    assert Counter(e["action"] for e in events) == {"data_created": 7}
    assert {e["detail"]["comment"] for e in events} == {"all fine"}
    again = await decide(lab, batchName="b")
    assert (again["approved"], again["failed"], again["results"]) == (0, 0, [])


async def test_one_that_fails_does_not_hold_up_the_others(lab: Lab) -> None:
    good = await insert_proposals(lab, [("P1", None), ("P2", None)])
    wrong_code = await insert_proposals(lab, [("x", None)])
    no_maker = await insert_proposals(lab, [("P3", None)], maker="M9")
    own = await insert_proposals(lab, [("P4", None)], by="apikey:bob")
    taken = await lab.approved(code="P5")
    [key_taken] = await insert_proposals(lab, [("P5", None)])
    stale = await lab.approved(code="P6")
    await lab.send("ann", "PUT", f"part/data/{stale}", {"rank": 1})
    await lab.conn.execute("UPDATE mdm_data.part SET _sys_version = 2 WHERE code = 'P6'")
    await lab.forget_events()
    ids = [*good, *wrong_code, *no_maker, *own, key_taken, stale, NOBODY, "nonsense", good[0]]
    outcome = await decide(lab, ids=ids)
    assert (outcome["approved"], outcome["failed"]) == (2, 7)
    assert statuses(outcome) == {
        **dict.fromkeys(good, "approved"),
        wrong_code[0]: "ENTITY_VALIDATION_PATTERN",
        no_maker[0]: "ENTITY_VALIDATION_REFERENCE",
        own[0]: "APPROVAL_SAME_AUTHOR",
        key_taken: "ENTITY_VALIDATION_UNIQUE",
        stale: "APPROVAL_STALE",
        NOBODY: "PENDING_NOT_FOUND",
        "nonsense": "PENDING_NOT_FOUND",
    }
    failed = [each for each in outcome["results"] if each["status"] == "failed"]
    assert all(each["message"] for each in failed)
    assert taken != key_taken
    assert len(await lab.edit()) == 5 and len(await lab.events()) == 2


async def test_two_that_want_the_same_value(lab: Lab) -> None:
    """A race let both in; one is approved, the other is told why not."""
    ids = await insert_proposals(lab, [("P1", None), ("P1", None)])
    outcome = await decide(lab, ids=ids)
    assert sorted(statuses(outcome).values()) == ["ENTITY_VALIDATION_UNIQUE", "approved"]
    updates = [await lab.approved(code=f"P{n}") for n in (2, 3)]
    for row_id in updates:
        await lab.send("ann", "PUT", f"part/data/{row_id}", {"rank": 1})
    await lab.conn.execute("UPDATE mdm_data.part__edit SET serial = 's' WHERE code <> 'P1'")
    outcome = await decide(lab, ids=updates)
    assert sorted(statuses(outcome).values()) == ["ENTITY_VALIDATION_UNIQUE", "approved"]
    assert len(await lab.edit()) == 2


async def test_all_operations_in_one_batch(lab: Lab) -> None:
    ids = [await lab.approved(code=f"P{n}") for n in range(5)]
    await lab.send("ann", "DELETE", f"part/data/{ids[3]}?soft=true")
    await lab.send("bob", "POST", f"part/approve/{ids[3]}")
    await lab.send("ann", "PUT", f"part/data/{ids[0]}", {"rank": 1})
    await lab.send("ann", "DELETE", f"part/data/{ids[1]}?soft=true")
    await lab.send("ann", "DELETE", f"part/data/{ids[2]}")
    await lab.send("ann", "POST", f"part/data/{ids[3]}/restore")
    await lab.send("ann", "PUT", f"part/data/{ids[4]}", {"code": "P9"})
    await lab.send("ann", "POST", "shelf/data", {"code": "S", "part": "P4"})
    new = await lab.propose("ann", code="P7")
    await lab.forget_events()
    outcome = await decide(lab, ids=[*ids, new])
    assert statuses(outcome) == dict.fromkeys([*ids, new], "approved")
    assert await lab.edit() == []
    events = await lab.events()
    assert Counter(e["action"] for e in events) == {
        "data_created": 1,
        "data_updated": 3,  # the shelf follows the key
        "data_soft_deleted": 1,
        "data_deleted": 1,
        "data_restored": 1,
    }
    states = [(await lab.row(row_id) or {}).get("_sys_state") for row_id in ids]
    assert states == ["active", "deleted", None, "active", "active"]


async def test_rejecting_a_batch(lab: Lab) -> None:
    ids = await insert_proposals(lab, [(f"P{n}", None) for n in range(5)])
    outcome = await decide(lab, "reject", batchName="b", comment="no")
    assert (outcome["approved"], outcome["rejected"], outcome["failed"]) == (0, 5, 0)
    assert statuses(outcome) == dict.fromkeys(ids, "rejected")
    rows = await lab.edit()
    assert {(row["_sys_state"], row["_sys_comment"]) for row in rows} == {("rejected", "no")}
    events = await lab.events()
    assert [e["action"] for e in events] == ["data_rejected"] * 5
    assert {e["detail"]["reason"] for e in events} == {"no"}
    outcome = await decide(lab, "reject", ids=[ids[0], NOBODY])
    assert statuses(outcome) == dict.fromkeys([ids[0], NOBODY], "PENDING_NOT_FOUND")


async def test_who_may_decide_on_which_rows(lab: Lab) -> None:
    """``some`` sees all and approves room 1; ``room1`` sees nothing else."""
    one = await lab.propose("ann", code="P1", room="1")
    two = await lab.propose("ann", code="P2", room="2")
    await lab.conn.execute("UPDATE mdm_data.part__edit SET _sys_batch_name = 'b'")
    for what in ("approve", "reject"):
        answer = await lab.send("writer", "POST", f"part/{what}-batch", {"batchName": "b"})
        assert problem(answer) == (403, "ACCESS_DENIED")
        answer = await lab.send("bob", "POST", f"maker/{what}-batch", {"batchName": "b"})
        assert problem(answer) == (409, "APPROVAL_NOT_REQUIRED")
        by_name = await decide(lab, what, "room1", batchName="b2")
        assert by_name["results"] == []
        by_id = await decide(lab, what, "room1", ids=[two])
        assert statuses(by_id) == {two: "PENDING_NOT_FOUND"}
        by_id = await decide(lab, what, "some", ids=[two])
        assert statuses(by_id) == {two: "ACCESS_DENIED"}
    outcome = await decide(lab, who="room1", batchName="b")
    assert statuses(outcome) == {one: "approved"}
    outcome = await decide(lab, who="some", batchName="b")
    assert statuses(outcome) == {two: "ACCESS_DENIED"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"comment": "x"},
        {"batchName": "b", "ids": []},
        {"ids": "x"},
        {"ids": [1]},
        {"ids": ["x"] * 10_001},
        {"batchName": 1},
        {"batchName": "b" * 201},
        {"batchName": "b", "comment": "c" * 2_001},
        {"batch": "b"},
    ],
)
async def test_wrong_bodies(lab: Lab, body: Any) -> None:
    for what in ("approve", "reject"):
        answer = await lab.send("bob", "POST", f"part/{what}-batch", body)
        assert problem(answer) == (400, "REQUEST_INVALID")


# --- in the order of what they refer to -----------------------------------------------------------


async def test_rows_that_refer_to_each_other(lab: Lab) -> None:
    """Each row stands before the one that it refers to."""
    chain = [(f"P{n}", f"P{n + 1}") for n in range(20)] + [("P20", None)]
    ids = await insert_proposals(lab, chain)
    outcome = await decide(lab, ids=ids)
    assert statuses(outcome) == dict.fromkeys(ids, "approved")
    assert [e["new"]["code"] for e in await lab.events()] == [f"P{n}" for n in range(20, -1, -1)]


async def test_what_hangs_on_a_row_that_fails_waits(lab: Lab) -> None:
    bad = await insert_proposals(lab, [("P1", None)], maker="M9")
    hanging = await insert_proposals(lab, [("P2", "P1"), ("P3", "P2")])
    good = await insert_proposals(lab, [("P4", "P5"), ("P5", None)])
    outcome = await decide(lab, batchName="b")
    assert statuses(outcome) == {
        bad[0]: "ENTITY_VALIDATION_REFERENCE",
        **dict.fromkeys(hanging, "APPROVAL_REFERENCE_PENDING"),
        **dict.fromkeys(good, "approved"),
    }


async def test_a_circle_is_approved_together(lab: Lab) -> None:
    ids = await insert_proposals(lab, [("P1", "P2"), ("P2", "P3"), ("P3", "P1"), ("P4", "P1")])
    outcome = await decide(lab, ids=ids)
    assert statuses(outcome) == dict.fromkeys(ids, "approved")
    assert len(await lab.events()) == 4 and await lab.edit() == []


async def test_a_circle_with_a_key_that_changes(lab: Lab) -> None:
    """P1 shall be called P9 and refer to P2, which is new and refers to P9."""
    first = await lab.approved(code="P1")
    child = await lab.approved(code="P3", parent="P1")
    [new] = await insert_proposals(lab, [("P2", "P9")])
    await lab.send("ann", "PUT", f"part/data/{first}", {"code": "P9", "parent": "P2"})
    for row_id in (first, new):
        answer = await lab.send("bob", "POST", f"part/approve/{row_id}")
        assert problem(answer) == (409, "APPROVAL_REFERENCE_PENDING")
    outcome = await decide(lab, ids=[first, new])
    assert statuses(outcome) == {first: "approved", new: "approved"}
    assert [(await lab.row(i))["parent"] for i in (first, new, child)] == ["P2", "P9", "P9"]


async def test_a_circle_with_a_row_that_fails_is_left_as_it_is(lab: Lab) -> None:
    [bad] = await insert_proposals(lab, [("P1", "P2")], maker="M9")
    [other] = await insert_proposals(lab, [("P2", "P1")])
    single = await insert_proposals(lab, [("P3", None)])
    outcome = await decide(lab, ids=[bad, other, *single])
    assert statuses(outcome) == {
        bad: "ENTITY_VALIDATION_REFERENCE",
        other: "APPROVAL_REFERENCE_PENDING",
        single[0]: "approved",
    }
    assert len(await lab.events()) == 1
    assert problem(await lab.send("bob", "POST", f"part/approve/{other}")) == (
        409,
        "APPROVAL_REFERENCE_PENDING",
    )


async def test_rows_that_are_removed_together(lab: Lab) -> None:
    parent = await lab.approved(code="P1")
    child = await lab.approved(code="P2", parent="P1")
    await lab.send("ann", "DELETE", f"part/data/{child}")
    # While the child stands nobody can propose to remove its parent; by hand it is there.
    await lab.conn.execute(
        "INSERT INTO mdm_data.part__edit (_sys_id, code, _sys_base_version, _sys_operation,"
        " _sys_state, _sys_submitted_at, _sys_submitted_by)"
        " VALUES (%s, 'P1', 1, 'delete', 'pending', now(), 'apikey:ann')",
        [parent],
    )
    outcome = await decide(lab, ids=[parent, child])
    assert statuses(outcome) == {parent: "approved", child: "approved"}


# --- more rows than one piece has -----------------------------------------------------------------


async def test_a_batch_of_many_pieces(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """References lead from each piece into others, and one circle goes through several."""
    monkeypatch.setattr(approvals, "PIECE", 10)
    rows = [(f"P{n}", f"P{n + 7}") for n in range(60)]
    rows += [(f"P{n}", None) for n in range(60, 67)]
    rows += [("P100", "P101"), ("P101", "P102"), ("P102", "P100")]
    ids = await insert_proposals(lab, rows)
    bad = await insert_proposals(lab, [("x", None)])
    outcome = await decide(lab, batchName="b")
    assert statuses(outcome) == {
        **dict.fromkeys(ids, "approved"),
        bad[0]: "ENTITY_VALIDATION_PATTERN",
    }
    assert (outcome["approved"], outcome["failed"]) == (70, 1)
    assert len(await lab.events()) == 70


async def test_the_list_of_results_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_RESULTS", 3)
    await insert_proposals(lab, [(f"P{n}", None) for n in range(5)])
    outcome = await decide(lab, batchName="b")
    assert (outcome["approved"], len(outcome["results"])) == (5, 3)
    assert outcome["resultsTruncated"] is True


async def test_a_row_that_stays_locked_fails_with_its_piece(
    lab: Lab, approving_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PIECE", 2)
    ids = sorted(await insert_proposals(lab, [(f"P{n}", None) for n in range(6)]))
    impatient = approving_url.replace("options=", "options=-c%20lock_timeout%3D200ms%20")
    settings = Settings(RateLimit=RateLimitSettings(Enabled=False))
    async with served(create_app(database_url=impatient, settings=settings)) as client:
        async with lab.conn.transaction():
            await lab.conn.execute(
                "SELECT FROM mdm_data.part__edit WHERE _sys_id = %s FOR UPDATE", [ids[2]]
            )
            outcome = await decide(lab.through(client), batchName="b")
        assert statuses(outcome) == {
            **dict.fromkeys(ids, "approved"),
            **dict.fromkeys(ids[2:4], "WAREHOUSE_LOCKED"),
        }
        outcome = await decide(lab.through(client), batchName="b")
        assert statuses(outcome) == dict.fromkeys(ids[2:4], "approved")
