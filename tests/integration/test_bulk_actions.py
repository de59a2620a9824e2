"""Bulk actions: looked at and carried out, and what they refuse."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from tests.support import bulk
from tests.support.bulk import Bulk, by_code, codes, counts, events, last_seq, result
from tests.support.importing import good, key_of, refusal

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(importing_url: str) -> str:
    return importing_url


@pytest.fixture
async def api(importing_url: str) -> AsyncIterator[Bulk]:
    async with bulk.serving(importing_url) as api:
        yield api


async def test_an_update_changes_what_the_preview_showed(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    action: dict[str, Any] = {
        "action": "update",
        "filter": "[country] = 'CH'",
        "set": {"level": 1, "note": "seen", "extra": {"a": [1]}},
    }
    seen = await api.preview("place", **action)
    assert (seen["matchCount"], seen["notAllowed"]) == (6, 0)
    assert {row["code"] for row in seen["sample"]} == {f"CH{n}" for n in range(1, 7)}
    assert (await by_code(api))["CH1"]["note"] is None  # nothing is done yet
    before = await last_seq(conn)
    answer = await api.send("execute", "place", previewToken=seen["previewToken"], **action)
    assert counts(result(answer)) == {"matchCount": 6, "updated": 6}
    rows = await by_code(api)
    assert {(r["level"], r["note"], r["_sys_version"]) for c, r in rows.items() if c[0] == "C"} == {
        (1, "seen", 2)
    }
    assert rows["CH1"]["extra"] == {"a": [1]} and rows["FR1"]["_sys_version"] == 1
    told = await events(conn, before)
    assert [(a, v) for a, v, _, _ in told] == [("data_updated", 2)] * 6
    assert {(o["note"], n["note"]) for _, _, o, n in told} == {(None, "seen")}
    row_id = rows["CH1"]["_sys_id"]
    past = (await api.client.get(f"/api/v1/entities/place/versions/{row_id}")).json()["items"]
    assert [(v["version"], v["row"]["note"]) for v in past] == [(2, "seen"), (1, None)]


async def test_rows_that_are_so_already_are_not_written(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    before = await last_seq(conn)
    found = await api.done("place", action="update", all=True, set={"level": 1})
    assert counts(found) == {"matchCount": 9, "updated": 4, "unchanged": 5}
    assert len(await events(conn, before)) == 4
    assert (await by_code(api))["FR1"]["_sys_version"] == 1
    token = (await api.preview("place", action="update", all=True, set={"level": 1}))[
        "previewToken"
    ]
    again = await api.send(
        "execute", "place", action="update", all=True, set={"level": 1}, previewToken=token
    )
    assert counts(result(again)) == {"matchCount": 9, "unchanged": 9}


async def test_what_is_not_said_clearly_is_refused(api: Bulk) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"action": "delete"}, "filter"),
        ({"action": "delete", "filter": "  "}, "filter"),
        ({"action": "delete", "all": False}, "filter"),
        ({"action": "delete", "all": "yes"}, "all"),
        ({"action": "delete", "all": True, "filter": "[level] = 1"}, "all"),
        ({"action": "delete", "all": True, "set": {"level": 1}}, "set"),
        ({"action": "update", "all": True}, "set"),
        ({"action": "update", "all": True, "set": {}}, "set"),
        ({"action": "update", "all": True, "set": {"level": 1}, "soft": True}, "soft"),
        ({"action": "truncate", "all": True}, "action"),
        ({"action": "delete", "filter": 7}, "filter"),
        ({"action": "delete", "all": True, "previewToken": ["x"]}, "previewToken"),
        ({"action": "delete", "all": True, "batchName": "n" * 201}, "batchName"),
    ]
    for body, parameter in wrong:
        answer = await api.send("execute", "place", **body)
        assert refusal(answer) == (400, "REQUEST_INVALID")
        assert answer.json()["parameter"] == parameter
    assert len(await api.rows("place")) == 9


async def test_a_token_is_needed_and_stands_for_one_action_of_one_caller(api: Bulk) -> None:
    action: dict[str, Any] = {"action": "update", "filter": "[level] = 1", "set": {"note": "n"}}
    token = (await api.preview("place", **action))["previewToken"]
    assert refusal(await api.send("execute", "place", **action)) == (400, "REQUEST_INVALID")
    others: list[tuple[str, dict[str, Any]]] = [
        ("writer", action),
        ("", {**action, "filter": "[level] = 2"}),
        ("", {**action, "set": {"note": "m"}}),
        ("", {**action, "set": {"note": None}}),
        ("", {"action": "delete", "filter": "[level] = 1"}),
        ("", {"action": "delete", "filter": "[level] = 1", "soft": True}),
    ]
    for who, other in others:
        answer = await api.send("execute", "place", who, previewToken=token, **other)
        assert refusal(answer) == (409, "BULK_ACTION_STALE"), other
    for wrong in ("0" * 64, token[:-1], token.upper()):
        answer = await api.send("execute", "place", previewToken=wrong, **action)
        assert refusal(answer) == (409, "BULK_ACTION_STALE")
    assert {row["note"] for row in await api.rows("place")} == {None}
    result(await api.send("execute", "place", previewToken=token, **action))
    answer = await api.send("execute", "place", previewToken=token, **action)
    assert refusal(answer) == (409, "BULK_ACTION_STALE")  # the rows have other versions by now


@pytest.mark.parametrize("soft", [True, False])
async def test_a_delete_is_soft_or_for_good(
    api: Bulk, conn: AsyncConnection[Any], soft: bool
) -> None:
    before = await last_seq(conn)
    row_id = (await by_code(api))["FR1"]["_sys_id"]
    found = await api.done("place", action="delete", filter="[country] = 'FR'", soft=soft)
    assert counts(found) == {"matchCount": 3, "deleted": 3}
    assert len(await api.rows("place")) == 6
    gone = await api.rows("place", state="deleted")
    assert [row["_sys_version"] for row in gone] == ([2] * 3 if soft else [])
    told = await events(conn, before)
    if soft:
        assert [(a, v) for a, v, _, _ in told] == [("data_soft_deleted", 2)] * 3
        assert all(row["_sys_deleted_at"] == row["_sys_last_modified_at"] for row in gone)
        path = f"/api/v1/entities/place/data/{row_id}/restore"
        assert (await api.client.post(path)).status_code == 200
    else:
        assert [(a, v, n) for a, v, _, n in told] == [("data_deleted", 1, None)] * 3
    cursor = await conn.execute(
        "SELECT _sys_version, _sys_action, _sys_valid_to > _sys_valid_from FROM"
        " mdm_data.place__history WHERE _sys_id = %s AND _sys_version = 1",
        [row_id],
    )
    action = "data_soft_deleted" if soft else "data_deleted"
    assert await cursor.fetchall() == [(1, action, True)]


async def test_values_that_no_row_may_have_are_refused_at_once(api: Bulk) -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"level": 10}, 400, "RANGE"),
        ({"level": "many"}, 400, "TYPE"),
        ({"level": True}, 400, "TYPE"),
        ({"Name": None}, 400, "REQUIRED_FIELD"),
        ({"Name": "n" * 21}, 400, "LENGTH"),
        ({"kind": "ship"}, 400, "ALLOWED_VALUE"),
        ({"country": "XX"}, 400, "REFERENCE"),
        ({"code": "nothing"}, 400, "PATTERN"),
        ({"nothing": 1}, 400, "UNKNOWN_COLUMN"),
        ({"_sys_version": 1}, 400, "SYSTEM_COLUMN"),
        ({"level": 10, "kind": "ship"}, 400, "ALLOWED_VALUE"),
    ]
    token = (await api.preview("place", action="update", all=True, set={"level": 9}))[
        "previewToken"
    ]
    for what, (given, status, code) in itertools.product(("preview", "execute"), wrong):
        answer = await api.send(
            what, "place", action="update", all=True, set=given, previewToken=token
        )
        assert refusal(answer) == (status, f"ENTITY_VALIDATION_{code}"), given
    assert {row["_sys_version"] for row in await api.rows("place")} == {1}


async def test_a_unique_value_goes_to_one_row(api: Bulk) -> None:
    found = await api.done("place", action="update", all=True, set={"email": "a@example.com"})
    assert counts(found) == {"matchCount": 9, "updated": 1, "rejected": 8}
    assert codes(found) == ["UNIQUE"] * 8
    assert found["errors"][0]["message"] == "email 'a@example.com' is taken by another row"
    found = await api.done("place", action="update", all=True, set={"email": "a@example.com"})
    assert counts(found) == {"matchCount": 9, "unchanged": 1, "rejected": 8}
    # Of two columns that are unique together, one is set: as many rows as the other has values.
    found = await api.done("place", action="update", all=True, set={"slot": 4})
    assert counts(found) == {"matchCount": 9, "updated": 2, "rejected": 7}
    rows = [row for row in await api.rows("place") if row["slot"] == 4]
    assert {row["country"] for row in rows} == {"CH", "FR"}


async def test_what_others_refer_to_is_not_deleted(api: Bulk) -> None:
    found = await api.done("country", action="delete", all=True)
    assert counts(found) == {"matchCount": 3, "deleted": 1, "rejected": 2}
    assert codes(found) == ["ROW_REFERENCED"] * 2
    assert {row["code"] for row in await api.rows("country")} == {"CH", "FR"}


async def test_rows_that_refer_to_each_other_go_together(api: Bulk) -> None:
    nodes = [
        {"code": "a"},
        {"code": "b", "parent": "a"},
        {"code": "c", "parent": "b"},
        {"code": "d", "parent": "d"},
        {"code": "e"},
        {"code": "f", "parent": "e"},
        {"code": "g", "parent": "f"},
    ]
    good(await api.json("node", nodes))
    # g stays, so f does, and e with it.
    found = await api.done("node", action="delete", filter="[code] <> 'g'")
    assert counts(found) == {"matchCount": 6, "deleted": 4, "rejected": 2}
    assert {row["code"] for row in await api.rows("node")} == {"e", "f", "g"}
    found = await api.done("node", action="delete", all=True)
    assert counts(found) == {"matchCount": 3, "deleted": 3}


async def test_a_reference_to_a_row_of_the_same_entity_is_followed(api: Bulk) -> None:
    good(await api.json("node", [{"code": code} for code in "abc"]))
    found = await api.done("node", action="update", all=True, set={"parent": "b"})
    assert counts(found) == {"matchCount": 3, "updated": 3}
    found = await api.done("node", action="update", all=True, set={"parent": "nobody"})
    assert counts(found) == {"matchCount": 3, "rejected": 3} and codes(found) == ["REFERENCE"] * 3


async def test_a_key_value_takes_along_who_holds_it(api: Bulk) -> None:
    found = await api.done("country", action="update", filter="[code] = 'FR'", set={"code": "FX"})
    assert counts(found) == {"matchCount": 1, "updated": 1}
    rows = await by_code(api)
    assert {(r["country"], r["_sys_version"]) for c, r in rows.items() if c[0] == "F"} == {
        ("FX", 2)
    }


async def test_masked_values_are_masked_and_written_as_by_a_single_write(api: Bulk) -> None:
    action: dict[str, Any] = {"action": "update", "filter": "[country] = 'CH'"}
    seen = await api.preview("place", "writer", **action, set={"salary": 7})
    assert {row["salary"] for row in seen["sample"]} == {"***"}
    refused = await api.send("preview", "place", "writer", action="delete", filter="[salary] = 1")
    assert refusal(refused) == (403, "COLUMN_RESTRICTED")
    # What is not shown always counts as a change: whether it was 7 already is not told.
    for _ in range(2):
        found = await api.done("place", "writer", **action, set={"salary": 7})
        assert counts(found) == {"matchCount": 6, "updated": 6}
    rows = await api.rows("place", filter="[country] = 'CH'")
    assert {(row["salary"], row["_sys_version"]) for row in rows} == {(7, 3)}
    found = await api.done("place", "writer", **action, set={"salary": None})
    assert counts(found) == {"matchCount": 6, "updated": 6}
    answer = await api.send("preview", "place", "writer", **action, set={"salary": "***"})
    assert refusal(answer) == (400, "REQUEST_INVALID")
    answer = await api.send("preview", "place", "writer", **action, set={"salary": "x7y"})
    assert "x7y" not in answer.text and answer.json()["code"] == "ENTITY_VALIDATION_TYPE"


async def test_only_rows_within_the_callers_filter_are_counted_and_written(api: Bulk) -> None:
    seen = await api.preview("place", "swiss", action="update", all=True, set={"note": "s"})
    assert (seen["matchCount"], seen["notAllowed"]) == (6, 0)
    found = await api.done("place", "swiss", action="update", all=True, set={"note": "s"})
    assert counts(found) == {"matchCount": 6, "updated": 6}
    # Nobody writes a row out of reach.
    found = await api.done("place", "swiss", action="update", all=True, set={"country": "FR"})
    assert (
        counts(found) == {"matchCount": 6, "rejected": 6} and codes(found) == ["ACCESS_DENIED"] * 6
    )
    found = await api.done("place", "swiss", action="delete", all=True)
    assert counts(found) == {"matchCount": 6, "deleted": 6}
    assert {row["country"] for row in await api.rows("place")} == {"FR"}


async def test_rows_that_may_be_seen_and_not_written_are_told_apart(api: Bulk) -> None:
    action: dict[str, Any] = {"action": "update", "all": True, "set": {"note": "l"}}
    seen = await api.preview("place", "local", **action)
    assert (seen["matchCount"], seen["notAllowed"]) == (9, 3)
    found = await api.done("place", "local", **action)
    assert counts(found) == {"matchCount": 9, "updated": 6, "rejected": 3}
    assert codes(found) == ["ACCESS_DENIED"] * 3
    for soft in (True, False):
        found = await api.done("place", "local", action="delete", all=True, soft=soft)
        assert found["rejected"] == 3
        assert {row["country"] for row in await api.rows("place")} == {"FR"}


async def test_who_may_not_write_may_not_look_either(api: Bulk) -> None:
    body: dict[str, Any] = {"action": "delete", "all": True, "previewToken": "x"}
    for what in ("preview", "execute"):
        answers = [
            refusal(await api.send(what, entity, who, **body))
            for entity, who in (("place", "reader"), ("place", "stranger"), ("nothing", "writer"))
        ]
        assert answers == [(403, "ACCESS_DENIED"), *[(404, "ENTITY_NOT_FOUND")] * 2]


async def test_where_approval_is_needed_each_row_becomes_a_proposal(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    rows = [{"code": f"G{n}", "country": "CH" if n < 3 else "FR", "level": n} for n in range(5)]
    good(await api.json("gated", rows, batchName="new"))
    approve = "/api/v1/entities/gated/approve-batch"
    other = {"X-API-Key": key_of("approver")}
    answer = await api.client.post(approve, json={"batchName": "new"}, headers=other)
    assert answer.json()["approved"] == 5
    before = await last_seq(conn)
    action: dict[str, Any] = {"action": "update", "filter": "[level] < 4", "set": {"level": 2}}
    found = await api.done("gated", **action, batchName="raise")
    assert counts(found) == {"matchCount": 4, "pending": 3, "unchanged": 1}
    assert found["batchName"] == "raise"
    assert {row["level"] for row in await api.rows("gated")} == set(range(5))
    told = await events(conn, before)
    assert [(a, v) for a, v, _, _ in told] == [("data_edited", 1)] * 3
    answer = await api.client.post(approve, json={"batchName": "raise"}, headers=other)
    assert answer.json()["approved"] == 3
    assert sorted(row["level"] for row in await api.rows("gated")) == [2, 2, 2, 2, 4]
    found = await api.done("gated", action="delete", filter="[level] = 2")
    assert counts(found) == {"matchCount": 4, "pending": 4}
    assert found["batchName"].startswith("bulk-action-")
    pending = (await api.client.get("/api/v1/entities/gated/pending")).json()["items"]
    assert {each["operation"] for each in pending} == {"delete"}
    answer = await api.client.post(approve, json={"batchName": found["batchName"]}, headers=other)
    assert answer.json()["approved"] == 4
    assert [row["code"] for row in await api.rows("gated")] == ["G4"]
    found = await api.done("gated", action="delete", all=True, soft=True)
    pending = (await api.client.get("/api/v1/entities/gated/pending")).json()["items"]
    assert [(each["operation"], each["baseVersion"]) for each in pending] == [("soft_delete", 1)]


async def test_progress_comes_line_by_line_and_the_result_last(
    api: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdm_gitops.data.bulk_run.PIECE", 4)
    action: dict[str, Any] = {"action": "update", "all": True, "set": {"slot": 4}}
    token = (await api.preview("place", **action))["previewToken"]
    answer = await api.send("execute", "place", lines=True, previewToken=token, **action)
    assert answer.headers["content-type"] == "application/x-ndjson"
    *steps, last = [json.loads(line) for line in answer.text.splitlines()]
    assert [(s["progress"]["done"], s["progress"]["of"]) for s in steps] == [
        (0, 9),
        (4, 9),
        (8, 9),
        (9, 9),
    ]
    # Rows of different pieces are judged against each other, too.
    assert counts(last["result"]) == {"matchCount": 9, "updated": 2, "rejected": 7}
    assert len({each["id"] for each in last["result"]["errors"]}) == 7
    answer = await api.send("execute", "place", lines=True, previewToken=token, **action)
    assert refusal(answer) == (409, "BULK_ACTION_STALE")


async def test_pieces_of_a_hard_delete_may_refer_to_each_other(
    api: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdm_gitops.data.bulk_run.PIECE", 2)
    chain = [{"code": "n0"}] + [{"code": f"n{n}", "parent": f"n{n - 1}"} for n in range(1, 7)]
    good(await api.json("node", chain))
    found = await api.done("node", action="delete", all=True)
    assert counts(found) == {"matchCount": 7, "deleted": 7}
    good(await api.json("node", [{"code": "x"}]))  # the constraint stands again


async def test_the_audit_has_the_action_and_no_values(
    api: Bulk, conn: AsyncConnection[Any]
) -> None:
    await api.done("place", action="update", filter="[level] = 1", set={"note": "n", "salary": 5})
    [entry] = (await api.client.get("/api/v1/audit", params={"action": "bulk_action"})).json()[
        "entries"
    ]
    assert entry["entityName"] == "place"
    details = entry["details"]
    assert details["columns"] == ["note", "salary"] and details["filter"] == "[level] = 1"
    assert (details["change"], details["matchCount"], details["updated"]) == ("update", 5, 5)
