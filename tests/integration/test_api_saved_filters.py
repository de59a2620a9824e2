"""Saved filters over HTTP: each caller its own, checked when saved, judged again when shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.saved_filters import MAX_PER_ENTITY
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import Prepare
from tests.support import warehouses as on
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio
Client = httpx2.AsyncClient

FILES = {
    "mdm.yaml": b"""
name: test
apiVersion: mdm-gitops/v1
domains: [{name: crm}]
""",
    "entities/country.yaml": b"""
name: country
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: region, dataType: string}
""",
    "entities/customer.yaml": b"""
name: Customer
domain: crm
keyColumns: [login]
columns:
  - {name: login, dataType: string, nullable: false}
  - {name: Country, dataType: string, reference: {entity: country}}
  - {name: salary, dataType: int, classification: restricted}
  - {name: extra, dataType: json}
""",
    "permissions.yaml": b"""
permissions:
  - {users: ["apikey:reader", "apikey:other"], domains: [crm], actions: [read]}
  - {users: ["apikey:narrow"], domains: [crm], entities: [Customer], actions: [read]}
""",
}
PATH = "/api/v1/entities/customer/saved-filters"
FULL = {
    "name": "Swiss",
    "filter": "[Country] = 'CH'",
    "sort": "-login",
    "columns": ["login", "Country", "_sys_id"],
    "isDefault": True,
}


def files(**changes: bytes) -> dict[str, bytes]:
    return {**FILES, **{f"entities/{name}.yaml": text for name, text in changes.items()}}


KEYS: dict[str, str] = {}  # of those whom the warehouse knows, made with it


async def warehouse(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, read_tree(FILES))
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    for name in ("reader", "other", "narrow", "nobody"):
        KEYS[name] = await add_key(conn, name)


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(warehouse)


@pytest.fixture
def keys(database_url: str) -> dict[str, str]:
    return KEYS


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[Client]:
    """A reader's client: neither restricted columns nor writing."""
    async with served(create_app(database_url=database_url, settings=_unlimited())) as client:
        client.headers["X-API-Key"] = KEYS["reader"]
        yield client


@pytest.fixture(scope="module")
def shared_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(warehouse)


@pytest.fixture(scope="module")
async def tidy(shared_url: str) -> AsyncIterator[Client]:
    """The same client for tests that save nothing, or delete what they saved, and look."""
    async with served(create_app(database_url=shared_url, settings=_unlimited())) as client:
        client.headers["X-API-Key"] = KEYS["reader"]
        yield client


def _unlimited() -> Settings:
    return Settings(RateLimit={"Enabled": False})  # type: ignore[arg-type]


async def names(client: Client, **headers: str) -> list[str]:
    response = await client.get(PATH, headers=headers)
    assert response.status_code == 200, response.text
    return [item["name"] for item in response.json()["items"]]


async def save(client: Client, **members: Any) -> httpx2.Response:
    response = await client.post(PATH, json=members)
    assert response.status_code in (200, 201), response.text
    return response


# --- keeping --------------------------------------------------------------------------------------


async def test_what_is_saved_is_read_replaced_and_deleted(client: Client) -> None:
    created = await client.post(PATH, json=FULL)
    assert created.status_code == 201
    assert created.headers["location"] == f"{PATH}/Swiss"
    document = created.json()
    assert document.pop("updatedUtc").endswith("Z")
    assert document == {**FULL, "valid": True}

    got = await client.get(created.headers["location"])
    assert {**got.json(), "updatedUtc": ""} == {**document, "updatedUtc": ""}
    assert await names(client) == ["Swiss"]

    replaced = await client.post(PATH, json={"name": "Swiss"})
    assert replaced.status_code == 200
    assert "location" not in replaced.headers
    assert {**replaced.json(), "updatedUtc": ""} == {
        "name": "Swiss",
        "filter": "",
        "sort": "",
        "columns": [],
        "isDefault": False,
        "updatedUtc": "",
        "valid": True,
    }
    gone = await client.delete(f"{PATH}/Swiss")
    assert (gone.status_code, gone.content) == (204, b"")
    for again in (await client.delete(f"{PATH}/Swiss"), await client.get(f"{PATH}/Swiss")):
        assert problem(again) == (404, "SAVED_FILTER_NOT_FOUND")
    assert await names(client) == []


