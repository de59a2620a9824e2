"""Exports over HTTP: what is in them, and what a sheet cannot hold."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.conftest import DatabaseMaker
from tests.support import by_hand, exporting
from tests.support.countries import FILES
from tests.support.exporting import COUNTRY, FORMATS, PERSON, exported, sheet
from tests.support.serving import KEY, Client, problem, served

pytestmark = pytest.mark.anyio


database_url, own = exporting.database_url, exporting.own
shared_url, shared_app, client = exporting.shared_url, exporting.shared_app, exporting.client


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
