"""Definitions and deployment over HTTP: a folder, a warehouse, and what the API says of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import parse_entity
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import Prepare
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio
API = "/api/v1/entities"

COUNTRY = """\
name: Country
displayName: Countries
domain: ref
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false, maxLength: 2}
  - {name: label, dataType: string}
"""
CITY = """\
name: city
domain: geo
keyColumns: [code]
columns:
  - {name: code, dataType: string, nullable: false}
  - {name: country, dataType: string, reference: {entity: Country}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _filled(tmp_path)


def _filled(folder: Path) -> Path:
    write(folder, "mdm.yaml", "name: t\napiVersion: mdm-gitops/v1\n"
          "domains: [{name: ref}, {name: geo}]\n")  # fmt: skip
    write(folder, "entities/country.yaml", COUNTRY)
    write(folder, "entities/city.yaml", CITY)
    write(folder, "seed/country.json", '[{"code": "CH", "label": "Switzerland"}]')
    write(folder, "permissions.yaml", "permissions:\n"
          "  - {users: ['apikey:root'], domains: ['*'], actions: [admin]}\n"
          "  - {users: ['apikey:viewer'], domains: [ref], actions: [read]}\n")  # fmt: skip
    return folder


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).write_text(text)


async def _keyed(conn: AsyncConnection[Any]) -> None:
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    return copy_of(_keyed)


