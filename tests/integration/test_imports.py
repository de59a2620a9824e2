"""Imports: each rule, row by row, over HTTP against a real warehouse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_gitops.warehouse.connect import connect
from tests.support.importing import (
    Importing,
    counts,
    deploy,
    good,
    reasons,
    served,
)

pytestmark = pytest.mark.anyio
COUNTRIES = [{"code": c, "name": n} for c, n in (("CH", "Schweiz"), ("FR", "France"))]


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        await deploy(conn)
        yield conn


@pytest.fixture
async def api(database_url: str, conn: AsyncConnection[Any]) -> AsyncIterator[Importing]:
    async with served(database_url) as api:
        good(await api.json("country", COUNTRIES))
        yield api


async def test_rows_of_csv_become_rows(api: Importing) -> None:
    answer = await api.csv(
        "place",
        "code,Name,country,price,level,open,since,seen,extra,note\n"
        'ZH1,Zürich,CH,12.50,3,false,2020-02-29,2024-05-06T07:08:09Z,"{""a"": 1}","two\nlines"\n'
        'GE2,Genève,CH,,,TRUE,,,,""\n',
    )
    assert counts(answer) == {"received": 2, "inserted": 2}
    first, second = await api.rows("place", sort="-code")
    assert first["code"] == "ZH1"
    assert (first["Name"], first["price"], first["level"], first["open"]) == (
        "Zürich", 12.5, 3, False,
    )
    assert first["seen"] == "2024-05-06T07:08:09Z" and first["extra"] == {"a": 1}
    assert first["note"] == "two\nlines" and second["note"] == ""
    assert second["price"] is None and second["_sys_version"] == 1
    assert second["_sys_created_by"] == "apikey:bootstrap"


async def test_each_rule_has_its_code(api: Importing) -> None:
    header = "code,Name,country,kind,price,level,since\n"
    rows = [
        "ZH1,good,CH,port,1.00,1,2020-01-01",
        "zh1,pattern,CH,,,,",
        ",required,CH,,,,",
        "ZH4,reference,XX,,,,",
        "ZH5,allowed,CH,ship,,,",
        "ZH6,range,CH,,-1,10,1999-12-31",
        "ZH7,type,CH,,abc,1.5,2020-02-30",
        "ZH8,a name that is longer than allowed,CH,,,,",
        "ZH1,again,CH,,,,",
    ]
    answer = await api.csv("place", header + "\n".join(rows))
    assert reasons(answer) == [
        (2, "code", "PATTERN"),
        (3, "code", "REQUIRED_FIELD"),
        (4, "country", "REFERENCE"),
        (5, "kind", "ALLOWED_VALUE"),
        (6, "price", "RANGE"),
        (6, "level", "RANGE"),
        (6, "since", "RANGE"),
        (7, "price", "TYPE"),
        (7, "level", "TYPE"),
        (7, "since", "TYPE"),
        (8, "Name", "LENGTH"),
        (9, "code", "UNIQUE"),
    ]
    assert counts(answer) == {"received": 9, "inserted": 1, "rejected": 8}
