"""Options of references and suggestions over HTTP: what is offered, in which order, and to whom."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.likeness import folded, like_pattern, likeness
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker, Prepare
from tests.support import by_hand
from tests.support.serving import KEY, add_key, client_of, problem, served
from tests.unit.test_likeness import LETTERS

pytestmark = pytest.mark.anyio
Client = httpx2.AsyncClient

FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: ref}, {name: crm}]
""",
    "entities/city.yaml": b"""
name: city
domain: ref
keyColumns: [Code]
displayRefColumn: Name
columns:
  - {name: Code, dataType: string, nullable: false}
  - {name: Name, dataType: string}
  - {name: owner, dataType: string}
""",
    "entities/rate.yaml": b"""
name: rate
domain: ref
keyColumns: [number]
displayRefColumn: secret
columns:
  - {name: number, dataType: int, nullable: false}
  - {name: secret, dataType: string, classification: restricted}
  - {name: token, dataType: string, classification: restricted, unique: true}
""",
    "entities/customer.yaml": b"""
name: customer
domain: crm
keyColumns: [login]
columns:
  - {name: login, dataType: string, nullable: false, autocomplete: true}
  - {name: City, dataType: string, reference: {entity: city}}
  - {name: rate, dataType: int, reference: {entity: rate}}
  - {name: token, dataType: string, reference: {entity: rate, column: token}}
  - {name: Segment, dataType: string, autocomplete: true}
  - {name: note, dataType: text, autocomplete: true, classification: restricted}
  - {name: seen, dataType: datetime, autocomplete: true}
  - {name: size, dataType: decimal, autocomplete: true}
  - {name: flag, dataType: bool, autocomplete: true}
  - {name: extra, dataType: json, autocomplete: true}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:some"], domains: [ref], entities: [city], actions: [read],
     rowFilterDsl: "[owner] = 'some'"}
  - {users: ["apikey:some"], domains: [ref], entities: [rate], actions: [read]}
  - {users: ["apikey:some"], domains: [crm], entities: [customer], actions: [read],
     rowFilterDsl: "[City].[owner] = 'some'"}
  - {users: ["apikey:crm"], domains: [crm], actions: [read, viewrestricted]}
""",
}
CITIES: list[dict[str, Any]] = [
    {"code": "ZH", "name": "Zürich", "owner": "some"},
    {"code": "GE", "name": "Genève", "owner": "other"},
    {"code": "GN", "name": "Genua", "owner": "some"},
    {"code": "GA", "name": "St. Gallen", "owner": "some"},
    {"code": "XX", "name": None, "owner": "some"},
    {"code": "AG", "name": "Aargau", "owner": "some", "_sys_is_deleted": True},
]
RATES: list[dict[str, Any]] = [
    {"number": 10, "secret": "zehn", "token": "t10"},
    {"number": 2, "secret": "zwei", "token": "t2"},
    {"number": 21, "secret": "zwanzig", "token": "t21"},
]
CUSTOMERS: list[dict[str, Any]] = [
    {"login": "a", "city": "ZH", "segment": "Großhandel", "note": "n", "size": "1.50"},
    {"login": "b", "city": "ZH", "segment": "Großhandel", "flag": True, "extra": {"x": 1}},
    {"login": "c", "city": "GN", "segment": "retail", "seen": "2026-01-02T03:04:05Z"},
    {"login": "d", "city": "GN", "segment": "Export", "size": "1.50", "flag": False},
    {"login": "e", "city": "GE", "segment": "hidden", "size": "7"},
    {"login": "f", "city": "GE", "segment": "hidden"},
    {"login": "g", "city": "GE", "segment": "hidden"},
    {"login": "h", "city": "ZH", "segment": None, "_sys_is_deleted": True},
]
OPTIONS = "/api/v1/entities/customer/data/ref-options"
SUGGESTIONS = "/api/v1/entities/customer/data/column-suggestions"
Rows = Sequence[Mapping[str, Any]]


KEYS: dict[str, str] = {}  # of those whom the warehouse knows, made with it


async def prepared(conn: AsyncConnection[Any], cities: Rows, customers: Rows) -> dict[str, str]:
    """Deploy, insert, and return the keys by name."""
    await by_hand.deploy(conn, read_tree(FILES))
    await by_hand.insert(conn, "city", cities)
    await by_hand.insert(conn, "rate", RATES)
    await by_hand.insert(conn, "customer", customers)
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    return {"root": KEY, "some": await add_key(conn, "some"), "crm": await add_key(conn, "crm")}


async def choices(conn: AsyncConnection[Any]) -> None:
    KEYS.update(await prepared(conn, CITIES, CUSTOMERS))


@pytest.fixture(scope="module")
def shared_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(choices)


@pytest.fixture(scope="module")
async def shared_app(shared_url: str) -> AsyncIterator[Starlette]:
    """The warehouse that the tests read and none changes."""
    app = create_app(database_url=shared_url, settings=Settings())
    async with served(app):
        yield app


@pytest.fixture
def keys(shared_url: str) -> dict[str, str]:
    return KEYS


