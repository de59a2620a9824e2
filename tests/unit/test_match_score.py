"""How pairs of rows are scored and found: laws, a table of values, and quality on labelled data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.people import COLUMNS, People, people
from mdm_gitops.data.match_blocks import Blocks
from mdm_gitops.data.match_keys import match_keys
from mdm_gitops.data.match_rows import RowMaker
from mdm_gitops.data.match_score import Scorer
from mdm_gitops.data.scans import DEFAULT_MIN_SCORE
from mdm_gitops.model import Column, DataType, Entity
from mdm_gitops.model.entity import MatchMode, Similarity, SimilarityColumn
from mdm_gitops.model.similarity import (
    Comparison,
    comparisons,
    indexed_for_match,
    match_columns,
    match_kinds,
    rules_hash,
)


def compare(mode: MatchMode, *, weight: float = 1.0, column: str = "c") -> Comparison:
    return Comparison(
        column=column, name=column, mode=mode, weight=weight, restricted=False, telling=True
    )


@pytest.mark.parametrize(
    ("mode", "one", "other", "low", "high"),
    [
        (MatchMode.EXACT, "Zürich", "ZURICH", 1, 1),
        (MatchMode.EXACT, "abc", "abd", 0, 0),
        (MatchMode.FUZZY, "Schmidt", "Schmitd", 0.8, 0.99),
        (MatchMode.FUZZY, "Schmidt", "Olsen", 0, 0.1),
        (MatchMode.FUZZY, "Acme Trading Ltd", "Trading Acme, Ltd.", 0.99, 1),
        (MatchMode.FUZZY, "044 123 45 67", "044 123 45 76", 0.8, 0.95),
        (MatchMode.FUZZY, "12345", "98760", 0, 0),
        (MatchMode.PHONETIC, "Philipp", "Filip", 0.9, 0.9),
        (MatchMode.PHONETIC, "Philipp", "Anna", 0, 0),
        (MatchMode.NUMBER, "100", "100.00", 1, 1),
        (MatchMode.NUMBER, "100", "101", 0.85, 0.95),
        (MatchMode.NUMBER, "100", "200", 0, 0),
        (MatchMode.NUMBER, "NaN", "1", 0, 0),
        (MatchMode.DATE, "1980-02-03", "1980-03-02", 0.9, 0.9),
        (MatchMode.DATE, "1980-02-03", "1980-02-08", 0.8, 0.8),
        (MatchMode.DATE, "1980-02-03", "1980-02-28", 0.5, 0.5),
        (MatchMode.DATE, "1980-02-03", "1991-11-12", 0, 0),
    ],
)
def test_values(mode: MatchMode, one: str, other: str, low: float, high: float) -> None:
    scorer = Scorer([compare(mode)])
    score = scorer.score(scorer.prepared([one]), scorer.prepared([other]))
    assert low <= score <= high


MODES = [MatchMode.FUZZY, MatchMode.PHONETIC, MatchMode.DATE, MatchMode.NUMBER, MatchMode.EXACT]
TEXTS = st.none() | st.text(max_size=12) | st.sampled_from(["anna", "Ana", "keller", "kellner"])
DAYS = st.none() | st.dates().map(str)
NUMBERS = st.none() | st.integers().map(str)
ROWS = st.tuples(TEXTS, TEXTS, DAYS, NUMBERS, TEXTS)


@given(one=ROWS, other=ROWS, least=st.floats(0, 1))
@example(one=("0", None, None, None, None), other=("A000", None, None, None, None), least=0)
@example(one=("0", "K0ELLE", None, None, None), other=("KELLE", "0", None, None, None), least=0)
def test_a_score_is_a_number_of_two_rows(
    one: Sequence[str | None], other: Sequence[str | None], least: float
) -> None:
    scorer = Scorer([compare(mode, weight=n + 0.5) for n, mode in enumerate(MODES)])
    a, b = scorer.prepared(one), scorer.prepared(other)
    score, columns = scorer.explain(a, b)
    assert 0 <= score <= 1.000001
    assert scorer.score(a, b) == pytest.approx(score)
    assert scorer.score(b, a) == pytest.approx(score)
    # Whoever asks only for good pairs is told the same of them, and of no other.
    found = scorer.score(a, b, at_least=least)
    if score >= least + 1e-6:
        assert found == pytest.approx(score)
    elif score < least - 1e-6:
        assert found < least
    if any(a[:-1]):
        assert scorer.score(a, a) == pytest.approx(1)
    weights = sum(each.weight for each in columns if each.score is not None)
    total = sum(each.weight * each.score for each in columns if each.score is not None)
    assert score == pytest.approx(total / weights if weights else 0)


def test_what_is_missing_says_nothing_and_what_is_exchanged_is_seen() -> None:
    scorer = Scorer([compare(MatchMode.FUZZY, column=name) for name in ("given", "family", "city")])
    one = scorer.prepared(["Anna", "Keller", None])
    assert scorer.score(one, scorer.prepared(["Anna", "Keller", "Basel"])) == 1
    score, columns = scorer.explain(one, scorer.prepared(["Keller", "Anna", "Basel"]))
    assert score == pytest.approx(0.9)
    assert [each.crossed_with for each in columns] == ["family", "given", ""]


def entity(**given: object) -> Entity:
    kinds = {"birth_date": DataType.DATE}
    columns = [Column(name=n, data_type=kinds.get(n, DataType.STRING)) for n in COLUMNS]
    key = Column(name="code", data_type=DataType.STRING, nullable=False)
    return Entity.model_validate(
        {"name": "person", "domain": "d", "keyColumns": ["code"]} | given
    ).model_copy(update={"columns": (key, *columns), "key_columns": ("code",)})


def test_rules_are_the_definition_s_or_follow_from_its_columns() -> None:
    columns = [{"name": "code", "dataType": "string"}]
    derived = entity(columns=columns)
    assert [each.name for each in comparisons(derived)] == list(COLUMNS)
    assert indexed_for_match(derived) == ()  # rows pay for no index that nobody asked for
    rules = Similarity(columns=(SimilarityColumn(name="Surname", weight=3),))
    own = derived.model_copy(update={"similarity": rules})
    assert [(each.column, each.weight) for each in comparisons(own)] == [("surname", 3)]
    assert match_kinds(indexed_for_match(own)) == "t"
    off = derived.model_copy(update={"similarity": rules.model_copy(update={"enabled": False})})
    assert indexed_for_match(off) == ()
    assert rules_hash(own) != rules_hash(derived)


# --- quality --------------------------------------------------------------------------------------


def pairs_found(given: People, *, at_least: float) -> set[tuple[int, int]]:
    """Do what a scan does with the default rules of an entity of these columns."""
    rules = entity(columns=[{"name": "code", "dataType": "string"}])
    matched = match_columns(rules)
    kinds, scorer, blocks = match_kinds(matched), Scorer(comparisons(rules)), Blocks()
    for row in given.rows:
        blocks.add(set(match_keys(kinds, row)))
    rows = [scorer.prepared(row) for row in given.rows]
    return {
        (other, number)
        for number, others in blocks.candidates()
        for other in others
        if scorer.score(rows[other], rows[number], at_least=at_least) >= at_least
    }


def f1(found: set[tuple[int, int]], true: frozenset[tuple[int, int]]) -> float:
    return 2 * len(found & true) / (len(found) + len(true))


def test_default_rules_find_the_duplicates_of_labelled_people() -> None:
    """The floor is just below what is measured; the rows are the same everywhere."""
    given = people(2_000)
    true = given.pairs
    assert f1(pairs_found(given, at_least=DEFAULT_MIN_SCORE), true) >= 0.96
    # The controls: equal rows alone, and equal names and birthdays, find far fewer.
    assert f1(pairs_found(given, at_least=1.0), true) < 0.2
    by_name: dict[tuple[str | None, ...], list[int]] = {}
    for number, row in enumerate(given.rows):
        by_name.setdefault(row[:3], []).append(number)
    equal = {(a, b) for rows in by_name.values() for a in rows for b in rows if a < b}
    assert 0.2 < f1(equal, true) < 0.7


def rows_by_key(keys_of_rows: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for number, keys in enumerate(keys_of_rows):
        for key in keys:
            found.setdefault(key, []).append(number)
    return sorted(found.values())


def test_the_rows_of_a_scan_have_the_same_words_and_keys() -> None:
    """What is remembered of values gives the same as each row by itself, keys by their numbers."""
    rules = entity(columns=[{"name": "code", "dataType": "string"}])
    matched = match_columns(rules)
    kinds, scorer = match_kinds(matched), Scorer(comparisons(rules))
    maker = RowMaker(comparisons(rules), matched)
    of_texts: list[list[str]] = []
    of_numbers: list[list[int]] = []
    for row in people(1_000).rows:
        words, keys = maker.row(row)
        assert scorer.of_words(words) == scorer.prepared(row)
        texts = list(dict.fromkeys(match_keys(kinds, row)))
        assert len(set(keys)) == len(keys) == len(texts)
        # The keys of one row have no order in common; the rows of each key have.
        of_texts.append(texts)
        of_numbers.append(keys)
    assert rows_by_key(of_texts) == rows_by_key(of_numbers)
    assert len(rows_by_key(of_texts)) > 1_000


def test_a_key_that_all_rows_have_costs_nothing_and_is_told() -> None:
    blocks = Blocks()
    for number in range(3_000):
        blocks.add([f"own {number // 2}", "ltd"])
    found = [(number, other) for number, others in blocks.candidates() for other in others]
    assert len(found) == 1_500
    skipped = blocks.skipped()
    assert (skipped.keys, skipped.largest, skipped.rows) == (1, 3_000, 0)


def test_only_rows_near_changed_ones_are_kept() -> None:
    blocks = Blocks()
    blocks.add(["a", "b"])
    blocks.only_changed()
    assert [blocks.add_if_near(keys) for keys in (["c"], ["a", "d"], ["b", "a"])] == [
        False,
        True,
        True,
    ]
    assert [others for _, others in blocks.candidates()] == [set(), {0}, {0}]


KEYS = st.lists(st.sets(st.integers(0, 14), max_size=9), max_size=25)


@given(changed=KEYS, others=KEYS, most=st.integers(3, 8))
def test_candidates_are_those_of_the_definition(
    changed: list[set[int]], others: list[set[int]], most: int
) -> None:
    """Counted pair by pair, all with all."""
    everything = [*changed, *(keys & set().union(*changed) for keys in others)]
    everything = [*changed, *(keys for keys in everything[len(changed) :] if keys)]
    rows_of = Counter(key for keys in everything for key in keys)

    def alike(one: int, other: int) -> bool:
        few = [len(everything[n]) < 6 for n in (one, other) if n < len(changed)]
        shared = [key for key in everything[one] & everything[other] if rows_of[key] <= most]
        return bool(shared) and (
            any(few) or len(shared) > 1 or any(rows_of[key] <= 4 for key in shared)
        )

    blocks = Blocks(max_block=most)
    for keys in changed:
        blocks.add(keys)
    blocks.only_changed()
    for keys in others:
        blocks.add_if_near(keys)
    assert list(blocks.candidates()) == [
        (one, {other for other in range(min(one, len(changed))) if alike(one, other)})
        for one in range(len(everything))
    ]
    large = {key for key, count in rows_of.items() if count > most}
    lost = sum(1 for keys in changed if keys and keys <= large)
    assert (blocks.skipped().keys, blocks.skipped().rows) == (len(large), lost)
