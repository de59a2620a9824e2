"""What must hold inside one column: the rules fit its type, and its values fit its rules.

``fits`` is the one meaning of a column's rules; defaults, allowed values and seeds pass here, and
the database holds the same rules as constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from mdm_gitops.model.entity import Column
from mdm_gitops.model.names import fold, why_unusable_column
from mdm_gitops.model.pattern import matches, why_refused
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.values import DataType, NotOfType, to_json_value

_SHOWN_CHARACTERS = 40
_TEXTS = (frozenset(kind for kind in DataType if kind.is_text), "string and text")
_DECIMALS = (frozenset({DataType.DECIMAL}), "decimal")
_ORDERED = (
    frozenset(kind for kind in DataType if kind.is_ordered),
    "numbers, date and datetime",
)
_LISTED = (frozenset(DataType) - {DataType.JSON}, "types other than json")
# The rule as it is written, where a column has it, and which types it means something for.
_RULES_OF_TYPES: Final = (
    ("maxLength", "max_length", *_TEXTS),
    ("pattern", "pattern", *_TEXTS),
    ("precision", "precision", *_DECIMALS),
    ("scale", "scale", *_DECIMALS),
    ("minValue", "min_value", *_ORDERED),
    ("maxValue", "max_value", *_ORDERED),
    ("allowedValues", "allowed_values", *_LISTED),
)


def check_column(column: Column, at: Pointer) -> Iterator[Problem]:
    """Yield what is wrong with *column* taken alone; *at* is its place in the document."""
    unusable = why_unusable_column(column.name)
    if unusable:
        yield Problem(rule="bad-name", message=f"column name {unusable}", pointer=(*at, "name"))
    if column.renamed_from is not None:
        yield from check_renamed_from(column.renamed_from, column.name, at, kind="column")
    misplaced = list(_misplaced_rules(column, at))
    yield from misplaced
    if misplaced:
        return
    if column.data_type is DataType.JSON:
        yield from _check_json_column(column, at)
    rules = list(_check_rules(column, at))
    yield from rules
    if not rules and (column.default is not None or column.allowed_values):
        yield from _check_values(column, at)


def check_renamed_from(old: str, new: str, at: Pointer, *, kind: str) -> Iterator[Problem]:
    if fold(old) == fold(new):
        yield Problem(
            rule="renamed-from-itself",
            message=f"{kind} {new!r} is renamed from itself",
            pointer=(*at, "renamedFrom"),
            hint="remove renamedFrom, or give the name it had before",
        )
    elif unusable := why_unusable_column(old):
        yield Problem(
            rule="bad-name", message=f"renamedFrom {unusable}", pointer=(*at, "renamedFrom")
        )


def _misplaced_rules(column: Column, at: Pointer) -> Iterator[Problem]:
    """Rules that mean nothing for the column's type."""
    kind = column.data_type
    for rule, attribute, types, words in _RULES_OF_TYPES:
        given = getattr(column, attribute)
        if given is not None and given != () and kind not in types:
            yield Problem(
                rule="rule-not-for-type",
                message=f"{rule} is for {words}, but column {column.name!r} is {kind.value}",
                pointer=(*at, rule),
                on_key=True,
            )


def _check_json_column(column: Column, at: Pointer) -> Iterator[Problem]:
    for given, key in ((column.unique, "unique"), (column.reference is not None, "reference")):
        if given:
            yield Problem(
                rule="not-for-json",
                message=f"{key} is not possible for json column {column.name!r}",
                pointer=(*at, key),
                on_key=True,
            )


def _check_rules(column: Column, at: Pointer) -> Iterator[Problem]:
    if column.scale is not None and column.precision is None:
        yield Problem(
            rule="scale-without-precision",
            message=f"column {column.name!r} has a scale but no precision",
            pointer=(*at, "scale"),
            on_key=True,
            hint="precision is the number of all digits, scale of those after the point",
        )
    elif column.scale is not None and column.scale > (column.precision or 0):
        yield Problem(
            rule="scale-above-precision",
            message=f"scale {column.scale} is above precision {column.precision}",
            pointer=(*at, "scale"),
        )
    if column.pattern is not None and (refused := why_refused(column.pattern)):
        yield Problem(rule="bad-pattern", message=f"pattern {refused}", pointer=(*at, "pattern"))
    if column.min_value is not None or column.max_value is not None:
        yield from _check_limits(column, at)


