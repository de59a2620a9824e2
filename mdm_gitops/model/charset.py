"""Sets of characters as sorted ranges of code points: what a class such as ``[^a-z]`` stands for.

The universe is what PostgreSQL can store as text: no NUL, no surrogates. What a Unicode class or
"without regard to case" means is asked of RE2 itself, so there is one authority for both.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Final

CharSet = tuple[tuple[int, int], ...]  # inclusive, sorted, neither overlapping nor touching

UNIVERSE: Final[CharSet] = ((0x01, 0xD7FF), (0xE000, 0x10FFFF))
NEWLINE: Final[CharSet] = ((0x0A, 0x0A),)
DIGIT: Final[CharSet] = ((0x30, 0x39),)
WORD: Final[CharSet] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Final[CharSet] = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))

# RE2's POSIX classes are those of ASCII.
POSIX: Final[dict[str, CharSet]] = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "ascii": ((0x01, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x01, 0x1F), (0x7F, 0x7F)),
    "digit": DIGIT,
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": WORD,
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}

# Characters that can have another case; RE2 folds no character of another category.
_CASED: Final = r"[\p{Lu}\p{Ll}\p{Lt}\p{Mn}\p{Nl}\p{So}]"
_ASCII_FOLDS: Final = {ord(c): ord(c.swapcase()) for c in map(chr, range(128)) if c.isalpha()}
_KELVIN, _LONG_S = 0x212A, 0x017F  # the other two ways to write k and s


def single(code_point: int) -> CharSet:
    return ((code_point, code_point),)


def union(sets: Iterable[CharSet]) -> CharSet:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for charset in sets for pair in charset):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def storable(charset: CharSet) -> CharSet:
    """Return *charset* without what PostgreSQL cannot store."""
    return tuple(
        (max(low, first), min(high, last))
        for low, high in charset
        for first, last in UNIVERSE
        if max(low, first) <= min(high, last)
    )


def complement(charset: CharSet) -> CharSet:
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in charset:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, 0x10FFFF))
    return storable(tuple(gap for gap in gaps if gap[0] <= gap[1]))


def folded(charset: CharSet) -> CharSet:
    """Return *charset* with every character that differs from one of it in case only."""
    if charset and charset[-1][1] > 0x7F:
        return union([charset, _scan("(?i)" + _re2_class(charset), _cased_characters())])
    extra = {
        _ASCII_FOLDS[c] for low, high in charset for c in range(low, high + 1) if c in _ASCII_FOLDS
    }
    if ord("k") in extra or ord("K") in extra:
        extra.add(_KELVIN)
    if ord("s") in extra or ord("S") in extra:
        extra.add(_LONG_S)
    return union([charset, *map(single, extra)])


@cache  # RE2 knows about 200 names
def unicode_class(name: str) -> CharSet | None:
    """Return the characters of ``\\p{name}``, or None if RE2 knows no such class."""
    import re2

    try:
        return _scan(rf"\p{{{name}}}", _all_characters())
    except re2.error:
        return None


def _re2_class(charset: CharSet) -> str:
    return "[" + "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in charset) + "]"


def _scan(one_character: str, characters: bytes) -> CharSet:
    """Ask RE2 which of *characters* (ascending, UTF-8) match."""
    import re2

    options = re2.Options()
    options.log_errors = False
    runs = re2.compile(f"(?:{one_character})+", options).finditer(characters)
    found: list[CharSet] = []
    for run in runs:
        found.extend(_ranges(run.group().decode()))
    return union(found)


def _ranges(text: str) -> list[CharSet]:
    """Characters in ascending order -> ranges; most texts are one range."""
    if ord(text[-1]) - ord(text[0]) == len(text) - 1:
        return [((ord(text[0]), ord(text[-1])),)]
    return [single(ord(character)) for character in text]


def _all_characters() -> bytes:
    return _text(UNIVERSE)


def _text(charset: CharSet) -> bytes:
    """All characters of *charset* in ascending order; by way of UTF-32, which is 10 x faster."""
    points = array("I")
    for low, high in charset:
        points.extend(range(low, high + 1))
    codec = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
    return points.tobytes().decode(codec).encode()


@lru_cache(maxsize=1)
def _cased_characters() -> bytes:
    return _text(_scan(_CASED, _all_characters()))
