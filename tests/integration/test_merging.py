"""Merging two rows over HTTP: which values survive, what is relinked, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.support.approving import ROOT, problem
from tests.support.merging import AT, MergeLab

pytestmark = pytest.mark.anyio


@pytest.fixture
def lab(merge_lab: MergeLab) -> MergeLab:
    return merge_lab


async def pair(lab: MergeLab, **values: Any) -> tuple[str, str]:
    """Return a survivor S and a duplicate D, which has *values*."""
    survivor = await lab.add(code="S", Name="Acme")
    return survivor, await lab.add(code="D", **{"Name": "Acme Ltd", **values})


def origin(document: Any, column: str) -> tuple[str, str]:
    [found] = [each for each in document["columns"] if each["column"] == column]
    return found["from"], found["rule"]


async def test_a_merge_keeps_what_the_rules_say(lab: MergeLab) -> None:
    survivor = await lab.add(
        code="S", Name="Acme", source="web", phone="1", notes="a", rank=1, price="1.10"
    )
    duplicate = await lab.add(
        code="D",
        Name="Acme Ltd",
        source="erp",
        phone="2",
        notes="longer",
        rank=2,
        email="x@y",
        since="2020-01-02T03:04:05.60Z",
        price="123456789012345678.123456",
        more={"a": [1.50, None]},
        vat="V",
        secret="hidden",
    )
    before = await lab.row(duplicate, state="deleted")
    assert before is None
    merged = await lab.merged(survivor, duplicate, who="seer")
    row = merged["survivor"]
    assert merged["state"] == "merged"
    assert (row["_sys_id"], row["_sys_version"]) == (survivor, 2)
    expected = {"code": "S", "vat": None, "Name": "Acme Ltd", "phone": "2", "notes": "longer"}
    expected |= {"rank": 1, "email": "x@y", "since": "2020-01-02T03:04:05.6Z", "source": "erp"}
    expected |= {"more": {"a": [1.50, None]}, "secret": "hidden", "parent": None}
    assert {name: row[name] for name in expected} == expected
    # The digits are those of the duplicate: numbers are passed on as they are.
    answer = await lab.send("seer", "GET", f"company/data/{survivor}")
    assert '"price":123456789012345678.123456' in answer.text
    assert origin(merged, "Name") == ("duplicate", "trustedSource")
    assert origin(merged, "phone") == ("duplicate", "mostRecent")
    assert origin(merged, "notes") == ("duplicate", "longest")
    assert origin(merged, "rank") == ("survivor", "survivor")
    assert origin(merged, "email") == ("duplicate", "mostComplete")
    assert origin(merged, "code") == origin(merged, "vat") == ("survivor", "unique")
    assert origin(merged, "region") == ("both", "equal")
    gone = await lab.row(duplicate, state="deleted")
    assert (gone["_sys_state"], gone["_sys_version"], gone["Name"]) == ("deleted", 2, "Acme Ltd")


async def test_each_changed_row_has_one_event_and_one_version(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab, vat="VD")
    await lab.send(ROOT, "PUT", f"company/data/{survivor}", {"vat": "VS"})
    contact = await lab.add("contact", code="C1", company="D", second="D")
    other = await lab.add("contact", code="C2", company="S")
    invoice = await lab.add("invoice", code="I1", vat="VD")
    order = await lab.add("order", code="O1", company="D")
    child = await lab.add(code="X", parent="D")
    await lab.forget_events()
    merged = await lab.merged(survivor, duplicate)
    assert merged["relinked"] == {"Company": 1, "contact": 1, "invoice": 1, "order": 1}
    events = await lab.events()
    # A row that refers to it twice is relinked column by column.
    assert sorted((e["id"], e["action"]) for e in events) == sorted(
        [
            (survivor, "data_updated"),
            (duplicate, "data_soft_deleted"),
            (contact, "data_updated"),
            (contact, "data_updated"),
            (invoice, "data_updated"),
            (order, "data_updated"),
            (child, "data_updated"),
        ]
    )
    assert {(e["detail"] or {}).get("mergeId") for e in events} == {merged["mergeId"]}
    assert {e["actor"] for e in events} == {"apikey:ann"}
    assert await lab.table("contact", "code, company, second") == [
        ("C1", "S", "S"),
        ("C2", "S", None),
    ]
    assert await lab.table("invoice", "code, vat, _sys_version") == [("I1", "VS", 2)]
    assert await lab.table('"order"', "code, company, _sys_version") == [("O1", "S", 2)]
    assert (await lab.row(child))["parent"] == "S"
    assert (await lab.row(other, "contact"))["_sys_version"] == 1
    versions = await lab.send("ann", "GET", f"contact/versions/{contact}")
    assert [each["row"]["company"] for each in versions.json()["items"]] == ["S", "S", "D"]


async def test_explicit_values_win_and_may_change_the_key(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    await lab.add("contact", code="C1", company="D")
    await lab.add("contact", code="C2", company="S")
    merged = await lab.merged(survivor, duplicate, values={"code": "T", "name": "Chosen"})
    assert (merged["survivor"]["code"], merged["survivor"]["Name"]) == ("T", "Chosen")
    assert origin(merged, "code") == origin(merged, "Name") == ("values", "explicit")
    assert await lab.table("contact", "code, company") == [("C1", "T"), ("C2", "T")]


async def test_a_preview_says_what_the_merge_does_and_writes_nothing(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab, email="x@y", vat="V", price="1.000001")
    await lab.add("contact", code="C1", company="D")
    await lab.forget_events()
    body = {"survivorId": survivor, "duplicateId": duplicate, "values": {"rank": 5}}
    answer = await lab.send("ann", "POST", f"{AT}/preview", body)
    assert answer.status_code == 200, answer.text
    preview = answer.json()
    assert '"duplicate":1.000001' in answer.text
    assert await lab.events() == []
    cursor = await lab.conn.execute("SELECT count(*) FROM mdm.merge")
    assert await cursor.fetchone() == (0,)
    assert (preview["survivorVersion"], preview["duplicateVersion"]) == (1, 1)
    merged = await lab.merged(survivor, duplicate, values={"rank": 5})
    moments = ("_sys_last_modified_at",)
    strip = lambda row: {k: v for k, v in row.items() if k not in moments}
    assert strip(preview["survivor"]) == strip(merged["survivor"])
    assert (preview["columns"], preview["relinked"]) == (merged["columns"], merged["relinked"])


async def test_relations_between_the_two_end(lab: MergeLab) -> None:
    """A row is not to become its own parent, unless it was before."""
    survivor = await lab.add(code="S")
    duplicate = await lab.add(code="D", parent="S")
    await lab.send(ROOT, "PUT", f"company/data/{survivor}", {"parent": "D"})
    merged = await lab.merged(survivor, duplicate)
    assert merged["survivor"]["parent"] is None
    assert origin(merged, "parent") == ("neither", "selfReference")
    undone = (await lab.undo(merged["mergeId"])).json()
    assert (undone["survivor"]["parent"], undone["duplicate"]["parent"]) == ("D", "S")
    root = await lab.add(code="R")
    await lab.send(ROOT, "PUT", f"company/data/{root}", {"parent": "R"})
    other = await lab.add(code="Q")
    merged = await lab.merged(other, root)
    assert merged["survivor"]["parent"] == "Q"


async def test_rows_that_refer_to_a_relinked_key_come_along(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    await lab.add("profile", company="D", text="t")
    await lab.add("page", code="P1", profile="D")
    merged = await lab.merged(survivor, duplicate)
    assert merged["relinked"] == {"profile": 1}
    assert await lab.table("page", "code, profile") == [("P1", "S")]
    assert (await lab.undo(merged["mergeId"])).status_code == 200
    assert await lab.table("page", "code, profile") == [("P1", "D")]
    assert await lab.table("profile", "company") == [("D",)]


async def test_proposals_that_hold_the_duplicates_key_are_carried(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    order = await lab.add("order", code="O1", company="D")
    answer = await lab.send("ann", "PUT", f"order/data/{order}", {"note": "n"})
    assert answer.status_code == 202
    new = await lab.propose("ann", "order", code="O2", company="D")
    await lab.forget_events()
    merged = await lab.merged(survivor, duplicate)
    assert (await lab.pending(order, "order"))["company"] == "S"
    assert (await lab.pending(new, "order"))["company"] == "S"
    edited = [e for e in await lab.events() if e["action"] == "data_edited"]
    assert sorted(e["id"] for e in edited) == sorted([order, new])
    # Their base moved along: they can still be approved, after the undo too.
    await lab.undo(merged["mergeId"])
    assert (await lab.pending(order, "order"))["company"] == "D"
    assert (await lab.send("bob", "POST", f"order/approve/{order}")).status_code == 200
    assert (await lab.send("bob", "POST", f"order/approve/{new}")).status_code == 200
    assert await lab.table('"order"', "code, company, note") == [
        ("O1", "D", "n"),
        ("O2", "D", None),
    ]


# --- identifiers of merged rows -------------------------------------------------------------------


async def test_the_duplicates_identifier_leads_to_the_last_survivor(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    last = await lab.add(code="L")
    first = await lab.merged(survivor, duplicate)
    second = await lab.merged(last, survivor)
    answer = await lab.send("ann", "GET", f"company/data/{duplicate}")
    assert answer.status_code == 200
    assert answer.json()["redirectedFrom"] == duplicate
    assert answer.json()["_sys_id"] == last
    assert answer.headers["Content-Location"] == f"/api/v1/entities/Company/data/{last}"
    assert answer.headers["ETag"] == f'"v{answer.json()["_sys_version"]}"'
    few = await lab.send("ann", "GET", f"company/data/{duplicate}", params={"fields": "code"})
    assert few.json() == {"code": "L", "redirectedFrom": duplicate}
    own = await lab.send("ann", "GET", f"company/data/{duplicate}", params={"state": "deleted"})
    assert (own.json()["_sys_id"], "redirectedFrom" in own.json()) == (duplicate, False)
    listed = await lab.send("ann", "GET", "company/data", params={"state": "deleted"})
    assert {row["_sys_id"] for row in listed.json()["items"]} == {duplicate, survivor}
    assert "redirectedFrom" not in (await lab.row(last))
    # The first cannot be undone while its survivor is merged itself.
    answer = await lab.undo(first["mergeId"])
    assert problem(answer) == (409, "MERGE_CHANGED_SINCE")
    assert answer.json()["mergeId"] == second["mergeId"]
    assert (await lab.undo(second["mergeId"])).status_code == 200
    assert (await lab.row(duplicate))["_sys_id"] == survivor
    assert (await lab.undo(first["mergeId"])).status_code == 200
    assert (await lab.row(duplicate))["_sys_id"] == duplicate
    # A row that was deleted, and never merged, leads nowhere else.
    await lab.send(ROOT, "DELETE", f"company/data/{duplicate}", params={"soft": True})
    assert (await lab.row(duplicate))["_sys_state"] == "deleted"


async def test_reads_of_the_past_follow_the_merges_of_then(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    before = (await lab.row(duplicate))["_sys_last_modified_at"]
    merged = await lab.merged(survivor, duplicate)
    between = (await lab.row(duplicate, state="deleted"))["_sys_deleted_at"]
    await lab.undo(merged["mergeId"])
    after = (await lab.row(duplicate))["_sys_last_modified_at"]
    ids = [(await lab.row(duplicate, asOfUtc=at))["_sys_id"] for at in (before, between, after)]
    assert ids == [duplicate, survivor, duplicate]
    listed = await lab.send(ROOT, "GET", "company/data", params={"asOfUtc": between})
    assert [row["code"] for row in listed.json()["items"]] == ["S"]


async def test_a_row_that_is_gone_for_good_still_leads_to_its_survivor(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    merged = await lab.merged(survivor, duplicate)
    answer = await lab.send(ROOT, "DELETE", f"company/data/{duplicate}")
    assert answer.status_code == 204
    assert (await lab.row(duplicate))["_sys_id"] == survivor
    answer = await lab.undo(merged["mergeId"])
    assert problem(answer) == (409, "MERGE_CHANGED_SINCE")
    assert answer.json()["rows"] == [{"entity": "Company", "id": duplicate}]


# --- what is refused ------------------------------------------------------------------------------


async def test_what_is_no_pair_of_rows_is_refused(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    nothing = str(uuid4())
    assert problem(await lab.merge(survivor, survivor)) == (400, "REQUEST_INVALID")
    assert problem(await lab.merge(survivor, nothing)) == (404, "ROW_NOT_FOUND")
    assert problem(await lab.merge(nothing, duplicate)) == (404, "ROW_NOT_FOUND")
    assert problem(await lab.merge("x", duplicate)) == (404, "ROW_NOT_FOUND")
    for values in ({"nothing": 1}, {"_sys_version": 1}):
        assert (await lab.merge(survivor, duplicate, values=values)).status_code == 400
    answer = await lab.merge(survivor, duplicate, values={"rank": -1})
    assert problem(answer) == (400, "ENTITY_VALIDATION_RANGE")
    assert problem(await lab.merge(survivor, duplicate, values=[])) == (400, "REQUEST_INVALID")
    assert problem(await lab.merge(survivor, duplicate, survivorVersion=0)) == (
        400,
        "REQUEST_INVALID",
    )
    taken = await lab.merge(survivor, duplicate, values={"code": "D"})
    assert problem(taken) == (409, "ENTITY_VALIDATION_UNIQUE")
    assert (await lab.row(survivor))["_sys_version"] == 1


async def test_versions_that_were_seen_must_still_hold(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    await lab.send(ROOT, "PUT", f"company/data/{duplicate}", {"email": "new"})
    answer = await lab.merge(survivor, duplicate, survivorVersion=1, duplicateVersion=1)
    assert problem(answer) == (412, "ROW_VERSION_CONFLICT")
    assert (answer.json()["rowId"], answer.json()["currentVersion"]) == (duplicate, 2)
    assert (await lab.merge(survivor, duplicate, survivorVersion=2)).status_code == 412
    await lab.merged(survivor, duplicate, survivorVersion=1, duplicateVersion=2)


async def test_deleted_and_merged_rows_are_refused(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab)
    gone = await lab.add(code="G")
    await lab.send(ROOT, "DELETE", f"company/data/{gone}", params={"soft": True})
    assert problem(await lab.merge(survivor, gone)) == (409, "ROW_DELETED")
    assert problem(await lab.merge(gone, survivor)) == (409, "ROW_DELETED")
    merged = await lab.merged(survivor, duplicate)
    for ids in ((survivor, duplicate), (duplicate, survivor)):
        answer = await lab.merge(*ids)
        assert problem(answer) == (409, "ROW_MERGED")
        assert answer.json()["survivorId"] == survivor
        assert answer.json()["mergeId"] == merged["mergeId"]


async def test_rows_that_could_not_be_relinked_refuse_the_merge(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab, vat="VD")
    await lab.add("contact", code="C1", company="D", label="main")
    blocking = await lab.add("contact", code="C2", company="S", label="main")
    answer = await lab.merge(survivor, duplicate)
    assert problem(answer) == (409, "MERGE_LINK_REFUSED")
    assert (answer.json()["entity"], answer.json()["column"]) == ("contact", "company")
    await lab.send(ROOT, "DELETE", f"contact/data/{blocking}")
    invoice = await lab.add("invoice", code="I", vat="VD")
    body = {"survivorId": survivor, "duplicateId": duplicate}
    answer = await lab.send("ann", "POST", f"{AT}/preview", body)
    assert problem(answer) == (409, "MERGE_REFERENCE_NO_VALUE")  # it promises nothing else
    answer = await lab.merge(survivor, duplicate)
    assert problem(answer) == (409, "MERGE_REFERENCE_NO_VALUE")
    assert answer.json()["columns"] == ["vat"]
    assert (await lab.row(invoice, "invoice"))["_sys_version"] == 1
    await lab.merged(survivor, duplicate, values={"vat": "VS"})
    assert (await lab.row(invoice, "invoice"))["vat"] == "VS"


async def test_links_that_would_become_equal_refuse_the_merge(lab: MergeLab) -> None:
    """Two rows that differ in which of the two they refer to, in either column."""
    survivor, duplicate = await pair(lab)
    await lab.add("contact", code="C1", second="S", owner="D")
    await lab.add("contact", code="C2", second="D", owner="S")
    answer = await lab.merge(survivor, duplicate)
    assert problem(answer) == (409, "MERGE_LINK_REFUSED")
    assert await lab.table("contact", "code, second, owner") == [("C1", "S", "D"), ("C2", "D", "S")]


# --- lists ----------------------------------------------------------------------------------------


async def test_merges_are_listed_from_the_newest_on(lab: MergeLab) -> None:
    survivor = await lab.add(code="S")
    made = [await lab.merged(survivor, await lab.add(code=f"D{n}")) for n in range(5)]
    await lab.undo(made[1]["mergeId"])
    ids = [each["mergeId"] for each in reversed(made)]
    found: list[str] = []
    params: dict[str, Any] = {"take": 2}
    while True:
        page = (await lab.send("ann", "GET", AT, params=params)).json()
        found += [item["mergeId"] for item in page["items"]]
        assert page["hasMore"] is (page["nextAfter"] is not None)
        if not page["hasMore"]:
            break
        params["after"] = page["nextAfter"]
    assert found == ids
    undone = (await lab.send("ann", "GET", AT, params={"state": "undone"})).json()["items"]
    assert [item["mergeId"] for item in undone] == [made[1]["mergeId"]]
    assert undone[0]["undoneBy"] == undone[0]["mergedBy"] == "apikey:ann"
    answer = await lab.send("ann", "GET", AT, params={"after": str(uuid4())})
    assert problem(answer) == (400, "REQUEST_INVALID")


async def test_one_merge_tells_where_values_came_from(lab: MergeLab) -> None:
    survivor, duplicate = await pair(lab, email="x@y", secret="s")
    contact = await lab.add("contact", code="C1", company="D")
    await lab.add("contact", code="C2", company="D")
    merge_id = (await lab.merged(survivor, duplicate))["mergeId"]
    await lab.send(ROOT, "PUT", f"contact/data/{contact}", {"company": None})
    found = (await lab.send("seer", "GET", f"{AT}/{merge_id}")).json()
    assert found["relinked"] == {"contact": 1}  # of those that still refer to it
    assert origin(found, "email") == ("duplicate", "mostComplete")
    assert origin(found, "secret") == ("duplicate", "mostComplete")
    assert (found["survivorId"], found["duplicateId"]) == (survivor, duplicate)
    masked = (await lab.send("ann", "GET", f"{AT}/{merge_id}")).json()
    assert origin(masked, "secret") == ("***", "***")
    for absent in (str(uuid4()), "x"):
        answer = await lab.send("ann", "GET", f"{AT}/{absent}")
        assert problem(answer) == (404, "MERGE_NOT_FOUND")