async def test_the_paths_without_version_are_the_same(client: Client) -> None:
    plain = PATH.replace("/v1", "")
    created = await client.post(plain, json={"name": "a"})
    assert created.headers["location"] == f"{plain}/a"
    assert (await client.get(f"{PATH}/a")).json() == (await client.get(f"{plain}/a")).json()
    assert (await client.get(plain)).json() == (await client.get(PATH)).json()
    assert (await client.delete(f"{plain}/a")).status_code == 204
    assert await names(client) == []


async def test_each_caller_has_its_own(client: Client, keys: dict[str, str]) -> None:
    await save(client, name="mine", filter="[login] = 'a'")
    other = {"X-API-Key": keys["other"]}
    assert await names(client, **other) == []
    for response in (
        await client.get(f"{PATH}/mine", headers=other),
        await client.delete(f"{PATH}/mine", headers=other),
    ):
        assert problem(response) == (404, "SAVED_FILTER_NOT_FOUND")
    await client.post(PATH, json={"name": "mine", "sort": "login"}, headers=other)
    assert (await client.get(f"{PATH}/mine")).json()["filter"] == "[login] = 'a'"
    assert (await client.get(f"{PATH}/mine", headers=other)).json()["sort"] == "login"


async def test_at_most_one_is_the_default(client: Client, keys: dict[str, str]) -> None:
    other = {"X-API-Key": keys["other"]}
    await client.post(PATH, json={"name": "a", "isDefault": True}, headers=other)
    await save(client, name="a", isDefault=True)
    await save(client, name="b", isDefault=True)
    await save(client, name="c")
    items = (await client.get(PATH)).json()["items"]
    assert {item["name"]: item["isDefault"] for item in items} == {
        "a": False,
        "b": True,
        "c": False,
    }
    assert (await client.get(f"{PATH}/a", headers=other)).json()["isDefault"] is True

    race = [save(client, name=f"n{n}", isDefault=True) for n in range(12)]
    await asyncio.gather(*race)
    items = (await client.get(PATH)).json()["items"]
    assert sum(item["isDefault"] for item in items) == 1


async def test_there_are_not_more_than_allowed(client: Client) -> None:
    race = [client.post(PATH, json={"name": f"n{n:03}"}) for n in range(MAX_PER_ENTITY + 10)]
    answers = await asyncio.gather(*race)
    assert sum(answer.status_code == 201 for answer in answers) == MAX_PER_ENTITY
    refused = [answer for answer in answers if answer.status_code != 201]
    assert {problem(answer) for answer in refused} == {(409, "SAVED_FILTER_LIMIT")}
    kept = await names(client)
    assert len(kept) == MAX_PER_ENTITY
    await save(client, name=kept[0], sort="login")  # what is there may still be replaced


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "/",
        "../customer",
        "x/",
        "100% & more?#[]",
        "Zürich 日本 🌍",
        "%2F",
        "a+b",
        "é" * 200,
        "'; --",
        "..x",
        "\\",
        "two  spaces",
    ],
)
async def test_odd_names_are_names(tidy: Client, name: str) -> None:
    created = await tidy.post(PATH, json={"name": name})
    assert created.status_code == 201, created.text
    assert created.headers["location"] == f"{PATH}/{quote(name, safe='')}"
    got = await tidy.get(created.headers["location"])
    assert got.json()["name"] == name
    assert (await tidy.delete(created.headers["location"])).status_code == 204
    assert await names(tidy) == []


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({}, 400, "REQUEST_INVALID"),
        ({"name": 1}, 400, "REQUEST_INVALID"),
        ({"name": None}, 400, "REQUEST_INVALID"),
        ({"name": ""}, 400, "REQUEST_INVALID"),
        ({"name": " a"}, 400, "REQUEST_INVALID"),
        ({"name": "a\nb"}, 400, "REQUEST_INVALID"),
        ({"name": ".."}, 400, "REQUEST_INVALID"),
        ({"name": "x" * 201}, 400, "REQUEST_INVALID"),
        ({"name": "a", "filter": "[login] ="}, 400, "FILTER_INVALID"),
        ({"name": "a", "filter": "[nope] = 1"}, 400, "FILTER_INVALID"),
        ({"name": "a", "filter": "[login] = '" + "x" * 8_200 + "'"}, 400, "REQUEST_INVALID"),
        ({"name": "a", "filter": ["[login] = 1"]}, 400, "REQUEST_INVALID"),
        ({"name": "a", "sort": "nope"}, 400, "REQUEST_INVALID"),
        ({"name": "a", "sort": "extra"}, 400, "REQUEST_INVALID"),
        ({"name": "a", "sort": "login," * 500}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": ["nope"]}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": ["login,country"]}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": ["login", "LOGIN"]}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": [""]}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": "login"}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": [1]}, 400, "REQUEST_INVALID"),
        ({"name": "a", "columns": ["login"] * 601}, 400, "REQUEST_INVALID"),
        ({"name": "a", "isDefault": "yes"}, 400, "REQUEST_INVALID"),
        ({"name": "a", "other": 1}, 400, "REQUEST_INVALID"),
        ({"name": "a", "filter": "[salary] > 1"}, 403, "COLUMN_RESTRICTED"),
        ({"name": "a", "sort": "salary"}, 403, "COLUMN_RESTRICTED"),
    ],
)
async def test_what_cannot_be_asked_cannot_be_saved(
    tidy: Client, members: dict[str, Any], status: int, code: str
) -> None:
    assert problem(await tidy.post(PATH, json=members)) == (status, code)
    assert await names(tidy) == []


