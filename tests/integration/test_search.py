"""Search over HTTP: what is found, in which order, what is marked, and what tells nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data import search
from mdm_gitops.data.search_sql import Bounds
from mdm_gitops.data.search_words import (
    LETTERS_OF_WORD,
    best_fit,
    may_stand_inside,
    plain_text,
    words_of,
)
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker
from tests.support import by_hand
from tests.support.serving import KEY, add_key, served
from tests.support.warehouses import apply, plan

pytestmark = pytest.mark.anyio
Client = httpx2.AsyncClient

CUSTOMER = """
name: customer
displayName: Kunde
description: A company that buys something
domain: crm
aliases: [buyer]
keyColumns: [code]
displayRefColumn: name
search: {enabled: true}
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: note, dataType: text}
  - {name: name, dataType: string}
  - {name: city, dataType: string}
  - {name: iban, dataType: string, classification: restricted}
  - {name: size, dataType: decimal, description: Number of employees}
"""
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: crm}, {name: hr}]\n",
    "entities/customer.yaml": CUSTOMER.encode(),
    "entities/site.yaml": b"""
name: site
domain: crm
keyColumns: [number]
columns:
  - {name: number, dataType: decimal, nullable: false}
  - {name: town, dataType: string}
""",
    "entities/person.yaml": b"""
name: person
domain: hr
approvalRequired: true
keyColumns: [login]
displayRefColumn: secret
search: {enabled: true, columns: [login]}
columns:
  - {name: login, dataType: string, nullable: false}
  - {name: secret, dataType: string, classification: restricted}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:some"], domains: [crm], entities: [customer], actions: [read],
     rowFilterDsl: "[city] = 'Bern'"}
  - {users: ["apikey:hr"], domains: [hr], actions: [read]}
