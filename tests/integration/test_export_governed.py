"""Exports over HTTP: for whom, and what is refused before the first byte."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.export import ExportFormat, ExportRequest, opened_export
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.support import exporting
from tests.support.exporting import COUNTRY, FORMATS, KEYS, PERSON, exported, sheet
from tests.support.serving import KEY, Client, problem, served

pytestmark = pytest.mark.anyio


database_url, own = exporting.database_url, exporting.own
shared_url, shared_app, client = exporting.shared_url, exporting.shared_app, exporting.client


@pytest.mark.parametrize("format_", FORMATS)
async def test_restricted_values_are_masked_unless_the_caller_may_see_them(
    client: Client, format_: str
) -> None:
    seen = {}
    for name in ("reader", "hr"):
        client.headers["X-API-Key"] = KEYS[name]
        asked = {"format": format_, "fields": "login,salary", "sort": "login"}
        response = await client.get(PERSON, params=asked)
        assert response.status_code == 200, response.text
        match format_:
            case "csv":
                seen[name] = [row["salary"] for row in csv.DictReader(io.StringIO(response.text))]
            case "json":
                seen[name] = [str(row["salary"]) for row in response.json()]
            case _:
                seen[name] = [cells[1][1] for cells in sheet(response.content)[1:]]
    assert seen == {"reader": ["***"] * 3, "hr": ["100", "200", "300"]}


@pytest.mark.parametrize("format_", FORMATS)
async def test_only_rows_that_pass_the_row_filter_are_exported(
    client: Client, format_: str
) -> None:
    client.headers["X-API-Key"] = KEYS["swiss"]
    for asked in ({}, {"filter": "[code] = 'CH' OR [code] = 'DE'"}, {"state": "all"}):
        response = await client.get(COUNTRY, params={"format": format_, **asked})
        content = response.content
        if format_ == "xlsx":
            content = json.dumps(sheet(content)).encode()
        assert b"Switzerland" in content
        for other in (b"Germany", b"Italy", b"Austria", b"FR"):
            assert other not in content


@pytest.mark.parametrize(
    ("key", "path", "asked", "expected"),
    [
        pytest.param("reader", COUNTRY, {"filter": "["}, (400, "FILTER_INVALID"), id="filter"),
        pytest.param("reader", COUNTRY, {"sort": "nope"}, (400, "REQUEST_INVALID"), id="sort"),
        pytest.param("reader", COUNTRY, {"fields": "nope"}, (400, "REQUEST_INVALID"), id="fields"),
        pytest.param(
            "reader", COUNTRY, {"fields": "code,CODE"}, (400, "REQUEST_INVALID"), id="twice"
        ),
        pytest.param("reader", COUNTRY, {"format": "pdf"}, (400, "REQUEST_INVALID"), id="format"),
        pytest.param("reader", COUNTRY, {"take": "0"}, (400, "REQUEST_INVALID"), id="take"),
        pytest.param("reader", COUNTRY, {"skip": "-1"}, (400, "REQUEST_INVALID"), id="skip"),
        pytest.param(
            "reader", COUNTRY, {"state": "pending"}, (400, "REQUEST_INVALID"), id="pending"
        ),
        pytest.param("reader", COUNTRY, {"count": "true"}, (400, "REQUEST_INVALID"), id="unknown"),
        pytest.param(
            "reader", COUNTRY, {"asOfUtc": "soon"}, (400, "REQUEST_INVALID"), id="no-moment"
        ),
        pytest.param(
            "reader",
            COUNTRY,
            {"asOfUtc": "2026-01-01T00:00:00Z"},
            (409, "HISTORY_NOT_ENABLED"),
            id="no-history",
        ),
        pytest.param(
            "reader",
            PERSON,
            {"filter": "[salary] > 1"},
            (403, "COLUMN_RESTRICTED"),
            id="filter-by-masked",
        ),
        pytest.param(
            "reader", PERSON, {"sort": "salary"}, (403, "COLUMN_RESTRICTED"), id="sort-by-masked"
        ),
        pytest.param("hr", COUNTRY, {}, (404, "ENTITY_NOT_FOUND"), id="hidden-entity"),
        pytest.param(
            "hr",
            "/api/v1/entities/nothing/data/export",
            {},
            (404, "ENTITY_NOT_FOUND"),
            id="no-entity",
        ),
    ],
)
@pytest.mark.parametrize("format_", FORMATS)
async def test_refusals_are_problem_documents(
    client: Client,
    key: str,
    path: str,
    asked: dict[str, str],
    expected: tuple[int, str],
    format_: str,
) -> None:
    client.headers["X-API-Key"] = KEYS[key]
    assert problem(await client.get(path, params={"format": format_, **asked})) == expected


async def test_without_a_key_nothing_is_told(client: Client) -> None:
    del client.headers["X-API-Key"]
    assert problem(await client.get(COUNTRY)) == (401, "AUTH_REQUIRED")


async def test_a_tier_without_exports_says_so(shared_url: str) -> None:
    app = create_app(database_url=shared_url, settings=Settings(Tier="Community"))
    async with served(app) as client:
        client.headers["X-API-Key"] = KEY
        assert problem(await client.get(COUNTRY)) == (403, "TIER_REQUIRED")


async def test_a_right_that_is_taken_away_is_gone_at_once(
    own: Client, conn: AsyncConnection[Any]
) -> None:
    own.headers["X-API-Key"] = KEYS["reader"]
    assert (await own.get(COUNTRY)).status_code == 200
    await conn.execute("DELETE FROM mdm.permission WHERE principal = 'apikey:reader'")
    assert problem(await own.get(COUNTRY)) == (404, "ENTITY_NOT_FOUND")
    await conn.execute(
        "INSERT INTO mdm.permission (principal, domain, entity, actions, row_filter) VALUES"
        " ('apikey:reader', 'ref', 'country', '{read}', '[code] = ''IT''')"
    )
    assert [row["code"] for row in await exported(own, COUNTRY)] == ["IT"]


async def test_columns_that_change_places_meanwhile_show_nothing(
    own: Client, conn: AsyncConnection[Any]
) -> None:
    """A deployment that the export has to wait for counts: rights and columns are read after it."""
    own.headers["X-API-Key"] = KEYS["reader"]
    async with conn.transaction():
        for old, new in (("login", "tmp"), ("boss", "login"), ("tmp", "boss")):
            await conn.execute(f"ALTER TABLE mdm_data.person RENAME COLUMN {old} TO {new}".encode())
        await conn.execute("DELETE FROM mdm.permission WHERE principal = 'apikey:reader'")
        asked = asyncio.create_task(own.get(PERSON))
        for _ in range(200):
            await asyncio.sleep(0.02)
            waiting = await conn.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if (await waiting.fetchone() or (0,))[0]:
                break
        else:
            raise AssertionError("the export did not wait")
    assert problem(await asked) == (404, "ENTITY_NOT_FOUND")


@pytest.mark.parametrize("format_", ExportFormat)
async def test_rights_and_rows_are_of_one_snapshot(
    database_url: str, conn: AsyncConnection[Any], format_: ExportFormat
) -> None:
    """What is written between the check of the rights and the first row is not shown."""
    asking = Asking(
        principal=Principal(kind=PrincipalKind.APIKEY, name="reader"),
        state=await read_state(conn, schemas=Schemas()),
        schemas=Schemas(),
        now=datetime.now(UTC),
    )
    request = ExportRequest(format=format_, fields="code")
    async with (
        await connect(database_url, application_name="test") as other,
        opened_export(
            other, asking=asking, entity="country", request=request, timeout_s=20
        ) as export,
    ):
        await conn.execute("UPDATE mdm_data.country SET code = 'secret ' || code")
        content = b"".join([chunk async for chunk in export.chunks()])
    text = json.dumps(sheet(content)) if format_ is ExportFormat.XLSX else content.decode()
    assert "CH" in text and "secret" not in text
    assert export.rows == 4
    with pytest.raises(StateMoved):
        await conn.execute("DELETE FROM mdm.permission WHERE principal = 'apikey:reader'")
        async with opened_export(
            conn, asking=asking, entity="country", request=request, timeout_s=20
        ):
            pass
