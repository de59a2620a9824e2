"""Merges at the same moment as other writes: one comes first, and the other finds what it has left.

The moments are made on purpose: another session holds a row until somebody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.approving import ROOT, problem
from tests.support.merging import AT, MergeLab
from tests.support.serving import KEY

pytestmark = pytest.mark.anyio


@pytest.fixture
def lab(merge_lab: MergeLab) -> MergeLab:
    return merge_lab


async def somebody_waits(lab: MergeLab, number: int = 1) -> None:
    """Wait until so many sessions of this warehouse wait for a lock."""
    sql = """SELECT count(DISTINCT w.pid) FROM pg_locks w WHERE NOT w.granted AND EXISTS (
        SELECT FROM pg_locks o JOIN pg_database d ON d.oid = o.database
         WHERE o.pid = w.pid AND d.datname = current_database())"""
    async with asyncio.timeout(60):
        while await (await lab.conn.execute(sql.encode())).fetchone() != (number,):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def held(lab: MergeLab, row_id: str, table: str = "company") -> AsyncIterator[None]:
    async with lab.conn.transaction():
        sql = f"SELECT FROM mdm_data.{table} WHERE _sys_id = %s FOR UPDATE"
        await lab.conn.execute(sql.encode(), [row_id])
        yield


def started(sending: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(sending)


async def pair(lab: MergeLab) -> tuple[str, str]:
    """Return two rows in the order in which they are locked."""
    ids = [await lab.add(code=code) for code in ("A", "B")]
    return ids[0], ids[1]


async def test_one_of_many_merges_of_a_pair_has_an_effect(lab: MergeLab) -> None:
    first, second = await pair(lab)
    contact = await lab.add("contact", code="C", company="A", second="B")
    await lab.forget_events()
    async with held(lab, first):
        ways = [(first, second), (second, first)] * 3
        merges = [started(lab.merge(*ids)) for ids in ways]
        await somebody_waits(lab, len(ways))
    answers = await asyncio.gather(*merges)
    found = Counter(answer.status_code for answer in answers)
    assert found == {200: 1, 409: 5}
    assert {problem(a) for a in answers if a.status_code == 409} == {(409, "ROW_MERGED")}
    events = Counter((e["id"], e["action"]) for e in await lab.events())
    assert sorted(events.values()) == [1, 1, 1]
    row = await lab.row(contact, "contact")
    assert row["company"] == row["second"]


async def test_a_merge_sees_what_was_written_while_it_waited(lab: MergeLab) -> None:
    first, second = await pair(lab)
    async with held(lab, first):
        writing = started(lab.send(ROOT, "PUT", f"company/data/{first}", {"email": "new"}))
        await somebody_waits(lab)
        stale = started(lab.merge(first, second, survivorVersion=1))
        merging = started(lab.merge(second, first))
        await somebody_waits(lab, 3)
    assert (await writing).status_code == 200
    assert problem(await stale)[0] in (409, 412)
    answer = await merging
    assert answer.status_code == 200, answer.text
    assert answer.json()["survivor"]["email"] == "new"


async def test_an_update_after_the_merge_keeps_what_was_merged(lab: MergeLab) -> None:
    first, second = await pair(lab)
    await lab.send(ROOT, "PUT", f"company/data/{second}", {"email": "x@y"})
    async with held(lab, first):
        merging = started(lab.merge(first, second))
        await somebody_waits(lab)
        survivor = started(lab.send(ROOT, "PUT", f"company/data/{first}", {"notes": "n"}))
        await somebody_waits(lab, 2)
        duplicate = started(lab.send(ROOT, "PUT", f"company/data/{second}", {"notes": "n"}))
        assert (await duplicate).status_code == 200  # nothing holds it yet
    assert (await merging).status_code == 200
    assert (await survivor).status_code == 200
    row = await lab.row(first)
    assert (row["email"], row["notes"]) == ("x@y", "n")
    late = await lab.send(ROOT, "PUT", f"company/data/{second}", {"notes": "late"})
    assert problem(late) == (409, "ROW_DELETED")


@pytest.mark.parametrize("soft", [True, False])
async def test_rows_that_are_deleted_meanwhile_are_not_merged(lab: MergeLab, soft: bool) -> None:
    first, second = await pair(lab)
    async with held(lab, first):
        deleting = started(lab.send(ROOT, "DELETE", f"company/data/{first}", params={"soft": soft}))
        await somebody_waits(lab)
        merging = started(lab.merge(second, first))
        await somebody_waits(lab, 2)
    assert (await deleting).status_code == (200 if soft else 204)
    expected = (409, "ROW_DELETED") if soft else (404, "ROW_NOT_FOUND")
    assert problem(await merging) == expected
    assert (await lab.row(second))["_sys_version"] == 1


@pytest.mark.parametrize("who_goes", ["survivor", "duplicate"])
async def test_rows_that_were_merged_are_deleted_as_they_are_then(
    lab: MergeLab, who_goes: str
) -> None:
    first, second = await pair(lab)
    survivor, duplicate = (first, second) if who_goes == "survivor" else (second, first)
    code = "B" if who_goes == "survivor" else "A"
    contact = await lab.add("contact", code="C", company=code)
    async with held(lab, first):
        merging = started(lab.merge(survivor, duplicate))
        await somebody_waits(lab)
        deleting = started(lab.send(ROOT, "DELETE", f"company/data/{first}"))
        await somebody_waits(lab, 2)
    assert (await merging).status_code == 200
    assert problem(await deleting) == (409, "ROW_REFERENCED")  # it is by now, or was before
    answer = await lab.send(ROOT, "DELETE", f"company/data/{first}")
    assert answer.status_code == (409 if who_goes == "survivor" else 204)
    assert (await lab.row(duplicate))["_sys_id"] == survivor
    assert (await lab.row(contact, "contact"))["company"] != code


async def test_a_row_that_is_being_written_to_refer_to_the_duplicate_is_relinked(
    lab: MergeLab,
) -> None:
    """It holds the duplicate, so the merge waits for it."""
    first, second = await pair(lab)
    contact = await lab.add("contact", code="C")
    async with lab.conn.transaction():
        await lab.conn.execute(
            "UPDATE mdm_data.contact SET company = 'B', _sys_version = 2 WHERE _sys_id = %s",
            [contact],
        )
        merging = started(lab.merge(first, second))
        await somebody_waits(lab)
    answer = (await merging).json()
    assert answer["relinked"] == {"contact": 1}
    assert (await lab.row(contact, "contact"))["company"] == "A"
    assert (await lab.undo(answer["mergeId"])).status_code == 200
    assert (await lab.row(contact, "contact"))["company"] == "B"


async def test_a_row_that_comes_after_the_merge_refers_to_the_deleted_one(lab: MergeLab) -> None:
    """As one that is written a second later; it is no part of the merge, nor of its undo."""
    first, second = await pair(lab)
    contact = await lab.add("contact", code="C", company="B")
    async with held(lab, contact, "contact"):
        merging = started(lab.merge(first, second))
        await somebody_waits(lab)  # it holds both rows, and waits for the contact
        late = started(lab.send(ROOT, "POST", "contact/data", {"code": "L", "company": "B"}))
        await somebody_waits(lab, 2)
    assert (await merging).status_code == 200
    assert (await late).status_code == 201
    assert await lab.table("contact", "code, company") == [("C", "A"), ("L", "B")]


async def test_a_link_that_is_changed_meanwhile_is_not_overwritten(lab: MergeLab) -> None:
    first, second = await pair(lab)
    await lab.add(code="X")
    contact = await lab.add("contact", code="C", company="B")
    async with lab.conn.transaction():
        await lab.conn.execute(
            "UPDATE mdm_data.contact SET company = 'X', _sys_version = 2 WHERE _sys_id = %s",
            [contact],
        )
        merging = started(lab.merge(first, second))
        await somebody_waits(lab)
    assert (await merging).status_code == 200
    row = await lab.row(contact, "contact")
    assert (row["company"], row["_sys_version"]) == ("X", 2)


async def test_a_link_that_is_changed_while_a_key_is_renamed_is_not_overwritten(
    lab: MergeLab,
) -> None:
    first, _ = await pair(lab)
    contact = await lab.add("contact", code="C", company="A")
    async with lab.conn.transaction():
        await lab.conn.execute(
            "UPDATE mdm_data.contact SET company = 'B', _sys_version = 2 WHERE _sys_id = %s",
            [contact],
        )
        renaming = started(lab.send(ROOT, "PUT", f"company/data/{first}", {"code": "N"}))
        await somebody_waits(lab)
    assert (await renaming).status_code == 200
    row = await lab.row(contact, "contact")
    assert (row["company"], row["_sys_version"]) == ("B", 2)


async def test_a_proposal_made_meanwhile_is_carried(lab: MergeLab) -> None:
    first, second = await pair(lab)
    async with held(lab, second):
        proposing = started(lab.send("ann", "POST", "order/data", {"code": "O", "company": "B"}))
        await somebody_waits(lab)
        merging = started(lab.merge(first, second))
        await somebody_waits(lab, 2)
    assert (await proposing).status_code == 202
    assert (await merging).status_code == 200
    pending = (await proposing).json()["_sys_id"]
    assert (await lab.pending(pending, "order"))["company"] in ("A", "B")


async def test_a_merge_whose_session_ends_in_the_middle_has_no_effect(lab: MergeLab) -> None:
    first, second = await pair(lab)
    contact = await lab.add("contact", code="C", company="B")
    await lab.forget_events()
    async with held(lab, contact, "contact"):
        body = {"survivorId": first, "duplicateId": second}
        headers = {"X-API-Key": KEY}
        merging = started(lab.client.post(f"/api/v1/entities/{AT}", json=body, headers=headers))
        await somebody_waits(lab)  # both rows are written by now
        await lab.conn.execute(
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE NOT l.granted AND a.datname = current_database()"
        )
        assert problem(await merging)[0] == 503
    assert [(await lab.row(each))["_sys_version"] for each in (first, second)] == [1, 1]
    assert await lab.events() == []
    cursor = await lab.conn.execute("SELECT count(*) FROM mdm.merge")
    assert await cursor.fetchone() == (0,)
    await lab.merged(first, second)
    assert await lab.table("contact", "code, company") == [("C", "A")]


async def test_one_of_many_undos_has_an_effect(lab: MergeLab) -> None:
    first, second = await pair(lab)
    merge_id = (await lab.merged(first, second))["mergeId"]
    await lab.forget_events()
    async with held(lab, first):
        undos = [started(lab.undo(merge_id)) for _ in range(4)]
        await somebody_waits(lab, 4)
    found = Counter(answer.status_code for answer in await asyncio.gather(*undos))
    assert found == {200: 1, 409: 3}
    assert [e["action"] for e in await lab.events()] == ["data_restored"]


async def test_crossing_merges_end(lab: MergeLab) -> None:
    """A into B, B into C, C into A, all at once: whatever comes first, each row ends once or not."""
    ids = [await lab.add(code=f"R{n}") for n in range(3)]
    for n in range(3):
        await lab.add("contact", code=f"C{n}", company=f"R{n}")
    merges = [lab.merge(ids[(n + 1) % 3], ids[n]) for n in range(3)]
    answers = await asyncio.gather(*merges)
    done = [answer for answer in answers if answer.status_code == 200]
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert done
    rows = [await lab.row(row_id) for row_id in ids]
    assert {row["_sys_state"] for row in rows} == {"active"}
    alive = {row["code"] for row in rows}
    assert {company for _, company in await lab.table("contact", "code, company")} <= alive
