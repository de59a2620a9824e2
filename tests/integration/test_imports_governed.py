"""Imports: who may, what waits for approval, and what is answered and kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.warehouse.connect import connect
from tests.support.importing import (
    COUNTRIES,
    Importing,
    counts,
    good,
    key_of,
    reasons,
    recorded_events,
    refusal,
    served,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def conn(importing_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(importing_url, application_name="test") as conn:
        yield conn


@pytest.fixture
async def api(importing_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Importing]:
    async with served(importing_url) as api:
        good(await api.json("country", COUNTRIES))
        yield api


# --- rights ---------------------------------------------------------------------------------------


async def test_who_may_import(api: Importing) -> None:
    content = "code,Name,country\nZH1,a,CH\n"
    assert refusal(await api.csv("place", content, who="stranger")) == (404, "ENTITY_NOT_FOUND")
    assert refusal(await api.csv("place", content, who="reader")) == (403, "ACCESS_DENIED")
    assert counts(await api.csv("place", content, who="writer")) == {"received": 1, "inserted": 1}
    assert refusal(await api.csv("nope", content)) == (404, "ENTITY_NOT_FOUND")


async def test_a_row_filter_limits_what_is_written(api: Importing) -> None:
    good(await api.csv("place", "code,Name,country,email\nGE1,f,FR,f@x\nZH1,s,CH,s@x\n"))
    answer = await api.csv(
        "place", "code,Name,country\nZH2,own,CH\nGE2,other,FR\nGE3,none,\n", who="swiss"
    )
    assert reasons(answer) == [(2, None, "ACCESS_DENIED"), (3, None, "ACCESS_DENIED")]
    answer = await api.csv(
        "place",
        "code,Name,country\nGE1,stolen,CH\nZH1,moved,FR\nZH2,mine,CH\n",
        who="swiss",
        mode="upsert",
    )
    # The hidden row's key is taken, and nothing more is said of it.
    assert reasons(answer) == [(1, "code", "UNIQUE"), (2, None, "ACCESS_DENIED")]
    assert answer.json()["errors"][0]["message"] == "code 'GE1' is taken by another row"
    assert counts(answer) == {"received": 3, "updated": 1, "rejected": 2}
    [hidden] = [row for row in await api.rows("place") if row["code"] == "GE1"]
    await api.client.delete(
        f"/api/v1/entities/place/data/{hidden['_sys_id']}", params={"soft": "true"}
    )
    for mode in ("insert", "upsert"):
        answer = await api.csv("place", "code,Name,country\nGE1,x,CH\n", who="swiss", mode=mode)
        assert reasons(answer) == [(1, "code", "UNIQUE")]


async def test_restricted_values_are_neither_shown_nor_found_out(api: Importing, conn: Any) -> None:
    good(await api.csv("place", "code,Name,salary\nZH1,a,100\nZH2,b,200\n"))
    exported = await api.client.get(
        "/api/v1/entities/place/data/export", headers={"X-API-Key": key_of("writer")}
    )
    assert b"***" in exported.content
    answer = await api.csv("place", exported.content, who="writer", mode="upsert")
    assert counts(answer) == {"received": 2, "unchanged": 2}
    # Whether a guess is right cannot be seen from the counts.
    for guess in (100, 101):
        answer = await api.csv(
            "place", f"code,salary\nZH1,{guess}\n", who="writer", mode="upsert", dryRun="true"
        )
        assert counts(answer) == {"received": 1, "updated": 1}
    answer = await api.csv(
        "place", "salary,Name\n100,x\n", who="writer", mode="upsert", keyColumns="salary"
    )
    assert refusal(answer) == (403, "COLUMN_RESTRICTED")
    answer = await api.csv("place", "code,Name,salary\nZH3,c,much\n", who="writer")
    assert answer.json()["errors"][0]["value"] == "***"
    assert "much" not in answer.text
    kept = await conn.execute("SELECT count(*) FROM mdm.import_error WHERE value LIKE '%much%'")
    assert await kept.fetchone() == (0,)
    answer = await api.json("place", [{"code": "ZH4", "Name": "d", "salary": "***"}], who="writer")
    assert counts(answer) == {"received": 1, "inserted": 1}


# --- approval -------------------------------------------------------------------------------------


async def test_where_approval_is_needed_rows_become_proposals(api: Importing, conn: Any) -> None:
    answer = await api.csv("gated", "code,level\nA,1\nB,2\nB,3\nC,-1\n", batchName="spring")
    assert counts(answer) == {"received": 4, "pending": 2, "rejected": 2}
    assert answer.json()["batchName"] == "spring"
    assert reasons(answer) == [(3, "code", "UNIQUE"), (4, "level", "RANGE")]
    assert await api.rows("gated") == []
    pending = {row["code"]: row for row in await api.rows("gated", state="pending")}
    assert pending["A"]["_sys_batch_name"] == "spring" and pending["A"]["open"] is True
    assert pending["A"]["_sys_operation"] == "create" and pending["A"]["_sys_version"] == 0
    events = [e for e in await recorded_events(conn) if e["action"] == "data_edited"]
    assert [(e["new"]["code"], e["old"], e["version"]) for e in events] == [
        ("A", None, 0),
        ("B", None, 0),
    ]
    # What is pending claims its unique values, too.
    answer = await api.csv("gated", "code,level\nA,5\n")
    assert reasons(answer) == [(1, "code", "UNIQUE")]
    assert answer.json()["errors"][0]["message"] == "code 'A' is taken by a row that is pending"


async def test_upsert_replaces_what_is_proposed(api: Importing, conn: Any) -> None:
    good(await api.csv("gated", "code,level,email\nA,1,a@x\nB,2,b@x\n"))
    await _approve_all(api)
    good(await api.csv("gated", "code,level\nC,3\n"))
    answer = await api.csv(
        "gated", "code,level\nA,1\nB,20\nC,30\nD,40\nB,21\n", mode="upsert", batchName="two"
    )
    assert counts(answer) == {"received": 5, "pending": 3, "unchanged": 1, "rejected": 1}
    pending = {row["code"]: row for row in await api.rows("gated", state="pending")}
    assert {c: (r["_sys_operation"], r["level"], r["email"]) for c, r in pending.items()} == {
        "B": ("update", 20, "b@x"),
        "C": ("create", 30, None),
        "D": ("create", 40, None),
    }
    answer = await api.csv("gated", "code,email\nB,c@x\nD,b@x\n", mode="upsert")
    # b@x is still that of the approved row.
    assert reasons(answer) == [(2, "email", "UNIQUE")]
    pending = {row["code"]: row for row in await api.rows("gated", state="pending")}
    assert (pending["B"]["level"], pending["B"]["email"]) == (20, "c@x")
    await _approve_all(api)
    assert {row["code"]: row["level"] for row in await api.rows("gated")} == {
        "A": 1,
        "B": 20,
        "C": 30,
        "D": 40,
    }


async def test_a_key_that_another_row_is_to_get_is_not_that_row(api: Importing) -> None:
    good(await api.csv("gated", "code\nA\n"))
    await _approve_all(api)
    [row] = await api.rows("gated")
    path = f"/api/v1/entities/gated/data/{row['_sys_id']}"
    assert (await api.client.put(path, json={"code": "B", "level": 1})).status_code == 202
    answer = await api.csv("gated", "code,level\nB,2\nA,3\n", mode="upsert")
    assert reasons(answer) == [(1, "code", "UNIQUE")]
    assert answer.json()["errors"][0]["message"] == "code 'B' is taken by a row that is pending"
    # The row is still found by the key that it has, and given the one of the file.
    [pending] = await api.rows("gated", state="pending")
    assert (pending["_sys_id"], pending["code"], pending["level"]) == (row["_sys_id"], "A", 3)


async def test_what_is_proposed_is_judged_as_a_whole(api: Importing) -> None:
    """As a single row is: what stands in the proposal already may refer to what is gone."""
    good(await api.csv("country", "code\nQQ\n"))
    good(await api.csv("gated", "code,country\nA,QQ\n"))
    [gone] = [row["_sys_id"] for row in await api.rows("country") if row["code"] == "QQ"]
    path = f"/api/v1/entities/country/data/{gone}"
    assert (await api.client.delete(path)).status_code == 204
    answer = await api.csv("gated", "code,level\nA,1\n", mode="upsert")
    assert reasons(answer) == [(1, "country", "REFERENCE")]


async def _approve_all(api: Importing) -> None:
    """Approve as another than the importer."""
    pending = await api.rows("gated", state="pending")
    answer = await api.client.post(
        "/api/v1/entities/gated/approve-batch",
        json={"ids": [row["_sys_id"] for row in pending]},
        headers={"X-API-Key": key_of("approver")},
    )
    assert answer.status_code == 200, answer.text


async def test_proposals_may_refer_to_proposals_and_rows_of_the_file(api: Importing) -> None:
    good(await api.csv("gated", "code\nroot\n"))
    answer = await api.csv(
        "gated", "code,parent,country\na,root,CH\nb,c,\nc,a,\nd,gone,\ne,d,FR\nf,,XX\n"
    )
    assert reasons(answer) == [
        (4, "parent", "REFERENCE"),
        (5, "parent", "REFERENCE"),
        (6, "country", "REFERENCE"),
    ]
    assert counts(answer) == {"received": 6, "pending": 3, "rejected": 3}


async def test_a_batch_name_is_chosen_where_none_is_given(api: Importing) -> None:
    answer = await api.csv("gated", "code\nA\n")
    name = answer.json()["batchName"]
    assert name.startswith("import-")
    batches = await api.client.get("/api/v1/entities/gated/pending/batches")
    assert name in batches.text
    assert good(await api.csv("place", "code,Name\nZH1,a\n"))["batchName"] is None


# --- the answer -----------------------------------------------------------------------------------


async def test_a_dry_run_tells_and_leaves_nothing(api: Importing, conn: Any) -> None:
    before = await recorded_events(conn)
    answer = await api.csv("place", "code,Name\nZH1,a\nzh2,b\n", dryRun="true")
    assert counts(answer) == {"received": 2, "inserted": 1, "rejected": 1}
    assert await api.rows("place") == [] and await recorded_events(conn) == before
    errors = await api.client.get(answer.json()["errorsUrl"])
    assert errors.text.splitlines() == [
        "row,column,code,message,value",
        "2,code,ENTITY_VALIDATION_PATTERN,\"code 'zh2' does not match pattern [A-Z]{2}[0-9]{1,6}\",zh2",
    ]
    audited = await conn.execute("SELECT count(*) FROM mdm.audit WHERE action = 'import'")
    assert await audited.fetchone() == (1,)  # that of the countries


async def test_all_errors_are_served_as_csv_to_whom_they_belong(api: Importing) -> None:
    rows = "".join(f"bad{n},=x\n" for n in range(1500))
    answer = await api.csv("place", "code,Name\n" + rows, who="writer")
    found = good(answer)
    assert len(found["errors"]) == 1000 and found["errorsTruncated"] is True
    assert found["rejected"] == 1500
    url = found["errorsUrl"]
    for who, status in (("writer", 200), ("", 200), ("reader", 404), ("stranger", 404)):
        headers = {"X-API-Key": key_of(who)} if who else {}
        errors = await api.client.get(url, headers=headers)
        assert errors.status_code == status, who
    errors = await api.client.get(url)
    assert errors.headers["content-type"].startswith("text/csv")
    assert len(errors.text.splitlines()) == 1501
    assert refusal(await api.client.get("/api/v1/imports/none/errors")) == (404, "NOT_FOUND")


async def test_an_import_is_audited(api: Importing, conn: Any) -> None:
    good(await api.csv("place", "code,Name\nZH1,a\nzh2,b\n", who="writer"))
    cursor = await conn.execute(
        "SELECT actor, entities, details FROM mdm.audit WHERE action = 'import' ORDER BY audit_id DESC"
    )
    actor, entities, details = (await cursor.fetchall())[0]
    assert (actor, entities) == ("apikey:writer", ["place"])
    assert details["inserted"] == 1 and details["rejected"] == 1 and details["mode"] == "insert"


async def test_nothing_is_an_answer_too(api: Importing) -> None:
    assert good(await api.csv("place", "code,Name\n"))["received"] == 0
    assert good(await api.json("place", []))["received"] == 0
    assert good(await api.json("place", " [ ] "))["received"] == 0


# --- repeated requests ----------------------------------------------------------------------------


async def test_a_repeated_request_is_done_once(api: Importing) -> None:
    key = {"Idempotency-Key": '"first"'}
    content = "code,Name\nZH1,a\nzh2,b\n"
    first = await api.csv("place", content, headers=key)
    second = await api.csv("place", content, headers=key)
    assert good(first) == good(second) and first.json()["inserted"] == 1
    assert len(await api.rows("place")) == 1
    other = await api.csv("place", content + "ZH3,c\n", headers=key)
    assert refusal(other) == (422, "IDEMPOTENCY_CONFLICT")
    other = await api.csv("place", content, headers=key, mode="upsert")
    assert refusal(other) == (422, "IDEMPOTENCY_CONFLICT")
    # The key belongs to the one who used it.
    assert counts(await api.csv("place", content, headers=key, who="writer")) == {
        "received": 2,
        "rejected": 2,
    }
    # What was refused may be corrected and sent again.
    key = {"Idempotency-Key": "second"}
    assert refusal(await api.csv("place", "code,Nam\n", headers=key))[0] == 400
    assert counts(await api.csv("place", "code,Name\nZH9,z\n", headers=key)) == {
        "received": 1,
        "inserted": 1,
    }
    for wrong in ("", "x" * 256, "é"):
        answer = await api.csv(
            "place", content, headers={"Idempotency-Key": wrong.encode("latin-1")}
        )
        assert refusal(answer) == (400, "REQUEST_INVALID")


async def test_a_request_under_way_is_told_so(api: Importing) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"code,Name\nZH1,a\n"
        begun.set()
        await go_on.wait()
        yield b"ZH2,b\n"

    key = {"Idempotency-Key": "slow"}
    sending = asyncio.create_task(api.csv("place", slowly(), headers=key))
    await begun.wait()
    answer = None
    for _ in range(100):
        answer = await api.csv("place", "code,Name\nZH1,a\nZH2,b\n", headers=key)
        if answer.status_code == 409:
            break
        await asyncio.sleep(0.02)
    assert answer is not None and refusal(answer) == (409, "IDEMPOTENCY_IN_FLIGHT")
    go_on.set()
    assert counts(await sending) == {"received": 2, "inserted": 2}