@pytest.fixture
async def client(shared_app: Starlette) -> AsyncIterator[Client]:
    async with client_of(shared_app) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def options(client: Client, path: str, key: str = KEY, **params: Any) -> list[Any]:
    response = await client.get(path, params=params, headers={"X-API-Key": key})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    return [(each["value"], each["label"]) for each in response.json()["options"]]


# --- options --------------------------------------------------------------------------------------


async def test_without_a_text_options_come_by_value(client: Client) -> None:
    assert await options(client, OPTIONS, column="city") == [
        ("GA", "St. Gallen"),
        ("GE", "Genève"),
        ("GN", "Genua"),
        ("XX", "XX"),
        ("ZH", "Zürich"),
    ]
    assert await options(client, OPTIONS, column="CITY", take=1, q=" ") == [("GA", "St. Gallen")]


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("zurich", ["ZH"]),
        ("ZÜ", ["ZH"]),
        ("gen", ["GN", "GE"]),  # both begin with it: by label
        ("ge", ["GE", "GN"]),  # the whole value before a beginning
        ("ga", ["GA"]),
        ("g", ["GN", "GE", "GA"]),
        ("L", ["GA"]),
        ("xx", ["XX"]),
        ("t. g", ["GA"]),
        ("nothing", []),
        ("%", []),
        ("_", []),
        (".*", []),
        ("aargau", []),  # deleted
        ("'; --", []),
        ("(", []),
        ("***", []),
        ("\\", []),
    ],
)
async def test_a_text_finds_values_and_labels(client: Client, q: str, expected: list[str]) -> None:
    assert [value for value, _ in await options(client, OPTIONS, column="City", q=q)] == expected


async def test_only_what_the_caller_may_see_is_offered(
    client: Client, keys: dict[str, str]
) -> None:
    seen = await options(client, OPTIONS, keys["some"], column="city")
    assert [value for value, _ in seen] == ["GA", "GN", "XX", "ZH"]
    assert await options(client, OPTIONS, keys["some"], column="city", q="genève") == []


async def test_a_masked_label_falls_back_to_the_value_and_finds_nothing(
    client: Client, keys: dict[str, str]
) -> None:
    clear = [(2, "zwei"), (10, "zehn"), (21, "zwanzig")]
    assert await options(client, OPTIONS, column="rate") == clear
    assert await options(client, OPTIONS, column="rate", q="zw") == [(21, "zwanzig"), (2, "zwei")]
    masked = [(2, "2"), (10, "10"), (21, "21")]
    assert await options(client, OPTIONS, keys["some"], column="rate") == masked
    assert await options(client, OPTIONS, keys["some"], column="rate", q="zw") == []
    assert await options(client, OPTIONS, keys["some"], column="rate", q="2") == [
        (2, "2"),
        (21, "21"),
    ]


async def test_a_masked_key_is_not_offered(client: Client, keys: dict[str, str]) -> None:
    assert len(await options(client, OPTIONS, column="token")) == 3
    given = {"params": {"column": "token"}, "headers": {"X-API-Key": keys["some"]}}
    assert problem(await client.get(OPTIONS, **given)) == (403, "COLUMN_RESTRICTED")


async def test_no_right_on_the_target_is_refused(client: Client, keys: dict[str, str]) -> None:
    given = {"params": {"column": "city"}, "headers": {"X-API-Key": keys["crm"]}}
    assert problem(await client.get(OPTIONS, **given)) == (403, "ACCESS_DENIED")


# --- suggestions ----------------------------------------------------------------------------------


async def test_suggestions_come_by_frequency_then_by_value(client: Client) -> None:
    found = await options(client, SUGGESTIONS, column="segment")
    assert [value for value, _ in found] == ["hidden", "Großhandel", "Export", "retail"]
    assert await options(client, SUGGESTIONS, column="Segment", q="GROSS") == [
        ("Großhandel", "Großhandel")
    ]
    assert [v for v, _ in await options(client, SUGGESTIONS, column="login", q="", take=3)] == [
        "a",
        "b",
        "c",
    ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("size", [(1.5, "1.50"), (7, "7")]),
        ("flag", [(False, "false"), (True, "true")]),
        ("seen", [("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z")]),
        ("extra", [({"x": 1}, '{"x": 1}')]),
        ("note", [("n", "n")]),
    ],
)
async def test_values_are_as_rows_have_them(
    client: Client, column: str, expected: list[Any]
) -> None:
    assert await options(client, SUGGESTIONS, column=column) == expected
    text = expected[0][1]
    assert (await options(client, SUGGESTIONS, column=column, q=text))[0] == expected[0]


async def test_suggestions_count_only_what_the_caller_may_see(
    client: Client, keys: dict[str, str]
) -> None:
    found = await options(client, SUGGESTIONS, keys["some"], column="segment")
    assert [value for value, _ in found] == ["Großhandel", "Export", "retail"]
    given = {"params": {"column": "note"}, "headers": {"X-API-Key": keys["some"]}}
    assert problem(await client.get(SUGGESTIONS, **given)) == (403, "COLUMN_RESTRICTED")
    assert await options(client, SUGGESTIONS, keys["crm"], column="note") == [("n", "n")]


