"""The words of texts, and how well a typed one fits them: pure, and equal to what the index holds.

``{config}.search_vector`` cuts and folds in the same way (a test holds them equal), so that what the
index finds is found here again, in the original text, and shown there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mdm_gitops.data.likeness import folded

LETTERS_OF_VALUE: Final = 5_000
LETTERS_OF_WORD: Final = 40
LETTERS_INSIDE: Final = 4  # that are kept together of what stands inside a word
MIN_INSIDE: Final = 3  # letters that must stand together to be found inside a word
# What stands between words: spaces and punctuation, from and to which code point.
_BETWEEN: Final = (
    (0x00, 0x2F),
    (0x3A, 0x40),
    (0x5B, 0x60),
    (0x7B, 0xA9),
    (0xAB, 0xB4),
    (0xB6, 0xB9),
    (0xBB, 0xBF),
    (0xD7, 0xD7),
    (0xF7, 0xF7),
    (0x37E, 0x37E),
    (0x385, 0x385),
    (0x387, 0x387),
    (0x589, 0x589),
    (0x5BE, 0x5BE),
    (0x5C0, 0x5C0),
    (0x5C3, 0x5C3),
    (0x60C, 0x60C),
    (0x61B, 0x61B),
    (0x61F, 0x61F),
    (0x66A, 0x66D),
    (0x6D4, 0x6D4),
    (0x964, 0x965),
    (0x1680, 0x1680),
    (0x1FC1, 0x1FC1),
    (0x1FED, 0x1FEF),
    (0x1FFD, 0x1FFD),
    (0x2000, 0x206F),
    (0x2190, 0x23FF),
    (0x2E00, 0x2E7F),
    (0x3000, 0x3004),
    (0x3008, 0x3020),
    (0x3030, 0x3030),
    (0x303D, 0x303D),
    (0x30FB, 0x30FB),
    (0xFE10, 0xFE1F),
    (0xFE30, 0xFE6F),
    (0xFEFF, 0xFF0F),
    (0xFF1A, 0xFF20),
    (0xFF3B, 0xFF40),
    (0xFF5B, 0xFF65),
)
_BORDERS: Final = frozenset(chr(c) for first, last in _BETWEEN for c in range(first, last + 1))
_WORD: Final = re.compile(
    "[^" + "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in _BETWEEN) + "]+"
)
# Scripts that put no spaces between words.
_UNSPACED: Final = re.compile("[\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]")


class Fit(IntEnum):
    """How a typed word stands in a text; more is better."""

    NOT = 0
    INSIDE = 1
    BEGINNING = 2
    WHOLE = 3


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text: where it stands there, and its folded letters."""

    start: int
    end: int
    plain: str


def words_of(text: str) -> Iterator[Word]:
    """Yield the words of *text* as far as they count."""
    for found in _WORD.finditer(text[:LETTERS_OF_VALUE]):
        if plain := plain_text(found[0]):  # accents alone are none
            yield Word(found.start(), found.end(), plain)


def typed_words(text: str) -> tuple[str, ...]:
    """Return the different words to look for, in their order."""
    return tuple(dict.fromkeys(word.plain for word in words_of(text)))


def plain_text(text: str) -> str:
    return text.lower() if text.isascii() else folded(text)


def may_stand_inside(typed: str) -> bool:
    return len(typed) >= MIN_INSIDE or _UNSPACED.search(typed) is not None


def best_fit(typed: str, plain: str) -> Fit:
    """Return the best place that *typed* has in the folded text *plain*."""
    best, at = Fit.NOT, plain.find(typed)
    while at >= 0 and best is not Fit.WHOLE:
        best = max(best, _fit_at(typed, plain, at))
        at = plain.find(typed, at + 1)
    return best


def _fit_at(typed: str, plain: str, at: int) -> Fit:
    if at > 0 and plain[at - 1] not in _BORDERS:
        return Fit.INSIDE if may_stand_inside(typed) else Fit.NOT
    end = at + len(typed)
    return Fit.WHOLE if end == len(plain) or plain[end] in _BORDERS else Fit.BEGINNING


# --- what is shown --------------------------------------------------------------------------------

Range = tuple[int, int]


def ranges(text: str, typed: Sequence[str]) -> tuple[Range, ...]:
    """Return where the *typed* words stand in *text*, in order and without overlaps."""
    found: list[Range] = []
    for word in words_of(text):
        for each in typed:
            if best_fit(each, word.plain):
                found += _in_original(text[word.start : word.end], word, each)
    return tuple(_joined(sorted(found)))


def _in_original(raw: str, word: Word, typed: str) -> Iterator[Range]:
    """Yield where *typed* stands in *raw*; all of it where folding does not tell."""
    borders = _letter_borders(raw)
    if borders[-1][0] != len(word.plain):
        yield word.start, word.end
        return
    at = word.plain.find(typed)
    while at >= 0:
        if _fit_at(typed, word.plain, at):
            first = max(place for before, place in borders if before <= at)
            last = min(place for before, place in borders if before >= at + len(typed))
            yield word.start + first, word.start + last
        at = word.plain.find(typed, at + len(typed))


def _letter_borders(raw: str) -> list[tuple[int, int]]:
    """Return the borders between letters: how many folded letters, and how many signs, stand before.

    An accent that stands for itself belongs to the letter before it.
    """
    borders, count = [(0, 0)], 0
    for number, sign in enumerate(raw, start=1):
        width = len(folded(sign))
        count += width
        if width or len(borders) == 1:
            borders.append((count, number))
        else:
            borders[-1] = (count, number)
    return borders


def _joined(found: Sequence[Range]) -> Iterator[Range]:
    start = end = 0
    for first, last in found:
        if first > end:
            if end > start:
                yield start, end
            start = first
        end = max(end, last)
    if end > start:
        yield start, end