async def test_masked_columns_may_be_shown(client: Client) -> None:
    await save(client, name="a", columns=["salary"])


async def test_a_reference_to_what_cannot_be_read_is_refused(
    client: Client, keys: dict[str, str]
) -> None:
    asked = {"name": "a", "filter": "[Country].[region] = 'EU'"}
    assert (await client.post(PATH, json=asked)).status_code == 201
    narrow = {"X-API-Key": keys["narrow"]}
    assert problem(await client.post(PATH, json=asked, headers=narrow)) == (403, "ACCESS_DENIED")


async def test_entities_out_of_sight_are_absent(client: Client, keys: dict[str, str]) -> None:
    headers = {"X-API-Key": keys["nobody"]}
    for response in (
        await client.get(PATH, headers=headers),
        await client.post(PATH, json={"name": "a"}, headers=headers),
        await client.delete(f"{PATH}/a", headers=headers),
        await client.get(PATH.replace("customer", "nothing")),
    ):
        assert problem(response) == (404, "ENTITY_NOT_FOUND")


async def test_other_bodies_are_refused(client: Client) -> None:
    text = await client.post(PATH, content="name: a", headers={"Content-Type": "text/yaml"})
    assert problem(text) == (415, "MEDIA_TYPE_UNSUPPORTED")
    assert problem(await client.post(PATH, content=b"[]")) == (400, "REQUEST_INVALID")


@pytest.mark.parametrize("tier", ["Community", "Professional"])
async def test_it_needs_the_highest_tier(
    database_url: str, keys: dict[str, str], tier: str
) -> None:
    settings = Settings(Tier=tier)  # type: ignore[arg-type]
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        client.headers["X-API-Key"] = keys["reader"]
        for path in (PATH, PATH.replace("/v1", "")):
            assert problem(await client.get(path)) == (403, "TIER_REQUIRED")
            assert problem(await client.post(path, json=FULL)) == (403, "TIER_REQUIRED")
            assert problem(await client.get(f"{path}/a")) == (403, "TIER_REQUIRED")
            assert problem(await client.delete(f"{path}/a")) == (403, "TIER_REQUIRED")


# --- what changes afterwards ----------------------------------------------------------------------

WITHOUT_LOGIN_COLUMN = b"""
name: Customer
domain: crm
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, renamedFrom: login}
  - {name: Country, dataType: string, reference: {entity: country}}
"""


