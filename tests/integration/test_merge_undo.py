"""Undoing a merge: everything comes back, and nobody's later edit is lost in silence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.approving import ROOT, problem
from tests.support.merging import MergeLab

pytestmark = pytest.mark.anyio


@pytest.fixture
def lab(merge_lab: MergeLab) -> MergeLab:
    return merge_lab


async def merged(lab: MergeLab, **values: Any) -> tuple[str, str, str, str]:
    """Return survivor, duplicate, a contact of it, and the merge of both."""
    survivor = await lab.add(code="S", Name="Acme")
    duplicate = await lab.add(code="D", email="x@y", phone="1")
    contact = await lab.add("contact", code="C1", company="D", region="north")
    made = await lab.merged(survivor, duplicate, **values)
    return survivor, duplicate, contact, made["mergeId"]


def rows_of(answer: Any) -> list[tuple[str, str]]:
    assert problem(answer) == (409, "MERGE_CHANGED_SINCE"), answer.text
    return [(row["id"], row.get("column", "")) for row in answer.json()["rows"]]


async def test_an_undo_gives_back_rows_and_links(lab: MergeLab) -> None:
    survivor, duplicate, contact, merge_id = await merged(lab)
    await lab.forget_events()
    undone = (await lab.undo(merge_id)).json()
    assert (undone["state"], undone["relinked"]) == ("undone", {"contact": 1})
    assert (undone["survivor"]["email"], undone["survivor"]["_sys_version"]) == (None, 3)
    assert (undone["duplicate"]["_sys_state"], undone["duplicate"]["_sys_version"]) == ("active", 3)
    assert (await lab.row(contact, "contact"))["company"] == "D"
    events = await lab.events()
    assert sorted((e["id"], e["action"]) for e in events) == sorted(
        [(survivor, "data_updated"), (duplicate, "data_restored"), (contact, "data_updated")]
    )
    assert {e["detail"]["undoneMergeId"] for e in events} == {merge_id}
    versions = (await lab.send("ann", "GET", f"company/versions/{duplicate}")).json()["items"]
    assert [v["action"] for v in versions] == ["data_restored", "data_soft_deleted", "data_created"]
    again = await lab.undo(merge_id)
    assert problem(again) == (409, "MERGE_NOT_STANDING")
    # Both can be merged again, the other way round.
    await lab.merged(duplicate, survivor)
    assert (await lab.row(survivor))["_sys_id"] == duplicate


async def test_an_undo_gives_the_key_back_that_the_merge_changed(lab: MergeLab) -> None:
    survivor = await lab.add(code="S")
    duplicate = await lab.add(code="D")
    await lab.add("contact", code="C1", company="D")
    await lab.add("contact", code="C2", company="S")
    made = await lab.merged(survivor, duplicate, values={"code": "T"})
    await lab.add("contact", code="C3", company="T")
    assert (await lab.undo(made["mergeId"])).status_code == 200
    linked = await lab.table("contact", "code, company")
    assert linked == [("C1", "D"), ("C2", "S"), ("C3", "S")]


async def test_edits_beside_those_of_the_merge_are_no_obstacle(lab: MergeLab) -> None:
    survivor, _, contact, merge_id = await merged(lab)
    await lab.send(ROOT, "PUT", f"company/data/{survivor}", {"notes": "later"})
    await lab.send(ROOT, "PUT", f"contact/data/{contact}", {"label": "later"})
    new = await lab.add("contact", code="C2", company="S")
    assert (await lab.undo(merge_id)).status_code == 200
    row = await lab.row(survivor)
    assert (row["notes"], row["email"]) == ("later", None)
    row = await lab.row(contact, "contact")
    assert (row["label"], row["company"]) == ("later", "D")
    assert (await lab.row(new, "contact"))["company"] == "S"  # it never referred to the duplicate


async def test_later_edits_refuse_the_undo_and_can_be_kept(lab: MergeLab) -> None:
    survivor, duplicate, contact, merge_id = await merged(lab)
    second = await lab.add("contact", code="C2", company=None)
    other = await lab.add(code="O")
    await lab.send(ROOT, "PUT", f"company/data/{survivor}", {"email": "later"})
    await lab.send(ROOT, "PUT", f"contact/data/{contact}", {"company": "O"})
    answer = await lab.undo(merge_id)
    assert rows_of(answer) == [(survivor, "email"), (contact, "company")]
    assert (await lab.row(duplicate, state="deleted"))["_sys_version"] == 2
    assert (await lab.undo(merge_id, keepLaterEdits=True)).status_code == 200
    row = await lab.row(survivor)
    assert (row["email"], row["phone"]) == ("later", None)
    assert (await lab.row(contact, "contact"))["company"] == "O"
    assert (await lab.row(duplicate))["_sys_state"] == "active"
    assert (await lab.row(second, "contact"))["_sys_version"] == 1
    assert (await lab.row(other))["_sys_version"] == 1


async def test_a_key_that_was_renamed_since_does_not_lose_the_links(lab: MergeLab) -> None:
    survivor, _, contact, merge_id = await merged(lab)
    await lab.send(ROOT, "PUT", f"company/data/{survivor}", {"code": "NEW"})
    assert (await lab.row(contact, "contact"))["company"] == "NEW"
    assert (await lab.undo(merge_id)).status_code == 200
    assert (await lab.row(contact, "contact"))["company"] == "D"
    assert (await lab.row(survivor))["code"] == "NEW"


async def test_a_duplicate_that_was_restored_by_hand_is_told(lab: MergeLab) -> None:
    survivor, duplicate, contact, merge_id = await merged(lab)
    await lab.send(ROOT, "POST", f"company/data/{duplicate}/restore")
    assert (await lab.row(duplicate))["_sys_id"] == duplicate  # it is itself again
    assert rows_of(await lab.undo(merge_id)) == [(duplicate, "")]
    assert (await lab.undo(merge_id, keepLaterEdits=True)).status_code == 200
    assert (await lab.row(contact, "contact"))["company"] == "D"
    assert (await lab.row(survivor))["email"] is None


async def test_a_merge_of_a_restored_row_comes_after_the_first(lab: MergeLab) -> None:
    survivor, duplicate, _, merge_id = await merged(lab)
    await lab.send(ROOT, "POST", f"company/data/{duplicate}/restore")
    other = await lab.add(code="O")
    second = await lab.merged(other, duplicate)
    assert (await lab.row(duplicate))["_sys_id"] == other
    answer = await lab.undo(merge_id)
    assert rows_of(answer) == [(duplicate, "")]
    assert answer.json()["mergeId"] == second["mergeId"]
    assert (await lab.undo(second["mergeId"])).status_code == 200
    await lab.send(ROOT, "DELETE", f"company/data/{duplicate}", params={"soft": True})
    assert (await lab.row(duplicate))["_sys_id"] == survivor  # the first one stands again
    assert (await lab.undo(merge_id)).status_code == 200


async def test_a_survivor_that_was_deleted_is_told(lab: MergeLab) -> None:
    survivor, _, contact, merge_id = await merged(lab)
    await lab.send(ROOT, "DELETE", f"company/data/{survivor}", params={"soft": True})
    for keep in (False, True):
        assert rows_of(await lab.undo(merge_id, keepLaterEdits=keep)) == [(survivor, "")]
    assert (await lab.row(contact, "contact"))["company"] == "S"
    await lab.send(ROOT, "POST", f"company/data/{survivor}/restore")
    assert (await lab.undo(merge_id)).status_code == 200


async def test_a_unique_value_that_was_taken_since_refuses_the_undo(lab: MergeLab) -> None:
    survivor = await lab.add(code="S")
    duplicate = await lab.add(code="D")
    made = await lab.merged(survivor, duplicate, values={"code": "T"})
    await lab.add(code="S")
    answer = await lab.undo(made["mergeId"])
    assert problem(answer) == (409, "ENTITY_VALIDATION_UNIQUE")
    assert (await lab.row(duplicate, state="deleted"))["_sys_version"] == 2


async def test_links_that_were_deleted_since_are_no_obstacle(lab: MergeLab) -> None:
    _, duplicate, contact, merge_id = await merged(lab)
    await lab.send(ROOT, "DELETE", f"contact/data/{contact}")
    undone = (await lab.undo(merge_id)).json()
    assert undone["relinked"] == {}
    assert (await lab.row(duplicate))["_sys_state"] == "active"


async def test_two_merges_into_one_row_are_undone_in_any_order(lab: MergeLab) -> None:
    survivor = await lab.add(code="S", Name="Acme")
    first = await lab.add(code="A", email="a")
    second = await lab.add(code="B", region="b")
    for code, company in (("C1", "A"), ("C2", "B"), ("C3", "S")):
        await lab.add("contact", code=code, company=company)
    one, two = await lab.merged(survivor, first), await lab.merged(survivor, second)
    assert (await lab.undo(one["mergeId"])).status_code == 200
    row = await lab.row(survivor)
    assert (row["email"], row["region"]) == (None, "b")
    assert await lab.table("contact", "code, company") == [("C1", "A"), ("C2", "S"), ("C3", "S")]
    assert (await lab.undo(two["mergeId"])).status_code == 200
    assert await lab.table("contact", "code, company") == [("C1", "A"), ("C2", "B"), ("C3", "S")]


async def test_a_proposal_that_was_written_again_stays(lab: MergeLab) -> None:
    survivor = await lab.add(code="S")
    duplicate = await lab.add(code="D")
    order = await lab.add("order", code="O1")
    await lab.send("ann", "PUT", f"order/data/{order}", {"company": "D"})
    made = await lab.merged(survivor, duplicate)
    await lab.send("ann", "PUT", f"order/data/{order}", {"company": "S", "note": "later"})
    assert (await lab.undo(made["mergeId"])).status_code == 200
    pending = await lab.pending(order, "order")
    assert (pending["company"], pending["note"]) == ("S", "later")


async def test_the_body_of_an_undo_is_read_strictly(lab: MergeLab) -> None:
    *_, merge_id = await merged(lab)
    for body in ({"keepLaterEdits": 1}, {"keep": True}):
        assert problem(await lab.undo(merge_id, **body)) == (400, "REQUEST_INVALID")


async def test_a_duplicate_that_was_deleted_for_good_still_leads_to_the_survivor(
    lab: MergeLab,
) -> None:
    survivor, duplicate, contact, merge_id = await merged(lab)
    gone = await lab.send(ROOT, "DELETE", f"company/data/{duplicate}", params={"soft": "false"})
    assert gone.is_success, gone.text
    assert (await lab.row(duplicate))["_sys_id"] == survivor
    assert rows_of(await lab.undo(merge_id)) == [(duplicate, "")]
    assert (await lab.row(contact, "contact"))["company"] == "S"
