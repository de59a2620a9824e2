"""Plain YAML scalars by the core schema of YAML 1.2 (chapter 10.3.2).

What YAML 1.1 made of ``no``, ``12:30`` or ``1_000`` is text here, as it is to editors. Two things
of the core schema are refused, as a JSON value cannot carry them: ``.inf`` and ``.nan``, and a
number with more digits than the nearest float keeps.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from mdm_gitops.source.limits import MAX_INTEGER_DIGITS

# Names, types and words that short stand in many files; equal ones are one object.
SHARED_LENGTH: Final = 48
_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAY_BE_NUMBER: Final = frozenset("+-.0123456789")
_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL: Final = re.compile(r"0o[0-7]+\Z")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")


class ScalarRefused(ValueError):
    """The message is one sentence about the scalar."""


def resolve(plain: str) -> Any:
    """Return the value of an unquoted scalar: None, bool, int, float or str."""
    if plain in _WORDS:
        return _WORDS[plain]
    if plain[0] not in _MAY_BE_NUMBER:
        return plain
    return _number(plain)


def _number(plain: str) -> Any:
    if _INTEGER.match(plain):
        if len(plain) > MAX_INTEGER_DIGITS:
            raise ScalarRefused(f"number has more than {MAX_INTEGER_DIGITS} digits")
        return int(plain)
    if _FLOAT.match(plain):
        return _exact_float(plain)
    if len(plain) <= MAX_INTEGER_DIGITS:
        if _OCTAL.match(plain):
            return int(plain, 8)
        if _HEX.match(plain):
            return int(plain, 16)
    if _NOT_FINITE.match(plain):
        raise ScalarRefused(f"{plain} is no number that a definition can hold")
    return plain


def _exact_float(plain: str) -> float:
    number = float(plain) if len(plain) <= 2 * MAX_INTEGER_DIGITS else float("inf")
    if number in (float("inf"), float("-inf")) or Decimal(repr(number)) != Decimal(plain):
        raise ScalarRefused(f"number {plain[:40]} has more digits than can be kept")
    return number
