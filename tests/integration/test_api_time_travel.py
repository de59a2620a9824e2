"""The past over HTTP, of rows that were written over HTTP: what was answered then is answered again."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import Prepare
from tests.support.serving import KEY, Client, add_key, problem, served
from tests.support.warehouses import apply

pytestmark = pytest.mark.anyio
COUNTRY = """
name: country
domain: lab
historyEnabled: true
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: Name, dataType: string}
"""
SITE = """
name: site
domain: lab
historyEnabled: true
keyColumns: [code]
sortColumns: [{column: rank, direction: desc}]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: rank, dataType: int}
  - {name: country, dataType: string, reference: {entity: country}}
  - {name: seen, dataType: datetime}
  - {name: secret, dataType: string, classification: restricted}
"""
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: lab}]\n",
    "entities/country.yaml": COUNTRY.encode(),
    "entities/site.yaml": SITE.encode(),
    "entities/plain.yaml": b"""
name: plain
domain: lab
columns: [{name: text, dataType: string}]
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:swiss"], domains: [lab], entities: [site], actions: [read],
     rowFilterDsl: "[country] = 'CH'"}
""",
}
SITES, COUNTRIES = "/api/v1/entities/site/data", "/api/v1/entities/country/data"
VERSIONS = "/api/v1/entities/site/versions"


async def prepare(conn: AsyncConnection[Any]) -> None:
    await apply(conn, read_tree(FILES))
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(prepare)


@pytest.fixture
async def client(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    settings = Settings(RateLimit={"Enabled": False})  # type: ignore[arg-type]
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def now(conn: AsyncConnection[Any]) -> str:
    row = await (await conn.execute("SELECT clock_timestamp()")).fetchone()
    assert row is not None
    return str(row[0].astimezone(UTC).isoformat().replace("+00:00", "Z"))


async def created(client: Client, path: str, **values: Any) -> str:
    response = await client.post(path, json=values)
    assert response.status_code == 201, response.text
    return str(response.json()["_sys_id"])


QUESTIONS: list[dict[str, Any]] = [
    {"state": "all", "expand": "country", "count": "true"},
    {"state": "active", "sort": "_sys_id", "take": 3},
    {"state": "deleted", "sort": "-code", "count": "true"},
    {"filter": "[country].[Name] = 'n1'", "sort": "code", "fields": "code,country"},
    {"filter": "[rank] > 1 OR [seen] IS NOT NULL", "state": "all", "skip": 1, "sort": "rank,code"},
]


class Past:
    """What was answered after each write, to be asked for again."""

    def __init__(self, client: Client, conn: AsyncConnection[Any]) -> None:
        self.client = client
        self.conn = conn
        self.answers: list[tuple[str, list[Any]]] = []

    async def note(self) -> None:
        answers = [await self._answer(question) for question in QUESTIONS]
        self.answers.append((await now(self.conn), answers))

    async def compare(self) -> None:
        for moment, answers in self.answers:
            for question, expected in zip(QUESTIONS, answers, strict=True):
                found = await self._answer({**question, "asOfUtc": moment})
                assert found == expected, (moment, question)

    async def _answer(self, question: dict[str, Any]) -> Any:
        response = await self.client.get(SITES, params=question)
        assert response.status_code == 200, response.text
        document = response.json()
        document.pop("nextAfter")  # is bound to its moment
        return document


async def write_at_random(client: Client, chance: random.Random) -> None:
    """Send one write, which may be refused."""
    path = chance.choice([SITES, SITES, SITES, COUNTRIES])
    code = chance.choice("ABCDEF")
    rows = (await client.get(path, params={"state": "all", "sort": "code"})).json()["items"]
    if path is SITES:
        values: dict[str, Any] = {"code": code, "rank": chance.choice([None, 1, 2, 3])}
        values["country"] = chance.choice([None, "A", "B", "C"])
        values["seen"] = chance.choice([None, "2026-02-03T04:05:06.7Z"])
    else:
        values = {"code": code, "Name": f"n{chance.randrange(3)}"}
    row = f"{path}/{chance.choice(rows)['_sys_id']}" if rows else path
    match chance.choice(["create"] * 4 + ["update"] * 4 + ["soft", "restore", "hard"]):
        case "create":
            await client.post(path, json=values)
        case "update" if rows:
            if chance.random() < 0.7:  # else it is mostly taken
                del values["code"]
            await client.put(row, json=values)
        case "soft" if rows:
            await client.delete(row, params={"soft": "true"})
        case "restore" if rows:
            await client.post(f"{row}/restore")
        case "hard" if rows:
            await client.delete(row)


@pytest.mark.parametrize("seed", range(2))
async def test_what_was_answered_then_is_answered_again(
    client: Client, conn: AsyncConnection[Any], seed: int
) -> None:
    chance, past = random.Random(seed), Past(client, conn)
    await past.note()
    for code in "ABC":
        await created(client, COUNTRIES, code=code, Name=f"n{code}")
    for _ in range(40):
        await write_at_random(client, chance)
        await past.note()
    sizes = {answers[0]["totalCount"] for _, answers in past.answers}
    assert len(sizes) > 3, "the rows came and went"
    kept = await (
        await conn.execute(
            "SELECT (SELECT count(*) FROM mdm_data.site__history)"
            " + (SELECT count(*) FROM mdm_data.country__history)"
        )
    ).fetchone()
    assert kept and kept[0] > 5
    await past.compare()


async def test_one_row_of_the_past(client: Client, conn: AsyncConnection[Any]) -> None:
    before = await now(conn)
    row_id = await created(client, SITES, code="A", rank=1)
    then = (await client.get(f"{SITES}/{row_id}")).json()
    moment = await now(conn)
    await client.put(f"{SITES}/{row_id}", json={"rank": 2})
    await client.delete(f"{SITES}/{row_id}")
    response = await client.get(f"{SITES}/{row_id}", params={"asOfUtc": moment})
    assert (response.status_code, response.json()) == (200, then)
    assert response.headers["etag"] == '"v1"'
    assert response.headers["cache-control"] == "no-store"
    for gone in (before, await now(conn)):
        absent = await client.get(f"{SITES}/{row_id}", params={"asOfUtc": gone})
        assert problem(absent) == (404, "ROW_NOT_FOUND")


async def test_pages_of_the_past_are_followed_with_their_moment(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    ids = [await created(client, SITES, code=code, rank=1) for code in "ABCDE"]
    moment = await now(conn)
    for row_id in ids:
        await client.delete(f"{SITES}/{row_id}")
    walked: list[str] = []
    params = {"asOfUtc": moment, "take": "2", "sort": "code"}
    while True:
        document = (await client.get(SITES, params=params)).json()
        walked += [row["code"] for row in document["items"]]
        if not document["hasMore"]:
            break
        params["after"] = document["nextAfter"]
    assert walked == list("ABCDE")
    params["asOfUtc"] = await now(conn)
    assert problem(await client.get(SITES, params=params)) == (400, "REQUEST_INVALID")
    assert (await client.get(SITES)).json()["items"] == []


@pytest.mark.parametrize(
    ("moment", "hint"),
    [
        ("yesterday", "write it like"),
        ("2026-02-30T00:00:00Z", "write it like"),
        ("2026-01-01T00:00:00.1234567Z", "write it like"),
        ("2026-01-01T00:00:00 01:00", "%2B"),
        ("9999-12-31T23:59:59Z", "leave it out for the present"),
    ],
)
async def test_moments_that_are_none(client: Client, moment: str, hint: str) -> None:
    for path in (SITES, f"{SITES}/00000000-0000-0000-0000-000000000001"):
        response = await client.get(path, params={"asOfUtc": moment})
        assert problem(response) == (400, "REQUEST_INVALID")
        assert "asOfUtc" in response.json()["detail"] and hint in response.json()["hint"]


async def test_moments_may_have_an_offset(client: Client, conn: AsyncConnection[Any]) -> None:
    await created(client, SITES, code="A")
    later = datetime.now(UTC)
    zone = later + timedelta(hours=5)
    for text in (
        later.isoformat(),
        later.strftime("%Y-%m-%dT%H:%M:%S.%f"),
        zone.strftime("%Y-%m-%dT%H:%M:%S.%f+05:00"),
    ):
        found = await client.get(SITES, params={"asOfUtc": text})
        assert len(found.json()["items"]) == 1, text
    early = await client.get(SITES, params={"asOfUtc": "0001-01-01", "count": "true"})
    assert (early.json()["items"], early.json()["totalCount"]) == ([], 0)


async def test_entities_without_history_have_no_past(client: Client) -> None:
    row_id = await created(client, "/api/v1/entities/plain/data", text="x")
    for path in (
        "/api/v1/entities/plain/data?asOfUtc=2026-01-01",
        f"/api/v1/entities/plain/data/{row_id}?asOfUtc=2026-01-01",
        "/api/v1/entities/plain/data/time-travel-bounds",
        f"/api/v1/entities/plain/versions/{row_id}",
    ):
        assert problem(await client.get(path)) == (409, "HISTORY_NOT_ENABLED")
    for path in ("nothing/data/time-travel-bounds", f"nothing/versions/{row_id}"):
        absent = await client.get(f"/api/v1/entities/{path}")
        assert problem(absent) == (404, "ENTITY_NOT_FOUND")


# --- versions and bounds --------------------------------------------------------------------------


async def test_versions_over_http(client: Client, conn: AsyncConnection[Any]) -> None:
    row_id = await created(client, SITES, code="A", rank=1, secret="s")
    row = f"{SITES}/{row_id}"
    states = [(await client.get(row)).json()]
    for write in (
        client.put(row, json={"rank": 2}),
        client.delete(row, params={"soft": "true"}),
        client.post(f"{row}/restore"),
    ):
        assert (await write).is_success
        states.append((await client.get(row)).json())
    response = await client.get(f"{VERSIONS}/{row_id}")
    assert response.headers["cache-control"] == "no-store"
    document = response.json()
    items = document.pop("items")
    assert document == {"skip": 0, "take": 100, "hasMore": False, "totalCount": 4}
    assert [item["row"] for item in items] == states[::-1]
    assert [item["version"] for item in items] == [4, 3, 2, 1]
    assert [item["action"] for item in items] == [
        "data_restored", "data_soft_deleted", "data_updated", "data_created"]  # fmt: skip
    assert [item["validFrom"] for item in items] == [
        state["_sys_last_modified_at"] for state in states[::-1]
    ]
    assert [item["validTo"] for item in items] == [None, *(i["validFrom"] for i in items[:-1])]
    assert {item["changedBy"] for item in items} == {states[0]["_sys_created_by"]}

    assert (await client.delete(row)).is_success
    gone = (await client.get(f"{VERSIONS}/{row_id}", params={"take": 1, "skip": 1})).json()
    assert [item["version"] for item in gone["items"]] == [3]
    assert gone["hasMore"] and gone["totalCount"] == 4
    last = (await client.get(f"{VERSIONS}/{row_id}", params={"take": 1})).json()["items"][0]
    assert last["validTo"] is not None


async def test_each_caller_sees_the_past_that_is_his(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    for code in ("CH", "DE"):
        await created(client, COUNTRIES, code=code)
    row_id = await created(client, SITES, code="A", country="DE", secret="s")
    hidden = await now(conn)
    await client.put(f"{SITES}/{row_id}", json={"country": "CH"})
    visible = await now(conn)
    await client.put(f"{SITES}/{row_id}", json={"country": "DE"})
    other = await created(client, SITES, code="B", country="DE")

    client.headers["X-API-Key"] = await add_key(conn, "swiss")
    for moment, codes in ((hidden, []), (visible, ["A"]), (await now(conn), [])):
        params = {"asOfUtc": moment, "count": "true"}
        found = (await client.get(SITES, params=params)).json()
        assert [row["code"] for row in found["items"]] == codes
        assert found["totalCount"] == len(codes)
        assert all(row["secret"] == "***" for row in found["items"])
    page = (await client.get(f"{VERSIONS}/{row_id}")).json()
    assert [(item["version"], item["row"]["secret"]) for item in page["items"]] == [(2, "***")]
    answers = []
    for absent in (other, "00000000-0000-0000-0000-000000000001", "nonsense"):
        response = await client.get(f"{VERSIONS}/{absent}")
        assert problem(response) == (404, "ROW_NOT_FOUND")
        answers.append(response.json()["detail"].replace(absent, "ID"))
    assert len(set(answers)) == 1


async def test_bounds_over_http(client: Client, conn: AsyncConnection[Any]) -> None:
    path = f"{SITES}/time-travel-bounds"
    empty = (await client.get(path)).json()
    assert empty["fromUtc"] is None
    row_id = await created(client, SITES, code="A")
    row = (await client.get(f"{SITES}/{row_id}")).json()
    bounds = (await client.get(path)).json()
    assert bounds["fromUtc"] == row["_sys_created_at"]
    for end in ("fromUtc", "toUtc"):
        found = await client.get(SITES, params={"asOfUtc": bounds[end]})
        assert len(found.json()["items"]) == 1
    refused = await client.get(path, params={"asOfUtc": bounds["toUtc"]})
    assert problem(refused) == (400, "REQUEST_INVALID")


async def test_history_that_goes_off_and_on_leaves_a_gap(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    """Deployed for real: the history table is archived and comes back with its versions."""
    row_id = await created(client, SITES, code="A", rank=1)
    moments = [await now(conn)]

    async def write(rank: int) -> None:
        assert (await client.put(f"{SITES}/{row_id}", json={"rank": rank})).is_success
        moments.append(await now(conn))

    await write(2)
    without = SITE.replace("historyEnabled: true", "historyEnabled: false")
    await apply(conn, read_tree({**FILES, "entities/site.yaml": without.encode()}))
    await write(3)
    refused = await client.get(SITES, params={"asOfUtc": moments[0]})
    assert problem(refused) == (409, "HISTORY_NOT_ENABLED")
    await write(4)
    await apply(conn, read_tree(FILES))
    await write(5)
    ranks = []
    for moment in moments:
        found = await client.get(SITES, params={"asOfUtc": moment})
        ranks.append([row["rank"] for row in found.json()["items"]])
    # Version 3 was not kept: what was there when history came on again stands for it, from the end
    # of the last version that was kept.
    assert ranks == [[1], [4], [4], [4], [5]]
    items = (await client.get(f"{VERSIONS}/{row_id}")).json()["items"]
    assert [item["version"] for item in items] == [5, 4, 1]
    assert items[1]["validFrom"] == items[2]["validTo"]


@pytest.mark.parametrize("tier", ["Community", "Professional", "Enterprise"])
async def test_what_each_tier_has(database_url: str, conn: AsyncConnection[Any], tier: str) -> None:
    settings = Settings(Tier=tier)  # type: ignore[arg-type]
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        client.headers["X-API-Key"] = KEY
        row_id = await created(client, SITES, code="A")
        paths = {
            "Professional": [f"{VERSIONS}/{row_id}"],
            "Enterprise": [
                f"{SITES}/time-travel-bounds",
                f"{SITES}?asOfUtc=2026-01-01",
                f"{SITES}/{row_id}?asOfUtc={await now(conn)}",
            ],
        }
        order = ["Community", *paths]
        for needed, each in paths.items():
            for path in each:
                response = await client.get(path)
                if order.index(tier) < order.index(needed):
                    assert problem(response) == (403, "TIER_REQUIRED")
                else:
                    assert response.status_code == 200, response.text