@pytest.fixture
async def client(database_url: str, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with served(_app(database_url, folder)) as client:
        client.headers["X-API-Key"] = KEY
        yield client


@pytest.fixture(scope="module")
def unchanged_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(_keyed)


@pytest.fixture(scope="module")
async def refusing(
    unchanged_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx2.AsyncClient]:
    """The same for tests each of whose requests is refused, so that nothing is ever deployed."""
    folder = _filled(tmp_path_factory.mktemp("definitions"))
    async with served(_app(unchanged_url, folder)) as client:
        client.headers["X-API-Key"] = KEY
        yield client


def _app(database_url: str, folder: Path) -> Starlette:
    settings = Settings()
    return create_app(
        database_url=database_url,
        settings=settings,
        definitions=folder_definitions(folder, settings),
    )


async def states(client: httpx2.AsyncClient) -> dict[str, str]:
    items = (await client.get(f"{API}/summary")).json()["items"]
    return {item["name"]: item["state"] for item in items}


async def ok(response: httpx2.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


async def test_an_entity_from_draft_to_dropped(client: httpx2.AsyncClient, folder: Path) -> None:
    assert await states(client) == {"city": "draft", "Country": "draft"}
    early = await client.get(f"{API}/country/data")
    assert problem(early) == (409, "ENTITY_NOT_DEPLOYED")
    assert "POST /api/v1/entities/Country/deploy" in early.json()["hint"]
    assert problem(await client.post(f"{API}/country/redeploy")) == (409, "ENTITY_NOT_DEPLOYED")

    plan = await ok(await client.get(f"{API}/country/deploy/preview"))
    assert {change["entity"] for change in plan["changes"]} >= {"country"}
    assert "city" not in {change["entity"] for change in plan["changes"]}
    done = await ok(await client.post(f"{API}/country/deploy", json={"planId": plan["plan_id"]}))
    assert done["planId"] == plan["plan_id"] and done["steps"] > 0
    assert await states(client) == {"city": "draft", "Country": "deployed"}
    rows = await ok(await client.get(f"{API}/country/data?fields=code,label,_sys_created_by"))
    assert rows["items"] == [
        {"code": "CH", "label": "Switzerland", "_sys_created_by": "system:seed"}
    ]
    again = await ok(await client.post(f"{API}/country/redeploy"))
    assert (again["steps"], again["deploymentId"]) == (0, None)

    write(folder, "entities/country.yaml", COUNTRY + "  - {name: area, dataType: decimal}\n")
    assert (await states(client))["Country"] == "changed"
    assert problem(await client.post(f"{API}/country/deploy", json={"planId": plan["plan_id"]})) == (
        409, "PLAN_STALE")  # fmt: skip
    await ok(await client.post(f"{API}/COUNTRY/deploy"))
    assert (await states(client))["Country"] == "deployed"
    rows = await ok(await client.get(f"{API}/country/data?fields=area"))
    assert rows["items"] == [{"area": None}]

    history = await ok(await client.get(f"{API}/country/deploy/history"))
    assert [(item["actor"], item["state"]) for item in history["items"]] == [
        ("apikey:bootstrap", "succeeded")
    ] * 2
    assert (await ok(await client.get(f"{API}/country/deploy/history?take=1")))["hasMore"]

    await ok(await client.post(f"{API}/country/deploy/remove"))
    assert (await states(client))["Country"] == "removed"
    assert problem(await client.get(f"{API}/country/data")) == (409, "ENTITY_NOT_DEPLOYED")
    for body in ({}, {"confirm": "city"}, {"confirm": True}):
        refused = await client.post(f"{API}/country/deploy/drop-archive-tables", json=body)
        assert problem(refused) == (400, "CONFIRMATION_REQUIRED")
    dropped = await ok(
        await client.post(f"{API}/country/deploy/drop-archive-tables", json={"confirm": "Country"})
    )
    assert len(dropped["droppedTables"]) == 1
    assert (await states(client))["Country"] == "draft"


async def test_what_a_breaking_definition_does_to_the_others(
    client: httpx2.AsyncClient, folder: Path
) -> None:
    await ok(await client.post(f"{API}/country/deploy"))
    write(folder, "entities/country.yaml", COUNTRY.replace("string", "strnig"))
    summary = await ok(await client.get(f"{API}/summary"))
    assert {item["name"]: item["state"] for item in summary["items"]}["Country"] == "failed"
    assert summary["definitions"]["errorCount"] >= 1
    assert summary["counts"]["failed"] == 1
    refused = await client.post(f"{API}/country/deploy")
    assert problem(refused) == (422, "DEFINITION_INVALID")
    places = {(error["file"], error.get("line")) for error in refused.json()["errors"]}
    assert ("entities/country.yaml", 6) in places
    rows = await ok(await client.get(f"{API}/country/data"))
    assert len(rows["items"]) == 1, "what is deployed is served all the same"
    write(folder, "entities/country.yaml", COUNTRY)
    assert (await states(client))["Country"] == "deployed"
    write(folder, "mdm.yaml", "name: [")
    assert await states(client) == {"Country": "deployed"}
    (folder / "mdm.yaml").unlink()
    assert await states(client) == {"Country": "deployed"}


async def test_a_deleted_file_is_a_change_that_waits(
    client: httpx2.AsyncClient, folder: Path
) -> None:
    await ok(await client.post(f"{API}/country/deploy"))
    for path in ("entities/country.yaml", "entities/city.yaml", "seed/country.json"):
        (folder / path).unlink()
    write(folder, "permissions.yaml", "permissions: []\n")
    assert await states(client) == {"Country": "changed"}
    assert len((await ok(await client.get(f"{API}/country/data")))["items"]) == 1


async def test_definitions_as_documents(client: httpx2.AsyncClient) -> None:
    document = await ok(await client.get(f"{API}/COUNTRY"))
    status = document.pop("status")
    assert document == parse_entity(COUNTRY).to_document()
    assert status == {
        "state": "draft",
        "deployedVersion": None,
        "commit": None,
        "deployedAt": None,
        "actions": ["admin", "approve", "read", "viewrestricted", "write"],
    }
    listed = await ok(await client.get(f"{API}?domain=ref"))
    assert listed == {"items": [{**document, "status": status}]}
    yaml = await client.get(f"{API}/country/yaml")
    assert yaml.headers["content-type"] == "application/yaml; charset=utf-8"
    assert parse_entity(yaml.text) == parse_entity(COUNTRY)
    absent = await client.get(f"{API}/contry")
    assert problem(absent) == (404, "ENTITY_NOT_FOUND")
    assert absent.json()["hint"] == "did you mean 'Country'?"


@pytest.mark.parametrize("path", ["", "/yaml", "/data", "/deploy/history", "/deploy/preview"])
async def test_hidden_entities_are_absent_everywhere(
    client: httpx2.AsyncClient, conn: AsyncConnection[Any], path: str
) -> None:
    await ok(await client.post(f"{API}/country/deploy"))
    await ok(await client.post(f"{API}/city/deploy"))
    await conn.execute(
        "INSERT INTO mdm.permission VALUES ('apikey:viewer', 'ref', '', ARRAY['read'], '')"
        " ON CONFLICT DO NOTHING"
    )
    client.headers["X-API-Key"] = await add_key(conn, "viewer")
    assert await states(client) == {"Country": "deployed"}
    answers = []
    for name in ("city", "citi"):
        response = await client.get(f"{API}/{name}{path}")
        assert problem(response) == (404, "ENTITY_NOT_FOUND")
        answers.append({**response.json(), "detail": "", "traceId": ""})
    assert answers[0] == answers[1]
    assert problem(await client.post(f"{API}/country/deploy")) == (403, "ACCESS_DENIED")
    assert problem(await client.get(f"{API}/country/deploy/preview")) == (403, "ACCESS_DENIED")
    refers = {"yaml": CITY.replace("city", "town").replace("Country", "city")}
    sent = await client.post(f"{API}/validate", json=refers)
    assert problem(sent) == (422, "DEFINITION_INVALID")
    assert "'city' does not exist" in sent.text, "a reference to it is one to nothing"


# --- definitions that are sent ------------------------------------------------------------------


async def test_parsing(client: httpx2.AsyncClient) -> None:
    expected = parse_entity(COUNTRY).to_document()
    for content_type in ("text/yaml", "application/yaml; charset=utf-8", "application/x-yaml"):
        sent = await client.post(
            f"{API}/parse-yaml", content=COUNTRY, headers={"Content-Type": content_type}
        )
        assert await ok(sent) == expected
    assert await ok(await client.post(f"{API}/parse-yaml", json={"yaml": COUNTRY})) == expected


async def test_validating_looks_at_the_others(client: httpx2.AsyncClient) -> None:
    good = await client.post(f"{API}/validate", json=parse_entity(CITY).to_document())
    assert (await ok(good))["valid"] is True
    with_status = await ok(await client.get(f"{API}/city"))
    assert (await ok(await client.post(f"{API}/validate", json=with_status)))["valid"] is True
    bad = parse_entity(CITY.replace("Country", "Contry")).to_document()
    response = await client.post(f"{API}/validate", json=bad)
    assert problem(response) == (422, "DEFINITION_INVALID")
    (error,) = response.json()["errors"]
    assert error == {
        "pointer": "/columns/1/reference/entity",
        "code": "unknown-entity",
        "message": "entity 'Contry' does not exist",
        "hint": "did you mean 'Country'?",
    }
    as_yaml = await client.post(
        f"{API}/validate",
        content=CITY.replace("Country", "Contry"),
        headers={"Content-Type": "text/yaml"},
    )
    assert as_yaml.json()["errors"][0]["line"] == 6


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"name: [", "text/yaml", 422, "DEFINITION_INVALID"),
        (b"", "text/yaml", 422, "DEFINITION_INVALID"),
        (b"\xff\xfe\x00", "text/yaml", 422, "DEFINITION_INVALID"),
        (b"a: &a [*a]", "text/yaml", 422, "DEFINITION_INVALID"),
        (b"[" * 100_000, "text/yaml", 422, "DEFINITION_INVALID"),
        (b"x: !!python/object:os.system 1", "text/yaml", 422, "DEFINITION_INVALID"),
        (COUNTRY.encode(), "text/plain", 415, "MEDIA_TYPE_UNSUPPORTED"),
        (COUNTRY.encode(), "", 415, "MEDIA_TYPE_UNSUPPORTED"),
        (b"[" * 100_000, "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": NaN}', "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": 1e400}', "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": "a", "yaml": "b"}', "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": "\\u0000"}', "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": "\\ud800"}', "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": 1' + b"0" * 5000 + b"}", "application/json", 400, "REQUEST_INVALID"),
        (b'{"yaml": 1}', "application/json", 400, "REQUEST_INVALID"),
        (b'{"yam": "a"}', "application/json", 400, "REQUEST_INVALID"),
        (b"[]", "application/json", 400, "REQUEST_INVALID"),
        (b"null", "application/json", 400, "REQUEST_INVALID"),
        (b"{", "application/json", 400, "REQUEST_INVALID"),
        (b"", "application/json", 400, "REQUEST_INVALID"),
        (b"\xff", "application/json", 400, "REQUEST_INVALID"),
        (b" " * 17_000_000, "application/json", 413, "BODY_TOO_LARGE"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, bytes) else None,
)
async def test_bodies_that_are_refused(
    refusing: httpx2.AsyncClient, body: bytes, content_type: str, status: int, code: str
) -> None:
    sent = await refusing.post(
        f"{API}/parse-yaml", content=body, headers={"Content-Type": content_type}
    )
    assert problem(sent) == (status, code)


