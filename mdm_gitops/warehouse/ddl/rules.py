"""The rules of columns as conditions in SQL: the same ones for constraints and for questions."""

from __future__ import annotations

from typing import Any, assert_never

from sqlglot import exp

from mdm_gitops.model.pattern import to_postgres
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.warehouse.ddl.casts import castable
from mdm_gitops.warehouse.ddl.trees import Tree, both, literal, number, template, text


def condition(value: Tree, *, type_: str, rule: RuleKind, argument: Any) -> Tree:
    """Return what must not be false of *value* of type *type_*; NULL passes but for REQUIRED."""
    match rule:
        case RuleKind.PATTERN:
            return template(":v ~ :pattern", v=value, pattern=text(to_postgres(argument)))
        case RuleKind.ALLOWED:
            return exp.In(this=value.copy(), expressions=[literal(v, type_) for v in argument])
        case RuleKind.RANGE:
            return _between(value, argument, type_)
        case RuleKind.LENGTH:
            return template("LENGTH(:v) <= :limit", v=value, limit=number(argument))
        case RuleKind.REQUIRED:
            return template("NOT :v IS NULL", v=value)
        case RuleKind.CASTABLE:
            return castable(value, type_, argument)
        case _:
            assert_never(rule)


def _between(value: Tree, limits: tuple[Any, Any], type_: str) -> Tree:
    lowest, highest = limits
    conditions: list[Tree] = []
    if lowest is not None:
        conditions.append(exp.GTE(this=value.copy(), expression=literal(lowest, type_)))
    if highest is not None:
        conditions.append(exp.LTE(this=value.copy(), expression=literal(highest, type_)))
    return both(conditions)
