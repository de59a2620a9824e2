"""Exports over HTTP: what is in them, for whom, and what is refused before the first byte."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import zipfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_api.app import create_app
from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.asking import Asking, StateMoved
from mdm_gitops.data.export import ExportFormat, ExportRequest, opened_export
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import read_state
from tests.conftest import DatabaseMaker, Prepare
from tests.support import by_hand
from tests.support.countries import COUNTRIES, FILES, PEOPLE
from tests.support.serving import KEY, Client, add_key, client_of, problem, served

pytestmark = pytest.mark.anyio
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


# --- what is in a file --------------------------------------------------------------------------


async def test_csv_has_the_columns_of_the_definition_and_no_others(client: Client) -> None:
    response = await client.get(COUNTRY)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert response.headers["content-disposition"] == 'attachment; filename="country.csv"'
    assert response.headers["cache-control"] == "no-store"
    assert response.text == (
        "code,Name,area,people,member_since,checked_at,active,extra\n"
        "CH,Switzerland,41285.00,1152921504606846977,2002-09-10,2024-05-06T07:08:09.12Z,true,"
        '"{""a"": [1.5, null]}"\n'
        "DE,Germany,357022.4,,,,false,\n"
        "FR,,1000,,,,,\n"
        "IT,Italy,41285.0,,,,,\n"
    )


async def test_json_is_an_array_of_rows_as_the_list_has_them(client: Client) -> None:
    response = await client.get(COUNTRY, params={"format": "json"})
    assert response.headers["content-type"] == "application/json"
    assert '"area":41285.00,"people":1152921504606846977,' in response.text
    listed = (await client.get("/api/v1/entities/country/data")).json()["items"]
    plain = [{n: v for n, v in row.items() if not n.startswith("_sys_")} for row in listed]
    assert response.json() == plain


async def test_a_workbook_has_cells_of_their_own_kind(client: Client) -> None:
    response = await client.get(COUNTRY, params={"format": "xlsx"})
    assert response.headers["content-type"].endswith("spreadsheetml.sheet")
    assert response.headers["content-disposition"] == 'attachment; filename="country.xlsx"'
    head, first, second, *_ = sheet(response.content)
    assert [kind for kind, _ in head] == ["inlineStr1"] * 8
    assert first == [
        ("inlineStr", "CH"),
        ("inlineStr", "Switzerland"),
        ("n", "41285.00"),
        ("inlineStr", str(2**60 + 1)),
        ("n2", str((datetime(2002, 9, 10) - datetime(1899, 12, 30)).days)),
        ("n3", "45418.29732777778"),
        ("b", "1"),
        ("inlineStr", '{"a": [1.5, null]}'),
    ]
    assert second[4:] == [("n", ""), ("n", ""), ("b", "0"), ("n", "")]
    again = await client.get(COUNTRY, params={"format": "xlsx"})
    assert again.content == response.content


@pytest.mark.parametrize("format_", FORMATS)
async def test_no_rows_are_a_whole_file_too(client: Client, format_: str) -> None:
    asked = {"format": format_, "filter": "[code] = 'nowhere'", "fields": "code"}
    response = await client.get(COUNTRY, params=asked)
    assert response.status_code == 200
    match format_:
        case "csv":
            assert response.text == "code\n"
        case "json":
            assert response.json() == []
        case _:
            assert sheet(response.content) == [[("inlineStr1", "code")]]


async def test_system_columns_are_there_when_they_are_named(client: Client) -> None:
    response = await client.get(
        COUNTRY, params={"fields": "_sys_version,CODE,_sys_state,_sys_created_by", "state": "all"}
    )
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert rows[0] == {
        "_sys_version": "4",
        "code": "AT",
        "_sys_state": "deleted",
        "_sys_created_by": "system:test",
    }
    assert [row["_sys_state"] for row in rows[1:]] == ["active"] * 4


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        pytest.param({}, ["CH", "DE", "FR", "IT"], id="sort-of-the-definition"),
        pytest.param({"sort": "-code"}, ["IT", "FR", "DE", "CH"], id="descending"),
        pytest.param({"sort": "name"}, ["DE", "IT", "CH", "FR"], id="nulls-last"),
        pytest.param({"sort": "area,-code"}, ["FR", "IT", "CH", "DE"], id="mixed"),
        pytest.param({"skip": 1, "take": 2}, ["DE", "FR"], id="skip-and-take"),
        pytest.param({"skip": 3}, ["IT"], id="skip-alone"),
        pytest.param({"take": 1}, ["CH"], id="take-alone"),
        pytest.param({"skip": 9}, [], id="beyond-the-end"),
        pytest.param({"state": "deleted"}, ["AT"], id="deleted"),
        pytest.param({"state": "all"}, ["AT", "CH", "DE", "FR", "IT"], id="all"),
        pytest.param({"filter": "[area] > 41285"}, ["DE"], id="filter"),
        pytest.param({"filter": "[code] IN ('IT', 'CH') AND [name] LIKE 'I_al%'"}, ["IT"], id="in"),
        pytest.param({"filter": "[name] = 'O''Hara %'"}, [], id="quotes-and-percent"),
        pytest.param({"filter": "[checked_at] < '2025-01-01'"}, ["CH"], id="moment"),
    ],
)
async def test_which_rows_in_which_order(
    client: Client, asked: dict[str, Any], codes: list[str]
) -> None:
    assert [row["code"] for row in await exported(client, COUNTRY, **asked)] == codes
    response = await client.get(COUNTRY, params=asked)
    assert [row["code"] for row in csv.DictReader(io.StringIO(response.text))] == codes


async def test_without_any_order_to_keep_all_rows_are_there_and_parts_have_one(
    client: Client,
) -> None:
    everybody = await exported(client, PERSON, fields="_sys_id,login")
    assert {row["login"] for row in everybody} == {"anna", "bert", "cleo"}
    parts = [await exported(client, PERSON, skip=n, take=1, fields="_sys_id") for n in range(3)]
    ids = [row["_sys_id"] for part in parts for row in part]
    assert ids == sorted(row["_sys_id"] for row in everybody)


@pytest.mark.parametrize("rows", [1, 2, 1_999, 5_000])
async def test_more_rows_than_a_chunk_holds(
    own: Client, conn: AsyncConnection[Any], rows: int
) -> None:
    await conn.execute(
        "INSERT INTO mdm_data.country (_sys_id, code, name, _sys_created_at, _sys_created_by,"
        " _sys_last_modified_at, _sys_last_modified_by) SELECT mdm.uuid_v7(), 'x' || n,"
        " repeat('y', 400), now(), 'a', now(), 'a' FROM generate_series(1, %s) n",
        [rows],
    )
    asked = {"filter": "[name] STARTSWITH 'yyy'", "fields": "code"}
    expected = {f"x{n}" for n in range(1, rows + 1)}
    assert {row["code"] for row in await exported(own, COUNTRY, **asked)} == expected
    text = (await own.get(COUNTRY, params={**asked, "fields": "code,name"})).text
    assert [len(row["Name"]) for row in csv.DictReader(io.StringIO(text))] == [400] * rows
    book = await own.get(COUNTRY, params={**asked, "format": "xlsx"})
    assert {cells[0][1] for cells in sheet(book.content)[1:]} == expected


async def test_head_answers_the_headers_alone(client: Client) -> None:
    response = await client.head(COUNTRY)
    assert response.status_code == 200
    assert response.headers["content-disposition"] == 'attachment; filename="country.csv"'
    assert (await client.head(COUNTRY, params={"filter": "["})).status_code == 400


# --- for whom -----------------------------------------------------------------------------------


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


# --- what a sheet cannot hold ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status"),
    [("x" * 32_767, 200), ("x" * 32_768, 400), ("ü" * 32_767, 200), ("😀" * 16_384, 400)],
)
async def test_a_text_that_no_cell_holds_is_refused_not_cut(
    own: Client, conn: AsyncConnection[Any], text: str, status: int
) -> None:
    await conn.execute("UPDATE mdm_data.country SET name = %s WHERE code = 'IT'", [text])
    response = await own.get(COUNTRY, params={"format": "xlsx"})
    assert response.status_code == status
    if status == 200:
        assert sheet(response.content)[-1][1][1] == text
        return
    assert problem(response) == (400, "REQUEST_INVALID")
    assert response.json()["detail"].startswith("column 'Name' of country holds a text of more")
    around = {"format": "xlsx", "fields": "code,area"}
    assert (await own.get(COUNTRY, params=around)).status_code == 200
    assert text in (await own.get(COUNTRY)).text


async def test_texts_that_xml_knows_otherwise(own: Client, conn: AsyncConnection[Any]) -> None:
    await conn.execute(
        "UPDATE mdm_data.country SET name = %s WHERE code = 'IT'",
        ["<a> & \r\n\t\x01 _x0041_ ]]> \x7f é"],
    )
    response = await own.get(COUNTRY, params={"format": "xlsx"})
    assert sheet(response.content)[-1][1] == (
        "inlineStr",
        "<a> & \r\n\t_x0001_ _x005F_x0041_x005F_ ]]> \x7f é",
    )


async def test_what_a_spreadsheet_would_run(own: Client, conn: AsyncConnection[Any]) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "'x", "plain", "", None]
    await conn.execute("DELETE FROM mdm_data.country")
    rows = [{"code": f"={n}", "name": text, "area": -1} for n, text in enumerate(texts)]
    await by_hand.insert(conn, "country", rows)
    text = (await own.get(COUNTRY, params={"fields": "code,name,area"})).text
    assert text == (
        "code,Name,area\n"
        "'=0,'=1+1,-1\n'=1,'+1,-1\n'=2,'-1,-1\n'=3,'@x,-1\n'=4,'\tx,-1\n'=5,''x,-1\n"
        "'=6,plain,-1\n'=7,\"\",-1\n'=8,,-1\n"
    )
    book = await own.get(COUNTRY, params={"format": "xlsx", "fields": "name,area"})
    cells = [row[0] for row in sheet(book.content)[1:]]
    assert cells == [
        *(("inlineStr4", each) for each in texts[:6]),
        ("inlineStr", "plain"),
        ("inlineStr", ""),
        ("n", ""),
    ]
    assert [row["Name"] for row in await exported(own, COUNTRY)] == texts


# --- the past -------------------------------------------------------------------------------------


async def test_the_rows_of_a_moment(make_database: DatabaseMaker) -> None:
    url = make_database()
    files = {
        **FILES,
        "entities/country.yaml": FILES["entities/country.yaml"].replace(
            b"domain: ref", b"domain: ref\nhistoryEnabled: true"
        ),
    }
    async with await connect(url, application_name="test") as conn:
        await by_hand.deploy(conn, read_tree(files))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        app = create_app(database_url=url, settings=Settings(), now=lambda: datetime.now(UTC))
        async with served(app) as client:
            client.headers["X-API-Key"] = KEY
            path = "/api/v1/entities/country/data"
            made = await client.post(path, json={"code": "=CH", "name": "first"})
            row = made.json()
            changed = await client.put(f"{path}/{row['_sys_id']}", json={"name": "second"})
            assert changed.status_code == 200
            then = {"asOfUtc": row["_sys_last_modified_at"]}
            assert [r["Name"] for r in await exported(client, COUNTRY)] == ["second"]
            assert [r["Name"] for r in await exported(client, COUNTRY, **then)] == ["first"]
            assert "'=CH,first," in (await client.get(COUNTRY, params=then)).text
            book = await client.get(COUNTRY, params={**then, "format": "xlsx", "sort": "-name"})
            assert sheet(book.content)[1][1] == ("inlineStr", "first")
            before = await exported(client, COUNTRY, asOfUtc="2020-01-01T00:00:00Z", sort="code")
            assert before == []
            ahead = await client.get(COUNTRY, params={"asOfUtc": "2126-01-01T00:00:00Z"})
            assert problem(ahead) == (400, "REQUEST_INVALID")