POSTS = ["validate", "country/deploy", "country/redeploy", "country/deploy/remove",
         "country/deploy/drop-archive-tables"]  # fmt: skip


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"allow": NaN}', b'{"a": 1, "a": 2}', b'"\\ud800"', b"[1]", b"\xff", b"7"],
)
async def test_no_post_stumbles_over_its_body(
    refusing: httpx2.AsyncClient, path: str, body: bytes
) -> None:
    sent = await refusing.post(
        f"{API}/{path}", content=body, headers={"Content-Type": "application/json"}
    )
    assert problem(sent)[0] in (400, 409)


async def test_a_body_in_pieces_is_bounded_too(client: httpx2.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 500_000

    sent = await client.post(
        f"{API}/parse-yaml", content=pieces(), headers={"Content-Type": "text/yaml"}
    )
    assert problem(sent) == (413, "BODY_TOO_LARGE")


async def test_a_server_without_definitions_serves_what_is_deployed(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    await ok(await client.post(f"{API}/country/deploy"))
    async with served(create_app(database_url=database_url, settings=Settings())) as other:
        other.headers["X-API-Key"] = KEY
        assert await states(other) == {"Country": "deployed"}
        assert problem(await other.post(f"{API}/country/deploy")) == (409, "DEFINITIONS_IN_GIT")
        assert (await ok(await other.post(f"{API}/validate", json={"yaml": COUNTRY})))["valid"]


async def test_readers_go_on_while_an_entity_is_changed(
    client: httpx2.AsyncClient, folder: Path
) -> None:
    """No request fails because a deployment moved the tables under it."""
    await ok(await client.post(f"{API}/country/deploy"))
    stop = asyncio.Event()
    bad: list[str] = []
    count = 0

    async def read() -> None:
        nonlocal count
        while not stop.is_set():
            response = await client.get(f"{API}/country/data?sort=-label&filter=[code]='CH'")
            count += 1
            if response.status_code != 200 or len(response.json()["items"]) != 1:
                bad.append(response.text)

    readers = [asyncio.create_task(read()) for _ in range(4)]
    for number in range(4):
        extra = f"  - {{name: more_{number}, dataType: int}}\n"
        write(folder, "entities/country.yaml", COUNTRY + extra)
        await ok(await client.post(f"{API}/country/deploy", json={"allow": ["REMOVES_COLUMN:*"]}))
    stop.set()
    await asyncio.gather(*readers)
    assert bad == []
    assert count > 20