async def test_one_that_no_longer_fits_says_why(client: Client, conn: AsyncConnection[Any]) -> None:
    await save(client, name="by filter", filter="[login] = 'a'")
    await save(client, name="by sort", sort="login")
    await save(client, name="by column", columns=["extra"])
    await save(client, name="fits", filter="[Country] = 'CH'", columns=["Country"])
    definitions = read_tree(files(customer=WITHOUT_LOGIN_COLUMN))
    plan = await on.plan(conn, definitions)
    [note] = plan.notes
    assert note == (
        "3 saved filters of Customer will no longer fit: 'by column' of apikey:reader (columns),"
        " 'by filter' of apikey:reader (filter), 'by sort' of apikey:reader (sort)"
    )
    assert not plan.is_blocked
    await on.apply(conn, definitions)
    items = {item["name"]: item for item in (await client.get(PATH)).json()["items"]}
    assert {name: item["valid"] for name, item in items.items()} == {
        "by column": False,
        "by filter": False,
        "by sort": False,
        "fits": True,
    }
    assert "login" in items["by filter"]["reason"]
    assert "login" in items["by sort"]["reason"]
    assert "extra" in items["by column"]["reason"]
    assert "reason" not in items["fits"]
    assert (await client.get(f"{PATH}/by%20filter")).json()["valid"] is False
    # And back again: a revert makes them whole.
    assert (await on.plan(conn, read_tree(FILES))).notes == ()
    await on.apply(conn, read_tree(FILES))
    assert {item["valid"] for item in (await client.get(PATH)).json()["items"]} == {True}


async def test_a_right_that_goes_makes_it_unfit(client: Client, conn: AsyncConnection[Any]) -> None:
    await save(client, name="a", filter="[Country].[region] = 'EU'")
    await conn.execute("UPDATE mdm.permission SET entity = 'customer'")
    item = (await client.get(f"{PATH}/a")).json()
    assert item["valid"] is False
    assert "may not read" in item["reason"]


async def test_they_follow_a_rename_and_come_back_with_the_entity(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    await save(client, name="a", filter="[login] = 'x'")
    renamed = FILES["entities/customer.yaml"].replace(b"name: Customer", b"name: client", 1)
    permissions = FILES["permissions.yaml"].replace(b"[Customer]", b"[client]")
    tree = {**FILES, "permissions.yaml": permissions}
    tree["entities/client.yaml"] = renamed + b"renamedFrom: Customer\n"
    del tree["entities/customer.yaml"]
    await on.apply(conn, read_tree(tree))
    path = PATH.replace("customer", "client")
    assert (await client.get(f"{path}/a")).json()["filter"] == "[login] = 'x'"

    del tree["entities/client.yaml"]
    tree["permissions.yaml"] = b"permissions: []\n"
    plan = await on.plan(conn, read_tree(tree))
    assert plan.notes == ("1 saved filter of client goes out of use with it",)
    await on.apply(conn, read_tree(tree))
    assert problem(await client.get(path)) == (404, "ENTITY_NOT_FOUND")
    await on.apply(conn, read_tree(FILES))
    assert await names(client) == ["a"]


async def test_a_filter_through_a_reference_is_noted_with_its_target(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    await save(client, name="a", filter="[Country].[region] = 'EU'")
    await save(client, name="b", filter="[Country].[code] = 'CH'")
    without = FILES["entities/country.yaml"].replace(b"  - {name: region, dataType: string}\n", b"")
    plan = await on.plan(conn, read_tree(files(country=without)))
    [note] = plan.notes
    assert note.startswith("1 saved filter of Customer will no longer fit: 'a' of apikey:reader")


async def test_a_plan_without_changes_asks_for_no_saved_filter(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    await save(client, name="a", filter="[login] = 'x'")
    assert (await on.plan(conn, read_tree(FILES))).notes == ()
    await conn.execute("UPDATE mdm.saved_filter SET filter = '[gone] = 1'")
    more = FILES["entities/customer.yaml"].replace(b"domain: crm", b"domain: crm\ndescription: x")
    # It did not fit before either: nothing that this plan does.
    assert (await on.plan(conn, read_tree(files(customer=more)))).notes == ()


@pytest.mark.parametrize("raw", ["%00", "a%00b", "%FF", "%ED%A0%80", "x" * 5_000, "", "%2E%2E"])
async def test_names_that_nothing_can_have_are_not_found(tidy: Client, raw: str) -> None:
    for method in ("GET", "DELETE"):
        response = await tidy.request(method, f"{PATH}/{raw}")
        assert response.status_code in (400, 404), response.text
        problem(response)
