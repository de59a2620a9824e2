"""A pattern means the same in RE2 and in PostgreSQL: random patterns against random texts."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import psycopg
import pytest

from mdm_gitops.model.pattern import matches, to_postgres, why_refused
from tests.unit import pattern_samples

BATCH = 250  # patterns in one round trip
TEXTS = 12  # for each pattern


@pytest.fixture
def database(database_url: str) -> Any:
    with psycopg.connect(database_url, autocommit=True) as conn:
        yield conn


def verdicts(database: psycopg.Connection[Any], pairs: list[tuple[str, str]]) -> list[bool]:
    rows = database.execute(
        "SELECT text ~ pattern FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY"
        " AS pair (pattern, text, number) ORDER BY number",
        ([pattern for pattern, _ in pairs], [text for _, text in pairs]),
    )
    return [verdict for (verdict,) in rows]


def differences(
    database: psycopg.Connection[Any], seed: int, *, translate: Any = to_postgres
) -> tuple[list[str], int, int]:
    """Return what RE2 and PostgreSQL see differently, and how many pairs and matches there were."""
    rng = random.Random(seed)
    written = [pattern_samples.pattern(rng) for _ in range(BATCH)]
    accepted = [pattern for pattern in written if why_refused(pattern) is None]
    cases = [(p, text) for p in accepted for text in pattern_samples.texts(rng, p, TEXTS)]
    expected = [matches(pattern, text) for pattern, text in cases]
    found = verdicts(database, [(translate(pattern), text) for pattern, text in cases])
    wrong = [
        f"{pattern!r} on {text!r}: RE2 {one}, PostgreSQL {other} with {translate(pattern)!r}"
        for (pattern, text), one, other in zip(cases, expected, found, strict=True)
        if one is not other
    ]
    return wrong, len(cases), sum(expected)


def test_re2_and_postgres_agree_on_random_patterns(database: psycopg.Connection[Any]) -> None:
    pairs = hits = 0
    for seed in range(5):
        wrong, cases, matched = differences(database, seed)
        assert not wrong, f"seed {seed}: {wrong[:5]}"
        pairs, hits = pairs + cases, hits + matched
    assert pairs > 10_000
    assert 0.2 < hits / pairs < 0.8


@pytest.mark.soak
def test_re2_and_postgres_agree_on_very_many_patterns(database: psycopg.Connection[Any]) -> None:
    end = time.monotonic() + float(os.environ.get("MDM_SOAK_SECONDS", "300"))
    while time.monotonic() < end:
        seed = random.SystemRandom().randrange(2**32)
        wrong, _, _ = differences(database, seed)
        assert not wrong, f"seed {seed}: {wrong[:5]}"
