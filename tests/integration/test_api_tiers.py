"""What a tier leaves out, over HTTP: operations, parameters and row filters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_api.call import Call, json_response
from mdm_api.operations import Access, Answer, Operation
from mdm_api.table import OPERATIONS
from mdm_gitops.access import Tier
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support import by_hand
from tests.support.countries import COUNTRIES, FILES, PEOPLE
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio
PERMISSIONS = b"""
permissions:
  - {users: ["apikey:swiss"], domains: [ref], entities: [country],
     actions: [read], rowFilterDsl: "[code] = 'CH'"}
  - {users: ["apikey:swiss"], domains: ["*"], actions: [read]}
"""
COUNTRY = "/api/v1/entities/country/data"


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        await by_hand.deploy(conn, read_tree({**FILES, "permissions.yaml": PERMISSIONS}))
        await by_hand.insert(conn, "country", COUNTRIES)
        await by_hand.insert(conn, "person", PEOPLE)
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        yield conn


async def feature(call: Call) -> Any:
    return json_response({"here": True})


async def hidden_feature(call: Call) -> Any:
    return json_response({"here": True})


def app_of(database_url: str, tier: str) -> Starlette:
    """Return the app with two more operations of a tier, one of which hides itself."""
    given: dict[str, Any] = {
        "method": "GET",
        "summary": "A feature",
        "tag": "Data",
        "access": Access.SIGNED_IN,
        "answers": {200: Answer(description="It.")},
        "tier": Tier.PROFESSIONAL,
    }
    hidden = {**given, "absent_below_tier": True}
    operations = (
        Operation(path="/api/v1/feature", handler=feature, **given),
        Operation(path="/api/v1/hidden", handler=hidden_feature, **hidden),
    )
    settings = Settings(Tier=tier)  # type: ignore[arg-type]
    return create_app(
        database_url=database_url, settings=settings, operations=(*OPERATIONS, *operations)
    )


@pytest.mark.parametrize("tier", ["Community", "Professional", "Enterprise"])
async def test_an_operation_is_there_from_its_tier_on(
    database_url: str, conn: AsyncConnection[Any], tier: str
) -> None:
    async with served(app_of(database_url, tier)) as client:
        assert problem(await client.get("/api/v1/feature")) == (401, "AUTH_REQUIRED")
        assert problem(await client.get("/api/v1/hidden")) == (401, "AUTH_REQUIRED")
        client.headers["X-API-Key"] = KEY
        shown, hidden = await client.get("/api/v1/feature"), await client.get("/api/v1/hidden")
        if tier != "Community":
            assert (shown.status_code, hidden.status_code) == (200, 200)
            return
        assert problem(shown) == (403, "TIER_REQUIRED")
        absent = (await client.get("/api/v1/absent")).json()
        assert {**hidden.json(), "traceId": ""} == {**absent, "traceId": ""}
        assert problem(await client.post("/api/v1/hidden")) == (404, "NOT_FOUND")


async def test_a_parameter_above_the_tier_is_refused_only_when_it_is_given(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    async with served(app_of(database_url, "Professional")) as client:
        client.headers["X-API-Key"] = KEY
        refused = await client.get(COUNTRY, params={"asOfUtc": "2024-01-01T00:00:00Z"})
        assert problem(refused) == (403, "TIER_REQUIRED")
        assert refused.json()["detail"] == "asOfUtc needs the tier Enterprise, this is Professional"
        assert (await client.get(COUNTRY, params={"asOfUtc": ""})).status_code == 200
    async with served(app_of(database_url, "Enterprise")) as client:
        client.headers["X-API-Key"] = KEY
        # What the parameter then does is told elsewhere; here only that the tier lets it through.
        let_in = await client.get(COUNTRY, params={"asOfUtc": "2024-01-01T00:00:00Z"})
        assert let_in.json().get("code") != "TIER_REQUIRED"


async def test_without_row_filters_a_filtered_caller_sees_nothing_rather_than_all(
    database_url: str, conn: AsyncConnection[Any]
) -> None:
    key = await add_key(conn, "swiss")
    fields = {"fields": "code"}
    async with served(app_of(database_url, "Professional")) as client:
        client.headers["X-API-Key"] = key
        assert (await client.get(COUNTRY, params=fields)).json()["items"] == [{"code": "CH"}]
        row_id = (await client.get(COUNTRY)).json()["items"][0]["_sys_id"]
    async with served(app_of(database_url, "Community")) as client:
        client.headers["X-API-Key"] = key
        for path in (COUNTRY, f"{COUNTRY}/{row_id}", "/api/v1/entities/person/data?expand=country"):
            assert problem(await client.get(path)) == (403, "TIER_REQUIRED"), path
        # The other entity has no filter, and a Global Admin none anywhere.
        assert (await client.get("/api/v1/entities/person/data")).status_code == 200
        client.headers["X-API-Key"] = KEY
        assert len((await client.get(COUNTRY, params=fields)).json()["items"]) > 1
