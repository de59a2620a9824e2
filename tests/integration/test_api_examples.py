"""The API over a real deployment of an example: answers keep to their schemas, rights hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app, folder_definitions
from mdm_api.openapi import openapi_document
from mdm_api.table import OPERATIONS
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.access_report import inspector
from mdm_gitops.plan.access_report import Verdict
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.apply import apply_plan
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import make_plan
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[2] / "examples" / "customer-hub"
API = "/api/v1/entities"
DEFINITIONS = read_folder(EXAMPLE)
DOCUMENT = openapi_document(OPERATIONS)


@pytest.fixture
async def client(
    database_url: str, conn: AsyncConnection[Any]
) -> AsyncIterator[httpx2.AsyncClient]:
    await apply_plan(conn, DEFINITIONS, None, schemas=Schemas(), actor="user:test", approved=True)
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    settings = Settings()
    definitions = folder_definitions(EXAMPLE, settings)
    app = create_app(database_url=database_url, settings=settings, definitions=definitions)
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def keeps_to_its_schema(
    client: httpx2.AsyncClient, path: str, template: str, status: int = 200
) -> Any:
    response = await client.get(path)
    assert response.status_code == status, response.text
    answer = DOCUMENT["paths"][template]["get"]["responses"][str(status)]
    media_type = response.headers["content-type"].partition(";")[0]
    schema = {**answer["content"][media_type]["schema"], "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())
    return response.json()


async def test_answers_keep_to_the_description(client: httpx2.AsyncClient) -> None:
    for path in ("", "/summary"):
        await keeps_to_its_schema(client, API + path, API + path)
    for entity in DEFINITIONS.entities.values():
        references = ",".join(column.name for column in entity.columns if column.reference)
        one = f"{API}/{{name}}"
        await keeps_to_its_schema(client, f"{API}/{entity.name}", one)
        await keeps_to_its_schema(
            client, f"{API}/{entity.name}/deploy/history", f"{one}/deploy/history"
        )
        for state in ("active", "deleted", "all", "pending"):
            query = f"state={state}&count=true&take=7&expand={references}"
            page = await keeps_to_its_schema(
                client, f"{API}/{entity.name}/data?{query}", f"{one}/data"
            )
            for row in page["items"][:1]:
                path = f"{API}/{entity.name}/data/{row['_sys_id']}?state={state}"
                await keeps_to_its_schema(client, path, f"{one}/data/{{id}}")
    await keeps_to_its_schema(client, f"{API}/nothing/data", f"{API}/{{name}}/data", 404)
    await keeps_to_its_schema(client, f"{API}/customer/data?filter=x", f"{API}/{{name}}/data", 400)


async def test_all_seeded_rows_can_be_walked_through(client: httpx2.AsyncClient) -> None:
    for name, seed in DEFINITIONS.seeds.items():
        after, seen = "", 0
        while after is not None:
            query = f"take=500&fields=_sys_id&after={after}"
            page = (await client.get(f"{API}/{name}/data?{query}")).json()
            seen += len(page["items"])
            after = page["nextAfter"]
        assert seen == len(seed.rows), name


async def test_the_rights_of_the_example_are_those_that_its_files_give_and_expect(
    client: httpx2.AsyncClient, conn: AsyncConnection[Any]
) -> None:
    inspect = inspector(Settings())
    plan = await make_plan(conn, DEFINITIONS, schemas=Schemas(), inspect=inspect)
    assert len(plan.access.tests) == 8
    assert {each.verdict: each.message for each in plan.access.tests} == {Verdict.PASSED: ""}
    client.headers["X-API-Key"] = await add_key(conn, "price-import")
    summary = (await client.get(f"{API}/summary")).json()["items"]
    assert [(item["name"], item["actions"]) for item in summary] == [("product", ["read", "write"])]
    assert (await client.get(f"{API}/product/data?take=1")).status_code == 200
    assert problem(await client.get(f"{API}/customer/data")) == (404, "ENTITY_NOT_FOUND")
    hidden = "[category].[code] = 'x'"
    followed = await client.get(f"{API}/product/data", params={"filter": hidden})
    assert problem(followed)[0] in (400, 403)
