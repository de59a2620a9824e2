"""A strict JSON reader for seed rows: exact numbers, no repeated key, no NaN.

The fast path is the C scanner of the standard library, which keeps integers of any size and hands
fractions over as text (orjson turns both into the nearest float). Where a row or value stands is
found by reading the text a second time, when something is wrong.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from mdm_gitops.errors import DefinitionError, Finding, Location
from mdm_gitops.source.limits import (
    MAX_DEPTH,
    MAX_INTEGER_DIGITS,
    MAX_JSON_BYTES,
    MAX_NUMBER_EXPONENT,
)
from mdm_gitops.source.text import decode, position

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Refused(ValueError):
    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def load_rows(data: bytes, path: str) -> list[dict[str, Any]]:
    """Return the array of objects in *data*; fractions are ``Decimal``.

    Raises:
        DefinitionError: it is not strict JSON, or not an array of objects.
    """
    text = decode(data, path, max_bytes=MAX_JSON_BYTES)
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as exc:
        raise _syntax_error(exc, text, path) from None
    if not isinstance(value, list):
        raise _error("not-an-array", "seed must be an array of rows", Location(path, 1, 1))
    for index, row in enumerate(value):
        if not isinstance(row, dict):
            message = f"row {index + 1} is not an object"
            raise _error("not-an-object", message, locate(text, (index,), path, key=False))
    return value


def locate(text: str, pointer: Sequence[str | int], path: str, *, key: bool) -> Location:
    """Return the place of row *pointer[0]*, or of the value (or key) *pointer[1]* in it."""
    if not pointer or not isinstance(pointer[0], int):
        return Location(path, 1, 1)
    start = next(islice(_starts(text), pointer[0], None), 0)
    if len(pointer) > 1:
        for name, key_at, value_at in _members(text, start):
            if name == pointer[1]:
                return position(text, key_at if key else value_at, path)
    return position(text, start, path)


def locate_all(
    text: str, pointers: Sequence[tuple[Sequence[str | int], bool]], path: str
) -> list[Location]:
    """Return one location for each (pointer, key) by reading the text once."""
    rows = {pointer[0] for pointer, _ in pointers if pointer}
    last = max((row for row in rows if isinstance(row, int)), default=-1)
    starts = {n: at for n, at in enumerate(islice(_starts(text), last + 1)) if n in rows}
    found = []
    for pointer, key in pointers:
        start = starts.get(pointer[0], 0) if pointer and isinstance(pointer[0], int) else 0
        index = start
        if len(pointer) > 1:
            members = _members(text, start)
            places = ((k, v) for name, k, v in members if name == pointer[1])
            key_at, value_at = next(places, (start, start))
            index = key_at if key else value_at
        found.append(position(text, index, path))
    return found


def _starts(text: str) -> Iterator[int]:
    """Yield where each element of the array starts."""
    index = _skip(text, 0) + 1
    while (index := _skip(text, index)) < len(text) and text[index] != "]":
        yield index
        index = _skip(text, _PLAIN.raw_decode(text, index)[1])
        if text[index : index + 1] == ",":
            index += 1


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, place of the name and place of the value of each member of an object."""
    index = start + 1
    while text[index := _skip(text, index)] == '"':
        name, end = _PLAIN.raw_decode(text, index)
        value_at = _skip(text, _skip(text, end) + 1)
        yield name, index, value_at
        index = _skip(text, _PLAIN.raw_decode(text, value_at)[1])
        if text[index] == ",":
            index += 1


def _skip(text: str, index: int) -> int:
    found = _SPACE.match(text, index)
    return found.end() if found else index


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise _Refused("duplicate-key", f"key {twice!r} is here twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise _Refused("number-too-long", f"number has more than {MAX_INTEGER_DIGITS} digits")
    return int(digits)


def _fraction(text: str) -> Decimal:
    if len(text) > 2 * MAX_NUMBER_EXPONENT:
        raise _Refused("number-too-long", "number has too many digits")
    number = Decimal(text)
    if abs(int(number.as_tuple().exponent)) > MAX_NUMBER_EXPONENT:
        raise _Refused("number-too-long", f"number {text[:40]} is out of all proportion")
    return number


def _constant(word: str) -> Any:
    raise _Refused("not-json", f"{word} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)
_PLAIN: Final = json.JSONDecoder(parse_int=str, parse_float=str)


def _syntax_error(exc: Exception, text: str, path: str) -> DefinitionError:
    if isinstance(exc, json.JSONDecodeError):
        message = exc.msg[:1].lower() + exc.msg[1:]
        return _error("json-syntax", f"not valid JSON: {message}", position(text, exc.pos, path))
    if isinstance(exc, RecursionError):
        return _error("too-deep", f"nested deeper than {MAX_DEPTH}", Location(path, 1, 1))
    rule = exc.rule if isinstance(exc, _Refused) else "json-syntax"
    return _error(rule, str(exc), _first_refused(text, path))


def _first_refused(text: str, path: str) -> Location:
    """The row in which the strict decoder stops: a hook is not told where it is."""
    index = 0
    try:
        for start in _starts(text):
            index = start
            _DECODER.raw_decode(text, start)
    except ValueError:
        pass
    return position(text, index, path)


def _error(rule: str, message: str, location: Location) -> DefinitionError:
    return DefinitionError([Finding(rule=rule, message=message, location=location)])
