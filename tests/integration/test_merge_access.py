"""Merges by people who may not see or write everything: nothing is told, nothing is written beyond."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from mdm_api.app import create_app
from mdm_gitops.settings import DataSettings, RateLimitSettings, Settings
from tests.support.approving import ROOT, problem
from tests.support.merging import AT, MergeLab
from tests.support.serving import served

pytestmark = pytest.mark.anyio


@pytest.fixture
def lab(merge_lab: MergeLab) -> MergeLab:
    return merge_lab


def words(answer: Any, row_id: str) -> str:
    """Return an answer without what names the request."""
    document = {k: v for k, v in answer.json().items() if k != "traceId"}
    return f"{answer.status_code} {document}".replace(row_id, "-")


async def test_a_row_that_is_hidden_is_as_absent(lab: MergeLab) -> None:
    seen = await lab.add(code="S", region="north")
    hidden = await lab.add(code="D", region="south")
    nothing = str(uuid4())
    for path in (AT, f"{AT}/preview"):
        found = set()
        for other in (hidden, nothing):
            for ids in ((seen, other), (other, seen)):
                body = {"survivorId": ids[0], "duplicateId": ids[1]}
                answer = await lab.send("north", "POST", path, body)
                assert problem(answer) == (404, "ROW_NOT_FOUND")
                found.add(words(answer, other))
        assert len(found) == 1
    await lab.merged(seen, hidden, who="ann")  # negative control


async def test_merges_of_hidden_rows_are_as_absent(lab: MergeLab) -> None:
    survivor = await lab.add(code="S", region="south")
    duplicate = await lab.add(code="D", region="north")
    merge_id = (await lab.merged(survivor, duplicate))["mergeId"]
    listed = await lab.send("north", "GET", AT)
    assert listed.json()["items"] == []
    for method, path in (("GET", ""), ("POST", "/undo"), ("POST", "/reject")):
        found = set()
        for each in (merge_id, str(uuid4())):
            answer = await lab.send("north", method, f"{AT}/{each}{path}")
            assert problem(answer) == (404, "MERGE_NOT_FOUND")
            found.add(words(answer, each))
        assert len(found) == 1
    # He sees the duplicate, but not where it leads.
    own = await lab.send("north", "GET", f"company/data/{duplicate}", params={"state": "deleted"})
    assert own.status_code == 200
    answer = await lab.send("north", "GET", f"company/data/{duplicate}")
    assert problem(answer) == (404, "ROW_NOT_FOUND")
    after = await lab.send("north", "GET", AT, params={"after": merge_id})
    assert problem(after) == (400, "REQUEST_INVALID")
    assert len((await lab.send("ann", "GET", AT)).json()["items"]) == 1


async def test_a_hidden_duplicate_does_not_lead_to_a_survivor_that_is_seen(lab: MergeLab) -> None:
    survivor = await lab.add(code="S", region="north")
    duplicate = await lab.add(code="D", region="south")
    await lab.merged(survivor, duplicate)
    answer = await lab.send("north", "GET", f"company/data/{duplicate}")
    absent = await lab.send("north", "GET", f"company/data/{uuid4()}")
    assert problem(answer) == problem(absent) == (404, "ROW_NOT_FOUND")
    # Nor once it is gone for good, when nobody can say who could see it.
    await lab.send(ROOT, "DELETE", f"company/data/{duplicate}")
    answer = await lab.send("north", "GET", f"company/data/{duplicate}")
    assert problem(answer) == (404, "ROW_NOT_FOUND")
    assert (await lab.send("ann", "GET", f"company/data/{duplicate}")).status_code == 200


async def test_both_rows_must_be_the_callers_to_write(lab: MergeLab) -> None:
    north = await lab.add(code="N", region="north")
    south = await lab.add(code="S", region="south")
    other = await lab.add(code="M", region="north")
    for ids in ((north, south), (south, north)):
        assert problem(await lab.merge(*ids, who="half")) == (403, "ACCESS_DENIED")
    # The survivor must stay within it, too.
    answer = await lab.merge(north, other, who="half", values={"region": "south"})
    assert problem(answer) == (403, "ACCESS_DENIED")
    assert problem(await lab.merge(north, other, who="reader")) == (403, "ACCESS_DENIED")
    made = await lab.merged(north, other, who="half")
    assert problem(await lab.undo(made["mergeId"], who="reader")) == (403, "ACCESS_DENIED")
    await lab.send(ROOT, "PUT", f"company/data/{north}", {"region": "west"})
    assert problem(await lab.undo(made["mergeId"], who="half")) == (403, "ACCESS_DENIED")
    assert (await lab.undo(made["mergeId"])).status_code == 200


async def test_references_of_hidden_rows_are_relinked_and_not_counted(lab: MergeLab) -> None:
    """Else they would refer to a row that is gone, and the count would tell that they are there."""
    survivor = await lab.add(code="S", region="north")
    duplicate = await lab.add(code="D", region="north")
    seen = await lab.add("contact", code="C1", company="D", region="north")
    hidden = await lab.add("contact", code="C2", company="D", region="south")
    await lab.add("invoice", code="I1")
    child = await lab.add(code="X", parent="D", region="south")
    body = {"survivorId": survivor, "duplicateId": duplicate}
    preview = (await lab.send("north", "POST", f"{AT}/preview", body)).json()
    made = await lab.merged(survivor, duplicate, who="north")
    assert preview["relinked"] == made["relinked"] == {"contact": 1}
    assert await lab.table("contact", "code, company") == [("C1", "S"), ("C2", "S")]
    assert (await lab.row(child))["parent"] == "S"
    one = (await lab.send("north", "GET", f"{AT}/{made['mergeId']}")).json()
    assert one["relinked"] == {"contact": 1}
    # A later edit of what he cannot see is kept and does not stop him.
    await lab.send(ROOT, "PUT", f"contact/data/{hidden}", {"company": None})
    undone = await lab.undo(made["mergeId"], who="north")
    assert undone.status_code == 200
    assert undone.json()["relinked"] == {"contact": 1}
    assert (await lab.row(seen, "contact"))["company"] == "D"
    assert (await lab.row(hidden, "contact"))["company"] is None


async def test_what_cannot_be_relinked_is_not_named_to_who_may_not_read_it(lab: MergeLab) -> None:
    survivor = await lab.add(code="S", region="north")
    duplicate = await lab.add(code="D", region="north")
    await lab.add("profile", company="S")
    await lab.add("profile", company="D")
    answer = await lab.merge(survivor, duplicate, who="north")
    assert problem(answer) == (409, "MERGE_LINK_REFUSED")
    assert "profile" not in answer.text
    answer = await lab.merge(survivor, duplicate, who="ann")
    assert answer.json()["entity"] == "profile"


async def test_restricted_values_survive_and_are_not_told(lab: MergeLab) -> None:
    survivor = await lab.add(code="S")
    duplicate = await lab.add(code="D", secret="hidden", email="x@y")
    body = {"survivorId": survivor, "duplicateId": duplicate}
    answers = [await lab.send("ann", "POST", f"{AT}/preview", body)]
    answers.append(await lab.merge(survivor, duplicate))
    merge_id = answers[-1].json()["mergeId"]
    answers.append(await lab.send("ann", "GET", f"{AT}/{merge_id}"))
    answers.append(await lab.send("ann", "GET", f"company/data/{duplicate}"))
    assert (await lab.row(survivor))["secret"] == "hidden"
    await lab.send(ROOT, "PUT", f"company/data/{survivor}", {"secret": "later"})
    answers.append(await lab.undo(merge_id))
    assert answers[-1].json()["rows"][0]["column"] == "secret"
    answers.append(await lab.undo(merge_id, keepLaterEdits=True))
    for answer in answers:
        assert "hidden" not in answer.text
        assert "later" not in answer.text.replace("keepLaterEdits", "").replace("later merge", "")
    assert (await lab.row(survivor))["secret"] == "later"
    # A mask that comes back is no value.
    other = await lab.add(code="O")
    await lab.merged(survivor, other, values={"secret": "***"})
    assert (await lab.row(survivor))["secret"] == "later"


async def test_references_in_restricted_columns_are_relinked_and_not_counted(lab: MergeLab) -> None:
    survivor, duplicate = await lab.add(code="S"), await lab.add(code="D")
    contact = await lab.add("contact", code="C1", owner="D")
    body = {"survivorId": survivor, "duplicateId": duplicate}
    for who, expected in (("ann", {}), ("seer", {"contact": 1})):
        preview = await lab.send(who, "POST", f"{AT}/preview", body)
        assert preview.json()["relinked"] == expected
    made = await lab.merged(survivor, duplicate)
    assert made["relinked"] == {}
    assert (await lab.row(contact, "contact"))["owner"] == "S"
    found = (await lab.send("ann", "GET", f"{AT}/{made['mergeId']}")).json()
    assert found["relinked"] == {}
    await lab.send(ROOT, "PUT", f"contact/data/{contact}", {"owner": None})
    assert problem(await lab.undo(made["mergeId"], who="seer")) == (409, "MERGE_CHANGED_SINCE")
    assert (await lab.undo(made["mergeId"], who="ann")).status_code == 200
    assert (await lab.row(contact, "contact"))["owner"] is None


async def test_what_is_decided_of_restricted_columns_tells_nothing(lab: MergeLab) -> None:
    """Two pairs that differ in a restricted value only get equal answers."""
    found = []
    for number, secret in enumerate((None, "hidden")):
        survivor = await lab.add(code=f"S{number}", Name="a")
        duplicate = await lab.add(code=f"D{number}", Name="b", secret=secret)
        body = {"survivorId": survivor, "duplicateId": duplicate}
        preview = (await lab.send("ann", "POST", f"{AT}/preview", body)).json()
        found.append([each for each in preview["columns"] if each["column"] != "code"])
    assert found[0] == found[1]
    assert {"column": "secret", "from": "***", "rule": "***"}.items() <= found[0][-1].items()


async def test_versions_must_be_named_where_the_server_asks_for_them(
    lab: MergeLab, merging_url: str
) -> None:
    survivor, duplicate = await lab.add(code="S"), await lab.add(code="D")
    settings = Settings(
        Data=DataSettings(RequireIfMatch=True), RateLimit=RateLimitSettings(Enabled=False)
    )
    async with served(create_app(database_url=merging_url, settings=settings)) as client:
        strict = lab.through(client)
        body: dict[str, Any] = {"survivorId": survivor, "duplicateId": duplicate}
        for more in ({}, {"survivorVersion": 1}):
            answer = await strict.send("ann", "POST", AT, {**body, **more})
            assert problem(answer) == (428, "IF_MATCH_REQUIRED")
        assert (await strict.send("ann", "POST", f"{AT}/preview", body)).status_code == 200
        body |= {"survivorVersion": 1, "duplicateVersion": 1}
        assert (await strict.send("ann", "POST", AT, body)).status_code == 200


async def test_merging_needs_the_tier(lab: MergeLab, merging_url: str) -> None:
    settings = Settings(Tier="Community", RateLimit=RateLimitSettings(Enabled=False))
    async with served(create_app(database_url=merging_url, settings=settings)) as client:
        below = lab.through(client)
        for method, path in (("POST", AT), ("GET", AT), ("POST", f"{AT}/{uuid4()}/undo")):
            assert problem(await below.send(ROOT, method, path)) == (403, "TIER_REQUIRED")
