"""The syntax tree of the filter language: what a filter says, before anybody knows the entity.

Values only: frozen, hashable, compared without regard to where in the text they stood. Literals
keep the spelling of their number, so nothing is lost between ``parse`` and ``unparse``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import Any


class LiteralKind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"


class Function(StrEnum):
    TODAY = "today"
    NOW = "now"
    ME = "me"
    GROUPS = "groups"


class Operator(StrEnum):
    EQUAL = "="
    UNEQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


class Match(StrEnum):
    """Ways to compare text with a pattern or a part."""

    LIKE = "LIKE"
    ILIKE = "ILIKE"
    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    position: int = field(default=0, compare=False)  # characters from the start of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRef(Node):
    """``[column]``, or ``[reference].[column]`` with two *names*, spelled as written."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal(Node):
    kind: LiteralKind
    text: str  # the content of a text, the digits of a number, "true", "false" or "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Node):
    function: Function


Operand = ColumnRef | Literal | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Node):
    operator: Operator
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMatch(Node):
    match: Match
    subject: Operand
    pattern: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership(Node):
    subject: Operand
    values: tuple[Operand, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Between(Node):
    subject: Operand
    low: Operand
    high: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest(Node):
    subject: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Not(Node):
    item: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class And(Node):
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Or(Node):
    items: tuple[Expr, ...]


Expr = Comparison | TextMatch | Membership | Between | NullTest | Not | And | Or


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterContext:
    """What the functions of the language answer; given by the caller, so compiling stays pure."""

    today: date
    now: datetime  # with an offset
    me: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A condition for a WHERE clause and its parameters by name (``%(f0)s`` in *sql*).

    Only "true" is exact: where SQL's logic says "unknown", *sql* may say "false". Negate the
    filter, never the SQL.
    """

    sql: str
    parameters: dict[str, Any]
