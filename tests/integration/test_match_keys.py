"""The keys of matching: the program and the warehouse make the same of every row."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from psycopg import AsyncConnection

from benchmarks.people import people
from mdm_gitops.data.match_keys import match_keys

pytestmark = pytest.mark.anyio

WORDS = (
    *("Müller", "O'Brien", "St. Gallen", "  ", "x", "Schmidt-Knapp", "SØRENSEN", "Straße 12"),
    *(
        "phillips wright",
        "quick\nbrown",
        "北京 市",
        "Ελλάς",
        "aaa",
        "hh",
        "\u0001",
        "…",
        "007",
        "12a",
    ),
    *(
        "1234567890",
        "00 41 44 123",
        "ghetto",
        "tchaikovsky",
        "a b c d e f",
        "é" * 120,
        "'",
        ".",
        "_",
    ),
)
VALUES = {
    "t": WORDS,
    "e": WORDS,
    "n": ("1", "-1.5", "123456", "0.00001", "9" * 60, "NaN"),
    "d": ("1999-12-31", "2024-02-29", "0001-01-01"),
}


async def _both(
    conn: AsyncConnection[Any], rows: list[tuple[str, list[str | None]]]
) -> tuple[list[list[str]], list[list[str]]]:
    asked = await conn.execute(
        "SELECT mdm.match_keys(r.kinds, ARRAY(SELECT jsonb_array_elements_text(r.given)))"
        "  FROM unnest(%s::text[], %s::jsonb[]) WITH ORDINALITY AS r (kinds, given, n) ORDER BY n",
        [[kinds for kinds, _ in rows], [json.dumps(given) for _, given in rows]],
    )
    theirs = [row[0] for row in await asked.fetchall()]
    return theirs, [match_keys(kinds, given) for kinds, given in rows]


async def test_the_warehouse_makes_the_same_keys(conn: AsyncConnection[Any]) -> None:
    chance = random.Random(14)
    rows: list[tuple[str, list[str | None]]] = []
    for _ in range(1_500):
        kinds = "".join(chance.choices("tttend", k=chance.choice((1, 1, 2, 3, 5, 12))))
        given = [chance.choice((*VALUES[kind], None)) for kind in kinds]
        rows.append((kinds, given))
    rows += [("ttdttttt", list(row)) for row in people(500, seed=3).rows]
    theirs, ours = await _both(conn, rows)
    assert theirs == ours
    assert sum(map(len, ours)) > 10_000


def test_rows_that_sound_alike_share_keys_and_others_do_not() -> None:
    one = match_keys("ttd", ["Philip", "Schmidt", "1980-02-03"])
    other = match_keys("ttd", ["Filip", "Schmitt", "1981-02-03"])
    assert {"ab:flb|smt", "a=flb"} <= set(one) & set(other)
    assert not set(one) & set(match_keys("ttd", ["Anna", "Bauer", "1991-05-06"]))


def test_what_is_not_there_gives_no_key() -> None:
    assert match_keys("ttn", [None, "", None]) == []
    assert match_keys("t", ["."]) == []
