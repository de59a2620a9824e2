"""Whatever is stored comes out of an export as it is: each form, read back by other code than ours."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb, set_json_loads

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.csv_text import SIGNS, restore, restore_sql
from mdm_gitops.model import DataType, coerce
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.integration.test_export import sheet
from tests.support import by_hand
from tests.support.serving import KEY, Client, served

PATH = "/api/v1/entities/item/data/export"
TYPES = {
    "n": DataType.INT,
    "text": DataType.TEXT,
    "string": DataType.STRING,
    "large": DataType.LONG,
    "amount": DataType.DECIMAL,
    "ok": DataType.BOOL,
    "day": DataType.DATE,
    "moment": DataType.DATETIME,
    "gid": DataType.GUID,
    "extra": DataType.JSON,
}
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
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n",
    "entities/item.yaml": json.dumps(
        {
            "name": "item",
            "domain": "ref",
            "keyColumns": ["n"],
            "columns": [
                {"name": name, "dataType": kind.value, "nullable": name != "n"}
                for name, kind in TYPES.items()
            ],
        }
    ).encode(),
}
PIECES = st.sampled_from(
    [
        *SIGNS,
        "'",
        "'=",
        '"',
        '""',
        ",",
        "\n",
        "\r\n",
        "\\",
        "\\.",
        " ",
        "a",
        "é",
        "😀",
        "\x01",
        "\x1f",
        "&",
        "<",
        "]]>",
        "_x000D_",
        "\u2028",
        "\ufeff",
        "\x7f",
        "null",
        "NULL",
        "\\N",
        "0",
        "1e5",
        ";",
    ]
)
TEXT = st.one_of(
    st.lists(PIECES, max_size=6).map("".join),
    st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12),
)
JSON = st.recursive(
    st.booleans() | st.integers() | TEXT,
    lambda inner: (
        st.lists(inner | st.none(), max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=5,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.none() | TEXT,
            "string": st.none() | TEXT,
            "large": st.none() | st.integers(-(2**63), 2**63 - 1),
            "amount": st.none() | st.decimals(-(10**20), 10**20, allow_nan=False, places=7),
            "ok": st.none() | st.booleans(),
            "day": st.none() | st.dates(),
            "moment": st.none() | st.datetimes(timezones=st.just(UTC)),
            "gid": st.none() | st.uuids(),
            "extra": st.none() | JSON,
        }
    ),
    min_size=1,
    max_size=20,
)
Row = dict[str, Any]


@asynccontextmanager
async def serving(database_url: str) -> Any:
    async with await connect(database_url, application_name="test") as conn:
        await by_hand.deploy(conn, read_tree(FILES))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        async with served(create_app(database_url=database_url, settings=Settings())) as client:
            client.headers["X-API-Key"] = KEY
            yield client


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def client(runner: asyncio.Runner, database_url: str) -> Iterator[Client]:
    context = serving(database_url)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def sync(database_url: str, client: Client) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("SET TimeZone = 'UTC'")
        set_json_loads(lambda text: json.loads(text, parse_float=Decimal), conn)
        yield conn


LAW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def store(sync: psycopg.Connection[Any], rows: list[Row]) -> None:
    sync.execute("TRUNCATE mdm_data.item")
    names = ", ".join(f'"{name}"' for name in TYPES)
    values = ", ".join(f"%({name})s" for name in TYPES)
    statement = (
        f"INSERT INTO mdm_data.item (_sys_id, {names}, _sys_created_at, _sys_created_by,"
        f" _sys_last_modified_at, _sys_last_modified_by)"
        f" VALUES (mdm.uuid_v7(), {values}, now(), 'a', now(), 'a')"
    )
    with sync.cursor() as cursor:
        cursor.executemany(
            statement.encode(),
            [
                {**row, "n": n, "extra": None if row["extra"] is None else Jsonb(row["extra"])}
                for n, row in enumerate(rows)
            ],
        )


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
