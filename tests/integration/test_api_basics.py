"""The API over HTTP against a real warehouse: who comes in, what is answered, how errors look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_api.operations import Access
from mdm_api.table import OPERATIONS
from mdm_gitops.access.api_keys import digest, ensure_first_key, generate_key, is_well_formed
from mdm_gitops.errors import SettingsError
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import Prepare
from tests.support.countries import countries
from tests.support.serving import KEY, Client, add_key, problem, served

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


@pytest.fixture
def app(database_url: str) -> Starlette:
    return create_app(database_url=database_url, settings=Settings())


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[Client]:
    """A Global Admin's client."""
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        yield client


@pytest.fixture(scope="module")
def shared_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(countries)


@pytest.fixture(scope="module")
async def anybody(shared_url: str) -> AsyncIterator[Client]:
    """A client without a key, of a warehouse that many tests read and none changes."""
    async with served(create_app(database_url=shared_url, settings=Settings())) as client:
        yield client


# --- rows over HTTP -----------------------------------------------------------------------------


async def test_a_page_of_rows(client: Client) -> None:
    response = await client.get(
        "/api/v1/entities/country/data", params={"take": 2, "count": "true", "fields": "code,area"}
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    document = response.json()
    token = document.pop("nextAfter")
    assert response.text.startswith('{"items":[{"code":"CH","area":41285.00},')
    assert document == {
        "items": [{"code": "CH", "area": 41285.0}, {"code": "DE", "area": 357022.4}],
        "skip": 0,
        "take": 2,
        "hasMore": True,
        "totalCount": 4,
    }
    rest = await client.get(
        "/api/v1/entities/country/data", params={"after": token, "fields": "code"}
    )
    assert rest.json() == {
        "items": [{"code": "FR"}, {"code": "IT"}],
        "skip": 0,
        "take": 100,
        "hasMore": False,
        "nextAfter": None,
        "totalCount": None,
    }


async def test_one_row_with_its_version(client: Client) -> None:
    page = (await client.get("/api/v1/entities/country/data?state=all&filter=[code]='AT'")).json()
    row = page["items"][0]
    got = await client.get(f"/api/v1/entities/Country/data/{row['_sys_id']}")
    assert got.status_code == 200
    assert got.headers["etag"] == '"v4"'
    assert (got.json()["code"], got.json()["_sys_state"]) == ("AT", "deleted")
    active_only = await client.get(
        f"/api/v1/entities/country/data/{row['_sys_id']}", params={"state": "active"}
    )
    assert problem(active_only) == (404, "ROW_NOT_FOUND")


@pytest.mark.parametrize(
    ("path", "status", "code", "words"),
    [
        ("/api/v1/entities/country/data?tkae=1", 400, "REQUEST_INVALID", "did you mean 'take'?"),
        ("/api/v1/entities/country/data?take=1&take=2", 400, "REQUEST_INVALID", "given twice"),
        ("/api/v1/entities/country/data?take=x", 400, "REQUEST_INVALID", "a whole number"),
        ("/api/v1/entities/country/data?take=", 400, "REQUEST_INVALID", "a whole number"),
        ("/api/v1/entities/country/data?take=1001", 400, "REQUEST_INVALID", "1 to 1000"),
        ("/api/v1/entities/country/data?skip=99999999999", 400, "REQUEST_INVALID", "skip must be"),
        ("/api/v1/entities/country/data?count=1", 400, "REQUEST_INVALID", "true or false"),
        ("/api/v1/entities/country/data?state=gone", 400, "REQUEST_INVALID", "one of active"),
        ("/api/v1/entities/country/data?sort=%00", 400, "REQUEST_INVALID", "NUL"),
        ("/api/v1/entities/country/data?skip=1&after=x", 400, "REQUEST_INVALID", "together"),
        ("/api/v1/entities/country/data?asOfUtc=yesterday", 400, "REQUEST_INVALID", "asOfUtc"),
        ("/api/v1/entities/country/data?asOfUtc=2024-01-01", 409, "HISTORY_NOT_ENABLED", "history"),
        ("/api/v1/entities/country/data?filter=[code]", 400, "FILTER_INVALID", '"position":6'),
        ("/api/v1/entities/country/data?filter=[cod]='x'", 400, "FILTER_INVALID", "[code]?"),
        ("/api/v1/entities/countri/data", 404, "ENTITY_NOT_FOUND", "did you mean 'country'?"),
        ("/api/v1/entities/country/data/1", 404, "ROW_NOT_FOUND", "no row 1"),
        ("/api/v1/entities/country%22%3B--/data", 404, "ENTITY_NOT_FOUND", "no entity"),
        ("/api/v1/entities/" + "x" * 5000 + "/data", 404, "ENTITY_NOT_FOUND", "no entity"),
        ("/api/v1/entities/country/data/", 404, "NOT_FOUND", "nothing at this path"),
        ("/api/v2/entities", 404, "NOT_FOUND", "nothing at this path"),
        ("/nowhere", 404, "NOT_FOUND", "nothing at this path"),
        ("/api//v1/entities", 404, "NOT_FOUND", "nothing at this path"),
        ("/api/v1/entities/country/data/%2e%2e/yaml", 404, "NOT_FOUND", "nothing"),
    ],
)  # fmt: skip
async def test_wrong_requests_are_problems(
    anybody: Client, path: str, status: int, code: str, words: str
) -> None:
    response = await anybody.get(path, headers={"X-API-Key": KEY})
    assert problem(response) == (status, code)
    assert words in response.text


async def test_methods_that_are_not_there(client: Client) -> None:
    response = await client.put("/api/v1/entities/country/data")
    assert problem(response) == (405, "METHOD_NOT_ALLOWED")
    assert response.headers["allow"] == "GET, HEAD, POST"
    assert (await client.head("/api/v1/entities/country/data")).status_code == 200


async def test_the_trace_id_is_the_callers(client: Client) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    given = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    response = await client.get("/nowhere", headers=given)
    assert response.json()["traceId"] == trace_id
    for bad in ("x", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{trace_id}-{'0' * 16}-01"):
        made = (await client.get("/nowhere", headers={"traceparent": bad})).json()["traceId"]
        assert made != trace_id and int(made, 16)


# --- who comes in -------------------------------------------------------------------------------


PROTECTED = [each for each in OPERATIONS if each.access is not Access.PUBLIC]
PUBLIC = ["/healthz", "/readyz", "/metrics", "/problems/auth-required"]


@pytest.mark.parametrize("operation", PROTECTED, ids=lambda o: f"{o.method} {o.path}")
@pytest.mark.parametrize("key", ["none", "wrong", "bad-checksum", "two", "long", "latin"])
async def test_nobody_comes_in_without_a_key(anybody: Client, operation: Any, key: str) -> None:
    fresh = generate_key()
    headers = {
        "none": [],
        "wrong": [("X-API-Key", fresh)],
        "bad-checksum": [("X-API-Key", fresh[:-1] + ("a" if fresh[-1] != "a" else "b"))],
        "two": [("X-API-Key", KEY), ("X-API-Key", KEY)],
        "long": [("X-API-Key", "x" * 5000)],
        "latin": [("X-API-Key", b"\xff\xfe")],
    }[key]
    path = operation.path.replace("{name}", "country").replace("{id}", "1").replace("{file}", "x")
    response = await anybody.request(operation.method, path, headers=headers)
    assert problem(response) == (401, "AUTH_REQUIRED")
    scheme = "Basic" if operation.path.startswith("/swagger") else "ApiKey"
    assert response.headers["www-authenticate"].startswith(scheme)


async def test_what_is_public_is_a_short_list(app: Starlette) -> None:
    public = {each.path for each in OPERATIONS if each.access is Access.PUBLIC}
    signing_in = {"/login", "/login/callback", "/logout"}
    pushes = {"/api/v1/hooks/git"}  # signed by the forge; they do nothing but wake
    assert public == {"/healthz", "/readyz", "/metrics", "/problems/{code}", *signing_in, *pushes}
    async with served(app) as client:
        for path in PUBLIC:
            assert (await client.get(path)).status_code == 200
        for path in ("/api", "/api/nothing", "/api/v1/entities/country/nothing"):
            assert problem(await client.get(path)) == (401, "AUTH_REQUIRED")
        assert problem(await client.delete("/api/v1/entities")) == (401, "AUTH_REQUIRED")


async def test_basic_is_for_the_pages_only(app: Starlette) -> None:
    async with served(app) as client:
        basic = httpx2.BasicAuth("anyone", KEY)
        page = await client.get("/swagger", auth=basic)
        assert page.status_code == 200
        assert (
            "'unsafe-inline'" not in page.headers["content-security-policy"].split("style-src")[0]
        )
        assert "http" not in page.text.replace("https://", "http://").split("<body>")[1]
        for name in ("swagger-ui.css", "swagger-ui-bundle.js", "init.js", "favicon-32x32.png"):
            assert (await client.get(f"/swagger/{name}", auth=basic)).status_code == 200
        assert problem(await client.get("/swagger/..%2finit.js", auth=basic))[0] == 404
        assert (await client.get("/swagger/v1/swagger.json", auth=basic)).json()["openapi"]
        assert problem(await client.get("/api/v1/entities", auth=basic)) == (401, "AUTH_REQUIRED")


async def test_a_key_without_rights_sees_nothing(
    app: Starlette, conn: AsyncConnection[Any]
) -> None:
    key = await add_key(conn, "nobody")
    async with served(app) as client:
        client.headers["X-API-Key"] = key
        assert (await client.get("/api/v1/entities")).json() == {"items": []}
        hidden = await client.get("/api/v1/entities/country/data")
        absent = await client.get("/api/v1/entities/xountry/data")
        assert problem(hidden) == problem(absent) == (404, "ENTITY_NOT_FOUND")
        assert _anonymous(hidden) == _anonymous(absent)
        assert problem(await client.get("/swagger")) == (403, "ACCESS_DENIED")


def _anonymous(response: httpx2.Response) -> dict[str, Any]:
    document = {**response.json(), "traceId": ""}
    return json.loads(json.dumps(document).replace("xountry", "country"))


async def test_a_keys_rights_are_those_of_its_name(
    app: Starlette, conn: AsyncConnection[Any]
) -> None:
    key = await add_key(conn, "swiss")
    async with served(app) as client:
        client.headers["X-API-Key"] = key
        countries = await client.get("/api/v1/entities/country/data")
        assert [row["code"] for row in countries.json()["items"]] == ["CH"]
        people = await client.get("/api/v1/entities/person/data?sort=login")
        assert [row["salary"] for row in people.json()["items"]] == ["***"] * 3
        masked = await client.get("/api/v1/entities/person/data?sort=-salary")
        assert problem(masked) == (403, "COLUMN_RESTRICTED")
        denied = await client.post("/api/v1/entities/country/deploy")
        assert problem(denied) == (403, "ACCESS_DENIED")
        assert {e["name"] for e in (await client.get("/api/v1/entities")).json()["items"]} == {
            "country", "person"}  # fmt: skip


async def test_rights_and_keys_count_from_the_moment_they_change(
    app: Starlette, conn: AsyncConnection[Any]
) -> None:
    """Nothing is cached past a change: not a right given, not one taken, not a key revoked."""
    path = "/api/v1/entities/country/data"
    grant = "INSERT INTO mdm.permission VALUES ('apikey:late', 'ref', '', ARRAY['read'], '')"
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        assert (await client.get(path)).status_code == 200
        client.headers["X-API-Key"] = await add_key(conn, "late")
        assert problem(await client.get(path)) == (404, "ENTITY_NOT_FOUND")
        await conn.execute(grant)
        assert len((await client.get(path)).json()["items"]) == 4
        await conn.execute("DELETE FROM mdm.permission WHERE principal = 'apikey:late'")
        assert problem(await client.get(path)) == (404, "ENTITY_NOT_FOUND")
        await conn.execute(grant)
        assert (await client.get(path)).status_code == 200
        await conn.execute("UPDATE mdm.api_key SET revoked_at = now() WHERE name = 'late'")
        assert problem(await client.get(path)) == (401, "AUTH_REQUIRED")


async def test_keys_expire(database_url: str, conn: AsyncConnection[Any]) -> None:
    clock = [datetime(2030, 1, 1, tzinfo=UTC)]
    key = await add_key(conn, "brief", expires_at=clock[0] + timedelta(hours=1))
    app = create_app(database_url=database_url, settings=Settings(), now=lambda: clock[0])
    async with served(app) as client:
        client.headers["X-API-Key"] = key
        assert (await client.get("/api/v1/entities")).status_code == 200
        clock[0] += timedelta(hours=1)
        assert problem(await client.get("/api/v1/entities")) == (401, "AUTH_REQUIRED")


async def test_the_first_key_is_made_once(conn: AsyncConnection[Any]) -> None:
    await conn.execute("DELETE FROM mdm.api_key")
    key = await ensure_first_key(conn, schemas=Schemas())
    assert key is not None and is_well_formed(key)
    assert await ensure_first_key(conn, schemas=Schemas()) is None
    dump = await (await conn.execute("SELECT k::text FROM mdm.api_key k")).fetchall()
    assert len(dump) == 1 and key not in dump[0][0] and key[4:36] not in dump[0][0]


async def test_the_bootstrap_key_follows_its_setting(conn: AsyncConnection[Any]) -> None:
    async def active() -> list[bytes]:
        query = "SELECT key_sha256 FROM mdm.api_key WHERE revoked_at IS NULL"
        return [bytes(row[0]) for row in await (await conn.execute(query)).fetchall()]

    assert await active() == [digest(KEY)]
    await conn.execute("UPDATE mdm.api_key SET revoked_at = now()")
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    assert await active() == [], "revoked stays revoked"
    other = KEY.replace("30", "31")
    await ensure_first_key(conn, schemas=Schemas(), configured=other)
    assert await active() == [digest(other)]
    with pytest.raises(SettingsError, match="20 to 256 characters"):
        await ensure_first_key(conn, schemas=Schemas(), configured="too short")


# --- health, numbers, failures ------------------------------------------------------------------


async def test_numbers_go_by_route_and_never_by_path(client: Client) -> None:
    await client.get("/api/v1/entities/country/data?take=3")
    await client.get("/secret-path")
    text = (await client.get("/metrics")).text
    route = 'route="/api/v1/entities/{name}/data",status="200"'
    assert f'mdm_http_requests_total{{method="GET",{route}}} 1.0' in text
    assert "mdm_rows_read_total 3.0" in text
    assert "mdm_database_pool_size" in text
    assert "secret-path" not in text and "country" not in text


async def test_a_store_that_is_not_there_is_told_without_details(
    empty_database_url: str, database_url: str
) -> None:
    async with served(create_app(database_url=empty_database_url, settings=Settings())) as client:
        assert (await client.get("/healthz")).status_code == 200
        response = await client.get("/readyz")
        assert problem(response) == (500, "WAREHOUSE_UNUSABLE")
        assert "mdm." not in response.json()["detail"]


async def test_a_database_that_is_away_is_503_and_says_nothing_about_itself() -> None:
    settings = Settings(Database={"PoolWaitSeconds": 0.3, "PoolMinSize": 0})  # type: ignore[arg-type]
    url = "postgresql://somebody:hunter2secret@127.0.0.1:1/nowhere"
    async with served(create_app(database_url=url, settings=settings)) as client:
        response = await client.get("/readyz")
    assert problem(response) == (503, "WAREHOUSE_UNAVAILABLE")
    assert response.headers["retry-after"] == "2"
    for secret in ("hunter2", "somebody", "nowhere", "127.0.0.1"):
        assert secret not in response.text


async def test_connections_that_died_in_the_pool_cost_nobody_an_answer(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    """The server was restarted, or an administrator ended all sessions."""
    path = "/api/v1/entities/country/data"
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'mdm-gitops api'"
    )
    for _ in range(3):
        answers = await asyncio.gather(*(client.get(path) for _ in range(12)))
        assert {answer.status_code for answer in answers} == {200}
        killed = await (await conn.execute(kill)).fetchone()
        assert killed and killed[0] > 0
        assert (await client.get("/readyz")).status_code == 200
        await conn.execute(kill)
        assert (await client.get("/api/v1/entities/summary")).status_code == 200
        await conn.execute(kill)


async def test_a_table_that_is_gone_is_no_internal_error(
    client: Client, conn: AsyncConnection[Any]
) -> None:
    await conn.execute("DROP TABLE mdm_data.person")
    response = await client.get("/api/v1/entities/person/data")
    assert problem(response) == (503, "WAREHOUSE_LOCKED")
    assert "relation" not in response.text


async def test_a_slow_query_is_ended(database_url: str, conn: AsyncConnection[Any]) -> None:
    url = f"{database_url}%20-c%20statement_timeout%3D200"
    async with served(create_app(database_url=url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        assert (await client.get("/api/v1/entities/country/data")).status_code == 200
        async with conn.transaction():
            await conn.execute("LOCK TABLE mdm_data.country")
            response = await client.get("/api/v1/entities/country/data")
    assert problem(response) == (503, "QUERY_TIMEOUT")


async def test_a_bug_is_a_problem_with_a_trace_id_and_a_log_line(
    database_url: str, conn: AsyncConnection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def broken_clock() -> datetime:
        raise ZeroDivisionError("a secret of the inside")

    app = create_app(database_url=database_url, settings=Settings(), now=broken_clock)
    async with served(app) as client:
        response = await client.get("/api/v1/entities/x/data", headers={"X-API-Key": KEY})
    assert problem(response) == (500, "INTERNAL")
    assert "secret" not in response.text and "ZeroDivision" not in response.text
    (record,) = (each for each in caplog.records if each.exc_info and each.name == "mdm_api.errors")
    assert record.__dict__["traceId"] == response.json()["traceId"]