def _check_limits(column: Column, at: Pointer) -> Iterator[Problem]:
    limits: dict[str, Any] = {}
    for key, raw in (("minValue", column.min_value), ("maxValue", column.max_value)):
        try:
            limits[key] = column.typed(raw)
        except NotOfType as exc:
            yield Problem(
                rule="not-of-type", message=f"{key} {shown(raw)} {exc}", pointer=(*at, key)
            )
    low, high = limits.get("minValue"), limits.get("maxValue")
    if low is not None and high is not None and low > high:
        yield Problem(
            rule="min-above-max",
            message=f"minValue {shown(column.min_value)} is above maxValue"
            f" {shown(column.max_value)}",
            pointer=(*at, "minValue"),
        )


def _check_values(column: Column, at: Pointer) -> Iterator[Problem]:
    """Judge allowed values by all other rules, and the default by all rules."""
    listed = bool(column.allowed_values)
    others = column.model_copy(update={"allowed_values": ()}) if listed else column
    judge = ValueJudge.of(others)
    seen: set[Any] = set()
    good = True
    for index, raw in enumerate(column.allowed_values):
        refused = judge.why_refused(raw)
        if not refused and judge.typed(raw) in seen:
            refused = "is in the list twice"
        if refused:
            good = False
            yield Problem(
                rule="bad-allowed-value",
                message=f"allowed value {shown(raw)} {refused}",
                pointer=(*at, "allowedValues", index),
            )
        else:
            seen.add(judge.typed(raw))
    if column.default is not None and good:
        whole = ValueJudge.of(column) if listed else judge
        refused = whole.why_refused(column.default)
        if refused:
            yield Problem(
                rule="bad-default",
                message=f"default {shown(column.default)} {refused}",
                pointer=(*at, "default"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueJudge:
    """Says whether a written value may stand in a column whose rules were found sound."""

    typed: Callable[[Any], Any]
    rules: tuple[Callable[[Any], str], ...]

    @classmethod
    def of(cls, column: Column) -> ValueJudge:
        return cls(typed=column.typed, rules=tuple(_rules_of(column)))

    def why_refused(self, raw: Any) -> str:
        """Say what follows the value in a sentence, or return "" if it may stand."""
        if raw is None:
            return ""
        try:
            value = self.typed(raw)
        except NotOfType as exc:
            return str(exc)
        return next((refused for rule in self.rules if (refused := rule(value))), "")


def _rules_of(column: Column) -> Iterator[Callable[[Any], str]]:
    if (longest := column.max_length) is not None:
        yield lambda text: _why_too_long(text, longest)
    if (pattern := column.pattern) is not None:
        yield lambda text: "" if matches(pattern, text) else f"does not match pattern {pattern}"
    if (precision := column.precision) is not None:
        yield lambda number: _why_too_precise(number, precision, column.scale or 0)
    if (low := column.typed(column.min_value)) is not None:
        yield lambda value: "" if value >= low else f"is below minValue {to_json_value(low)}"
    if (high := column.typed(column.max_value)) is not None:
        yield lambda value: "" if value <= high else f"is above maxValue {to_json_value(high)}"
    if column.allowed_values:
        allowed = frozenset(column.typed(raw) for raw in column.allowed_values)
        yield lambda value: "" if value in allowed else "is not one of the allowed values"


def _why_too_long(text: str, longest: int) -> str:
    return "" if len(text) <= longest else f"has {len(text)} characters, at most {longest} fit"


def _why_too_precise(number: Decimal, precision: int, scale: int) -> str:
    digits, exponent = number.as_tuple().digits, int(number.as_tuple().exponent)
    while len(digits) > 1 and exponent < 0 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if -exponent > scale:
        return f"has more than {scale} digits after the point"
    if number and len(digits) + exponent > precision - scale:
        return f"has more than {precision - scale} digits before the point"
    return ""


def shown(raw: Any) -> str:
    """Return *raw* short enough for a sentence."""
    if isinstance(raw, int) and raw.bit_length() > 200:
        return "a number of many digits"
    text = repr(raw) if isinstance(raw, str) else str(to_json_value(raw))
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