# --- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "params", "part"),
    [
        (OPTIONS, {}, "column is missing"),
        (OPTIONS, {"column": "segment"}, "refers to nothing"),
        (OPTIONS, {"column": "citty"}, "does not have"),
        (OPTIONS, {"column": "_sys_id"}, "does not have"),
        (OPTIONS, {"column": "city", "take": "101"}, "take must be"),
        (OPTIONS, {"column": "city", "take": "0"}, "take must be"),
        (OPTIONS, {"column": "city", "q": "x" * 201}, "longer than"),
        (SUGGESTIONS, {}, "column is missing"),
        (SUGGESTIONS, {"column": "city"}, "offers no suggestions"),
        (SUGGESTIONS, {"column": "nope"}, "does not have"),
    ],
)
async def test_wrong_requests_are_told(
    client: Client, path: str, params: dict[str, str], part: str
) -> None:
    response = await client.get(path, params=params)
    assert problem(response) == (400, "REQUEST_INVALID")
    assert part in response.json()["detail"]


async def test_hints_name_what_would_do(client: Client) -> None:
    hint = (await client.get(OPTIONS, params={"column": "segment"})).json()["hint"]
    assert hint == "reference columns: City, rate, token"
    hint = (await client.get(SUGGESTIONS, params={"column": "City"})).json()["hint"]
    assert hint == "set autocomplete: true on 'City' in the definition"


async def test_absent_entities_are_absent(client: Client, keys: dict[str, str]) -> None:
    for path in (OPTIONS, SUGGESTIONS):
        absent = path.replace("customer", "nobody")
        assert problem(await client.get(absent, params={"column": "x"})) == (
            404,
            "ENTITY_NOT_FOUND",
        )
        hidden = path.replace("customer", "city")
        response = await client.get(
            hidden, params={"column": "Name"}, headers={"X-API-Key": keys["crm"]}
        )
        assert problem(response) == (404, "ENTITY_NOT_FOUND")


async def test_the_longest_text_is_answered(client: Client) -> None:
    for q in ("ä" * 200, "sae" * 66, "ß" * 200, "(" * 200):
        assert await options(client, OPTIONS, column="city", q=q) == []


async def test_postgresql_reads_the_patterns_as_we_mean_them(
    conn: AsyncConnection[Any],
) -> None:
    chance = random.Random(7)
    pairs = []
    for _ in range(2_000):
        text = "".join(chance.choices(LETTERS, k=chance.randrange(1, 9)))
        start, end = sorted((chance.randrange(len(text)), len(text)))
        typed = chance.choice((text[start:end], "".join(chance.choices(LETTERS, k=2))))
        pairs.append(
            (text, likeness(typed), f"%{like_pattern(typed)}%", folded(typed) in folded(text))
        )
    query = """SELECT text, found FROM (
        SELECT text, expected, CASE WHEN octet_length(text) = length(text)
               THEN lower(text COLLATE "C") LIKE "like" ELSE text ~ part END AS found
          FROM unnest(%s::text[], %s::text[], %s::text[], %s::bool[])
               AS given(text, part, "like", expected)) x WHERE expected AND NOT found"""
    missed = await (
        await conn.execute(query, [list(e) for e in zip(*pairs, strict=True)])
    ).fetchall()
    assert missed == []
    assert 200 < sum(pair[3] for pair in pairs) < 1_900


# --- I7: nothing is learned of rows that are hidden -----------------------------------------------

HIDDEN_CITIES = [{"code": "ZG", "name": "Zug", "owner": "other"}]
HIDDEN_CUSTOMERS = [
    {"login": f"x{n}", "city": "GE", "segment": segment, "size": "3"}
    for n, segment in enumerate(["retail"] * 5 + ["Export", "geheim"])
]
REQUESTS = [
    (path, {"column": column, "q": q, "take": str(take)})
    for path, columns in ((OPTIONS, ("city", "rate")), (SUGGESTIONS, ("segment", "login", "size")))
    for column in columns
    for q in ("", "z", "g", "e", "zug", "geheim", "3", "x")
    for take in (1, 20)
]


async def answers(url: str, caller: str, cities: Rows, customers: Rows) -> list[bytes]:
    async with await connect(url, application_name="test") as conn:
        keys = await prepared(conn, cities, customers)
    async with served(create_app(database_url=url, settings=Settings())) as client:
        headers = {"X-API-Key": keys[caller]}
        return [
            (await client.get(path, params=params, headers=headers)).content
            for path, params in REQUESTS
        ]


async def test_hidden_rows_change_no_byte(make_database: DatabaseMaker) -> None:
    plain = (CITIES, CUSTOMERS)
    more = ([*HIDDEN_CITIES, *CITIES], [*HIDDEN_CUSTOMERS, *CUSTOMERS])
    for caller, is_same in (("some", True), ("root", False)):  # the second is the control
        without = await answers(make_database(), caller, *plain)
        assert (await answers(make_database(), caller, *more) == without) is is_same, caller
        assert any(b"value" in each for each in without)
