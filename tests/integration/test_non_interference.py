"""I7: nobody learns of a row outside of their filter, or of a masked value, from any path that reads.

Two databases differ only in rows that P may not see, and in values that are masked for P: other
identifiers, other keys, other values, in all tables. P asks both the same generated requests over all
read paths, errors included, and gets equal bytes. Whoever sees those rows gets other bytes: the
negative control.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker
from tests.support.campaign_record import campaign
from tests.support.customers import key_of
from tests.support.serving import KEY, Client, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio

FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: crm}]\n",
    "entities/customer.yaml": b"""
name: customer
domain: crm
historyEnabled: true
keyColumns: [code]
sortColumns: [{column: name}]
displayRefColumn: name
similarity: {columns: [{name: name}, {name: salary, matchMode: number}, {name: parent, matchMode: exact}]}
search: {enabled: true}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: name, dataType: string, autocomplete: true}
  - {name: region, dataType: string}
  - {name: credit, dataType: decimal}
  - {name: salary, dataType: int, classification: restricted}
  - {name: parent, dataType: string, reference: {entity: customer}}
""",
    "entities/deal.yaml": b"""
name: deal
domain: crm
historyEnabled: true
approvalRequired: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: stage, dataType: string, autocomplete: true}
  - {name: customer, dataType: string, reference: {entity: customer}}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:p"], domains: [crm], entities: [customer], actions: [read],
     rowFilterDsl: "[region] = 'north'"}
  - {users: ["apikey:p"], domains: [crm], entities: [deal], actions: [approve],
     rowFilterDsl: "[stage] = 'open'"}
  - {users: ["apikey:w"], domains: [crm], entities: [customer], actions: [write],
     rowFilterDsl: "[region] = 'north'"}
  - {users: ["apikey:all"], domains: [crm], actions: [admin]}
""",
}
_CLOCK = re.compile(rb'"toUtc":"[^"]*"')  # the bounds of time travel end now
_TRIED = re.compile(rb'"_sys_last_modified_at":"[^"]*"')  # what is only tried is changed now
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
CUSTOMER, DEAL = "/api/v1/entities/customer", "/api/v1/entities/deal"
COLUMNS = {
    "customer": ["code", "name", "region", "credit", "salary", "parent"],
    "deal": ["code", "stage", "customer"],
}
VALUES = ["'n1'", "'n'", "'%1%'", "5", "'south'", "'north'", "null", "100", "'c3'", "'open'"]


async def _fill(client: Client, conn: AsyncConnection[Any]) -> None:
    """Rows of both kinds with versions, deletions, proposals and events."""
    for n in range(24):
        hidden = n % 2 == 1
        row: dict[str, Any] = {
            "code": f"c{n}",
            "name": f"n{n % 5}",
            "region": "south" if hidden else "north",
            "credit": n * 10,
            "salary": 1_000 + n,
            # Nobody refers across: the value itself would stand in a row that is seen.
            "parent": f"c{n - 2}" if n > 3 and n % 3 == 0 else None,
        }
        made = (await client.post(f"{CUSTOMER}/data", json=row)).json()
        url = f"{CUSTOMER}/data/{made['_sys_id']}"
        if n % 3 == 0:
            assert (await client.put(url, json={"credit": n})).status_code == 200
        if n % 8 in (6, 7):
            assert (await client.delete(f"{url}?soft=true")).status_code == 200
        deal = {"code": f"d{n}", "stage": "won" if hidden else "open", "customer": f"c{n}"}
        proposed = await client.post(f"{DEAL}/data", json=deal)
        assert proposed.status_code == 202, proposed.text
        if n % 4 < 2:
            deal_id = proposed.json()["_sys_id"]
            await conn.execute("UPDATE mdm_data.deal__edit SET _sys_submitted_by = 'user:x'")
            written = "UPDATE mdm.event SET actor = 'user:x' WHERE record_id = %s"
            await conn.execute(written, [deal_id])
            approved = await client.post(f"{DEAL}/approve/{deal_id}", json={})
            assert approved.status_code == 200, approved.text
    await _merge(client)


async def _merge(client: Client) -> None:
    """Merge rows of both kinds into rows of both kinds."""
    for n, (survivor, duplicate) in enumerate(
        itertools.product(("north", "south"), ("north", "south"))
    ):
        ids = []
        for code, region in ((f"s{n}", survivor), (f"m{n}", duplicate)):
            row = {"code": code, "name": f"n{n}", "region": region, "credit": n, "salary": n}
            ids.append((await client.post(f"{CUSTOMER}/data", json=row)).json()["_sys_id"])
        body = {"survivorId": ids[0], "duplicateId": ids[1]}
        merged = await client.post(f"{CUSTOMER}/data/deduplicate", json=body)
        assert merged.status_code == 200, merged.text


# Everything of hidden rows becomes something else; the number of rows and events stays. Foreign keys
# hold again at the end.
_SCRAMBLE = """
SET CONSTRAINTS ALL DEFERRED;
CREATE TEMP TABLE other AS
  SELECT _sys_id AS old, gen_random_uuid() AS new FROM mdm_data.customer WHERE region = 'south'
  UNION SELECT _sys_id, gen_random_uuid() FROM mdm_data.deal WHERE stage = 'won'
  UNION SELECT _sys_id, gen_random_uuid() FROM mdm_data.deal__edit WHERE stage = 'won';
