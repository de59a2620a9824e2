"""The closed table of casts between our column types, each with a test that comes before it.

Both the test (``castable``) and the cast are *total*: on no stored value do they raise, and a value
that fails the test becomes NULL. A value passes when the new type holds it exactly: nothing is
rounded, cut or guessed, and text passes only in spellings that ``model.values.coerce`` accepts too.
The results do not depend on settings of the session (time zone, date style).

Pairs without an entry (a date has no truth value) pass only where there is no value at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from sqlglot import exp

from mdm_gitops.model.values import MAX_DECIMAL_DIGITS, MAX_JSON_DEPTH
from mdm_gitops.warehouse.ddl.trees import Tree, template

# PostgreSQL reads JSON by recursion and gives up with an error when its stack is used up, which no
# test inside the query can catch; a text with more opening brackets than this is not tried.
MAX_JSON_BRACKETS: Final = 1_000

_NUMERIC: Final = re.compile(r"numeric(?:\((\d+),(\d+)\))?\Z")
_INTEGER_TEXT: Final = "^[+-]?[0-9]{1,30}$"
_DECIMAL_TEXT: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_BOOLEAN_TEXT: Final = "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"
_DATE_TEXT: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_OFFSET: Final = "([Zz]|[+-][0-9]{2}:?[0-9]{2})"
_MOMENT_TEXT: Final = (
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ]([01][0-9]|2[0-3]):[0-5][0-9]"
    rf"(:[0-5][0-9](\.[0-9]{{1,6}})?)?{_OFFSET}?)?$"
)
# To the second in UTC. What PostgreSQL prints like that is within the years 1 to 9999, and is no 24:00
# or :60, which it only reads.
_MOMENT_SHAPE: Final = (
    "CASE WHEN :v LIKE '____-__-__T__:__:__Z' THEN CASE WHEN PG_INPUT_IS_VALID(:v, 'timestamptz')"
    " THEN REPLACE(CAST(CAST(:v AS TIMESTAMPTZ) AT TIME ZONE 'UTC' AS TEXT), ' ', 'T') || 'Z' = :v"
    " ELSE FALSE END ELSE FALSE END"
)
_DAY_SHAPE: Final = ":v LIKE '____-__-__'"
_SHORT: Final = "LENGTH(:v) <= 31"
_UUID_DIGITS: Final = "[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"
_UUID_TEXT: Final = rf"^({_UUID_DIGITS}|\{{{_UUID_DIGITS}\}})$"
# 36 signs with these four hyphens: a brace or a further hyphen leaves too few for the digits.
_UUID_SHAPE: Final = ":v LIKE '________-____-____-____-____________'"
_INT_LIMITS: Final = "BETWEEN -2147483648 AND 2147483647"
_LONG_LIMITS: Final = "BETWEEN -9223372036854775808 AND 9223372036854775807"
# Years 1 to 9999, those of a four-digit ISO date.
_DATE_LIMITS: Final = "BETWEEN CAST('0001-01-01' AS DATE) AND CAST('9999-12-31' AS DATE)"
_MOMENT_LIMITS: Final = (
    "BETWEEN CAST('0001-01-01 00:00:00+00' AS TIMESTAMPTZ)"
    " AND CAST('9999-12-31 23:59:59.999999+00' AS TIMESTAMPTZ)"
)
_MOMENT_IN_UTC: Final = (
    "CAST(CASE WHEN :v LIKE '%Z' THEN :v WHEN LENGTH(:v) = 10 THEN :v || 'T00:00:00Z'"
    f" WHEN :v ~ '{_OFFSET}$' THEN :v ELSE :v || 'Z' END AS TIMESTAMPTZ)"
)
_MOMENT_SPELT_OUT: Final = _MOMENT_IN_UTC.removeprefix("CAST(").removesuffix(" AS TIMESTAMPTZ)")


@dataclass(frozen=True, slots=True)
class _Cast:
    """*test* is asked of a value that is not NULL, *cast* of one that passed. ``:v`` is the value."""

    test: str
    cast: str


def is_possible(old: str, new: str) -> bool:
    """Whether any value of type *old* has a form in type *new*."""
    return old == new or _entry(old, new) is not None


def castable(value: Tree, old: str, new: str) -> Tree:
    """Return the condition that *value* of type *old* has an exact form in *new*, or is NULL."""
    if old == new:
        return exp.Boolean(this=True)
    entry = _entry(old, new)
    if entry is None:
        return template(":v IS NULL", v=value)
    if entry.test == "TRUE":
        return exp.Boolean(this=True)
    return template(f"CASE WHEN :v IS NULL THEN TRUE ELSE {entry.test} END", v=value)


def cast_value(value: Tree, old: str, new: str) -> Tree:
    """Return *value* in type *new*; NULL where it is not ``castable``."""
    if old == new:
        return value.copy()
    entry = _entry(old, new)
    if entry is None:
        return template(f"CAST(NULL AS {new})")
    if entry.test == "TRUE":
        return template(entry.cast, v=value)
    return template(f"CASE WHEN {entry.test} THEN {entry.cast} END", v=value)


def cast_through(value: Tree, types: Sequence[str]) -> Tree:
    """Return *value* of type ``types[0]`` cast from each type to the next."""
    for old, new in pairwise(types):
        value = cast_value(value, old, new)
    return value


def _entry(old: str, new: str) -> _Cast | None:
    make = _TABLE.get((_base(old), _base(new)))
    return make(new) if make else None


def _base(type_: str) -> str:
    return "numeric" if type_.startswith("numeric") else type_


def _plain(test: str, cast: str) -> Callable[[str], _Cast]:
    entry = _Cast(test, cast)
    return lambda new: entry


def _spelt(pattern: str, type_: str, *, shape: str) -> Callable[[str], _Cast]:
    """Text in one spelling; PostgreSQL then says whether the number exists.

    *shape* is a condition that is quicker than a regular expression: what has it and is valid for
    PostgreSQL is in the spelling, too. It decides nothing but the time, which counts for imports.
    """
    spelt = f"{shape} OR :v ~ '{pattern}'"
    test = f"CASE WHEN {spelt} THEN PG_INPUT_IS_VALID(:v, '{type_}') ELSE FALSE END"
    return _plain(test, f"CAST(:v AS {type_})")


def _printed(pattern: str, type_: str, *, shape: str) -> Callable[[str], _Cast]:
    """Text that PostgreSQL would print itself, which is quick to see, or that is in the spelling.

    All of the spelling have the *shape*, and so may others.
    """
    return _plain(
        f"CASE WHEN NOT {shape} THEN FALSE WHEN NOT PG_INPUT_IS_VALID(:v, '{type_}') THEN FALSE"
        f" WHEN CAST(CAST(:v AS {type_}) AS TEXT) = :v THEN TRUE ELSE :v ~ '{pattern}' END",
        f"CAST(:v AS {type_})",
    )


def _fits(number: str, new: str) -> str:
    """Return the test that *number* has no more digits than *new*, on either side of the point."""
    found = _NUMERIC.match(new)
    if found is None or found[1] is None:
        return "TRUE"
    precision, scale = int(found[1]), int(found[2])
    limit = f"CAST('1e{precision - scale}' AS NUMERIC)"
    return f"TRUNC({number}, {scale}) = {number} AND ABS({number}) < {limit}"


def _plain_fits(number: str, new: str) -> str:
    """Return the same for a *number* whose text ``:v`` is of digits and points alone, with the quick
    question first: few signs on both sides of the point."""
    found = _NUMERIC.match(new)
    if found is None or found[1] is None:
        return "TRUE"
    precision, scale = int(found[1]), int(found[2])
    few = f"LENGTH(:v) <= {precision - scale} AND SCALE({number}) <= {scale}"
    return f"({few} OR {_fits(number, new)})"


def _is_written(number: str) -> str:
    """Return the test that *number* has no more digits than the program reads."""
    digits = f"LENGTH(LTRIM(TRANSLATE(CAST({number} AS TEXT), '-.', ''), '0'))"
    return f"{digits} + SCALE({number}) <= {MAX_DECIMAL_DIGITS}"


def _text_to_numeric(new: str) -> _Cast:
    number = "CAST(:v AS NUMERIC)"
    return _Cast(
        # Of digits and points alone the valid ones are spelt right, and so short none has too many.
        "CASE WHEN LENGTH(:v) <= 100 AND NOT :v ~ '[^0-9.]' THEN"
        f" CASE WHEN PG_INPUT_IS_VALID(:v, 'numeric') THEN {_plain_fits(number, new)} ELSE FALSE END"
        f" WHEN NOT :v ~ '{_DECIMAL_TEXT}' THEN FALSE"
        " WHEN NOT PG_INPUT_IS_VALID(:v, 'numeric') THEN FALSE"
        f" ELSE {_is_written(number)} AND {_fits(number, new)} END",
        f"CAST(:v AS {new})",
    )


def _number_to_numeric(new: str) -> _Cast:
    # In numeric from the start: the absolute value of the smallest bigint is no bigint.
    return _Cast(_fits("CAST(:v AS NUMERIC)", new), f"CAST(:v AS {new})")


_TEXT_TO_MOMENT: Final = _plain(
    f"CASE WHEN {_MOMENT_SHAPE} THEN TRUE"
    f" WHEN NOT :v ~ '{_MOMENT_TEXT}' THEN FALSE"
    f" WHEN NOT PG_INPUT_IS_VALID({_MOMENT_SPELT_OUT}, 'timestamptz') THEN FALSE"
    f" ELSE {_MOMENT_IN_UTC} {_MOMENT_LIMITS} END",
    _MOMENT_IN_UTC,
)
_TEXT_TO_JSON: Final = _plain(
    f"CASE WHEN LENGTH(:v) - LENGTH(TRANSLATE(:v, '[{{', '')) > {MAX_JSON_BRACKETS} THEN FALSE"
    # A repeated key would be lost; deeper nesting could never be written again.
    " WHEN NOT PG_INPUT_IS_VALID(:v, 'jsonb') THEN FALSE"
    " WHEN NOT :v IS JSON WITH UNIQUE KEYS THEN FALSE"
    f" ELSE NOT JSONB_PATH_EXISTS(CAST(:v AS JSONB), '$.**{{{MAX_JSON_DEPTH + 1}}}') END",
    "CAST(:v AS JSONB)",
)
_TO_TEXT: Final = _plain("TRUE", "CAST(:v AS TEXT)")
# PostgreSQL's infinity and NaN (which it sorts above all) are no numbers of ours.
_NUMERIC_TO_TEXT: Final = _plain(
    "CASE WHEN :v > CAST('-Infinity' AS NUMERIC) AND :v < CAST('Infinity' AS NUMERIC)"
    f" THEN {_is_written(':v')} ELSE FALSE END",
    "CAST(:v AS TEXT)",
)

_TABLE: Final[Mapping[tuple[str, str], Callable[[str], _Cast]]] = MappingProxyType(
    {
        ("text", "integer"): _printed(_INTEGER_TEXT, "integer", shape=_SHORT),
        ("text", "bigint"): _printed(_INTEGER_TEXT, "bigint", shape=_SHORT),
        ("text", "numeric"): _text_to_numeric,
        ("text", "boolean"): _plain(
            f":v IN ('true', 'false') OR :v ~ '{_BOOLEAN_TEXT}'", "LOWER(:v) = 'true'"
        ),
        ("text", "date"): _printed(_DATE_TEXT, "date", shape=_DAY_SHAPE),
        ("text", "timestamp with time zone"): _TEXT_TO_MOMENT,
        ("text", "uuid"): _spelt(_UUID_TEXT, "uuid", shape=_UUID_SHAPE),
        ("text", "jsonb"): _TEXT_TO_JSON,
        ("integer", "bigint"): _plain("TRUE", "CAST(:v AS BIGINT)"),
        ("integer", "numeric"): _number_to_numeric,
        ("bigint", "integer"): _plain(f":v {_INT_LIMITS}", "CAST(:v AS INTEGER)"),
        ("bigint", "numeric"): _number_to_numeric,
        ("numeric", "integer"): _plain(
            f"TRUNC(:v) = :v AND :v {_INT_LIMITS}", "CAST(:v AS INTEGER)"
        ),
        ("numeric", "bigint"): _plain(
            f"TRUNC(:v) = :v AND :v {_LONG_LIMITS}", "CAST(:v AS BIGINT)"
        ),
        ("numeric", "numeric"): _number_to_numeric,
        ("date", "timestamp with time zone"): _plain(
            f":v {_DATE_LIMITS}", "CAST(:v AS TIMESTAMP) AT TIME ZONE 'UTC'"
        ),
        ("timestamp with time zone", "date"): _plain(
            f":v {_MOMENT_LIMITS} AND CAST(:v AT TIME ZONE 'UTC' AS TIME) = CAST('00:00' AS TIME)",
            "CAST(:v AT TIME ZONE 'UTC' AS DATE)",
        ),
        ("integer", "text"): _TO_TEXT,
        ("bigint", "text"): _TO_TEXT,
        ("numeric", "text"): _NUMERIC_TO_TEXT,
        ("boolean", "text"): _TO_TEXT,
        ("uuid", "text"): _TO_TEXT,
        ("jsonb", "text"): _TO_TEXT,
        ("date", "text"): _plain(
            f":v {_DATE_LIMITS}", "TO_CHAR(CAST(:v AS TIMESTAMP), 'YYYY-MM-DD')"
        ),
        ("timestamp with time zone", "text"): _plain(
            f":v {_MOMENT_LIMITS}",
            """REPLACE(TO_CHAR(:v AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),"""
            " '.000000', '')",
        ),
    }
)
