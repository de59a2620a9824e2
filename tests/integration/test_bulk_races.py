"""Bulk actions whose rows are changed meanwhile by others, and that are cut off in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection

from tests.support import bulk
from tests.support.bulk import PLACES, Bulk, by_code, counts, events, last_seq, result
from tests.support.importing import good, key_of, refusal

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(importing_url: str) -> str:
    return importing_url


@pytest.fixture
async def api(importing_url: str) -> AsyncIterator[Bulk]:
    async with bulk.serving(importing_url) as api:
        yield api


async def test_rows_that_changed_since_the_preview_are_not_touched(api: Bulk) -> None:
    action: dict[str, Any] = {"action": "delete", "filter": "[country] = 'FR'", "soft": True}
    rows = await by_code(api)
    path = {code: f"/api/v1/entities/place/data/{row['_sys_id']}" for code, row in rows.items()}
    added = [{"code": "FR9", "Name": "n", "country": "FR"}]
    changes: list[Callable[[], Awaitable[httpx2.Response]]] = [
        lambda: api.client.put(path["FR1"], json={"note": "new"}),
        lambda: api.json("place", added),
        lambda: api.client.put(path["CH1"], json={"country": "FR"}),
        lambda: api.client.put(path["CH1"], json={"country": "CH"}),
        lambda: api.client.delete(path["FR2"], params={"soft": "true"}),
        lambda: api.client.delete(path["FR3"]),
    ]
    for change in changes:
        token = (await api.preview("place", **action))["previewToken"]
        assert (await change()).is_success
        answer = await api.send("execute", "place", previewToken=token, **action)
        assert refusal(answer) == (409, "BULK_ACTION_STALE")
        now = (await api.preview("place", **action))["matchCount"]
        assert answer.json()["matchCount"] == now
    assert {row["code"] for row in await api.rows("place", state="deleted")} == {"FR2"}
    result(await api.execute("place", **action))


async def test_a_row_that_changes_during_the_execution_is_seen(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    """The execution waits for whoever holds one of its rows, and then finds another version."""
    action: dict[str, Any] = {"action": "update", "filter": "[country] = 'FR'", "set": {"level": 3}}
    token = (await api.preview("place", **action))["previewToken"]
    async with conn.transaction():
        await conn.execute(
            "UPDATE mdm_data.place SET note = 'held', _sys_version = _sys_version + 1"
            " WHERE code = 'FR3'"
        )
        task = asyncio.create_task(api.send("execute", "place", previewToken=token, **action))
        await _somebody_waits(conn)
    assert refusal(await task) == (409, "BULK_ACTION_STALE")
    assert {row["level"] for row in await api.rows("place", filter="[country] = 'FR'")} == {1}


async def test_rows_are_held_from_the_comparison_to_the_end(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    """A write that comes during the execution comes after it: neither is lost."""
    action: dict[str, Any] = {"action": "update", "filter": "[country] = 'FR'", "set": {"level": 3}}
    token = (await api.preview("place", **action))["previewToken"]
    row_id = (await by_code(api))["FR1"]["_sys_id"]
    async with conn.transaction():
        await conn.execute("LOCK TABLE mdm_data.place__history IN SHARE MODE")
        # It waits before it looks at the rows; the single write waits behind.
        execution = asyncio.create_task(api.send("execute", "place", previewToken=token, **action))
        await _somebody_waits(conn)
        path = f"/api/v1/entities/place/data/{row_id}"
        write = asyncio.create_task(api.client.put(path, json={"note": "mine"}))
        await _somebody_waits(conn, 2)
    assert (await write).status_code == 200
    answer = await execution
    row = (await by_code(api))["FR1"]
    assert row["note"] == "mine"
    # Whoever was first has its effect; the other saw it.
    if answer.status_code == 200:
        assert (row["level"], row["_sys_version"]) == (3, 3)
    else:
        assert refusal(answer) == (409, "BULK_ACTION_STALE")
        assert (row["level"], row["_sys_version"]) == (1, 2)


async def _somebody_waits(conn: AsyncConnection[Any], number: int = 1) -> None:
    sql = """SELECT count(DISTINCT w.pid) FROM pg_locks w WHERE NOT w.granted AND EXISTS (
        SELECT FROM pg_locks o JOIN pg_database d ON d.oid = o.database
         WHERE o.pid = w.pid AND d.datname = current_database())"""
    async with asyncio.timeout(60):
        while await (await conn.execute(sql.encode())).fetchone() != (number,):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_of_two_executions_at_once_one_has_an_effect(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    before = await last_seq(conn)
    actions: list[dict[str, Any]] = [
        {"action": "update", "filter": "[country] = 'CH'", "set": {"note": str(n)}}
        for n in range(4)
    ]
    tokens = [(await api.preview("place", **a))["previewToken"] for a in actions]
    answers = await asyncio.gather(
        *(
            api.send("execute", "place", previewToken=token, **action)
            for action, token in zip(actions, tokens, strict=True)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    winner = next(str(n) for n, answer in enumerate(answers) if answer.status_code == 200)
    rows = await api.rows("place", filter="[country] = 'CH'")
    assert {(row["note"], row["_sys_version"]) for row in rows} == {(winner, 2)}
    assert len(await events(conn, before)) == 6


async def test_beside_imports_decisions_and_single_writes_no_version_is_lost(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    """All of them meet on the same rows; each version of a row is made by one of them."""
    gated = [{"code": f"G{n}", "country": "CH", "level": n} for n in range(6)]
    good(await api.json("gated", gated, batchName="first"))
    approver = {"X-API-Key": key_of("approver")}
    ids = [row["_sys_id"] for row in await api.rows("place")]

    async def bulk(entity: str, n: int) -> int:
        answer = await api.execute(entity, action="update", all=True, set={"level": n})
        return answer.status_code

    async def imported(entity: str, n: int) -> int:
        rows = PLACES if entity == "place" else gated
        changed = [{"code": row["code"], "level": n} for row in reversed(rows)]
        return (await api.json(entity, changed, mode="upsert")).status_code

    async def single(n: int) -> int:
        path = f"/api/v1/entities/place/data/{ids[n]}"
        return (await api.client.put(path, json={"level": n})).status_code

    async def decided() -> int:
        items = (await api.client.get("/api/v1/entities/gated/pending")).json()["items"]
        path, body = "/api/v1/entities/gated/approve-batch", {"ids": [i["id"] for i in items]}
        return (await api.client.post(path, json=body, headers=approver)).status_code

    work = [
        call(entity, n)
        for n in range(3)
        for call in (bulk, imported)
        for entity in ("place", "gated")
    ]
    work += [single(n) for n in range(6)] + [decided() for _ in range(3)]
    statuses = await asyncio.gather(*work)
    assert set(statuses) <= {200, 409, 503} and statuses.count(200) > 6
    assert await bulk("place", 5) == await decided() == 200  # nothing is held any more
    for entity in ("place", "gated"):
        cursor = await conn.execute(
            "SELECT r._sys_id, r._sys_version, array_agg(e.version ORDER BY s.seq) FROM"
            f" mdm_data.{entity} r JOIN mdm.event e ON e.record_id = r._sys_id JOIN mdm.change_set s"
            " ON s.key = e.change_set WHERE e.action <> 'data_edited' GROUP BY 1, 2"
        )
        rows = await cursor.fetchall()
        assert len(rows) >= 6
        assert all(versions == list(range(1, last + 1)) for _, last, versions in rows), rows


async def _hold_third_piece(conn: AsyncConnection[Any]) -> None:
    """Let the execution wait for lock 77 when two of its pieces are written."""
    await conn.execute(
        "CREATE FUNCTION mdm_data.wait_here() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF old.code = 'FR3' THEN PERFORM pg_advisory_xact_lock(77); END IF;"
        " RETURN new; END $$;"
        " CREATE TRIGGER wait_here BEFORE UPDATE ON mdm_data.place FOR EACH ROW"
        " EXECUTE FUNCTION mdm_data.wait_here()"
    )


@pytest.mark.parametrize("end", ["client", "session"])
async def test_what_is_cut_off_leaves_nothing(
    api: Bulk, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The client leaves, or the session of the warehouse is killed, in the middle of the third piece."""
    monkeypatch.setattr("mdm_gitops.data.bulk_run.PIECE", 4)
    action: dict[str, Any] = {"action": "update", "all": True, "set": {"note": "lost"}}
    token = (await api.preview("place", **action))["previewToken"]
    await _hold_third_piece(conn)
    before = await last_seq(conn)
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock(77)")
        task = asyncio.create_task(
            api.send("execute", "place", lines=True, previewToken=token, **action)
        )
        await _somebody_waits(conn)
        if end == "client":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event = 'advisory'"
            )
            *_, last = [json.loads(line) for line in (await task).text.splitlines()]
            assert last["problem"]["code"] == "WAREHOUSE_UNAVAILABLE"
        await _somebody_waits(conn, 0)
    assert {row["note"] for row in await api.rows("place")} == {None}
    assert await events(conn, before) == []
    # The same token is still good: nothing has happened.
    answer = await api.send("execute", "place", previewToken=token, **action)
    assert counts(result(answer)) == {"matchCount": 9, "updated": 9}
