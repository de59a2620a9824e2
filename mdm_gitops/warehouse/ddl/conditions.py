"""Casts and rules of columns as SQL text, for statements that are put together elsewhere.

The trees come from ``casts`` and ``rules``, so that what a write checks, what a constraint holds and
what a data check counts are one thing. Per cent signs are doubled: the texts stand in statements
with parameters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mdm_gitops.plan.physical import Check
from mdm_gitops.warehouse.ddl.casts import cast_value, castable
from mdm_gitops.warehouse.ddl.rules import condition
from mdm_gitops.warehouse.ddl.trees import DIALECT, Tree, column, literal

_CACHED = 2_048


@lru_cache(maxsize=_CACHED)
def castable_sql(alias: str, name: str, type_: str) -> str:
    """Return the condition that the text ``alias.name`` has an exact form in *type_*, or is NULL."""
    return _text(castable(column(name, of=alias), "text", type_))


@lru_cache(maxsize=_CACHED)
def cast_sql(alias: str, name: str, type_: str) -> str:
    """Return the text ``alias.name`` in *type_*, NULL where it is not castable."""
    return _text(cast_value(column(name, of=alias), "text", type_))


@lru_cache(maxsize=_CACHED)
def rule_sql(alias: str, check: Check, type_: str) -> str:
    """Return what must not be false of ``alias.<column of the check>``; NULL passes."""
    value = column(check.column, of=alias)
    return _text(condition(value, type_=type_, rule=check.rule, argument=check.argument))


def literal_sql(value: Any, type_: str) -> str:
    """Return a typed value as a constant."""
    return _text(literal(value, type_))


def _text(tree: Tree) -> str:
    return tree.sql(dialect=DIALECT).replace("%", "%%")
