"""Rows of one entity that hold whatever its types allow, and a server over it, for laws of what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.data.csv_text import SIGNS
from mdm_gitops.model import DataType
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.serving import KEY, Client, served
from tests.support.warehouses import apply

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


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


LAW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def serving(runner: asyncio.Runner, url: str, files: Mapping[str, bytes]) -> Iterator[Client]:
    """Deploy *files* into the database at *url*, and serve it to the first key."""
    context = _serving(url, files)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@asynccontextmanager
async def _serving(url: str, files: Mapping[str, bytes]) -> AsyncIterator[Client]:
    async with await connect(url, application_name="test") as conn:
        await apply(conn, read_tree(files))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    async with served(create_app(database_url=url, settings=Settings())) as client:
        client.headers["X-API-Key"] = KEY
        yield client


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
