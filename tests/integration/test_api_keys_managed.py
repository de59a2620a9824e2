"""API keys over HTTP: shown once, gone at once on every worker, and never the last way in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import digest, is_well_formed
from mdm_gitops.settings import Settings
from tests.conftest import Prepare
from tests.support.countries import countries
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio
Client = httpx2.AsyncClient
PATH = "/api/v1/api-keys"
COUNTRY = "/api/v1/entities/country/data"


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(countries)


@pytest.fixture
async def client(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Client]:
    async with served(create_app(database_url=database_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        yield client


@pytest.fixture
async def other(database_url: str, client: Client) -> AsyncIterator[Client]:
    """Another worker with a memory of its own, which has seen requests already."""
    async with served(create_app(database_url=database_url, settings=Settings())) as other:
        await other.get(COUNTRY, headers={"X-API-Key": KEY})
        yield other


async def make(client: Client, **members: Any) -> str:
    response = await client.post(PATH, json=members)
    assert response.status_code == 201, response.text
    return str(response.json()["key"])


async def listed(client: Client) -> dict[str, dict[str, Any]]:
    items = (await client.get(PATH)).json()["items"]
    assert [item["name"] for item in items] == sorted(item["name"] for item in items)
    return {item["name"]: item for item in items}


async def test_a_key_is_shown_once_and_works_at_once(client: Client, other: Client) -> None:
    created = await client.post(PATH, json={"name": "swiss"})
    assert created.headers["cache-control"] == "no-store"
    document = created.json()
    key = document.pop("key")
    assert is_well_formed(key)
    moment = document.pop("createdUtc")
    assert datetime.now(UTC) - datetime.fromisoformat(moment) < timedelta(minutes=1)
    assert document == {
        "name": "swiss",
        "isGlobalAdmin": False,
        "state": "active",
        "createdBy": "apikey:bootstrap",
        "expiresUtc": None,
        "revokedUtc": None,
        "lastUsedUtc": None,
    }
    assert (await listed(client))["swiss"] == {**document, "createdUtc": moment}
    assert key not in (await client.get(PATH)).text
    for worker in (client, other):
        page = await worker.get(COUNTRY, headers={"X-API-Key": key})
        assert [row["code"] for row in page.json()["items"]] == ["CH"]  # by its row filter


async def test_only_a_hash_is_stored(client: Client, conn: AsyncConnection[Any]) -> None:
    key = await make(client, name="a")
    rows = await (await conn.execute("SELECT k::text, key_sha256 FROM mdm.api_key k")).fetchall()
    assert digest(key) in [bytes(row[1]) for row in rows]
    assert not any(key in row[0] or key[4:36] in row[0] for row in rows)


async def test_a_revoked_key_is_gone_at_once_everywhere(client: Client, other: Client) -> None:
    key = await make(client, name="swiss")
    headers = {"X-API-Key": key}
    for worker in (client, other):
        assert (await worker.get(COUNTRY, headers=headers)).status_code == 200
    revoked = await client.delete(f"{PATH}/swiss")
    assert (revoked.status_code, revoked.content) == (204, b"")
    for worker in (other, client):
        assert problem(await worker.get(COUNTRY, headers=headers)) == (401, "AUTH_REQUIRED")
    item = (await listed(client))["swiss"]
    assert item["state"] == "revoked"
    assert item["revokedUtc"] is not None
    assert problem(await client.delete(f"{PATH}/swiss")) == (404, "API_KEY_NOT_FOUND")


async def test_a_key_can_be_replaced_under_its_name(client: Client) -> None:
    first = await make(client, name="swiss")
    assert problem(await client.post(PATH, json={"name": "swiss"})) == (409, "API_KEY_EXISTS")
    assert (await client.get(COUNTRY, headers={"X-API-Key": first})).status_code == 200
    await client.delete(f"{PATH}/swiss")
    second = await make(client, name="swiss")
    assert (await client.get(COUNTRY, headers={"X-API-Key": second})).status_code == 200
    assert (await client.get(COUNTRY, headers={"X-API-Key": first})).status_code == 401


async def test_a_key_expires(database_url: str, conn: AsyncConnection[Any]) -> None:
    clock = [datetime(2026, 3, 1, 12, tzinfo=UTC)]
    app = create_app(database_url=database_url, settings=Settings(), now=lambda: clock[0])
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        key = await make(client, name="swiss", expiresUtc="2026-03-01T13:00:00+00:30")
        assert (await listed(client))["swiss"]["expiresUtc"] == "2026-03-01T12:30:00Z"
        headers = {"X-API-Key": key}
        clock[0] = datetime(2026, 3, 1, 12, 29, 59, tzinfo=UTC)
        assert (await client.get(COUNTRY, headers=headers)).status_code == 200
        clock[0] = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
        assert problem(await client.get(COUNTRY, headers=headers)) == (401, "AUTH_REQUIRED")
        assert (await listed(client))["swiss"]["state"] == "expired"
        await make(client, name="swiss")  # its name is free again


async def test_the_last_use_is_noted(database_url: str, conn: AsyncConnection[Any]) -> None:
    settings = Settings()
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        client.headers["X-API-Key"] = KEY
        key = await make(client, name="swiss")
        await make(client, name="unused")
        await client.get(COUNTRY, headers={"X-API-Key": key})
    # A worker that ends has noted what it let in.
    async with served(create_app(database_url=database_url, settings=settings)) as client:
        client.headers["X-API-Key"] = KEY
        found = await listed(client)
    used = datetime.fromisoformat(found["swiss"]["lastUsedUtc"])
    assert datetime.now(UTC) - used < timedelta(minutes=1)
    assert found["unused"]["lastUsedUtc"] is None


async def test_the_last_key_of_an_admin_stays(client: Client) -> None:
    refused = await client.delete(f"{PATH}/bootstrap")
    assert problem(refused) == (409, "LAST_ADMIN_KEY")
    assert (await client.get(PATH)).status_code == 200
    await make(client, name="plain")
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    second = await make(client, name="second", isGlobalAdmin=True, expiresUtc=soon)
    assert (await client.delete(f"{PATH}/bootstrap")).status_code == 204
    assert problem(await client.get(PATH)) == (401, "AUTH_REQUIRED")
    headers = {"X-API-Key": second}
    refused = await client.delete(f"{PATH}/second", headers=headers)
    assert problem(refused) == (409, "LAST_ADMIN_KEY")
    assert (await client.delete(f"{PATH}/plain", headers=headers)).status_code == 204


async def test_an_expired_admin_is_no_way_in(
    client: Client,
    conn: AsyncConnection[Any],
) -> None:
    await make(client, name="second", isGlobalAdmin=True)
    await conn.execute("UPDATE mdm.api_key SET expires_at = now() WHERE name = 'second'")
    assert problem(await client.delete(f"{PATH}/bootstrap")) == (409, "LAST_ADMIN_KEY")


async def test_two_admins_cannot_revoke_each_other(client: Client, other: Client) -> None:
    last = "bootstrap"
    for attempt in range(6):
        names = (f"a{attempt}", f"b{attempt}")
        keys = [await make(client, name=name, isGlobalAdmin=True) for name in names]
        await client.delete(f"{PATH}/{last}", headers={"X-API-Key": keys[0]})
        answers = await asyncio.gather(
            client.delete(f"{PATH}/{names[1]}", headers={"X-API-Key": keys[0]}),
            other.delete(f"{PATH}/{names[0]}", headers={"X-API-Key": keys[1]}),
        )
        # Whoever came second was the last, or was nobody any more.
        assert {answer.status_code for answer in answers} - {204} <= {401, 409}
        left = [n for n, answer in enumerate(answers) if answer.status_code == 204]
        assert len(left) == 1
        last, client.headers["X-API-Key"] = names[left[0]], keys[left[0]]


@pytest.mark.parametrize(
    ("members", "part"),
    [
        ({}, "name must be a text"),
        ({"name": 1}, "name must be a text"),
        ({"name": ""}, "cannot be named"),
        ({"name": "bootstrap"}, "settings"),
        ({"name": "a b"}, "cannot be named"),
        ({"name": "apikey:a"}, "cannot be named"),
        ({"name": "a/b"}, "cannot be named"),
        ({"name": "-a"}, "cannot be named"),
        ({"name": "x" * 64}, "cannot be named"),
        ({"name": "a", "isGlobalAdmin": "true"}, "isGlobalAdmin must be"),
        ({"name": "a", "expiresUtc": "tomorrow"}, "expiresUtc is not a date and time"),
        ({"name": "a", "expiresUtc": "2020-01-01T00:00:00Z"}, "expired already"),
        ({"name": "a", "key": "mine"}, "unknown member"),
    ],
)
async def test_wrong_bodies_are_refused(client: Client, members: Any, part: str) -> None:
    response = await client.post(PATH, json=members)
    assert problem(response) == (400, "REQUEST_INVALID")
    assert part in response.json()["detail"]
    assert list(await listed(client)) == ["bootstrap"]


async def test_others_may_not(client: Client, conn: AsyncConnection[Any]) -> None:
    headers = {"X-API-Key": await add_key(conn, "swiss")}
    answers = (
        await client.get(PATH, headers=headers),
        await client.post(PATH, json={"name": "a"}, headers=headers),
        await client.delete(f"{PATH}/bootstrap", headers=headers),
        await client.delete(f"{PATH}/nothing", headers=headers),
    )
    assert {problem(answer) for answer in answers} == {(403, "ACCESS_DENIED")}
    assert list(await listed(client)) == ["bootstrap", "swiss"]
    client.headers.pop("X-API-Key")
    assert problem(await client.get(PATH)) == (401, "AUTH_REQUIRED")


async def test_odd_names_are_not_found(client: Client) -> None:
    for name in ("nothing", "%00", "%F0%9F%8C%8D", "x" * 3_000, "..%2Fx"):
        response = await client.delete(f"{PATH}/{name}")
        assert response.status_code == 404, response.text
