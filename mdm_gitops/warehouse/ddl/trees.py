"""Small builders for sqlglot trees, and the one way from a tree to text.

A tree cannot be injected into, and sqlglot quotes every identifier on its way out. Some of its
forms print wrongly without an error, so what ``render`` prints is read back and compared.

``template`` is for expressions: a constant text with ``:name`` places that are filled with trees.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlglot import exp, parse_one

from mdm_gitops.model.values import to_json_value
from mdm_gitops.warehouse.ddl import shapes
from mdm_gitops.warehouse.ddl.shapes import print_name, print_proven

DIALECT: Final = shapes.DIALECT
Tree = exp.Expr
# What may stand inside another expression without parentheses.
_ATOMS: Final = (
    exp.Boolean,
    exp.Column,
    exp.Func,
    exp.Literal,
    exp.Null,
    exp.Paren,
    exp.Subquery,
    exp.Tuple,
)


def identifier(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def quoted(*names: str) -> str:
    """Return the dotted and quoted name, for the few statements that sqlglot does not know."""
    return ".".join(print_name(name) for name in names)


def table(schema: str, name: str, *, alias: str = "") -> exp.Table:
    found = exp.table_(name, db=schema, quoted=True)
    if alias:
        found.set("alias", exp.TableAlias(this=exp.to_identifier(alias)))
    return found


def column(name: str, *, of: str = "") -> exp.Column:
    """Return the quoted column; *of* is an alias of ours, which needs no quotes."""
    return exp.Column(this=identifier(name), table=exp.to_identifier(of) if of else None)


def call(schema: str, function: str, *arguments: Tree) -> exp.Dot:
    """Return the call of a function of the store; its name is ours and needs no quotes."""
    called = exp.Anonymous(this=function, expressions=list(arguments))
    return exp.Dot(this=identifier(schema), expression=called)


@lru_cache(maxsize=256)
def _data_type(type_: str) -> exp.DataType:
    return exp.DataType.build(type_, dialect=DIALECT)


def data_type(type_: str) -> exp.DataType:
    return _data_type(type_).copy()


def cast(tree: Tree, type_: str) -> exp.Cast:
    return exp.Cast(this=tree, to=data_type(type_))


def ascending(tree: Tree) -> exp.Ordered:
    return exp.Ordered(this=tree, nulls_first=False)  # sqlglot would write NULLS LAST


def text(value: str) -> exp.Literal:
    return exp.Literal.string(value)


def number(value: int | Decimal) -> Tree:
    # Neither str() nor abs(): the one may write an exponent, the other rounds to 28 digits.
    digits = format(Decimal(value), "f")
    literal = exp.Literal.number(digits.removeprefix("-"))
    return exp.Neg(this=literal) if digits.startswith("-") else literal


def literal(value: Any, type_: str) -> Tree:
    """Return *value*, as ``model.values.coerce`` gives it, as a constant of the physical type."""
    if type_ == "jsonb":
        return cast(text(json_text(value)), type_)
    match value:
        case bool():
            return exp.Boolean(this=value)
        case int() | Decimal():
            return number(value)
        case str():
            return text(value)
        case _:
            return cast(text(to_json_value(value)), type_)


def type_of(value: Any) -> str:
    """Return the physical type of a typed value that is no JSON."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint"
        case Decimal():
            return "numeric"
        case datetime():
            return "timestamp with time zone"
        case date():
            return "date"
        case UUID():
            return "uuid"
        case _:
            return "text"


def json_text(value: Any) -> str:
    """Return *value* as JSON; decimal numbers keep every digit."""
    try:
        return _compact.encode(value)
    except _HoldsDecimals:
        return _exact_json_text(value)


class _HoldsDecimals(Exception):
    """The standard encoder would write a decimal number as a string or a float."""


def _without_decimals(value: Any) -> Any:
    if isinstance(value, Decimal):
        raise _HoldsDecimals
    return to_json_value(value)


_compact: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=_without_decimals
)


def _exact_json_text(value: Any) -> str:
    match value:
        case Decimal():
            return format(value, "f")
        case dict():
            members = (f"{json_text(key)}:{json_text(item)}" for key, item in value.items())
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(json_text(item) for item in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False, default=to_json_value)


def text_array(values: Iterable[str]) -> Tree:
    return cast(exp.Array(expressions=[text(value) for value in values]), "text[]")


def jsonb(document: Any) -> Tree:
    return literal(document, "jsonb")


@lru_cache(maxsize=512)
def _parsed(source: str) -> Tree:
    return parse_one(source, dialect=DIALECT)


def template(source: str, /, **places: Tree) -> Tree:
    """Return the expression *source* with each ``:name`` replaced by the tree of that name."""

    def fill(node: Tree) -> Tree:
        if not isinstance(node, exp.Placeholder):
            return node
        place = places[node.name].copy()
        return place if _is_atom(place) else exp.Paren(this=place)

    return _parsed(source).transform(fill)


def _is_atom(tree: Tree) -> bool:
    # Some operators are functions to sqlglot (AND, ~), but print between their operands.
    return isinstance(tree, _ATOMS) and not isinstance(tree, exp.Binary)


def row(trees: Sequence[Tree]) -> Tree:
    """Return the trees as one value that can be compared; one alone needs no row around it."""
    return trees[0] if len(trees) == 1 else exp.Tuple(expressions=list(trees))


def both(trees: Sequence[Tree]) -> Tree:
    """Return the conjunction, of at least one condition."""
    return exp.and_(*trees, copy=False)


def render(tree: Tree) -> str:
    """Return the SQL of *tree*, having read it back (``shapes``)."""
    return print_proven(tree)
