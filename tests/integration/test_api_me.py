"""Who the caller is and what it may do, over HTTP: the same as what it then may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support import by_hand
from tests.support.countries import FILES
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio
Client = httpx2.AsyncClient
ALL = ["read", "write", "approve", "viewrestricted", "admin"]
PERMISSIONS = b"""
permissions:
  - {users: ["apikey:some"], domains: [ref], entities: [country], actions: [write],
     rowFilterDsl: "[code] = 'CH'"}
  - {users: ["apikey:some"], domains: [ref], actions: [read]}
  - {users: ["apikey:some"], domains: [hr], actions: [viewrestricted]}
  - {users: ["apikey:boss"], domains: ["*"], actions: [approve]}
  - {users: ["apikey:boss"], domains: [hr], entities: [person], actions: [admin]}
"""


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[Client]:
    async with await connect(database_url, application_name="test") as conn:
        await by_hand.deploy(conn, read_tree({**FILES, "permissions.yaml": PERMISSIONS}))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    app = create_app(database_url=database_url, settings=Settings(Tier="Professional"))
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def me(client: Client, conn: AsyncConnection[Any], name: str) -> dict[str, Any]:
    response = await client.get("/api/v1/me", headers={"X-API-Key": await add_key(conn, name)})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_global_admin_may_all(client: Client) -> None:
    document = (await client.get("/api/v1/me")).json()
    assert document.pop("rights") == [
        {"entity": "country", "domain": "ref", "actions": ALL, "onSomeRows": []},
        {"entity": "person", "domain": "hr", "actions": ALL, "onSomeRows": []},
    ]
    assert document == {
        "principal": "apikey:bootstrap",
        "kind": "apikey",
        "name": "bootstrap",
        "groups": [],
        "isGlobalAdmin": True,
        "credential": "apiKey",
        "tier": "Professional",
        "domains": [{"domain": "*", "actions": ALL}],
    }


async def test_rights_are_those_that_are_in_force(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    some = await me(client, conn, "some")
    assert some["isGlobalAdmin"] is False
    assert some["domains"] == [
        {"domain": "hr", "actions": ["viewrestricted"]},
        {"domain": "ref", "actions": ["read"]},
    ]
    # Nothing lets it know that there is a person.
    assert some["rights"] == [
        {
            "entity": "country",
            "domain": "ref",
            "actions": ["read", "write"],
            "onSomeRows": ["read", "write"],
        }
    ]
    boss = await me(client, conn, "boss")
    assert boss["rights"] == [
        {
            "entity": "country",
            "domain": "ref",
            "actions": ["read", "approve"],
            "onSomeRows": [],
        },
        {"entity": "person", "domain": "hr", "actions": ALL, "onSomeRows": []},
    ]
    nobody = await me(client, conn, "nobody")
    assert (nobody["domains"], nobody["rights"]) == ([], [])


async def test_a_change_of_rights_shows_at_once(client: Client, conn: AsyncConnection[Any]) -> None:
    key = {"X-API-Key": await add_key(conn, "some")}
    assert (await client.get("/api/v1/me", headers=key)).json()["rights"] != []
    await conn.execute("DELETE FROM mdm.permission")
    assert (await client.get("/api/v1/me", headers=key)).json()["rights"] == []


async def test_the_text_of_row_filters_is_not_told(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    key = {"X-API-Key": await add_key(conn, "some")}
    assert "CH" not in (await client.get("/api/v1/me", headers=key)).text


async def test_roles_are_the_levels_with_their_actions(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    key = {"X-API-Key": await add_key(conn, "nobody")}
    document = (await client.get("/api/v1/roles", headers=key)).json()
    roles = {item["name"]: (item["action"], item["grants"]) for item in document["items"]}
    assert roles == {
        "Viewer": ("read", ["read"]),
        "Editor": ("write", ["read", "write"]),
        "Approver": ("approve", ["read", "approve"]),
        "Admin": ("admin", ALL),
        "Restricted viewer": ("viewrestricted", ["viewrestricted"]),
    }
    assert all(item["description"].endswith(".") for item in document["items"])
    assert document["applicationRoles"] == {"globalAdmin": "mdm-admin", "entry": None}


async def test_nobody_is_nobody(client: Client) -> None:
    client.headers.pop("X-API-Key")
    for path in ("/api/v1/me", "/api/v1/roles"):
        assert problem(await client.get(path)) == (401, "AUTH_REQUIRED")
