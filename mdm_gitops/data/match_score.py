"""How alike two rows are: a score from 0 to 1, and what each column says to it.

Pure, and of the two rows alone: no frequencies of values, nothing of other rows, so that a score tells
nothing about rows that are not seen. The score is the weighted mean of the columns' scores. A column in
which either row has no value says nothing (it is neutral): it is left out of the mean. Rows that share no
column with values have the score 0.

=========  ==========================================================================================
exact      1 for equal words without regard to case and accents, else 0
fuzzy      1 for equal words; else how few letters must change, counted from where chance would not
           bring it (0) to equal (1). Numbers written as text by their digits, longer texts also with
           their words in any order
phonetic   as fuzzy, and at least 0.9 for words that sound alike
number     1 for equal numbers, falling to 0 at a difference of a tenth
date       1 for the same day, 0.9 with day and month exchanged, 0.8 with one wrong digit or two
           exchanged ones, 0.5 where two of year, month and day agree
=========  ==========================================================================================

Two texts in each other's column (given name and surname) count 0.9 times what they have there on
average, where both have more than 0.8 and begin with the letters they have there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from rapidfuzz import fuzz
from rapidfuzz.distance import OSA, JaroWinkler

from mdm_gitops.data.match_keys import plain, sound
from mdm_gitops.model.entity import MatchMode
from mdm_gitops.model.similarity import Comparison

# Of one row, in the order of the comparisons: nothing is "". One more tells the first letters of the texts.
Prepared = Sequence[str]
_NONE: Final = "\0"  # as the first letter of nothing
_CROSSED_AT_LEAST: Final = 0.8
_CROSSED: Final = 0.9
_TENTH: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnScore:
    """What one column says; *score* is None where a value is missing."""

    name: str
    mode: MatchMode
    weight: float
    score: float | None
    crossed_with: str = ""  # the column whose value of the other row it is like


class Scorer:
    """Scores pairs of rows by fixed comparisons."""

    def __init__(self, comparisons: Sequence[Comparison]) -> None:
        self.comparisons = tuple(comparisons)
        self._weights = [each.weight for each in self.comparisons]
        self._kinds = [_KINDS[each.mode] for each in self.comparisons]
        # What counts most comes first, so that most pairs are given up early.
        order = sorted(range(len(self._kinds)), key=lambda n: -self._weights[n])
        self._order = [(n, self._weights[n], self._kinds[n]) for n in order]
        self._all = sum(weight for _, weight, _ in self._order)
        self._texts = [n for n, each in enumerate(self.comparisons) if each.kind == "t"]

    def prepared(self, values: Sequence[str | None]) -> list[str]:
        """Return *values*, as ``index_text`` gives them, fit to be compared."""
        return self.of_words(
            [plain(each.kind, v) for each, v in zip(self.comparisons, values, strict=True)]
        )

    def of_words(self, words: list[str]) -> list[str]:
        """Return *words*, what of each value is compared, with the first letters of the texts."""
        return [*words, "".join([words[n][:1] or _NONE for n in self._texts])]

    def score(self, one: Prepared, other: Prepared, *, at_least: float = 0.0) -> float:
        """Return the score, or any number below *at_least* when it is below."""
        left = self._all
        if "" in one or "" in other:
            left = 0.0
            for n, weight, _ in self._order:
                if one[n] and other[n]:
                    left += weight
        if not left:
            return 0.0
        allowed = left * (1 - at_least) + 1e-9
        lost, may_cross = 0.0, False
        low: list[int] = []
        for n, weight, compare in self._order:
            a, b = one[n], other[n]
            if a == b or not a or not b:
                continue
            found = compare(a, b)
            if found < _CROSSED_AT_LEAST:
                low.append(n)
            lost += weight * (1 - found)
            if lost > allowed and not may_cross:
                may_cross = self._may_cross(one, other)
                if not may_cross:
                    return 0.0
        total = left - lost
        if len(low) > 1:
            for n, gained in self._crossed(one, other, low).items():
                total += self._weights[n] * gained[0]
        return total / left

    def explain(self, one: Prepared, other: Prepared) -> tuple[float, tuple[ColumnScore, ...]]:
        """Return the score, and what each column says to it."""
        scores = [
            (1.0 if a == b else compare(a, b)) if a and b else None
            for a, b, compare in zip(one, other, self._kinds, strict=False)
        ]
        low = [
            n for n, found in enumerate(scores) if found is not None and found < _CROSSED_AT_LEAST
        ]
        crossed = self._crossed(one, other, low)
        for n, (gained, _) in crossed.items():
            scores[n] = (scores[n] or 0.0) + gained
        present = [(w, s) for w, s in zip(self._weights, scores, strict=True) if s is not None]
        weight = sum(w for w, _ in present)
        score = sum(w * s for w, s in present) / weight if weight else 0.0
        return score, tuple(
            ColumnScore(
                name=each.name,
                mode=each.mode,
                weight=each.weight,
                score=found,
                crossed_with=self.comparisons[crossed[n][1]].name if n in crossed else "",
            )
            for n, (each, found) in enumerate(zip(self.comparisons, scores, strict=True))
        )

    def _may_cross(self, one: Prepared, other: Prepared) -> bool:
        """Whether what was lost may come back: two texts could be exchanged."""
        first, second = one[-1], other[-1]
        for at, letter in enumerate(first):
            to = second.find(letter, at + 1)
            while to > 0:
                if first[to] == second[at]:  # nearly never
                    n, m = self._texts[at], self._texts[to]
                    a, b, c, d = one[n], other[m], one[m], other[n]
                    if a and d and a != d and _may_be_alike(a, b) and _may_be_alike(c, d):
                        return True
                to = second.find(letter, to + 1)
        return False

    def _crossed(
        self, one: Prepared, other: Prepared, low: list[int]
    ) -> dict[int, tuple[float, int]]:
        """Return, for texts that stand in each other's column, what that adds and where they stand."""
        texts = [n for n in low if n in self._texts]
        found: dict[int, tuple[float, int]] = {}
        for at, n in enumerate(texts):
            for m in texts[at + 1 :]:
                a, b, c, d = one[n], other[m], one[m], other[n]
                if n in found or m in found or not (a and b and c and d):
                    continue
                if a[0] != b[0] or c[0] != d[0]:  # nearly all, and quickly
                    continue
                there, back = _alike(a, b), _alike(c, d)
                if min(there, back) > _CROSSED_AT_LEAST:
                    # The same for both columns, so that it does not matter which row is the other.
                    crossed = (there + back) / 2 * _CROSSED
                    found[n] = (max(0.0, crossed - _alike(a, d)), m)
                    found[m] = (max(0.0, crossed - _alike(c, b)), n)
        return found


