"""The keys that rows which may mean the same thing have in common, so that not all are compared.

The twin of the store's function ``match_keys`` (migration 0014), equal to it for every row (a test holds
them equal): the index of an entity is made by the one, questions and scans by the other. A row has few
keys per column, each behind the letter of its column:

- ``a=``: all of the value: the day of a date, a number, the last digits of a number written as text, or
  how the words of a text sound;
- ``a:``: how two neighbouring words of a text sound, for its first three words;
- ``ab:``: how one column begins together with the next one, the last one with the first; of a date the
  year. These are what most duplicates with mistakes in one or two columns still have in common.

How a word sounds is a code of our own: letters that are confused become one, doubled ones single, and
vowels count at the beginning only. Words of other scripts than Latin stand for themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from mdm_gitops.data.likeness import folded

MAX_VALUE: Final = 100  # letters of a value that count
_LEFT_OUT: Final = str.maketrans("", "", "'.’")
_GAPS: Final = re.compile("[\u0001-\u0009\u000b-\u002f\u003a-\u0060\u007b-\u00bf]+")
_SOUNDS: Final = (
    *(("sch", "s"), ("tch", "c"), ("ph", "f"), ("gh", "g"), ("ck", "k"), ("kn", "n"), ("wr", "r")),
    *(("sh", "s"), ("ch", "k"), ("th", "t"), ("qu", "k"), ("x", "ks"), ("dg", "g")),
)
_ALIKE: Final = str.maketrans("pvcqzdneiouyw", "bfkkstmaaaaah")
_DOUBLED: Final = re.compile(r"([a-z])\1+")
_SILENT: Final = re.compile("(?<=[a-z])[ah]+")
_CODE, _WHOLE, _DIGITS, _ATOM = 5, 12, 8, 8
_FEW: Final = 5  # a shorter number alone is no key
_Parts = tuple[tuple[str, ...], str | None]  # keys of one value, and what it begins with


@lru_cache(maxsize=20_000)
def sound(word: str) -> str:
    """Return how *word*, folded and cleaned, sounds."""
    for written, said in _SOUNDS:
        word = word.replace(written, said)
    return _SILENT.sub("", _DOUBLED.sub(r"\1", word.translate(_ALIKE)))


def match_keys(kinds: str, values: Sequence[str | None]) -> list[str]:
    """Return the keys of a row: *values* as ``index_text`` gives them, by the *kinds* of columns."""
    keys: list[str] = []
    atoms: list[str | None] = []
    for number, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        whole, atom = _parts(kind, value) if value else ((), None)
        letter = _LETTERS[number]
        for part in whole:
            keys.append(letter + part)
        atoms.append(atom)
    for first, second, letters in _neighbours(len(atoms)):
        one, other = atoms[first], atoms[second]
        if one is not None and other is not None:
            keys.append(f"{letters}{one}|{other}")
    return keys


@lru_cache
def _neighbours(count: int) -> tuple[tuple[int, int, str], ...]:
    """Return each column with the next one; of more than two the last with the first."""
    pairs = [(first, (first + 1) % count) for first in range(count if count > 2 else count - 1)]
    return tuple((a, b, f"{_LETTERS[a]}{_LETTERS[b]}:") for a, b in pairs)


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@lru_cache(maxsize=20_000)
def _parts(kind: str, value: str) -> _Parts:
    if kind == "d":
        return (f"={value[:10]}",), value[:4]
    if kind == "n":
        return ((f"={value[:40]}",) if len(value) >= _FEW else ()), value[:_ATOM]
    plain = cleaned(value)
    if not plain:
        return (), None
    compact = plain.replace(" ", "")
    if kind == "e":
        return (f"={compact[:40]}",), compact[:_ATOM]
    if compact.isascii() and compact.isdigit():
        whole = (f"={compact[-_DIGITS:]}",) if len(compact) >= _FEW + 1 else ()
        return whole, compact[:_ATOM]
    codes = [sound(word)[:_CODE] for word in plain.split(" ")]
    pairs = [f":{one}{other}" for one, other in pairwise(codes[:3])]
    first = next((code for code in codes[:3] if not "0" <= code[0] <= "9"), codes[0])
    return (f"={''.join(codes)[:_WHOLE]}", *pairs), first


def cleaned(value: str) -> str:
    """Return the words of *value*, folded, with one space between them."""
    short = value[:MAX_VALUE]
    if short.isascii() and short.isalnum():  # one word without anything to clean
        return short.lower()
    short = short.replace("\n", " ")
    plain = short.lower() if short.isascii() else folded(short)
    return _GAPS.sub(" ", plain.translate(_LEFT_OUT)).strip(" ")
