"""Numbers, sizes and values as a person reads them."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.plan.human import about, data_type, listed, plural, size, value


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1_023, "1,023 bytes"),
        (1_024, "1.0 kB"),
        (10_188, "9.9 kB"),
        (10_189, "10 kB"),
        (1_048_063, "1023 kB"),
        (1_048_064, "1.0 MB"),
        (9_800_000_000, "9.1 GB"),
        (5 * 1_024**4, "5.0 TB"),
        (3 * 1_024**5, "3.0 PB"),
        (5_000 * 1_024**5, "5000 PB"),
    ],
)
def test_sizes(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 rows"),
        (1, "1 row"),
        (99_999, "99,999 rows"),
        (100_400, "100k rows"),
        (12_449_000, "12.4M rows"),
        (7_000_000_000, "7G rows"),
    ],
)
def test_estimates(count: int, words: str) -> None:
    assert about(count, "row") == words


def test_plurals() -> None:
    assert [plural(n, "entity", "entities") for n in (0, 1, 2_000)] == [
        "0 entities",
        "1 entity",
        "2,000 entities",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")],
)
def test_lists(words: list[str], text: str) -> None:
    assert listed(words, joint="or") == text


@pytest.mark.parametrize(
    ("physical", "word"),
    [("numeric(8,2)", "decimal(8,2)"), ("uuid", "guid"), ("text", "text"), ("bigint", "long")],
)
def test_types(physical: str, word: str) -> None:
    assert data_type(physical) == word


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        ("a\nb\u202e", "a\\nb\\u202e"),
        (["x", None, 3], "[x, null, 3]"),
        ("y" * 61, "y" * 59 + "…"),
    ],
)
def test_values(raw: Any, text: str) -> None:
    assert value(raw) == text
