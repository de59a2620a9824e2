"""A warehouse of countries and people that is exported, and how a workbook is read: what tests share."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import Prepare
from tests.support import by_hand
from tests.support.countries import COUNTRIES, FILES, PEOPLE
from tests.support.serving import KEY, Client, add_key, client_of, served

COUNTRY = "/api/v1/entities/country/data/export"
PERSON = "/api/v1/entities/person/data/export"
FORMATS = ("csv", "json", "xlsx")
_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"

KEYS: dict[str, str] = {}  # of those whom the warehouse knows, made with it


async def warehouse(conn: AsyncConnection[Any]) -> None:
    permissions = FILES["permissions.yaml"]
    for name in (b"swiss", b"self", b"hr", b"reader"):
        permissions = permissions.replace(b"[%s]" % name, b'["apikey:%s"]' % name)
    permissions = permissions.replace(b'domains: ["apikey:hr"]', b"domains: [hr]")
    await by_hand.deploy(conn, read_tree({**FILES, "permissions.yaml": permissions}))
    await by_hand.insert(conn, "country", COUNTRIES)
    await by_hand.insert(conn, "person", PEOPLE)
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    for name in ("swiss", "hr", "reader"):
        KEYS[name] = await add_key(conn, name)


@pytest.fixture(scope="module")
def shared_url(shared_copy_of: Callable[[Prepare], str]) -> str:
    return shared_copy_of(warehouse)


@pytest.fixture(scope="module")
async def shared_app(shared_url: str) -> AsyncIterator[Starlette]:
    app = create_app(database_url=shared_url, settings=Settings())
    async with served(app):
        yield app


@pytest.fixture
async def client(shared_app: Starlette) -> AsyncIterator[Client]:
    """A Global Admin's client of the warehouse that many tests read and none changes."""
    async with client_of(shared_app) as client:
        client.headers["X-API-Key"] = KEY
        yield client


@pytest.fixture
def database_url(copy_of: Callable[[Prepare], str]) -> str:
    """The same warehouse for a test that changes it."""
    return copy_of(warehouse)


@pytest.fixture
async def own(database_url: str) -> AsyncIterator[Client]:
    async with served(create_app(database_url=database_url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        yield client


async def exported(client: Client, path: str, **asked: Any) -> list[dict[str, Any]]:
    """Return the rows of a JSON export."""
    response = await client.get(path, params={"format": "json", **asked})
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()
    return rows


def sheet(content: bytes) -> list[list[tuple[str, str]]]:
    """Return kind, style and text of each cell, read by a parser of XML and nothing of ours."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
        root = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    return [
        [
            (cell.get("t", "n") + cell.get("s", ""), "".join(cell.itertext()))
            for cell in row.findall(f"{_MAIN}c")
        ]
        for row in root.iter(f"{_MAIN}row")
    ]
