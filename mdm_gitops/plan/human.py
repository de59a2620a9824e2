"""Numbers, sizes, types and foreign text as a person reads them, alike in every format.

Nothing here knows a change or a plan.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final

from mdm_gitops.model.values import to_json_value

_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")
_TYPES: Final = MappingProxyType(
    {
        "integer": "int",
        "bigint": "long",
        "numeric": "decimal",
        "boolean": "bool",
        "timestamp with time zone": "datetime",
        "uuid": "guid",
        "jsonb": "json",
    }
)
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plural(count: int, noun: str, many: str = "") -> str:
    """Return ``1 row``, ``2,000 rows``; *many* where the plural is not *noun* and an s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def about(count: int, noun: str) -> str:
    """Return an estimate: exact up to 99,999, from there three digits (``12.4M rows``)."""
    for unit, factor in (("G", 10**9), ("M", 10**6)):
        if count >= factor:
            return f"{count / factor:.3g}{unit} {noun}s"
    return plural(count, noun) if count < 100_000 else f"{round(count / 1000):,}k {noun}s"


def size(size_bytes: int) -> str:
    """Return ``812 bytes``, ``9.1 GB``: powers of 1,024, as PostgreSQL's pg_size_pretty."""
    if size_bytes < 1_024:
        return plural(size_bytes, "byte")
    amount = float(size_bytes)
    units = iter(_UNITS)
    unit = ""
    while amount >= 1_023.5 and (larger := next(units, "")):
        amount, unit = amount / 1_024, larger
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"


def listed(words: Iterable[str], *, joint: str = "and") -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    *rest, last = [*words] or [""]
    return f"{', '.join(rest)} {joint} {last}" if rest else last


def data_type(physical: str) -> str:
    """Return a PostgreSQL type in the words of a definition: ``numeric(8,2)`` -> ``decimal(8,2)``.

    ``text`` stays: it may have been written ``string`` or ``text``.
    """
    base, parenthesis, arguments = physical.partition("(")
    return _TYPES.get(base, base) + parenthesis + arguments


def visible(text: str) -> str:
    """Return *text* with everything that a terminal or a browser would obey made visible.

    Control characters, line ends, and the marks that turn the reading direction are written as
    escapes, so that a value can neither draw on the screen nor hide.
    """
    return "".join(
        char if unicodedata.category(char) not in _UNSEEN else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def value(raw: Any, *, longest: int = 60) -> str:
    """Return one value of a row or a property, short, on one line."""
    match raw:
        case None:
            return "null"
        case bool():
            return "true" if raw else "false"
        case str():
            text = visible(raw)
        case list() | tuple():
            text = "[" + ", ".join(value(item, longest=longest) for item in raw) + "]"
        case _:
            text = visible(str(to_json_value(raw)))
    return text if len(text) <= longest else text[: longest - 1] + "…"
