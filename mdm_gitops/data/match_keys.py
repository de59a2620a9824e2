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
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"  # of columns
_LEFT_OUT: Final = str.maketrans("", "", "'.’")
_GAPS: Final = re.compile("[\u0001-\u0009\u000b-\u002f\u003a-\u0060\u007b-\u00bf]+")
_ASCII: Final = "".join(
    letter if letter.isalnum() or letter == "\0" else " " for letter in map(chr, range(128))
)
# The same for ASCII, as a table of bytes: letters become small ones, and the rest but digits spaces.
_PLAIN: Final = _ASCII.lower().encode() + bytes(range(128, 256))
_SOUNDS: Final = (
    *(("sch", "s"), ("tch", "c"), ("ph", "f"), ("gh", "g"), ("ck", "k"), ("kn", "n"), ("wr", "r")),
    *(("sh", "s"), ("ch", "k"), ("th", "t"), ("qu", "k"), ("x", "ks"), ("dg", "g")),
)
_ALIKE: Final = str.maketrans("pvcqzdneiouyw", "bfkkstmaaaaah")
_CODE, _WHOLE, _DIGITS, _ATOM = 5, 12, 8, 8
_FEW: Final = 5  # a shorter number alone is no key


# What one value gives: its words, its own keys, and what it begins with.
ValueKeys = tuple[str, tuple[str, ...], str | None]
_NOTHING: Final[ValueKeys] = ("", (), None)


@lru_cache(maxsize=20_000)
def sound(word: str, most: int = 0) -> str:
    """Return how *word*, folded and cleaned, sounds: all of it, or its first *most* letters."""
    for written, said in _SOUNDS:
        word = word.replace(written, said)
    code, before = "", ""
    for letter in word.translate(_ALIKE):
        # After a letter neither the same again nor a vowel is heard.
        if not "a" <= before <= "z" or (letter != before and letter not in "ah"):
            code += letter
            if len(code) == most:
                break
        before = letter
    return code


def match_keys(kinds: str, values: Sequence[str | None]) -> list[str]:
    """Return the keys of a row: *values* as ``index_text`` gives them, by the *kinds* of columns."""
    keys: list[str] = []
    atoms: list[str | None] = []
    for number, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        _, found, atom = value_keys(kind, value)
        keys += [LETTERS[number] + each for each in found]
        atoms.append(atom)
    for first, second, letters in neighbours(len(atoms)):
        one, other = atoms[first], atoms[second]
        if one is not None and other is not None:
            keys.append(f"{letters}{one}|{other}")
    return keys


@lru_cache
def neighbours(count: int) -> tuple[tuple[int, int, str], ...]:
    """Return each column with the next one; of more than two the last with the first."""
    pairs = [(first, (first + 1) % count) for first in range(count if count > 2 else count - 1)]
    return tuple((a, b, f"{LETTERS[a]}{LETTERS[b]}:") for a, b in pairs)


def value_keys(kind: str, value: str | None) -> ValueKeys:
    """Return what *value*, in a column of that *kind*, gives to the keys of its row."""
    words = plain(kind, value)
    if not words:
        return _NOTHING
    if kind == "d":
        return (words, (f"={words}",), words[:4])
    if kind == "n":
        own = (f"={words[:40]}",) if len(words) >= _FEW else ()
        return (words, own, words[:_ATOM])
    compact = words.replace(" ", "")
    if kind == "e":
        return (words, (f"={compact[:40]}",), compact[:_ATOM])
    if compact.isascii() and compact.isdigit():
        own = (f"={compact[-_DIGITS:]}",) if len(compact) >= _FEW + 1 else ()
        return (words, own, compact[:_ATOM])
    codes = [sound(word, _CODE) for word in words.split(" ")]
    pairs = [f":{one}{other}" for one, other in pairwise(codes[:3])]
    first = next((code for code in codes[:3] if not "0" <= code[0] <= "9"), codes[0])
    return (words, (f"={''.join(codes)[:_WHOLE]}", *pairs), first)


def plain(kind: str, value: str | None) -> str:
    """Return what of *value* is compared; "" where that is nothing."""
    if not value:
        return ""
    if kind in "te":
        return cleaned(value)
    return value[:10] if kind == "d" else value


def cleaned(value: str) -> str:
    """Return the words of *value*, folded, with one space between them."""
    short = value[:MAX_VALUE]
    if short.isascii():
        if short.isalnum():  # one word without anything to clean
            return short.lower()
        words = short.encode().translate(_PLAIN, b"'.").decode()
        return " ".join(words.split())
    words = folded(short.replace("\n", " "))
    return _GAPS.sub(" ", words.translate(_LEFT_OUT)).strip(" ")