def _may_be_alike(a: str, b: str) -> bool:
    """Whether texts of their lengths can be more than _CROSSED_AT_LEAST alike."""
    return 2 * len(a) <= 3 * len(b) and 2 * len(b) <= 3 * len(a)


# --- how alike two different values are -----------------------------------------------------------


def _alike(a: str, b: str) -> float:
    if a == b:
        return 1.0
    # What is no better than chance is not counted to its end.
    if a[0].isdigit() and b[0].isdigit() and a[-1].isdigit() and b[-1].isdigit():
        found = OSA.normalized_similarity(a, b, score_cutoff=0.5)
        return max(0.0, found * 2 - 1)
    if " " in a or " " in b:
        whole = fuzz.ratio(a, b, score_cutoff=50)
        found = max(whole, fuzz.token_sort_ratio(a, b, score_cutoff=max(50, whole))) / 100
        return max(0.0, found * 2 - 1)
    found = JaroWinkler.similarity(a, b, score_cutoff=0.7)
    return (found - 0.7) / 0.3 if found > 0.7 else 0.0


def _phonetic(a: str, b: str) -> float:
    found = _alike(a, b)
    if found < 0.9 and " ".join(map(sound, a.split())) == " ".join(map(sound, b.split())):
        return 0.9
    return found


def _exact(a: str, b: str) -> float:
    return 0.0


def _number(a: str, b: str) -> float:
    try:
        one, other = Decimal(a), Decimal(b)
        largest = max(abs(one), abs(other))
        return max(0.0, 1.0 - _TENTH * float(abs(one - other) / largest)) if largest else 1.0
    except InvalidOperation:  # NaN and the infinities of PostgreSQL's numeric
        return 0.0


def _date(a: str, b: str) -> float:
    year, month, day = a[:4] == b[:4], a[5:7], a[8:10]
    other_month, other_day = b[5:7], b[8:10]
    if year and month == other_day and day == other_month:
        return 0.9
    if OSA.distance(a, b, score_cutoff=1) == 1:
        return 0.8
    return 0.5 if year + (month == other_month) + (day == other_day) == 2 else 0.0


_KINDS: Final[Mapping[MatchMode, Callable[[str, str], float]]] = {
    MatchMode.EXACT: _exact,
    MatchMode.FUZZY: _alike,
    MatchMode.PHONETIC: _phonetic,
    MatchMode.NUMBER: _number,
    MatchMode.DATE: _date,
}
