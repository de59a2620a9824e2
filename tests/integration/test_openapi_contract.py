"""The API keeps what its OpenAPI document promises: no 5xx, no status, type or shape beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.settings import Settings
from tests.integration.test_api_access_table import DEAL, PERMISSIONS
from tests.support.contract import judge, listening, with_values
from tests.support.customers import FILES
from tests.support.served_folder import deployed, repository
from tests.support.serving import KEY, Client

pytestmark = pytest.mark.anyio
ENTITIES = "/api/v1/entities/"
NAMES = ("customer", "country", "deal")
VALUES = {
    "/api": {
        "column": ("code", "country", "stage", "email", "customer"),
        "filter": ("[code] = 'C1'", "[code] LIKE 'C%'"),
        "sort": ("code", "-code"),
        "fields": ("code", "code,_sys_id"),
        "asOfUtc": ("2099-01-01T00:00:00Z",),
        "q": ("c1", "zurich", "open d"),
    }
}
_ANY = {"type": ["string", "number", "boolean", "null"]}
ROW = {
    "code": {"enum": ["C1", "C2", "C3", "C4", "CH", "D1", "D3"]},
    "country": {"enum": ["CH", "DE", None, "XX"]},
    "customer": {"enum": ["C1", None]},
    "parent": {"enum": ["C1", "C2", None]},
    "extra": {},
    **dict.fromkeys(("email", "segment", "credit", "rank", "born", "seen", "active", "tag"), _ANY),
}
# Without a version in the path the handlers are the same.
TWINS = ("--exclude-path-regex", "^/api/(changes|audit|entities)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {**FILES, "permissions.yaml": PERMISSIONS, "entities/deal.yaml": DEAL}
    return repository(tmp_path / "definitions", files)


@pytest.fixture
async def conn(database_url: str, root: Path) -> AsyncIterator[AsyncConnection[Any]]:
    async with deployed(database_url, root) as conn:
        yield conn


@pytest.fixture
def app(database_url: str, conn: AsyncConnection[Any], root: Path) -> Starlette:
    settings = Settings(Webhooks={"Enabled": False})
    definitions = folder_definitions(root, settings)
    return create_app(database_url=database_url, settings=settings, definitions=definitions)


async def rows_of(client: Client) -> list[str]:
    """Write some rows and return their ids."""
    ids = []
    for name, row in (
        ("country", {"code": "CH", "Name": "Schweiz"}),
        ("country", {"code": "DE"}),
        ("customer", {"code": "C1", "country": "CH", "email": "a@b.example", "credit": 12.5}),
        ("customer", {"code": "C2", "parent": "C1", "extra": {"a": [1, None]}, "salary": "9"}),
        ("deal", {"code": "D1", "stage": "won", "customer": "C1"}),
        ("deal", {"code": "D2", "stage": "lost"}),
    ):
        answer = await client.post(f"{ENTITIES}{name}/data", json=row)
        assert answer.status_code in (201, 202), answer.text
        ids.append(answer.json()["_sys_id"])
    return ids


async def merges_of(client: Client) -> list[str]:
    """Merge some rows and return the merges."""
    found = []
    for n in range(3):
        ids = [
            (await client.post(f"{ENTITIES}country/data", json={"code": f"{part}{n}"})).json()
            for part in "MN"
        ]
        body = dict(zip(("survivorId", "duplicateId"), (r["_sys_id"] for r in ids), strict=True))
        answer = await client.post(f"{ENTITIES}country/data/deduplicate", json=body)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["mergeId"])
    return found


@asynccontextmanager
async def ready(app: Starlette) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Serve *app* with some rows; yield its URL, and its document with names and ids that exist."""
    async with listening(app) as url:
        async with Client(base_url=url, headers={"X-API-Key": KEY}) as client:
            ids, merges = await rows_of(client), await merges_of(client)
            document = (await client.get("/swagger/v1/swagger.json")).json()
        yield (
            url,
            with_values(
                document,
                {**VALUES, ENTITIES: {"name": NAMES, "id": ids, "mergeId": merges}},
                bodies={
                    "RowInput": ROW,
                    "MergeRequest": {
                        "survivorId": {"enum": ids},
                        "duplicateId": {"enum": ids},
                        "values": {"type": "object", "properties": ROW},
                    },
                },
            ),
        )


async def test_no_answer_is_beside_the_document(app: Starlette, tmp_path: Path) -> None:
    async with ready(app) as (url, document):
        options = ("--phases", "examples,fuzzing", "--max-examples", "3", *TWINS)
        code, said = await judge(document, url=url, key=KEY, folder=tmp_path, options=options)
    assert code == 0, said


@pytest.mark.soak
@pytest.mark.parametrize("phase", ["coverage", "fuzzing"])
async def test_no_answer_is_beside_the_document_at_length(
    app: Starlette, tmp_path: Path, phase: str
) -> None:
    async with ready(app) as (url, document):
        options = ("--phases", f"examples,{phase}", "--max-examples", "100")
        code, said = await judge(document, url=url, key=KEY, folder=tmp_path, options=options)
    assert code == 0, said


async def test_an_answer_beside_the_document_is_found(app: Starlette, tmp_path: Path) -> None:
    """The negative control: the same run against a document that does not tell of 404."""
    async with ready(app) as (url, document):
        path = "/api/v1/entities/{name}"
        del document["paths"][path]["get"]["responses"]["404"]
        options = ("--phases", "fuzzing", "--max-examples", "10", "--include-path", path)
        code, said = await judge(document, url=url, key=KEY, folder=tmp_path, options=options)
    assert (code, "Undocumented status code" in said) == (1, True), said
