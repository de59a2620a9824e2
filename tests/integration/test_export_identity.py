"""Whatever is stored comes out of an export as it is: each form, read back by other code than ours."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from psycopg.types.json import set_json_loads

from mdm_gitops.data.csv_text import restore, restore_sql
from mdm_gitops.model import DataType, coerce
from tests.support import any_rows
from tests.support.any_rows import FILES, LAW, ROWS, TYPES, Row, serving, store
from tests.support.exporting import sheet
from tests.support.serving import Client

PATH = "/api/v1/entities/item/data/export"
SQL_TYPES = {
    DataType.INT: "int",
    DataType.LONG: "bigint",
    DataType.DECIMAL: "numeric",
    DataType.BOOL: "bool",
    DataType.DATE: "date",
    DataType.DATETIME: "timestamptz",
    DataType.GUID: "uuid",
    DataType.JSON: "jsonb",
}


runner = any_rows.runner


@pytest.fixture
def client(runner: asyncio.Runner, database_url: str) -> Iterator[Client]:
    with serving(runner, database_url, FILES) as client:
        yield client


@pytest.fixture
def sync(database_url: str, client: Client) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("SET TimeZone = 'UTC'")
        set_json_loads(lambda text: json.loads(text, parse_float=Decimal), conn)
        yield conn


def stored(rows: list[Row]) -> list[Row]:
    return [{"n": n, **row} for n, row in enumerate(rows)]


def test_csv(runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any]) -> None:
    sync.execute("CREATE TEMP TABLE back (" + ", ".join(f'"{n}" text' for n in TYPES) + ")")

    @LAW
    @given(ROWS)
    def law(rows: list[Row]) -> None:
        store(sync, rows)
        response = runner.run(client.get(PATH, params={"sort": "n"}))
        head, *records = parsed_csv(response.content.decode())
        assert head == list(TYPES)
        read = [dict(zip(TYPES, record, strict=True)) for record in records]
        assert [{n: typed(n, cell) for n, cell in row.items()} for row in read] == stored(rows)
        assert loaded_by_postgresql(sync, response.content) == (0, 0)

    law()


def typed(name: str, cell: str | None) -> Any:
    if cell is None:
        return None
    kind = TYPES[name]
    if kind.is_text:
        return restore(cell)
    return coerce(kind, json.loads(cell) if kind is DataType.JSON else cell)


def loaded_by_postgresql(sync: psycopg.Connection[Any], content: bytes) -> tuple[int, int]:
    """Return how many rows differ, either way, when PostgreSQL itself reads the file."""
    sync.execute("TRUNCATE back")
    with sync.cursor() as cursor, cursor.copy("COPY back FROM STDIN (FORMAT csv, HEADER)") as copy:
        copy.write(content)
    own = ", ".join(f'"{name}"' for name in TYPES)
    back = ", ".join(
        restore_sql(f'"{name}"') if kind.is_text else f'"{name}"::{SQL_TYPES[kind]}'
        for name, kind in TYPES.items()
    )
    tables = (f"SELECT {own} FROM mdm_data.item", f"SELECT {back} FROM back")
    counts = [
        sync.execute(f"SELECT count(*) FROM ({a} EXCEPT ALL {b}) d".encode()).fetchone() or (1,)
        for a, b in (tables, tables[::-1])
    ]
    return counts[0][0], counts[1][0]


_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\n)')


def parsed_csv(text: str) -> list[list[str | None]]:
    """Read RFC 4180, where an empty field in quotes is a text and one without is none."""
    records: list[list[str | None]] = [[]]
    at = 0
    while at < len(text):
        found = _FIELD.match(text, at)
        assert found is not None, text[at : at + 80]
        quoted, plain, end = found.groups()
        records[-1].append(quoted.replace('""', '"') if quoted is not None else plain or None)
        if end == "\n":
            records.append([])
        at = found.end()
    assert records.pop() == []
    return records


def test_json(runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any]) -> None:
    @LAW
    @given(ROWS)
    def law(rows: list[Row]) -> None:
        store(sync, rows)
        response = runner.run(client.get(PATH, params={"sort": "n", "format": "json"}))
        read = json.loads(response.content, parse_float=Decimal)
        typed = [{n: coerce(TYPES[n], value) for n, value in row.items()} for row in read]
        assert typed == stored(rows)
        assert all(list(row) == list(TYPES) for row in read)

    law()


def test_workbook(runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any]) -> None:
    kinds = set()

    @LAW
    @given(ROWS)
    def law(rows: list[Row]) -> None:
        store(sync, rows)
        response = runner.run(client.get(PATH, params={"sort": "n", "format": "xlsx"}))
        head, *records = sheet(response.content)
        assert [text for _, text in head] == list(TYPES)
        kinds.update((name, c[0]) for r in records for name, c in zip(TYPES, r, strict=True))
        read = [
            {name: of_cell(name, *cell) for name, cell in zip(TYPES, record, strict=True)}
            for record in records
        ]
        assert read == stored(rows)

    law()
    assert kinds >= {
        *((name, "n") for name in TYPES),
        ("large", "inlineStr"),
        ("amount", "inlineStr"),
        ("day", "n2"),
        ("day", "inlineStr"),
        ("moment", "inlineStr"),
        ("text", "inlineStr4"),
        ("ok", "b"),
    }


def of_cell(name: str, kind: str, text: str) -> Any:
    """Read a cell as a spreadsheet does; what is there as text is typed by its column."""
    data_type = TYPES[name]
    match kind:
        case "n" if text == "":
            return None
        case "n":
            return coerce(data_type, text)
        case "b":
            return text == "1"
        case "n2":
            return date(1899, 12, 30) + timedelta(days=int(text))
        case "n3":
            milliseconds = round(Decimal(text) * 86_400_000)
            return datetime(1899, 12, 30, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    text = re.sub("_x([0-9A-F]{4})_", lambda found: chr(int(found[1], 16)), text)
    if data_type.is_text:
        return text
    return coerce(data_type, json.loads(text) if data_type is DataType.JSON else text)


@pytest.mark.parametrize("moment", ["1900-03-01T00:00:00Z", "9999-12-30T23:59:59.999Z"])
def test_moments_of_milliseconds_are_cells_of_moments(
    runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any], moment: str
) -> None:
    given_row = {
        **dict.fromkeys(TYPES),
        "moment": datetime.fromisoformat(moment),
        "gid": UUID(int=1),
    }
    store(sync, [given_row])
    cell = sheet(runner.run(client.get(PATH, params={"format": "xlsx"})).content)[1][7]
    assert cell[0] == "n3"
    assert of_cell("moment", *cell) == given_row["moment"]
