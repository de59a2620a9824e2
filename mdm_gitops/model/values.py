"""The data types of columns, and how a written value becomes a value of one.

``coerce`` is the only place where text, YAML or JSON turns into a typed value: defaults, allowed
values, limits, seeds, filter literals and imported rows all pass here, so one spelling means one
thing everywhere. It knows nothing of columns' rules (required, pattern, ...).
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

INT_RANGE: Final = (-(2**31), 2**31 - 1)
LONG_RANGE: Final = (-(2**63), 2**63 - 1)
MAX_DECIMAL_DIGITS: Final = 1_000  # PostgreSQL manual, "Numeric Types": declared precision <= 1000
MAX_JSON_DEPTH: Final = 32

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}\Z")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\Z")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_DATETIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
    r"(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?\Z"
)
_GUID: Final = re.compile(
    r"\{?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\}?\Z", re.IGNORECASE
)


class DataType(StrEnum):
    STRING = "string"
    TEXT = "text"
    INT = "int"
    LONG = "long"
    DECIMAL = "decimal"
    BOOL = "bool"
    DATE = "date"
    DATETIME = "datetime"
    GUID = "guid"
    JSON = "json"

    @property
    def is_text(self) -> bool:
        return self in (DataType.STRING, DataType.TEXT)

    @property
    def is_number(self) -> bool:
        return self in (DataType.INT, DataType.LONG, DataType.DECIMAL)

    @property
    def is_ordered(self) -> bool:
        """Whether ``minValue`` and ``maxValue`` make sense."""
        return self.is_number or self in (DataType.DATE, DataType.DATETIME)


class NotOfType(ValueError):
    """The written value is no value of the type; the message is the part after the value."""


def coerce(data_type: DataType, raw: Any) -> Any:
    """Return *raw* as a value of *data_type*.

    Results: str, int, ``Decimal``, bool, ``date``, ``datetime`` in UTC, ``UUID``, or a JSON value.
    A ``datetime`` without an offset is taken as UTC. ``None`` stays ``None``.

    Raises:
        NotOfType: *raw* is no value of that type. Nothing is rounded, cut or guessed.
    """
    if raw is None:
        return None
    return _COERCE[data_type](raw)


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise NotOfType(f"is {_kind(raw)}, not text; put it in quotes")
    if "\x00" in raw:
        raise NotOfType("holds a NUL character, which PostgreSQL cannot store")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise NotOfType("holds half of a surrogate pair, which is no character") from None
    return raw


def _whole_number(raw: Any, limits: tuple[int, int], name: str) -> int:
    if isinstance(raw, bool):
        raise NotOfType(f"is a truth value, not {name}")
    if (isinstance(raw, str) and _INTEGER.match(raw)) or (
        isinstance(raw, float | Decimal) and _is_whole(raw)
    ):
        raw = int(raw)
    if not isinstance(raw, int):
        raise NotOfType(f"is not {name}")
    if not limits[0] <= raw <= limits[1]:
        raise NotOfType(f"is outside the range of {name} ({limits[0]} to {limits[1]})")
    return raw


def _is_whole(number: float | Decimal) -> bool:
    if isinstance(number, Decimal):
        return (
            number.is_finite() and number.adjusted() < 20 and number == number.to_integral_value()
        )
    return number.is_integer() and abs(number) < 2**53


def _int(raw: Any) -> int:
    return _whole_number(raw, INT_RANGE, "an int")


def _long(raw: Any) -> int:
    return _whole_number(raw, LONG_RANGE, "a long")


def _decimal(raw: Any) -> Decimal:
    if isinstance(raw, bool) or not isinstance(raw, int | float | Decimal | str):
        raise NotOfType("is not a decimal number")
    if isinstance(raw, str) and not _DECIMAL.match(raw):
        raise NotOfType("is not a decimal number")
    number = Decimal(str(raw)) if isinstance(raw, float) else Decimal(raw)
    if not number.is_finite():
        raise NotOfType("is not a decimal number")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "finite"
    if len(digits) + abs(exponent) > MAX_DECIMAL_DIGITS:  # before 1e999999999 is written out
        raise NotOfType(f"has more than {MAX_DECIMAL_DIGITS} digits")
    return number if exponent <= 0 else Decimal((sign, digits + (0,) * exponent, 0))


def _finite(raw: float | Decimal) -> bool:
    return Decimal(raw).is_finite()


def _bool(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    raise NotOfType("is neither true nor false")


def _date(raw: Any) -> date:
    if isinstance(raw, date) and not isinstance(raw, datetime):
        return raw
    if not isinstance(raw, str) or not _DATE.match(raw):
        raise NotOfType("is not a date; write YYYY-MM-DD")
    try:
        return date.fromisoformat(raw)
    except ValueError:
        raise NotOfType("is no day of the calendar") from None


def _datetime(raw: Any) -> datetime:
    if isinstance(raw, str):
        if _DATE.match(raw):
            raw = raw + "T00:00:00Z"
        if not _DATETIME.match(raw):
            raise NotOfType("is not a date and time; write YYYY-MM-DDThh:mm:ssZ")
        try:
            raw = datetime.fromisoformat(raw.upper())
        except ValueError:
            raise NotOfType("is no moment of the calendar") from None
    if not isinstance(raw, datetime):
        raise NotOfType("is not a date and time; write YYYY-MM-DDThh:mm:ssZ")
    try:
        return raw.replace(tzinfo=UTC) if raw.tzinfo is None else raw.astimezone(UTC)
    except OverflowError:
        raise NotOfType("is outside the years 1 to 9999") from None


def _guid(raw: Any) -> UUID:
    if isinstance(raw, UUID):
        return raw
    if not isinstance(raw, str) or not _GUID.match(raw):  # UUID itself also takes "+1_2..."
        raise NotOfType("is not a GUID")
    return UUID(raw)


def _json(raw: Any) -> Any:
    _check_json(raw, MAX_JSON_DEPTH)
    return raw


def _check_json(raw: Any, depth_left: int) -> None:
    if depth_left < 0:
        raise NotOfType(f"is nested deeper than {MAX_JSON_DEPTH}")
    match raw:
        case None | bool() | int():
            pass
        case str():
            _text(raw)
        case float() | Decimal():
            if not _finite(raw):
                raise NotOfType("holds a number that JSON does not know")
            _decimal(raw)
        case dict():
            for key, value in raw.items():
                _text(key)
                _check_json(value, depth_left - 1)
        case list() | tuple():
            for value in raw:
                _check_json(value, depth_left - 1)
        case _:
            raise NotOfType(f"holds {_kind(raw)}, which is no JSON")


def _kind(raw: Any) -> str:
    match raw:
        case bool():
            return "a truth value"
        case int() | float() | Decimal():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(raw).__name__}"


_COERCE: Final = {
    DataType.STRING: _text,
    DataType.TEXT: _text,
    DataType.INT: _int,
    DataType.LONG: _long,
    DataType.DECIMAL: _decimal,
    DataType.BOOL: _bool,
    DataType.DATE: _date,
    DataType.DATETIME: _datetime,
    DataType.GUID: _guid,
    DataType.JSON: _json,
}


def to_json_value(value: Any) -> Any:
    """Return a typed value in the form that JSON and YAML carry it (the inverse of ``coerce``)."""
    match value:
        case datetime():
            text = value.astimezone(UTC).isoformat(timespec="microseconds")
            return text.replace("+00:00", "Z").replace(".000000", "")
        case date() | UUID():
            return str(value)
        case Decimal():
            return format(value, "f")
        case _:
            return value


def canonical_json(value: Any) -> str:
    """Serialise for hashing: sorted keys, no white space, typed values as ``to_json_value``."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=to_json_value
    )
