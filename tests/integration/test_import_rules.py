"""The import rules of the interface and of its decisions, in their words and order, one test each.

What each of them means in every corner is in ``test_imports`` and ``test_import_bodies``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.importing import Importing, counts, good, key_of, reasons, refusal, served

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(importing_url: str) -> AsyncIterator[Importing]:
    async with served(importing_url) as api:
        good(await api.json("country", [{"code": "CH"}]))
        yield api


async def _names(api: Importing, entity: str = "place", **query: Any) -> dict[str, Any]:
    return {row["code"]: row.get("Name") for row in await api.rows(entity, **query)}


async def test_rule_1_mode_accepts_insert_and_upsert(api: Importing) -> None:
    """1. `mode` accepts `insert` and `upsert`. (Decided: insert, `,` and `"` if nothing is said.)"""
    good(await api.csv("place", 'code,Name\nZH1,"a,b"\n'))
    assert await _names(api) == {"ZH1": "a,b"}
    for more in ({}, {"mode": "insert"}):
        assert reasons(await api.csv("place", "code,Name\nZH1,c\n", **more)) == [
            (1, "code", "UNIQUE")
        ]
    good(await api.csv("place", "code;Name\nZH1;'d;e'\n", mode="upsert", sep=";", quote="'"))
    assert await _names(api) == {"ZH1": "d;e"}
    for mode in ("replace", "INSERT", "update"):
        answer = await api.csv("place", "code,Name\nZH9,x\n", mode=mode)
        assert refusal(answer) == (400, "REQUEST_INVALID")
        assert answer.json()["parameter"] == "mode"
    assert await _names(api) == {"ZH1": "d;e"}


async def test_rule_2_upsert_finds_rows_by_key_columns(api: Importing) -> None:
    """2. With `mode=upsert`, `keyColumns` names the matching columns; matching rows are updated and the
    others are inserted. (Decided: the entity's, if none are named.)"""
    good(await api.csv("place", "code,Name,email\nZH1,a,a@x\n"))
    answer = await api.csv("place", "code,Name\nZH1,b\nZH2,c\n", mode="upsert")
    assert counts(answer) == {"received": 2, "inserted": 1, "updated": 1}
    answer = await api.csv(
        "place", "code,Name,email\nZH1,d,a@x\nZH3,e,e@x\n", mode="upsert", keyColumns="email"
    )
    assert counts(answer) == {"received": 2, "inserted": 1, "updated": 1}
    assert await _names(api) == {"ZH1": "d", "ZH2": "c", "ZH3": "e"}


@pytest.mark.parametrize(
    ("row", "column", "code"),
    [
        pytest.param(",a,CH,,", "code", "REQUIRED_FIELD", id="required fields"),
        pytest.param("zh1,a,CH,,", "code", "PATTERN", id="regular expression"),
        pytest.param("ZH1,a,CH,ship,", "kind", "ALLOWED_VALUE", id="allowed values"),
        pytest.param("ZH1,a,XX,,", "country", "REFERENCE", id="referential integrity"),
        pytest.param("ZH1,a,CH,,many", "level", "TYPE", id="type coercion"),
        pytest.param("ZH5,a,CH,,", "code", "UNIQUE", id="unique constraints"),
    ],
)
async def test_rule_3_validation_runs_before_writing(
    api: Importing, row: str, column: str, code: str
) -> None:
    """3. Server-side validation runs before writing: ...; the same for text and for JSON."""
    header = "code,Name,country,kind,level"
    good(await api.csv("place", header + "\nZH5,taken,CH,,7\n"))
    cells = dict(zip(header.split(","), (cell or None for cell in row.split(",")), strict=True))
    for answer in (await api.csv("place", f"{header}\n{row}\n"), await api.json("place", [cells])):
        assert reasons(answer) == [(1, column, code)]
    assert await _names(api) == {"ZH5": "taken"}
    [stored] = await api.rows("place")
    assert stored["level"] == 7  # a number, coerced from text


async def test_rule_4_invalid_rows_are_rejected_and_valid_ones_imported(api: Importing) -> None:
    """4. Invalid rows are rejected; valid rows are imported. (Decided: of two rows with the same key in a
    file the second is rejected; rows count from 1, without the header.)"""
    answer = await api.csv("place", "code,Name\nZH1,a\nzh2,b\nZH3,c\nZH1,d\n")
    assert counts(answer) == {"received": 4, "inserted": 2, "rejected": 2}
    assert reasons(answer) == [(2, "code", "PATTERN"), (4, "code", "UNIQUE")]
    assert await _names(api) == {"ZH1": "a", "ZH3": "c"}


async def test_rule_5_where_approval_is_needed_a_batch_is_approved_as_a_group(
    api: Importing,
) -> None:
    """5. Imported rows land in the edit table; with `approvalRequired` they must be approved, and
    `batchName` allows group approval."""
    answer = await api.csv("gated", "code\nA\nB\n", batchName="spring")
    assert counts(answer) == {"received": 2, "pending": 2}
    good(await api.csv("gated", "code\nC\n", batchName="autumn"))
    assert await _names(api, "gated") == {}
    approved = await api.client.post(
        "/api/v1/entities/gated/approve-batch",
        json={"batchName": "spring"},
        headers={"X-API-Key": key_of("approver")},
    )
    assert approved.status_code == 200, approved.text
    assert set(await _names(api, "gated")) == {"A", "B"}
    assert set(await _names(api, "gated", state="pending")) == {"C"}


async def test_the_header_names_columns_by_name_then_by_display_name(api: Importing) -> None:
    """Decided: header matched by column name, then display name, without case."""
    good(await api.csv("place", "PLACE code,nAME\nZH1,a\n"))
    assert await _names(api) == {"ZH1": "a"}
    answer = await api.csv("place", "code,Nam\nZH2,b\n")
    assert refusal(answer) == (400, "ENTITY_VALIDATION_UNKNOWN_COLUMN")
    answer = await api.csv("place", "code,Name,_sys_version\nZH2,b,1\n")
    assert refusal(answer) == (400, "ENTITY_VALIDATION_SYSTEM_COLUMN")


async def test_an_unreadable_body_writes_nothing(api: Importing) -> None:
    """Decided: unreadable body: 400, nothing written."""
    for answer in (
        await api.csv("place", "code,Name\nZH1,a\nZH2\n"),
        await api.json("place", '[{"code": "ZH1", "Name": "a"}, {'),
    ):
        assert refusal(answer) == (400, "IMPORT_UNREADABLE")
    assert await _names(api) == {}
