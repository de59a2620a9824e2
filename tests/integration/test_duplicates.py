"""Rows like a given one, and scans for duplicates, over HTTP: what is found, told, hidden and remembered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.scan_run import run_scan
from mdm_gitops.data.scans import ScanRequest, begin_scan, scan_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.lock import try_lock
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.support import by_hand
from tests.support.customers import key_of
from tests.support.serving import KEY, Client, problem, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio

PERSON = b"""
name: person
domain: crm
keyColumns: [code]
similarity:
  minScore: 0.6
  columns:
    - {name: given, weight: 1, matchMode: phonetic}
    - {name: family, weight: 2}
    - {name: born, weight: 2, matchMode: date}
    - {name: tax, weight: 2, matchMode: exact}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: given, dataType: string}
  - {name: family, dataType: string}
  - {name: born, dataType: date}
  - {name: region, dataType: string}
  - {name: tax, dataType: string, classification: restricted}
"""
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: crm}]\n",
    "entities/person.yaml": PERSON,
    "entities/shop.yaml": b"""
name: shop
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Name, dataType: string}
  - {name: city, dataType: string}
  - {name: size, dataType: decimal}
""",
    "entities/bare.yaml": b"""
name: bare
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:north"], domains: [crm], entities: [person], actions: [write],
     rowFilterDsl: "[region] = 'north'"}
  - {users: ["apikey:reader"], domains: [crm], actions: [read]}
  - {users: ["apikey:editor"], domains: [crm], actions: [write]}