UPDATE mdm.event e SET record_id = o.new FROM other o WHERE e.record_id = o.old;
UPDATE mdm_data.customer c SET _sys_id = o.new, code = 'x' || c.code, name = 'z' || c.name,
       credit = c.credit + 7, parent = 'x' || c.parent FROM other o WHERE c._sys_id = o.old;
UPDATE mdm_data.customer__history c SET _sys_id = o.new, code = 'x' || c.code,
       name = 'z' || c.name, credit = c.credit + 7, parent = 'x' || c.parent
  FROM other o WHERE c._sys_id = o.old;
UPDATE mdm_data.deal d SET _sys_id = o.new, code = 'x' || d.code, stage = 'lost',
       customer = 'x' || d.customer FROM other o WHERE d._sys_id = o.old;
UPDATE mdm_data.deal__edit d SET _sys_id = o.new, code = 'x' || d.code, stage = 'lost',
       customer = 'x' || d.customer, _sys_submitted_by = 'user:someone', _sys_batch_name = NULL
  FROM other o WHERE d._sys_id = o.old;
UPDATE mdm.merge m SET survivor_id = o.new FROM other o WHERE m.survivor_id = o.old;
UPDATE mdm.merge m SET duplicate_id = o.new FROM other o WHERE m.duplicate_id = o.old;
UPDATE mdm_data.customer SET salary = salary * 3 + 1;
UPDATE mdm_data.customer__history SET salary = salary * 3 + 1;
"""


@pytest.fixture
async def twins(make_database: DatabaseMaker) -> AsyncIterator[dict[str, tuple[Client, Client]]]:
    """Clients of both databases, for P and for somebody who sees all."""
    first = make_database()
    async with await connect(first, application_name="test") as conn:
        await apply(conn, read_tree(FILES))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        keys = {name: await key_of(conn, name) for name in ("p", "w", "all")}
        async with served(create_app(database_url=first, settings=Settings())) as client:
            client.headers["X-API-Key"] = KEY
            await _fill(client, conn)
            await client.get("/api/v1/changes")  # numbers them, before the databases part
    second = make_database.copy_of(first)
    async with await connect(second, application_name="test") as conn, conn.transaction():
        for statement in _SCRAMBLE.split(";\n"):
            if statement.strip():
                await conn.execute(statement.encode())
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                served(create_app(database_url=url, settings=Settings()))
            )
            for url in (first, second)
        ]
        yield {name: _for(clients, key) for name, key in keys.items()}


class _As:
    """A client that asks as one caller, with the same trace id each time."""

    def __init__(self, client: Client, key: dict[str, str]) -> None:
        self._client = client
        self._headers = {**key, **TRACE}

    async def get(self, url: str) -> tuple[int, bytes]:
        answer = await self._client.get(url, headers=self._headers)
        return answer.status_code, _CLOCK.sub(b"", answer.content)

    async def send(self, method: str, url: str, body: Any) -> tuple[int, bytes]:
        answer = await self._client.request(method, url, json=body, headers=self._headers)
        return answer.status_code, answer.content


def _for(clients: list[Client], key: dict[str, str]) -> Any:
    return tuple(_As(client, key) for client in clients)


def _filter(chance: random.Random, entity: str, depth: int = 2) -> str:
    if depth and chance.random() < 0.4:
        word = chance.choice(["AND", "OR"])
        sides = (_filter(chance, entity, depth - 1) for _ in range(2))
        return "(" + f" {word} ".join(sides) + ")"
    column = f"[{chance.choice(COLUMNS[entity])}]"
    if chance.random() < 0.2:
        column = "[parent].[code]" if entity == "customer" else "[customer].[name]"
    operator = chance.choice(["=", "<>", "<", ">=", "LIKE", "CONTAINS", "STARTSWITH", "IN"])
    value = chance.choice(VALUES)
    if operator == "IN":
        value = f"({value}, {chance.choice(VALUES)})"
    text = f"{column} {operator} {value}"
    return f"NOT ({text})" if chance.random() < 0.15 else text


def _request(chance: random.Random, ids: dict[str, list[str]], moments: list[str]) -> str:
    """Return one request; some are wrong, because errors tell things, too."""
    entity = chance.choice(["customer", "deal"])
    base = CUSTOMER if entity == "customer" else DEAL
    columns = [*COLUMNS[entity], "_sys_id", "_sys_created_at", "nothing"]
    query: dict[str, str] = {}
    if chance.random() < 0.6:
        query["filter"] = _filter(chance, entity)
    if chance.random() < 0.4:
        signs = [
            chance.choice(["", "-"]) + chance.choice(columns) for _ in range(chance.choice((1, 2)))
        ]
        query["sort"] = ",".join(signs)
    if chance.random() < 0.3:
        query["take"] = str(chance.choice((1, 2, 5, 50)))
    if chance.random() < 0.2:
        query["skip"] = str(chance.choice((0, 1, 7)))
    shape: dict[str, str] = {}
    if chance.random() < 0.3:
        shape["fields"] = ",".join(chance.sample(columns[:-1], 2))
    if chance.random() < 0.3:
        shape["expand"] = "parent" if entity == "customer" else "customer"
    if chance.random() < 0.3:
        shape["asOfUtc"] = chance.choice(moments)
    state = {"state": chance.choice(["active", "deleted", "all"])}
    row = chance.choice(ids[entity])
    match chance.randrange(15):
        case 0 | 1 | 2:
            path, given = f"{base}/data", {**query, **shape, **state, "count": "true"}
        case 3:
            path, given = f"{base}/data/{row}", shape
        case 4:
            path = f"{base}/data/export"
            given = {**query, **state, "format": chance.choice(["csv", "json"])}
        case 5:
            path, given = f"{base}/versions/{row}", {}
        case 6:
            pages = {k: v for k, v in query.items() if k != "skip"}
            path, given = f"{DEAL}/pending", pages if entity == "deal" else {}
        case 7:
            path, given = f"{DEAL}/pending/batches", {}
        case 8:
            column = "parent" if entity == "customer" else "customer"
            path, given = (
                f"{base}/data/ref-options",
                {"column": column, "q": chance.choice(["", "n", "z", "x", "c1"])},
            )
        case 9:
            column = "name" if entity == "customer" else "stage"
            path = f"{base}/data/column-suggestions"
            given = {"column": column, "q": chance.choice(["", "n", "z", "o", "w", "l"])}
        case 10:
            path = "/api/v1/changes"
            given = {"afterId": str(chance.randrange(60)), "take": str(chance.choice((1, 5, 500)))}
            if chance.random() < 0.5:
                given["entity"] = entity
        case 11:
            path = "/api/v1/search/data"
            given = {"q": chance.choice(["n1", "n", "z", "north", "open", "x", "d1", "won", "c"])}
            if chance.random() < 0.5:
                given["entity"] = entity
        case 12:
            path, given = f"{CUSTOMER}/data/deduplicate", {"take": str(chance.choice((1, 2, 5)))}
            if chance.random() < 0.5:
                given["after"] = chance.choice(ids["merges"])
        case 13:
            path, given = f"{CUSTOMER}/data/deduplicate/{chance.choice(ids['merges'])}", {}
        case _:
            path, given = f"{base}/data/time-travel-bounds", {}
    return path + "?" + "&".join(f"{name}={quote(value)}" for name, value in given.items())


async def _compare(twins: Any, number: int, seed: int) -> list[str]:
    """Return the requests that the two databases answer with other bytes."""
    one, two = twins
    chance = random.Random(seed)
    ids = await _ids(one)
    moments = ["2020-01-01T00:00:00Z", *ids.pop("moments")]
    different = []
    for _ in range(number):
        url = _request(chance, ids, moments)
        if await one.get(url) != await two.get(url):
            different.append(url)
    return different


async def _ids(client: Any) -> dict[str, list[str]]:
    """Rows that are seen, and some that are not there for anybody."""
    found: dict[str, list[str]] = {"moments": []}
    for entity, base in (("customer", CUSTOMER), ("deal", DEAL)):
        items = json.loads((await client.get(f"{base}/data?state=all"))[1])["items"]
        found[entity] = [item["_sys_id"] for item in items] + [
            "00000000-0000-7000-8000-000000000000",
            "none",
        ]
        found["moments"] += [item["_sys_last_modified_at"] for item in items[::3]]
    merges = json.loads((await client.get(f"{CUSTOMER}/data/deduplicate"))[1])["items"]
    found["merges"] = [item["mergeId"] for item in merges] + [
        "00000000-0000-7000-8000-000000000000",
        "none",
    ]
    return found


async def test_hidden_rows_and_masked_values_change_no_byte(twins: Any) -> None:
    assert await _compare(twins["p"], 700, seed=1) == []


async def test_whoever_sees_the_rows_sees_the_difference(twins: Any) -> None:
    """The negative control: the databases do differ, on most paths."""
    different = await _compare(twins["all"], 300, seed=1)
    paths = {url.partition("?")[0].rsplit("/", 1)[-1] for url in different}
    assert any(url.startswith("/api/v1/search/data") for url in different)
    assert {"data", "export", "pending", "ref-options", "column-suggestions"} <= paths
    assert "deduplicate" in paths


async def test_what_would_be_written_tells_nothing_either(twins: Any) -> None:
    one, two = twins["p"]
    for method, url, body in (
        ("PUT", f"{CUSTOMER}/data/00000000-0000-7000-8000-000000000000", {"credit": 1}),
        ("DELETE", f"{CUSTOMER}/data/00000000-0000-7000-8000-000000000000", None),
        ("POST", f"{DEAL}/approve/00000000-0000-7000-8000-000000000000", {}),
        ("POST", f"{DEAL}/approve-batch", {"batchName": "b"}),
        ("POST", f"{CUSTOMER}/data", {"code": "c1"}),
    ):
        assert await one.send(method, url, body) == await two.send(method, url, body), url


async def _previews(twins: Any, number: int) -> tuple[int, int]:
    """Return how many previews of bulk actions are answered with other bytes, and how many are good."""
    one, two = twins
    chance = random.Random(3)
    different = good = 0
    for _ in range(number):
        action: dict[str, Any] = {"action": "delete", "soft": chance.random() < 0.5}
        if chance.random() < 0.5:
            action = {"action": "update", "set": {"credit": chance.randrange(9)}}
        which: dict[str, Any] = {"filter": _filter(chance, "customer")}
        body = {**action, **({"all": True} if chance.random() < 0.1 else which)}
        url = f"{CUSTOMER}/data/bulk-action/preview"
        answers = [await each.send("POST", url, body) for each in (one, two)]
        different += answers[0] != answers[1]
        good += answers[0][0] == 200
    return different, good


async def test_previews_of_bulk_actions_count_nothing_that_is_hidden(twins: Any) -> None:
    different, good = await _previews(twins["w"], 80)
    assert different == 0 and good > 40
    different, _ = await _previews(twins["all"], 40)
    assert different > 10  # the negative control


async def _merge_previews(twins: Any, client: Any, number: int) -> tuple[int, int]:
    """Return how many previews of merges are answered with other bytes, and how many are good."""
    chance = random.Random(5)
    ids = (await _ids(client))["customer"]
    different = good = 0
    for _ in range(number):
        pair = chance.sample(ids, 2)
        body = {"survivorId": pair[0], "duplicateId": pair[1]}
        url = f"{CUSTOMER}/data/deduplicate/preview"
        answers = [await each.send("POST", url, body) for each in twins]
        cleared = [(status, _TRIED.sub(b"", content)) for status, content in answers]
        different += cleared[0] != cleared[1]
        good += answers[0][0] == 200
    return different, good


async def test_previews_of_merges_tell_nothing_that_is_hidden(twins: Any) -> None:
    different, good = await _merge_previews(twins["w"], twins["p"][0], 60)
    assert different == 0 and good > 10
    different, _ = await _merge_previews(twins["all"], twins["all"][0], 40)
    assert different > 10  # the negative control


_SCANNED = re.compile(rb'"scannedUtc":"[^"]*"')


async def _alike(twins: Any, number: int) -> tuple[int, int]:
    """Return how many questions for similar rows and pairs are answered differently, and how many
    find something."""
    one, two = twins
    chance = random.Random(5)
    ids = (await _ids(one))["customer"]
    different = good = 0
    for _ in range(number):
        body: dict[str, Any] = {"minScore": chance.choice((0, 0.3, 0.9)), "top": 100}
        if chance.random() < 0.5:
            body["id"] = chance.choice(ids)
        else:
            values = {"name": f"n{chance.randrange(5)}", "parent": f"c{chance.randrange(24)}"}
            body["values"] = values | chance.choice(({}, {"salary": 1_000 + chance.randrange(24)}))
        answers = [await each.send("POST", f"{CUSTOMER}/similar", body) for each in (one, two)]
        different += answers[0] != answers[1]
        good += b'"score"' in answers[0][1]
    for least in ("0", "0.5", "0.9"):
        url = f"{CUSTOMER}/duplicates?take=200&minScore={least}"
        answers = [await each.get(url) for each in (one, two)]
        pages = [_SCANNED.sub(b"", content) for _, content in answers]
        different += pages[0] != pages[1]
        good += b'"score"' in pages[0]
    return different, good


async def _scanned(client: Any) -> None:
    begun, content = await client.send("POST", f"{CUSTOMER}/duplicates/scan", {"minScore": 0.1})
    assert begun == 202, content
    url = f"{CUSTOMER}/duplicates/scans/{json.loads(content)['scanId']}"
    deadline = time.monotonic() + 60
    while (told := json.loads((await client.get(url))[1]))["state"] == "running":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert told["state"] == "done", told


async def test_rows_alike_tell_nothing_of_hidden_rows_and_masked_values(twins: Any) -> None:
    for client in twins["all"]:
        await _scanned(client)
    different, good = await _alike(twins["p"], 60)
    assert different == 0 and good > 20
    different, _ = await _alike(twins["all"], 30)
    assert different > 10  # the negative control


@pytest.mark.soak
async def test_five_thousand_requests(twins: Any) -> None:
    with campaign("non-interference") as record:
        assert await _compare(twins["p"], 5_000, seed=7) == []
        record(requests=5_000)
