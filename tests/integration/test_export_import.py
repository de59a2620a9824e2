"""What an export wrote is what an import reads: there and back again, nothing has changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings

from tests.support import any_rows
from tests.support.any_rows import FILES, LAW, ROWS, TYPES, Row, serving, store
from tests.support.serving import Client

ITEM = json.loads(FILES["entities/item.yaml"])
ALL_FILES = {
    **FILES,
    "entities/twin.yaml": json.dumps({**ITEM, "name": "twin"}).encode(),
    "entities/word.yaml": b"name: word\ndomain: ref\ncolumns:\n  - {name: word, dataType: text}\n",
}
MEDIA_TYPES = {
    "csv": ("bulk-csv", "text/csv"),
    "json": ("bulk", "application/json"),
    "xlsx": ("bulk-xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
}


runner = any_rows.runner


@pytest.fixture
def client(runner: asyncio.Runner, database_url: str) -> Iterator[Client]:
    with serving(runner, database_url, ALL_FILES) as client:
        yield client


@pytest.fixture
def sync(database_url: str, client: Client) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as conn:
        yield conn


async def carry(client: Client, source: str, target: str, format_: str) -> dict[str, Any]:
    """Export one entity and import the file into the other."""
    sent = await client.get(f"/api/v1/entities/{source}/data/export", params={"format": format_})
    assert sent.status_code == 200, sent.text
    path, media_type = MEDIA_TYPES[format_]
    answer = await client.post(
        f"/api/v1/entities/{target}/data/{path}",
        content=sent.content,
        headers={"Content-Type": media_type},
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def differences(sync: psycopg.Connection[Any], columns: str, one: str, other: str) -> int:
    """Return how many rows the two tables do not share."""
    tables = [f"SELECT {columns} FROM mdm_data.{name}" for name in (one, other)]
    count = sync.execute(
        f"SELECT count(*) FROM (({tables[0]} EXCEPT ALL {tables[1]})"
        f" UNION ALL ({tables[1]} EXCEPT ALL {tables[0]})) d".encode()
    ).fetchone()
    return count[0] if count else -1


COLUMNS = ", ".join(f'"{name}"' for name in TYPES)


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_whatever_is_exported_comes_back(
    runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any], format_: str
) -> None:
    @settings(LAW, max_examples=20)
    @given(ROWS)
    def law(rows: list[Row]) -> None:
        store(sync, rows)
        sync.execute("TRUNCATE mdm_data.twin")
        answer = runner.run(carry(client, "item", "twin", format_))
        assert (answer["inserted"], answer["errors"]) == (len(rows), [])
        assert differences(sync, COLUMNS, "item", "twin") == 0

    law()


@pytest.mark.parametrize("format_", ["csv", "json", "xlsx"])
def test_a_workbook_comes_back_too(
    runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any], format_: str
) -> None:
    """An empty text is the only value that a workbook cannot tell from none."""
    texts = [
        "=1",
        "'=1",
        "''",
        "a\r\nb\tc",
        "<&>",
        "_x0041_",
        "\x01",
        " x ",
        "007",
        "1e5",
        "\u2028",
    ]
    rows: list[Row] = [
        {
            "text": text,
            "string": text[::-1],
            "large": 2**62 + n,
            "amount": Decimal(n) / 8 + 10**14,
            "ok": n % 2 == 0,
            "day": date(1899 + n, 12, 31),
            "moment": datetime(2024, 1, 2, 3, 4, 5, 678_000 + n, tzinfo=UTC),
            "gid": UUID(int=n),
            "extra": [{"a": text}, -n, True][n % 3],
        }
        for n, text in enumerate(texts)
    ]
    store(sync, [*rows, dict.fromkeys(rows[0])])
    answer = runner.run(carry(client, "item", "twin", format_))
    assert (answer["inserted"], answer["errors"]) == (len(rows) + 1, [])
    assert differences(sync, COLUMNS, "item", "twin") == 0


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_a_row_of_one_empty_column_is_a_row(
    runner: asyncio.Runner, client: Client, sync: psycopg.Connection[Any], format_: str
) -> None:
    for word in ("a", None, "", "b", None):
        answer = runner.run(client.post("/api/v1/entities/word/data", json={"word": word}))
        assert answer.status_code == 201, answer.text
    answered = runner.run(carry(client, "word", "word", format_))
    assert (answered["inserted"], answered["errors"]) == (5, [])
    words = sync.execute("SELECT word, count(*) FROM mdm_data.word GROUP BY word").fetchall()
    assert dict(words) == {"a": 2, None: 4, "": 2, "b": 2}
