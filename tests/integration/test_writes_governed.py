"""Writing rows over HTTP as somebody who may not do all: rows, masked columns, rights taken away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from tests.support.customers import CUSTOMERS, key_of, make, writing
from tests.support.serving import Client

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(customers_url: str) -> str:
    return customers_url


@pytest.fixture
async def client(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    async with writing(database_url, conn) as client:
        yield client


async def test_only_rows_inside_of_the_callers_filter_can_be_written(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    swiss = await key_of(conn, "swiss")
    inside = await make(client, code="C1", country="CH")
    outside = await make(client, code="C2", country="DE")
    mine, other = (f"{CUSTOMERS}/{row['_sys_id']}" for row in (inside, outside))
    assert (await client.put(mine, json={"rank": 1}, headers=swiss)).status_code == 200
    for change in (
        client.put(other, json={"rank": 1}, headers=swiss),
        client.delete(other, headers=swiss),
        client.delete(other + "?soft=true", headers=swiss),
        client.post(other + "/restore", headers=swiss),
    ):
        answer = await change
        assert (answer.status_code, answer.json()["code"]) == (404, "ROW_NOT_FOUND")
    for change in (
        client.put(mine, json={"country": "DE"}, headers=swiss),
        client.post(CUSTOMERS, json={"code": "C3", "country": "DE"}, headers=swiss),
        client.post(CUSTOMERS, json={"code": "C3"}, headers=swiss),
    ):
        answer = await change
        assert (answer.status_code, answer.json()["code"]) == (403, "ACCESS_DENIED")
    answer = await client.post(CUSTOMERS, json={"code": "C3", "country": "CH"}, headers=swiss)
    assert answer.status_code == 201
    # A hidden row is not named as the holder of a value, and a hidden target is as absent.
    answer = await client.post(CUSTOMERS, json={"code": "C2", "country": "CH"}, headers=swiss)
    assert answer.status_code == 409 and "rowId" not in answer.json()
    await client.delete(other + "?soft=true")
    answer = await client.post(CUSTOMERS, json={"code": "C2", "country": "CH"}, headers=swiss)
    assert answer.json()["code"] == "ENTITY_VALIDATION_UNIQUE" and "rowId" not in answer.json()
    hidden = await client.post(CUSTOMERS, json={"code": "C5", "country": "XX"}, headers=swiss)
    absent = await client.post(CUSTOMERS, json={"code": "C5", "country": "YY"}, headers=swiss)
    assert hidden.json()["errors"][0]["code"] == absent.json()["errors"][0]["code"]


async def test_what_may_be_seen_but_not_written_is_refused(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    narrow, reader = await key_of(conn, "narrow"), await key_of(conn, "reader")
    rows = [await make(client, code=f"C{n}", segment=s) for n, s in enumerate(("a", "b", None))]
    urls = [f"{CUSTOMERS}/{row['_sys_id']}" for row in rows]
    statuses = [(await client.put(u, json={"rank": 1}, headers=narrow)).status_code for u in urls]
    assert statuses == [200, 403, 404]
    answer = await client.put(urls[0], json={"rank": 1}, headers=reader)
    assert (answer.status_code, answer.json()["code"]) == (403, "ACCESS_DENIED")
    nobody = await key_of(conn, "nobody")
    answer = await client.post(CUSTOMERS, json={"code": "C9"}, headers=nobody)
    assert (answer.status_code, answer.json()["code"]) == (404, "ENTITY_NOT_FOUND")


async def test_the_stars_of_a_mask_are_never_written(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    swiss = await key_of(conn, "swiss")
    row = await make(client, code="C1", country="CH", salary="100")
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    shown = (await client.get(url, headers=swiss)).json()
    assert shown["salary"] == "***"
    own = {name: value for name, value in shown.items() if not name.startswith("_sys_")}
    answer = await client.put(url, json={**own, "rank": 8}, headers=swiss)
    assert answer.status_code == 200 and answer.json()["salary"] == "***"
    assert (await client.get(url)).json()["salary"] == "100"


async def test_a_right_that_is_taken_away_is_gone_for_the_next_write(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    swiss = await key_of(conn, "swiss")
    row = await make(client, code="C1", country="CH")
    url = f"{CUSTOMERS}/{row['_sys_id']}"
    assert (await client.put(url, json={"rank": 1}, headers=swiss)).status_code == 200
    await conn.execute("DELETE FROM mdm.permission WHERE principal = 'apikey:swiss'")
    assert (await client.put(url, json={"rank": 2}, headers=swiss)).status_code == 404
    assert (await client.get(url)).json()["rank"] == 1
