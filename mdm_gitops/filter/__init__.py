"""The filter language: ``[country] = 'CH' AND [population] > 1000000``.

text -> ``parse`` -> syntax tree -> ``type_check`` -> typed tree -> ``compile_predicate`` -> SQL
with bound parameters. Filters are combined as trees, never as text. Only the last step knows SQL,
and only it imports sqlglot, so checking filters stays cheap. ``docs/reference/filter-language.md``
tells the language itself.
"""

from __future__ import annotations

from mdm_gitops.filter.ast import Expr, FilterContext, Predicate
from mdm_gitops.filter.check import type_check
from mdm_gitops.filter.combine import conjunction, disjunction
from mdm_gitops.filter.parser import parse, unparse
from mdm_gitops.filter.typed import (
    SYSTEM_COLUMNS,
    TypedFilter,
    columns_used,
    only_found,
    see_through,
)
from mdm_gitops.model.entity import Entity
from mdm_gitops.model.repository import Definitions

__all__ = [
    "SYSTEM_COLUMNS",
    "Expr",
    "FilterContext",
    "Predicate",
    "TypedFilter",
    "check_filter",
    "columns_used",
    "compile_predicate",
    "conjunction",
    "disjunction",
    "only_found",
    "parse",
    "see_through",
    "type_check",
    "unparse",
]


def compile_predicate(
    typed: TypedFilter,
    *,
    context: FilterContext,
    schema: str,
    alias: str,
    parameter_prefix: str = "f",
    relation_prefix: str = "",
) -> Predicate:
    """Render *typed* as a condition on the rows of table *alias*.

    *schema* holds the tables of referenced entities. Two predicates in one statement need two
    values of *parameter_prefix*. With a *relation_prefix* references lead into relations of the
    statement itself, named so and by the entity, and only what a row filter on the rows referred to
    follows in turn is in the tables.
    """
    from mdm_gitops.filter import compile as compiler  # imports sqlglot, which takes 0.1 s

    return compiler.compile_predicate(
        typed,
        context=context,
        schema=schema,
        alias=alias,
        parameter_prefix=parameter_prefix,
        relation_prefix=relation_prefix,
    )


def check_filter(text: str, entity: Entity, definitions: Definitions) -> None:
    """Raise ``FilterError`` unless *text* is a filter for the rows of *entity*."""
    type_check(parse(text), entity, definitions)
