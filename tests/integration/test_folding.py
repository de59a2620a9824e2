"""The folding of text is the same in the warehouse, where indexes hold it, and in the program."""

from __future__ import annotations

from typing import Any

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from mdm_gitops.data.likeness import folded

_PLANES = range(
    1, 0x10000
)  # above, new editions of Unicode take letters apart that older ones keep


def _is_text(sign: int) -> bool:
    return not 0xD800 <= sign < 0xE000


def _in_the_warehouse(conn: psycopg.Connection[Any], texts: list[str]) -> list[str]:
    query = "SELECT mdm.fold(t) FROM unnest(%s::text[]) WITH ORDINALITY u (t, n) ORDER BY n"
    return [found for (found,) in conn.execute(query, [texts]).fetchall()]


def test_each_letter_folds_to_the_same(database_url: str) -> None:
    letters = [chr(sign) for sign in _PLANES if _is_text(sign)]
    with psycopg.connect(database_url) as conn:
        found = _in_the_warehouse(conn, letters)
    unequal = [
        f"U+{ord(letter):04X} {there!a} {folded(letter)!a}"
        for letter, there in zip(letters, found, strict=True)
        if there != folded(letter)
    ]
    assert unequal == []
    assert sum(letter != there for letter, there in zip(letters, found, strict=True)) > 1_000


def test_texts_fold_to_the_same(database_url: str) -> None:
    signs = st.sampled_from([chr(sign) for sign in _PLANES if _is_text(sign)])
    likely = st.sampled_from("aAzZ ß-'é\u0301ŁøΣςЙёĲＡｱガ한ﬁ")
    with psycopg.connect(database_url) as conn:

        @settings(max_examples=20, deadline=None, derandomize=True)
        @given(st.lists(st.text(signs | likely, max_size=20), min_size=1, max_size=10))
        def hold(texts: list[str]) -> None:
            assert _in_the_warehouse(conn, texts) == [folded(text) for text in texts]

        hold()
