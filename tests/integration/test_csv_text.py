"""Neutralising is undone exactly, and PostgreSQL does it as Python does."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import AsyncConnection

from mdm_gitops.data.csv_text import SIGNS, neutralise, neutralise_sql, restore, restore_sql

CASES = 20_000
_PIECES = (
    *SIGNS,
    "'",
    "'",
    "",
    " ",
    "a",
    "Z",
    "0",
    "ß",
    "＃",
    "😀",
    "\x01",
    '"',
    ",",
    "\\",
    "\x7f",
)
_BOTH = f"""
SELECT {neutralise_sql("x")}, {restore_sql("x")}, {restore_sql(f"({neutralise_sql('x')})")}
  FROM unnest(%s::text[]) WITH ORDINALITY AS given(x, n) ORDER BY n"""


def texts() -> list[str]:
    """Short texts of the signs that matter, so that each start occurs with each next sign."""
    chance = random.Random(20_260)
    return ["".join(chance.choices(_PIECES, k=chance.randrange(5))) for _ in range(CASES)]


@pytest.mark.anyio
async def test_postgresql_and_python_agree_and_restoring_is_the_inverse(
    conn: AsyncConnection[Any],
) -> None:
    given_texts = texts()
    found = await (await conn.execute(_BOTH, [given_texts])).fetchall()
    assert len(found) == CASES
    for text, (neutral, restored, back) in zip(given_texts, found, strict=True):
        assert neutral == neutralise(text)
        assert restored == restore(text)
        assert back == text == restore(neutral)
        assert neutral[:1] not in SIGNS or neutral[:1] in ("", "'")
    touched = sum(neutral != text for text, (neutral, *_) in zip(given_texts, found, strict=True))
    assert CASES * 0.2 < touched < CASES * 0.9, "both kinds of text are among the cases"


@pytest.mark.anyio
async def test_null_stays_null(conn: AsyncConnection[Any]) -> None:
    found = await (await conn.execute(_BOTH, [[None]])).fetchone()
    assert found == (None, None, None)


@given(st.text())
def test_restoring_is_the_inverse_for_any_text(text: str) -> None:
    assert restore(neutralise(text)) == text


@pytest.mark.parametrize(
    ("text", "neutral"),
    [
        ("=1+1", "'=1+1"),
        ("+41 44", "'+41 44"),
        ("-", "'-"),
        ("@SUM", "'@SUM"),
        ("\t=1", "'\t=1"),
        ("\r\n=1", "'\r\n=1"),
        ("＝1", "'＝1"),
        ("'tis", "''tis"),
        ("'", "''"),
        ("", ""),
        ("a=1", "a=1"),
        (" =1", " =1"),
    ],
)
def test_what_is_neutralised(text: str, neutral: str) -> None:
    assert neutralise(text) == neutral
    assert restore(neutral) == text


@pytest.mark.parametrize("text", ["'tis", "'", "' =1", "it's", "'a'"])
def test_a_text_that_no_export_wrote_is_kept(text: str) -> None:
    assert restore(text) == text