""",
}
CUSTOMERS: list[dict[str, Any]] = [
    {"code": "A1", "name": "Z\u00fcrich M\u00fcller GmbH", "city": "Bern", "iban": "CH99"},
    {"code": "A2", "name": "Zurich", "city": "Basel", "iban": "Zurich"},
    {"code": "A3", "name": "Alt-Z\u00fcricher Bank", "city": "Bern"},
    {"code": "A4", "name": "Neuzuricher Verein", "city": "Genf"},
    {"code": "A5", "name": "Other", "city": "Z\u00fcrich"},
    {"code": "A6", "name": "Gone Zurich", "city": "Bern", "_sys_is_deleted": True},
    {"code": "A7", "name": "\u5317\u4eac\u5e02\u573a <b>&amp;</b>", "city": None},
    {
        "code": "A8",
        "name": "Stra\u00dfenbau",
        "note": "x " * 100 + "Donaudampfschifffahrt",
        "city": "",
    },
    {"code": "A9", "name": "\U0001f389 party", "city": "o'neil \\ & | ! :* ("},
]
SITES: list[dict[str, Any]] = [
    {"number": "1.50", "town": "Zurich"},
    {"number": "2", "town": "Bern"},
]
DATA, ENTITIES = "/api/v1/search/data", "/api/v1/search/entities"


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        await apply(conn, read_tree(FILES))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        await by_hand.insert(conn, "customer", CUSTOMERS)
        await by_hand.insert(conn, "site", SITES)
        yield conn


@pytest.fixture
async def client(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    async with served(create_app(database_url=database_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def found(client: Client, q: str, key: str = KEY, **params: Any) -> dict[str, Any]:
    given = {"q": q, "entity": "customer", **params}
    given = {name: value for name, value in given.items() if value is not None}
    answer = await client.get(DATA, params=given, headers={"X-API-Key": key})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def codes(client: Client, q: str, key: str = KEY, **params: Any) -> list[str]:
    items = (await found(client, q, key, **params))["items"]
    return [str(next(iter(item["key"].values()))) for item in items]


FINDS = [
    # whole in the shown column and nothing else, whole there, whole elsewhere, beginning, inside
    ("zurich", ["A2", "A1", "A5", "A3", "A4"]),
    ("Z\u00dcRI", ["A3", "A2", "A1", "A5", "A4"]),
    ("muller zurich", ["A1"]),
    ("zurich, bern!", ["A1", "A3"]),
    ("a1", ["A1"]),
    ("richer", ["A3", "A4"]),
    ("ich", ["A3", "A4", "A2", "A1", "A5"]),
    ("ch", []),  # two letters are no inside
    ("ur", []),
    ("strassenbau", ["A8"]),
    ("\u5e02", ["A7"]),
    ("\u5317\u4eac", ["A7"]),
    ("dampfschiff", ["A8"]),
    ("gone", []),  # deleted
    ("ch99", []),  # restricted
    ("\U0001f389", ["A9"]),
    ("o'neil", ["A9"]),
    ("neil o", ["A9"]),
    ("zurich nothing", []),
    ("muller z", ["A1"]),
    ("muller x", []),
    ("amp", ["A7", "A8"]),
    ("%", []),
    ("'", []),
    ("':* | !(", []),
    ("zurich <-> bern & !x", []),
    ("\u200f\u05d0", []),
    ("   ", []),
]


async def test_words_beginnings_and_insides_are_found_in_their_order(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    for q, expected in FINDS:
        assert await codes(client, q) == expected, q
    # The same without an index: only slower.
    await conn.execute("DROP INDEX mdm_data.customer__search")
    for q, expected in FINDS:
        answer = await found(client, q)
        assert [item["key"]["code"] for item in answer["items"]] == expected, q
        assert answer["notIndexed"] == (["customer"] if list(words_of(q)) else [])
        assert not answer["incomplete"]


async def test_what_was_found_is_marked_in_the_original_text(client: Client) -> None:
    (item,) = (await found(client, "zuri muller bern"))["items"]
    assert (item["entity"], item["label"]) == ("customer", "Z\u00fcrich M\u00fcller GmbH")
    assert {h["column"]: h["parts"] for h in item["highlights"]} == {
        "name": [
            {"text": "Z\u00fcri", "match": True},
            {"text": "ch ", "match": False},
            {"text": "M\u00fcller", "match": True},
            {"text": " GmbH", "match": False},
        ],
        "city": [{"text": "Bern", "match": True}],
    }
    (item,) = (await found(client, "schifffahrt"))["items"]
    (highlight,) = item["highlights"]
    shown = "".join(part["text"] for part in highlight["parts"])
    assert shown.startswith("\u2026") and shown.endswith("schifffahrt") and len(shown) < 200
    row = (await client.get(f"/api/v1/entities/customer/data/{item['_sys_id']}")).json()
    assert row["code"] == "A8"


async def test_all_that_may_be_read_is_searched_and_no_more(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    await by_hand.insert(conn, "person", [{"login": "zurich", "secret": "boss"}])
    some, hr = await add_key(conn, "some"), await add_key(conn, "hr")
    answer = await found(client, "zurich", entity=None)
    assert [(item["entity"], item["label"]) for item in answer["items"]][:3] == [
        ("person", "boss"),
        ("customer", "Zurich"),
        ("customer", "Z\u00fcrich M\u00fcller GmbH"),
    ]
    assert answer["notIndexed"] == ["site"]
    assert {"number": 1.5} in [item["key"] for item in answer["items"]]
    assert await codes(client, "zurich", some) == ["A1", "A3"]
    assert (await found(client, "zurich", some, entity=None))["total"] == 2
    assert await codes(client, "boss", hr, entity="person") == []
    (item,) = (await found(client, "zurich", hr, entity=None))["items"]
    assert item["label"] == "zurich"  # the shown column is masked
    refused = await client.get(
        DATA, params={"q": "x", "entity": "person"}, headers={"X-API-Key": some}
    )
    assert refused.json()["code"] == "ENTITY_NOT_FOUND"


async def test_rows_that_wait_for_approval_are_not_found(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    body = {"login": "waiting", "secret": "x"}
    assert (await client.post("/api/v1/entities/person/data", json=body)).status_code == 202
    assert await codes(client, "waiting", entity="person") == []


async def test_pages_and_bounds(
    client: Client, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await codes(client, "ich")
    pages = [(await codes(client, "ich", skip=n, take=2)) for n in range(0, 6, 2)]
    assert [code for page in pages for code in page] == whole and len(pages[0]) == 2
    assert (await found(client, "ich", take=1))["total"] == 5
    monkeypatch.setattr(search, "OF_ONE", Bounds(candidates=2, scanned=3))
    answer = await found(client, "ich")
    assert answer["incomplete"] and "add a word" in answer["hint"]
    assert answer["total"] == 3
    some = await add_key(conn, "some")
    assert not (await found(client, "ich", some))["incomplete"]
    monkeypatch.setattr(search, "OF_ONE", Bounds(candidates=1, scanned=3))
    assert (await codes(client, "zuric", some))[0] == "A3"
    assert (await codes(client, "zurich", some))[0] == "A1"  # whole, though others were met first
    assert (await found(client, "zurich", some))["incomplete"]
    monkeypatch.setattr(search, "OF_ONE", Bounds(candidates=2, scanned=3))
    # The bound takes the best fitting kind first: the two that have the word whole.
    assert (await codes(client, "zurich"))[:3] == ["A2", "A1", "A5"]
    answer = await found(client, "zurich", entity="site")
    assert not answer["incomplete"] and answer["notIndexed"] == ["site"]


async def test_a_scan_tells_how_far_it_went(
    client: Client, conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "OF_ONE", Bounds(candidates=2, scanned=3))
    await by_hand.insert(conn, "site", [{"number": str(n), "town": "Genf"} for n in range(3, 9)])
    answer = await found(client, "genf", entity="site")
    assert answer["incomplete"] and answer["total"] == 1
    assert "first 3 rows of site" in answer["hint"]


STATUS = {"REQUEST_INVALID": 400, "ENTITY_NOT_FOUND": 404}
REFUSED: list[tuple[dict[str, str], str]] = [
    ({}, "REQUEST_INVALID"),
    ({"q": ""}, "REQUEST_INVALID"),
    ({"q": "x" * 8_000}, "REQUEST_INVALID"),
    ({"q": "a b c d e f g h i j k"}, "REQUEST_INVALID"),
    ({"q": "a\x00b"}, "REQUEST_INVALID"),
    ({"q": "x", "take": "0"}, "REQUEST_INVALID"),
    ({"q": "x", "take": "101"}, "REQUEST_INVALID"),
    ({"q": "x", "skip": "1001"}, "REQUEST_INVALID"),
    ({"q": "x", "skip": "-1"}, "REQUEST_INVALID"),
    ({"q": "x", "entity": "nothing"}, "ENTITY_NOT_FOUND"),
    ({"q": "x", "entity": "a\"b'c"}, "ENTITY_NOT_FOUND"),
]


async def test_a_bad_request_is_refused(client: Client) -> None:
    for params, code in REFUSED:
        answer = await client.get(DATA, params=params)
        assert (answer.status_code, answer.json()["code"]) == (STATUS[code], code), params
        if "entity" not in params:
            assert (await client.get(ENTITIES, params=params)).status_code == 400, params


# --- definitions ----------------------------------------------------------------------------------


async def test_entities_are_found_by_names_descriptions_columns_and_aliases(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    async def names(q: str, key: str = KEY) -> list[str]:
        answer = await client.get(ENTITIES, params={"q": q}, headers={"X-API-Key": key})
        assert answer.status_code == 200, answer.text
        return [item["name"] for item in answer.json()["items"]]

    assert await names("customer") == ["customer"]
    assert await names("kunde") == await names("BUY") == await names("employees") == ["customer"]
    assert await names("number") == ["site", "customer"]  # a name before a description
    assert await names("log") == ["person"]
    assert await names("customer town") == []
    assert await names("kunde") == ["customer"]
    some = await add_key(conn, "some")
    assert await names("o", some) == ["customer"]  # number of
    assert await names("login", some) == []
    assert await names("town", some) == []
    item = (await client.get(ENTITIES, params={"q": "kunde empl"})).json()["items"][0]
    assert item["highlights"] == [
        {"field": "displayName", "parts": [{"text": "Kunde", "match": True}]},
        {
            "field": "description",
            "column": "size",
            "parts": [
                {"text": "Number of ", "match": False},
                {"text": "empl", "match": True},
                {"text": "oyees", "match": False},
            ],
        },
    ]


# --- the index ------------------------------------------------------------------------------------


async def test_the_index_is_planned_built_and_set_right(make_database: DatabaseMaker) -> None:
    without = {**FILES, "entities/customer.yaml": CUSTOMER.replace("enabled: true", "").encode()}
    async with await connect(make_database(), application_name="test") as conn:
        await apply(conn, read_tree(without))
        await by_hand.insert(conn, "customer", CUSTOMERS)
        wanted = read_tree(FILES)
        planned = await plan(conn, wanted)
        assert [c.change.kind for c in planned.changes if c.change.kind == "add-index"]
        await apply(conn, wanted)
        assert (await plan(conn, wanted)).is_empty
        await conn.execute("DROP INDEX mdm_data.customer__search")
        assert [item.message for item in (await plan(conn, wanted)).drift] == [
            "was dropped by hand"
        ]
        await conn.execute(
            "CREATE INDEX customer__search ON mdm_data.customer"
            " USING gin (mdm.search_vector(ARRAY[code]))"
        )
        assert [i.message for i in (await plan(conn, wanted)).drift] == ["was changed by hand"]
        await apply(conn, wanted)
        assert (await plan(conn, wanted)).is_empty
        # What becomes restricted is taken out of the index at once.
        hidden = CUSTOMER.replace(
            "name: city, dataType: string",
            "name: city, dataType: string, classification: restricted",
        )
        await apply(
            conn,
            read_tree(
                {
                    **FILES,
                    "entities/customer.yaml": hidden.encode(),
                    "permissions.yaml": b"permissions: []",
                }
            ),
        )
        row = await (
            await conn.execute("SELECT pg_get_indexdef('mdm_data.customer__search'::regclass)")
        ).fetchone()
        assert row is not None and "city" not in row[0] and "iban" not in row[0]


_VECTOR = "SELECT tsvector_to_array(mdm.search_vector(%s::text[]))"
_SIGNS = st.one_of(
    st.sampled_from(
        list("aZ\u00fc\u00df\u0141\u0301 -_'.\u5317\u4eac\U0001f389\u2260\u037e7\u00b7\u0130")
    ),
    st.characters(exclude_characters="\x00", exclude_categories=("Cs", "Cn")),
)


async def test_words_are_cut_as_the_store_cuts_them(conn: AsyncConnection[Any]) -> None:
    texts: list[str] = []

    @settings(max_examples=300, deadline=None, database=None)
    @given(st.lists(_SIGNS, max_size=30).map("".join))
    def draw(text: str) -> None:
        texts.append(text)

    draw()
    for text in [*texts, "x" * 100, "a" * 6_000, "b c" * 3_000]:
        row = await (await conn.execute(_VECTOR, [[text]])).fetchone()
        assert row is not None
        lexemes = {lexeme for lexeme in row[0] if not lexeme.startswith("+")}
        assert lexemes == {word.plain[:LETTERS_OF_WORD] for word in words_of(text)}, ascii(text)


async def test_each_word_and_part_of_it_is_found_by_the_index(conn: AsyncConnection[Any]) -> None:
    """The law of the index: it finds all that fits, and hardly anything else."""
    from mdm_gitops.data.search_sql import indexed_values

    words = [
        "strassenbau",
        "zurich",
        "ab",
        "abc",
        "\u5317\u4eac\u5e02",
        "donaudampfschifffahrt",
        "abab",
    ]
    for word in words:
        parts = {word[a:b] for a in range(len(word)) for b in range(a + 1, len(word) + 1)}
        for part in sorted(parts):
            query = indexed_values([part])["any"]
            row = await (
                await conn.execute(
                    "SELECT mdm.search_vector(ARRAY[%s]) @@ %s::tsquery", [word, query]
                )
            ).fetchone()
            assert row == (bool(best_fit(part, word)),), (word, part)
            assert may_stand_inside(part) or row == (word.startswith(part),)
    # The pieces of a word, in another order, are not the word; that is for the ranking to see.
    assert best_fit("bcdefghi", "xbcdefghixfghibcde") and not best_fit("abcdefgh", "xabcdxefgh")
    query = indexed_values(["abcdefgh"])["any"]
    row = await (
        await conn.execute("SELECT mdm.search_vector(ARRAY['xabcdxefgh']) @@ %s::tsquery", [query])
    ).fetchone()
    assert row == (True,)


async def test_a_large_value_is_harmless(conn: AsyncConnection[Any]) -> None:
    large = ["\U0001f389" * 30 + f"{n} " for n in range(9_000)]
    texts = ["".join(large), "word " * 2_000_000, "x" * 10_000_000]
    row = await (await conn.execute(f"SELECT length(({_VECTOR[7:]})::text)", [texts])).fetchone()
    assert row is not None and row[0] < 1_000_000
    assert plain_text("\u0130X") == plain_text("i\u0307x")
