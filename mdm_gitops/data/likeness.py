"""A typed text as a regular expression that finds it without regard to case and accents.

Each letter becomes the set of all letters that differ from it by case or accent only, followed by
accents of its own or none. So the answer does not depend on the server's locale or extensions,
and no stored value has to be changed to be compared.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

_ACCENT: Final = r"[\u0300-\u036f]*"
# Letters that Unicode does not take apart: some are one plain letter, some are two.
_ONE: Final = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i"}
_TWO: Final = {"ß": "ss", "æ": "ae", "œ": "oe"}
_LETTERS: Final = range(0x41, 0x2E80)  # the scripts that have case or accents
_MEANS_SOMETHING: Final = frozenset(r".*+?^$|\()[]{}")


def folded(text: str) -> str:
    """Return *text* without case and accents: ``Zürich`` and ``ZURICH`` are ``zurich``."""
    apart = unicodedata.normalize("NFD", text.casefold())
    kept = "".join(sign for sign in apart if not "\u0300" <= sign <= "\u036f")
    plain = "".join(_TWO.get(sign) or _ONE.get(sign, sign) for sign in kept)
    return unicodedata.normalize("NFC", plain)


def likeness(text: str) -> str:
    """Return the regular expression, as PostgreSQL reads it, that matches where *text* stands."""
    return "".join(_patterns(folded(text)))


def like_pattern(text: str) -> str:
    """Return *text* as a LIKE of ASCII text in small letters needs it."""
    return folded(text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _patterns(plain: str) -> Iterator[str]:
    before = ""
    for sign in plain:
        one = _variants().get(before + sign) if before + sign in _TWO.values() else None
        letter = f"(?:{_letter(sign)}|(?<=[{one}]))" if one else _letter(sign)
        yield letter + _ACCENT
        before = sign


def _letter(plain: str) -> str:
    letters = _variants().get(plain)
    if letters is not None:
        return f"[{letters}]"
    return "\\" + plain if plain in _MEANS_SOMETHING else plain


@cache
def _variants() -> Mapping[str, str]:
    """Return, by folded text, the letters that are found for it."""
    found: dict[str, set[str]] = {}
    for letter in filter(str.isalpha, map(chr, _LETTERS)):
        plain = folded(letter)
        # One that stands for two is found for each of them.
        for key in {plain, *plain} if plain in _TWO.values() else {plain}:
            found.setdefault(key, set()).update((letter, plain) if len(plain) == 1 else (letter,))
    return {plain: "".join(sorted(letters)) for plain, letters in found.items()}