""",
}
PEOPLE: list[dict[str, Any]] = [
    {"code": "1", "given": "Philipp", "family": "Müller", "born": "1980-02-03", "region": "north"},
    {"code": "2", "given": "Filip", "family": "Muller", "born": "1980-03-02", "region": "north"},
    {"code": "3", "given": "Filipp", "family": "Mueller", "born": "1980-02-03", "region": "south"},
    {"code": "4", "given": "Anna", "family": "Keller", "born": "1991-05-06", "region": "north"},
    {"code": "5", "given": "Anna", "family": "Kelller", "born": None, "region": "north"},
    {"code": "6", "given": "Otto", "family": "Sommer", "born": "1955-01-01", "region": "north"},
]
E = "/api/v1/entities/person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    client: Client
    conn: AsyncConnection[Any]
    ids: dict[str, str]  # by code
    keys: dict[str, dict[str, str]]
    url: str

    async def similar(self, body: Any, *, key: str = "editor", entity: str = "person") -> Any:
        url = f"/api/v1/entities/{entity}/similar"
        answer = await self.client.post(url, json=body, headers=self.keys[key])
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def scan(self, body: Any = None) -> Any:
        """Begin a scan and return how it has ended."""
        headers = self.keys["editor"]
        begun = await self.client.post(f"{E}/duplicates/scan", json=body or {}, headers=headers)
        assert begun.status_code == 202, begun.text
        return await self.ended(begun.headers["Location"])

    async def rescan(self, **asked: Any) -> Any:
        """The same without HTTP and a process of its own, which take most of the time."""
        principal = Principal(kind=PrincipalKind.USER, name="x", is_global_admin=True)
        async with (
            await connect(self.url, application_name="test") as reading,
            await connect(self.url, application_name="test") as telling,
        ):
            asking = Asking(
                principal=principal,
                state=await read_state(telling, schemas=Schemas()),
                schemas=Schemas(),
                now=datetime.now(UTC),
            )
            scan_id = await begin_scan(
                telling, asking=asking, entity="person", request=ScanRequest(**asked)
            )
            await run_scan(reading, telling, schemas=Schemas(), scan_id=scan_id, max_rows=1_000)
        return await self.ended(f"{E}/duplicates/scans/{scan_id}")

    async def ended(self, url: str) -> Any:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            scan = (await self.client.get(url, headers=self.keys["editor"])).json()
            if scan["state"] != "running":
                return scan
            await asyncio.sleep(0.05)
        raise AssertionError("the scan did not end")

    async def pairs(self, query: str = "", *, key: str = "editor") -> list[set[str]]:
        """Return the pairs as codes, in their order."""
        answer = await self.client.get(f"{E}/duplicates?{query}", headers=self.keys[key])
        assert answer.status_code == 200, answer.text
        return [{row["code"] for row in item["rows"]} for item in answer.json()["items"]]


@pytest.fixture
async def lab(database_url: str) -> AsyncIterator[Lab]:
    async with await connect(database_url, application_name="test") as conn:
        await apply(conn, read_tree(FILES))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        keys = {name: await key_of(conn, name) for name in ("north", "reader", "editor")}
        ids = await by_hand.insert(conn, "person", PEOPLE)
        async with served(create_app(database_url=database_url, settings=Settings())) as client:
            yield Lab(
                client=client,
                conn=conn,
                ids=dict(zip((row["code"] for row in PEOPLE), ids, strict=True)),
                keys={**keys, "root": {"X-API-Key": KEY}},
                url=database_url,
            )


async def test_rows_like_a_row_and_like_values(lab: Lab) -> None:
    found = await lab.similar({"id": lab.ids["1"]})
    codes = [match["row"]["code"] for match in found["matches"]]
    assert codes == ["2", "3"]
    assert found["rules"] == "definition" and found["skippedKeys"] == 0
    best = found["matches"][0]
    assert best["id"] == lab.ids["2"] and 0.8 < best["score"] < 1
    by_name = {column["name"]: column for column in best["columns"]}
    assert list(by_name) == ["given", "family", "born"]  # the restricted one is not compared
    assert by_name["born"]["score"] == 0.9 and by_name["given"]["score"] >= 0.9
    assert by_name["family"]["score"] == 1  # an accent is no difference
    asked = {"values": {"Given": "filip", "family": "MÜLLER", "born": "1980-02-03"}, "top": 1}
    assert [m["row"]["code"] for m in (await lab.similar(asked))["matches"]] == ["1"]
    assert (await lab.similar({"id": lab.ids["1"], "minScore": 0.999}))["matches"] == []
    assert (await lab.similar({"values": {"family": "Keller"}}))["matches"][0]["score"] == 1


async def test_the_index_is_used(lab: Lab) -> None:
    """Not how long it takes, but how: no row is read that shares no key."""
    await lab.conn.execute("SET enable_seqscan = off")
    plan = await lab.conn.execute(
        "EXPLAIN SELECT 1 FROM mdm_data.person t WHERE mdm.match_keys('ttd', ARRAY["
        'mdm.index_text(t."given"), mdm.index_text(t."family"), mdm.index_text(t."born")'
        "]) @> ARRAY['x']"
    )
    assert "person__match" in str(await plan.fetchall())


async def test_what_is_hidden_or_masked_is_not_compared(lab: Lab) -> None:
    await lab.conn.execute("UPDATE mdm_data.person SET tax = 'T1' WHERE code IN ('4', '6')")
    found = await lab.similar({"id": lab.ids["1"]}, key="north")
    assert [match["row"]["code"] for match in found["matches"]] == ["2"]
    hidden = await lab.client.post(
        f"{E}/similar", json={"id": lab.ids["3"]}, headers=lab.keys["north"]
    )
    assert problem(hidden)[1] == "ROW_NOT_FOUND"
    masked = await lab.client.post(
        f"{E}/similar", json={"values": {"tax": "T1"}}, headers=lab.keys["north"]
    )
    assert masked.status_code == 403 and problem(masked)[1] == "COLUMN_RESTRICTED"
    seen = await lab.similar({"id": lab.ids["4"], "minScore": 0}, key="root")
    assert "tax" in [column["name"] for column in seen["matches"][0]["columns"]]


async def test_what_cannot_be_asked(lab: Lab) -> None:
    cases: list[tuple[Any, int]] = [
        ({}, 400),
        ({"id": "x", "values": {}}, 400),
        ({"id": "x"}, 404),
        ({"values": {"nothing": 1}}, 400),
        ({"values": {"born": "yesterday"}}, 400),
        ({"values": {"given": "x"}, "top": 0}, 400),
        ({"values": {"given": "x"}, "minScore": 2}, 400),
        ({"values": {"given": "x"}, "minScore": "x"}, 400),
        ({"values": []}, 400),
    ]
    for body, status in cases:
        answer = await lab.client.post(f"{E}/similar", json=body, headers=lab.keys["reader"])
        assert answer.status_code == status, answer.text


async def test_an_entity_without_rules_has_derived_ones(lab: Lab) -> None:
    shops = [
        {"code": "a", "name": "Acme Trading Ltd", "city": "Basel", "size": 12},
        {"code": "b", "name": "ACME Trading Limited", "city": "Basel", "size": 12.1},
        {"code": "c", "name": "Other", "city": "Bern", "size": 900},
    ]
    await by_hand.insert(lab.conn, "shop", shops)
    asked = {"values": {"name": "Acme trading", "city": "Basel", "size": 12}}
    found = await lab.similar(asked, key="reader", entity="shop")
    assert found["rules"] == "derived"
    assert [match["row"]["code"] for match in found["matches"]] == ["a", "b"]
    assert [c["name"] for c in found["matches"][0]["columns"]] == ["Name", "city", "size"]
    bare = await lab.client.post(
        "/api/v1/entities/bare/similar", json={"values": {}}, headers=lab.keys["reader"]
    )
    assert bare.status_code == 409 and problem(bare)[1] == "SIMILARITY_OFF"


async def test_a_scan_its_pairs_and_what_changed_since(lab: Lab) -> None:
    scan = await lab.scan()
    assert (scan["state"], scan["mode"], scan["error"]) == ("done", "full", "")
    assert scan["counts"]["rowsRead"] == 6 and scan["counts"]["pairsFound"] == 4
    assert await lab.pairs() == [{"1", "2"}, {"4", "5"}, {"1", "3"}, {"2", "3"}]
    # Nothing has changed: only rows since then are looked at, and the pairs stand.
    await lab.conn.execute("UPDATE mdm_data.person SET _sys_last_modified_at = '2000-01-01'")
    again = await lab.rescan()
    assert (again["mode"], again["counts"]["rowsChanged"]) == ("changed", 0)
    assert again["counts"]["pairsFound"] == 0 and len(await lab.pairs()) == 4
    # One row becomes another person, and one like Otto is new.
    headers = lab.keys["editor"]
    row = f"{E}/data/{lab.ids['5']}"
    assert (await lab.client.put(row, json={"family": "Zuber"}, headers=headers)).is_success
    listed = (await lab.client.get(f"{E}/duplicates", headers=headers)).json()["items"]
    assert [item["changed"] for item in listed] == [False, True, False, False]
    new = {"code": "7", "given": "Oto", "family": "Sommer", "born": "1955-01-01"}
    assert (await lab.client.post(f"{E}/data", json=new, headers=headers)).is_success
    third = await lab.rescan()
    assert (third["mode"], third["counts"]["rowsChanged"]) == ("changed", 2)
    assert {"6", "7"} in await lab.pairs() and {"4", "5"} not in await lab.pairs()
    full = await lab.rescan(full=True)
    assert full["mode"] == "full" and full["counts"]["rowsCompared"] == 7
    # Another limit is another scan.
    assert (await lab.rescan(min_score=0.95))["mode"] == "full"
    assert {"1", "2"} not in await lab.pairs()


async def test_pages_filters_and_what_was_dismissed(lab: Lab) -> None:
    await lab.rescan()
    headers = lab.keys["editor"]
    found, after = [], ""
    while True:
        url = f"{E}/duplicates?take=1&after={after}"
        page = (await lab.client.get(url, headers=headers)).json()
        found += [{row["code"] for row in item["rows"]} for item in page["items"]]
        after = page["nextAfter"]
        if not page["hasMore"]:
            break
    assert found == await lab.pairs()
    assert await lab.pairs(key="north") == [{"1", "2"}, {"4", "5"}]
    assert await lab.pairs("minScore=0.99") == []
    wrong = await lab.client.get(f"{E}/duplicates?after=x", headers=headers)
    assert wrong.status_code == 400
    ids = {"ids": [lab.ids["5"], lab.ids["4"]]}
    for _ in range(2):
        said = await lab.client.post(f"{E}/duplicates/dismiss", json=ids, headers=lab.keys["north"])
        assert said.status_code == 204, said.text
    await lab.rescan(full=True)
    assert {"4", "5"} not in await lab.pairs()
    assert await lab.pairs("dismissed=true") == [{"4", "5"}]
    hidden = {"ids": [lab.ids["3"], lab.ids["1"]]}
    for key, status in (("north", 404), ("reader", 403)):
        said = await lab.client.post(f"{E}/duplicates/dismiss", json=hidden, headers=lab.keys[key])
        assert said.status_code == status
    await lab.client.post(f"{E}/duplicates/reopen", json=ids, headers=headers)
    assert {"4", "5"} in await lab.pairs()
    audited = (await lab.client.get("/api/v1/audit", headers=lab.keys["root"])).json()["entries"]
    actions = [entry["action"] for entry in audited]
    assert actions.count("duplicate_dismissed") == 1 == actions.count("duplicate_reopened")
    assert {"duplicate_scan_started", "duplicate_scan_finished"} <= set(actions)


async def test_a_masked_column_gives_pairs_only_to_who_sees_it(lab: Lab) -> None:
    await lab.conn.execute(
        "UPDATE mdm_data.person SET tax = 'T1', family = 'Sommer', given = 'Otto', born = NULL"
        " WHERE code = '6'"
    )
    await by_hand.insert(
        lab.conn, "person", [{"code": "8", "given": "Eva", "family": "Sommer", "tax": "T1"}]
    )
    await lab.rescan()
    # Equal in tax and family, but not in given: 4/5 with the tax number, 2/3 without.
    everything = (await lab.client.get(f"{E}/duplicates", headers=lab.keys["root"])).json()
    scores = {frozenset(r["code"] for r in i["rows"]): i["score"] for i in everything["items"]}
    assert scores[frozenset("68")] == pytest.approx(0.8, abs=0.01)
    less = (await lab.client.get(f"{E}/duplicates", headers=lab.keys["editor"])).json()
    seen = {frozenset(r["code"] for r in i["rows"]): i["score"] for i in less["items"]}
    assert seen[frozenset("68")] == pytest.approx(0.6667, abs=0.01)


async def test_one_scan_at_a_time_and_a_killed_one_is_told(lab: Lab) -> None:
    headers = lab.keys["editor"]
    row = await (
        await lab.conn.execute(
            "INSERT INTO mdm.match_scan (scan_id, entity_id, rules, min_score, started_by)"
            " SELECT mdm.uuid_v7(), entity_id, 'x', 0.7, 'user:x' FROM mdm.entity"
            " WHERE name = 'person' RETURNING scan_id, entity_id"
        )
    ).fetchone()
    assert row is not None
    url = f"{E}/duplicates/scans/{row[0]}"
    killed = (await lab.client.get(url, headers=headers)).json()
    assert (killed["state"], killed["error"]) == ("failed", "the process that ran it ended")
    async with await connect(lab.url, application_name="other server") as other:
        assert await try_lock(other, scan_key(Schemas(), row[1]))
        assert (await lab.client.get(url, headers=headers)).json()["state"] == "running"
        refused = await lab.client.post(f"{E}/duplicates/scan", headers=headers)
        assert refused.status_code == 409
        assert problem(refused)[1] == "DUPLICATE_SCAN_RUNNING"
        cancelled = await lab.client.post(f"{url}/cancel", headers=headers)
        assert cancelled.json()["state"] == "cancelled"
    # Its session has ended at some moment soon, and the lock with it.
    await _until_free(lab, row[1])
    assert (await lab.scan())["state"] == "done"
    absent = await lab.client.get(f"{E}/duplicates/scans/none", headers=headers)
    assert problem(absent)[1] == "DUPLICATE_SCAN_NOT_FOUND"
    told = (await lab.client.get(url, headers=lab.keys["north"])).json()
    assert told["counts"] is None and told["state"] == "cancelled"


async def _until_free(lab: Lab, entity_id: int) -> None:
    deadline = time.monotonic() + 30
    while not await try_lock(lab.conn, scan_key(Schemas(), entity_id)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await lab.conn.execute("SELECT pg_advisory_unlock_all()")


async def test_a_scan_of_too_many_rows_is_refused(lab: Lab, database_url: str) -> None:
    await lab.conn.execute(
        "INSERT INTO mdm_data.person (_sys_id, code, given, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by) SELECT mdm.uuid_v7(), 'n' || i, 'x',"
        " now(), 'user:x', now(), 'user:x' FROM generate_series(1, 1000) i"
    )
    settings = Settings.model_validate({"Data": {"MatchMaxRows": 1_000}})
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        begun = await client.post(f"{E}/duplicates/scan", headers=lab.keys["editor"])
        scan = await lab.ended(begun.headers["Location"])
    assert scan["state"] == "failed" and "more than 1,000 rows" in scan["error"]
