"""JSON as it comes from clients, read strictly: what two readers could understand differently is
refused.

Refused are NaN and infinities, repeated names, numbers beyond reason, and characters that PostgreSQL
cannot store. Fractions are ``Decimal``. How large and how deep a text may be is for the caller to say.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final

from mdm_gitops.errors import InputError
from mdm_gitops.source.limits import MAX_INTEGER_DIGITS, MAX_NUMBER_EXPONENT

_HALF_A_PAIR: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def may_hold_what_cannot_be_stored(text: str) -> bool:
    """Whether ``check_text`` has anything to look for in the value of *text*, which was decoded as UTF-8 and
    is strict JSON: then a NUL or half of a surrogate pair can only be written as an escape."""
    return _ESCAPED.search(text) is not None


def check_text(value: Any) -> None:
    """Raise InputError if a text in *value* cannot be stored."""
    match value:
        case str():
            if "\x00" in value:
                raise InputError("a text of the body holds a NUL character")
            if _HALF_A_PAIR.search(value):
                raise InputError("a text of the body holds half of a surrogate pair")
        case dict():
            for name, inner in value.items():
                check_text(name)
                check_text(inner)
        case list():
            for inner in value:
                check_text(inner)


def in_words(error: json.JSONDecodeError) -> str:
    return error.msg[:1].lower() + error.msg[1:]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the body has member {twice[:60]!r} twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise InputError(f"a number of the body has more than {MAX_INTEGER_DIGITS} digits")
    return int(digits)


def _fraction(text: str) -> Decimal:
    number = Decimal(text) if len(text) <= 2 * MAX_NUMBER_EXPONENT else Decimal("Infinity")
    if not number.is_finite() or abs(int(number.as_tuple().exponent)) > MAX_NUMBER_EXPONENT:
        raise InputError(f"number {text[:40]} of the body is out of all proportion")
    return number


def _constant(word: str) -> Any:
    raise InputError(f"{word} is not JSON")


DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)
