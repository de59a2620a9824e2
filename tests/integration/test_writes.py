"""Writing rows over HTTP: what is refused and why, what stands in tables, history and events after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from tests.support.customers import COUNTRIES, CUSTOMERS, FILES, events, history, make, writing
from tests.support.serving import KEY, Client, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(customers_url: str) -> str:
    return customers_url


@pytest.fixture
async def client(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    async with writing(database_url, conn) as client:
        yield client


async def test_a_new_row_is_answered_as_it_is_stored(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    given = {
        "code": "C1",
        "country": "CH",
        "email": "a@b.ch",
        "segment": "a",
        "credit": 12.50,
        "born": "2001-02-03",
        "seen": "2020-01-01T10:00:00+02:00",
        "tag": "6BA7B810-9dad-11d1-80b4-00c04fd430c8",
        "extra": {"a": [1.50, None, "ä"]},
    }
    answer = await client.post(CUSTOMERS, json=given)
    assert answer.status_code == 201
    row = answer.json()
    assert answer.headers["ETag"] == '"v1"'
    assert answer.headers["Location"] == f"{CUSTOMERS}/{row['_sys_id']}"
    assert (await client.get(answer.headers["Location"])).json() == row
    assert row["seen"] == "2020-01-01T08:00:00Z" and row["rank"] == 7 and row["active"] is True
    assert row["extra"] == given["extra"] and row["_sys_state"] == "active"
    [(entity, action, actor, old, new)] = await events(conn)
    assert (entity, action, actor, old) == ("customer", "data_created", "apikey:bootstrap", None)
    assert new == {name: value for name, value in row.items() if not name.startswith("_sys_")}


FAULTS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({}, [("code", "REQUIRED_FIELD")]),
    ({"code": None}, [("code", "REQUIRED_FIELD")]),
    ({"code": "C1", "active": None}, [("active", "REQUIRED_FIELD")]),
    ({"code": "x"}, [("code", "PATTERN")]),
    ({"code": 5}, [("code", "TYPE")]),
    ({"code": "C1", "segment": "c"}, [("segment", "ALLOWED_VALUE")]),
    ({"code": "C1", "credit": -1}, [("credit", "RANGE")]),
    ({"code": "C1", "credit": 5000.01}, [("credit", "RANGE")]),
    ({"code": "C1", "credit": 1.005}, [("credit", "TYPE")]),
    ({"code": "C1", "credit": "abc"}, [("credit", "TYPE")]),
    ({"code": "C1", "rank": 2**31}, [("rank", "TYPE")]),
    ({"code": "C1", "rank": True}, [("rank", "TYPE")]),
    ({"code": "C1", "born": "2001-02-30"}, [("born", "TYPE")]),
    ({"code": "C1", "seen": "yesterday"}, [("seen", "TYPE")]),
    ({"code": "C1", "active": "yes"}, [("active", "TYPE")]),
    ({"code": "C1", "tag": "1"}, [("tag", "TYPE")]),
    ({"code": "C1", "country": "FR"}, [("country", "REFERENCE")]),
    ({"code": "C1", "parent": "C2"}, [("parent", "REFERENCE")]),
    ({"code": "C" + "1" * 2_000}, [("code", "LENGTH")]),
    ({"code": "C1", "colour": 1}, [("colour", "UNKNOWN_COLUMN")]),
    ({"code": "C1", "CODE": "C2"}, [("code", "UNKNOWN_COLUMN")]),
    ({"code": "C1", "_sys_version": 9}, [("_sys_version", "SYSTEM_COLUMN")]),
    (
        {"code": "x", "segment": "z", "rank": "1.5", "country": "FR"},
        [
            ("rank", "TYPE"),
            ("code", "PATTERN"),
            ("segment", "ALLOWED_VALUE"),
            ("country", "REFERENCE"),
        ],
    ),
]


@pytest.mark.parametrize(("given", "expected"), FAULTS, ids=lambda value: str(value)[:50])
async def test_each_rule_has_its_code_and_its_column(
    client: Client,
    conn: AsyncConnection[Any],
    given: dict[str, Any],
    expected: list[tuple[str, str]],
) -> None:
    answer = await client.post(CUSTOMERS, json=given)
    problem = answer.json()
    found = [(e["column"], e["code"].removeprefix("ENTITY_VALIDATION_")) for e in problem["errors"]]
    assert (answer.status_code, found) == (400, expected)
    assert problem["code"] == problem["errors"][0]["code"] and "traceId" in problem
    assert all(e["message"] for e in problem["errors"])
    assert await events(conn) == []


async def test_the_same_rules_hold_for_an_update(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    row = await make(client, code="C1", segment="a")
    for given, expected in FAULTS:
        if not given or ("code" in given and given["code"] == "C1" and len(given) == 1):
            continue
        answer = await client.put(f"{CUSTOMERS}/{row['_sys_id']}", json=given)
        found = [
            (e["column"], e["code"].removeprefix("ENTITY_VALIDATION_"))
            for e in answer.json()["errors"]
        ]
        assert (answer.status_code, found) == (400, expected), given
    assert len(await events(conn)) == 1


async def test_a_row_may_refer_to_itself(client: Client) -> None:
    assert (await make(client, code="C1", parent="C1"))["parent"] == "C1"


async def test_an_update_keeps_what_is_not_given_and_the_version_before(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    row = await make(client, code="C1", segment="a", rank=1, extra={"a": 1})
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    for method, given in (("PUT", {"rank": 2}), ("PATCH", {"Segment": None, "extra": [1]})):
        answer = await client.request(method, url, json=given)
        assert answer.status_code == 200, answer.text
    after = answer.json()
    assert {**row, "rank": 2, "segment": None, "extra": [1], "_sys_version": 3} == {
        **after,
        "_sys_last_modified_at": row["_sys_last_modified_at"],
    }
    assert answer.headers["ETag"] == '"v3"' and (await client.get(url)).json() == after
    assert await history(conn, "customer") == [
        (1, "data_updated", "C1", True),
        (2, "data_updated", "C1", True),
    ]
    found = await events(conn)
    assert [event[1] for event in found] == ["data_created", "data_updated", "data_updated"]
    assert found[1][3]["rank"] == 1 and found[1][4]["rank"] == 2


async def test_an_update_that_changes_nothing_writes_nothing(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    row = await make(client, code="C1", credit=1.50, extra={"b": 1, "a": 2})
    for given in ({}, {"code": "C1"}, {"credit": "1.5", "extra": {"a": 2, "b": 1}}):
        answer = await client.put(f"{CUSTOMERS}/{row['_sys_id']}", json=given)
        assert (answer.status_code, answer.json()) == (200, row)
    assert len(await events(conn)) == 1 and await history(conn, "customer") == []


async def test_a_row_returns_to_an_earlier_version(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    given = {
        "code": "C1",
        "country": "CH",
        "credit": 12.50,
        "born": "2001-02-03",
        "seen": "2020-01-01T10:00:00.5Z",
        "tag": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "extra": {"a": [1.50, "ä"]},
        "salary": "secret",
    }
    row = await make(client, **given)
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    changed = {"code": "C2", **{name: None for name in given if name != "code"}, "active": False}
    assert (await client.put(url, json=changed)).status_code == 200
    restore = f"/api/v1/entities/customer/versions/{row['_sys_id']}/restore"
    answer = await client.post(restore, json={"version": 1})
    assert answer.status_code == 200, answer.text
    back = answer.json()
    own = {name: value for name, value in back.items() if not name.startswith("_sys_")}
    assert own == {name: row[name] for name in own} and back["_sys_version"] == 3
    [*_, (_, action, _, _, new)] = await events(conn)
    assert action == "data_updated" and new == own
    detail = await (await conn.execute("SELECT detail FROM mdm.event ORDER BY 1")).fetchone()
    assert detail == ({"restoredVersion": 1},)
    # The present version is one, too; an unknown one is not.
    assert (await client.post(restore, json={"version": 3})).json()["_sys_version"] == 3
    unknown = await client.post(restore, json={"version": 9})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "VERSION_NOT_FOUND")
    for body in ({}, {"version": "1"}, {"version": 0}, {"version": True}, {"versions": 1}):
        assert (await client.post(restore, json=body)).status_code == 400
    stale = await client.post(restore, json={"version": 2}, headers={"If-Match": '"v1"'})
    assert stale.status_code == 412
    await client.delete(f"{url}?soft=true")
    deleted = await client.post(restore, json={"version": 2})
    assert (deleted.status_code, deleted.json()["code"]) == (409, "ROW_DELETED")


async def test_a_version_that_breaks_the_rules_of_today_is_refused(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    row = await make(client, code="C1", segment="b")
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    await client.put(url, json={"segment": "a"})
    stricter = FILES["entities/customer.yaml"].replace(b"[a, b]", b"[a]")
    await apply(conn, read_tree({**FILES, "entities/customer.yaml": stricter}))
    answer = await client.post(
        f"/api/v1/entities/customer/versions/{row['_sys_id']}/restore", json={"version": 1}
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "ENTITY_VALIDATION_ALLOWED_VALUE")
    assert (await client.get(url)).json()["segment"] == "a"


async def test_if_match(client: Client) -> None:
    row = await make(client, code="C1")
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    fits, old = {"If-Match": '"v1"'}, {"If-Match": '"v9"'}
    answer = await client.put(url, json={"rank": 1}, headers=old)
    assert (answer.status_code, answer.json()["code"]) == (412, "ROW_VERSION_CONFLICT")
    assert answer.json()["currentVersion"] == 1
    assert (await client.put(url, json={"rank": 1}, headers=fits)).status_code == 200
    for change in (
        client.put(url, json={"rank": 2}, headers=fits),
        client.delete(url + "?soft=true", headers=fits),
        client.delete(url, headers=fits),
        client.post(url + "/restore", headers=fits),
    ):
        assert (await change).status_code == 412
    assert (await client.put(url, json={}, headers={"If-Match": "W/1"})).status_code == 400
    assert (await client.delete(url, headers={"If-Match": "*"})).status_code == 204


async def test_if_match_may_be_required(database_url: str, client: Client) -> None:
    row = await make(client, code="C1")
    settings = Settings(Data={"RequireIfMatch": True})  # type: ignore[arg-type]
    async with served(create_app(database_url=database_url, settings=settings)) as strict:
        strict.headers["X-API-Key"] = KEY
        url = f"{CUSTOMERS}/{row['_sys_id']}"
        answer = await strict.put(url, json={"rank": 1})
        assert (answer.status_code, answer.json()["code"]) == (428, "IF_MATCH_REQUIRED")
        assert (await strict.post(CUSTOMERS, json={"code": "C2"})).status_code == 201


async def test_soft_delete_and_restore(client: Client, conn: AsyncConnection[Any]) -> None:
    row = await make(client, code="C1")
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    deleted = await client.delete(url + "?soft=true")
    assert deleted.status_code == 200 and deleted.json()["_sys_state"] == "deleted"
    assert (await client.get(CUSTOMERS)).json()["items"] == []
    for change in (client.put(url, json={"rank": 1}), client.delete(url + "?soft=true")):
        answer = await change
        assert (answer.status_code, answer.json()["code"]) == (409, "ROW_DELETED")
    taken = await client.post(CUSTOMERS, json={"code": "C1"})
    assert (taken.status_code, taken.json()["code"]) == (409, "ROW_KEY_DELETED")
    assert taken.json()["rowId"] == row["_sys_id"]
    restored = await client.post(url + "/restore")
    assert restored.status_code == 200 and restored.json()["_sys_state"] == "active"
    again = await client.post(url + "/restore")
    assert (again.status_code, again.json()["code"]) == (409, "ROW_NOT_DELETED")
    assert [event[1] for event in await events(conn)] == [
        "data_created",
        "data_soft_deleted",
        "data_restored",
    ]
    assert [line[1] for line in await history(conn, "customer")] == [
        "data_soft_deleted",
        "data_restored",
    ]


async def test_a_hard_delete_keeps_history_and_event(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    row = await make(client, code="C1", rank=1)
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    assert (await client.delete(url)).status_code == 204
    assert (await client.get(url)).status_code == 404
    assert (await client.delete(url)).status_code == 404
    assert await history(conn, "customer") == [(1, "data_deleted", "C1", True)]
    [_, (_, action, _, old, new)] = await events(conn)
    assert action == "data_deleted" and old["rank"] == 1 and new is None
    assert (await client.post(CUSTOMERS, json={"code": "C1"})).status_code == 201


async def test_a_row_that_is_referred_to_stays(client: Client) -> None:
    parent = await make(client, code="C1", parent="C1")
    child = await make(client, code="C2", parent="C1")
    url = f"{CUSTOMERS}/{parent['_sys_id']}"
    answer = await client.delete(url)
    assert (answer.status_code, answer.json()["code"]) == (409, "ROW_REFERENCED")
    assert (await client.delete(url + "?soft=true")).status_code == 200
    assert (await client.delete(f"{CUSTOMERS}/{child['_sys_id']}")).status_code == 204
    # The reference to itself holds nobody.
    assert (await client.delete(url)).status_code == 204


async def test_unique_values(client: Client) -> None:
    first = await make(client, code="C1", email="a@b", country="CH")
    answer = await client.post(CUSTOMERS, json={"code": "C1"})
    assert (answer.status_code, answer.json()["code"]) == (409, "ENTITY_VALIDATION_UNIQUE")
    assert answer.json()["errors"][0]["column"] == "code"
    assert answer.json()["rowId"] == first["_sys_id"]
    answer = await client.post(CUSTOMERS, json={"code": "C2", "email": "a@b", "country": "CH"})
    assert (answer.status_code, answer.json()["errors"][0]["column"]) == (409, "email")
    second = await make(client, code="C2", email="a@b", country="DE")
    await make(client, code="C3", email="a@b")  # null equals nothing
    answer = await client.put(f"{CUSTOMERS}/{second['_sys_id']}", json={"country": "CH"})
    assert (answer.status_code, answer.json()["code"]) == (409, "ENTITY_VALIDATION_UNIQUE")
    answer = await client.put(f"{CUSTOMERS}/{second['_sys_id']}", json={"code": "C1"})
    assert (answer.status_code, answer.json()["code"]) == (409, "ENTITY_VALIDATION_UNIQUE")


async def test_a_new_key_takes_the_rows_along_that_hold_it(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    swiss = (await client.get(f"{COUNTRIES}?filter=[code]='CH'")).json()["items"][0]
    first = await make(client, code="C1", country="CH", parent="C1")
    await make(client, code="C2", country="CH", parent="C1")
    await make(client, code="C3", country="DE")
    gone = await make(client, code="C4", country="CH")
    await client.delete(f"{CUSTOMERS}/{gone['_sys_id']}?soft=true")
    await conn.execute("TRUNCATE mdm.event, mdm.change_set")

    answer = await client.put(f"{COUNTRIES}/{swiss['_sys_id']}", json={"code": "CHE"})
    assert (answer.status_code, answer.json()["code"]) == (200, "CHE")
    rows = (await client.get(f"{CUSTOMERS}?state=all&sort=code")).json()["items"]
    assert [(r["code"], r["country"], r["_sys_version"]) for r in rows] == [
        ("C1", "CHE", 2),
        ("C2", "CHE", 2),
        ("C3", "DE", 1),
        ("C4", "CHE", 3),
    ]
    found = [(e[0], e[1], e[4].get("country")) for e in await events(conn)]
    assert found == [("country", "data_updated", None)] + [("customer", "data_updated", "CHE")] * 3
    await conn.execute("TRUNCATE mdm.event, mdm.change_set")

    answer = await client.put(f"{CUSTOMERS}/{first['_sys_id']}", json={"code": "C9"})
    assert answer.status_code == 200, answer.text
    rows = (await client.get(f"{CUSTOMERS}?sort=code")).json()["items"]
    assert [(r["code"], r["parent"]) for r in rows] == [("C2", "C9"), ("C3", None), ("C9", "C9")]
    assert len(await events(conn)) == 3  # the row, itself as its own child, and the other one


async def test_callers_of_one_batch_get_their_own_answers(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    async def create(number: int) -> tuple[int, Any]:
        given = {
            "code": f"C{number % 40}",
            "rank": number,
            "segment": "z" if number % 5 == 0 else "a",
        }
        answer = await client.post(CUSTOMERS, json=given)
        return number, answer

    answers = await asyncio.gather(*(create(number) for number in range(120)))
    won: dict[str, int] = {}
    for number, answer in answers:
        if number % 5 == 0:
            assert answer.json()["code"] == "ENTITY_VALIDATION_ALLOWED_VALUE"
        elif answer.status_code == 201:
            assert answer.json()["rank"] == number
            won[answer.json()["code"]] = number
        else:
            assert answer.json()["code"] == "ENTITY_VALIDATION_UNIQUE"
    rows = (await client.get(f"{CUSTOMERS}?take=1000")).json()["items"]
    assert {row["code"]: row["rank"] for row in rows} == won
    assert len(won) == 32 == len(await events(conn))
    cursor = await conn.execute("SELECT count(*) FROM mdm.change_set")
    [sets] = await cursor.fetchone() or ()
    assert sets < 32


async def test_writers_of_one_row_follow_each_other(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    row = await make(client, code="C1", rank=0)
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    answers = await asyncio.gather(*(client.put(url, json={"rank": n}) for n in range(1, 41)))
    assert all(answer.status_code == 200 for answer in answers)
    assert sorted(answer.json()["_sys_version"] for answer in answers) == list(range(2, 42))
    found = await events(conn)
    assert [e[3]["rank"] for e in found[2:]] == [e[4]["rank"] for e in found[1:-1]]
    assert [line[0] for line in await history(conn, "customer")] == list(range(1, 41))
    assert all(line[3] for line in await history(conn, "customer"))


async def test_a_target_that_goes_away_meanwhile(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    """Rows that refer to it and its deletion meet: never both succeed, and never a failure of ours."""
    for attempt in range(8):
        made = await client.post(COUNTRIES, json={"code": f"Z{attempt}"})
        url = f"{COUNTRIES}/{made.json()['_sys_id']}"
        given = [
            {"code": f"C{attempt}{n}", "country": f"Z{attempt}" if n % 2 else "CH"}
            for n in range(1, 13)
        ]
        gone, *answers = await asyncio.gather(
            client.delete(url), *(client.post(CUSTOMERS, json=each) for each in given)
        )
        referring = list(answers[::2])
        assert all(answer.status_code == 201 for answer in answers[1::2])
        if gone.status_code == 204:
            assert {a.json()["code"] for a in referring} == {"ENTITY_VALIDATION_REFERENCE"}
        else:
            assert gone.json()["code"] == "ROW_REFERENCED"


async def test_bodies_that_are_no_row(client: Client) -> None:
    for body in (b"", b"[]", b"5", b'{"code":', b"\xff", b'{"code": NaN}', b'{"a":1,"a":2}'):
        answer = await client.post(
            CUSTOMERS, content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "REQUEST_INVALID"), body
    answer = await client.post(CUSTOMERS, content=b"code", headers={"Content-Type": "text/csv"})
    assert answer.status_code == 415
    assert (await client.put(f"{CUSTOMERS}/no-guid", json={})).status_code == 404
