"""Filters joined as trees: a row filter AND a user's filter, or the OR of several row filters.

Both forms work on syntax trees and on typed trees, but not on a mixture. Typed filters must be of
one entity; joining those of two is a mistake of the program, not of a user.
"""

from __future__ import annotations

from typing import overload

from mdm_gitops.filter.ast import And, Expr, Or
from mdm_gitops.filter.typed import All, Some, TypedExpr, TypedFilter


@overload
def conjunction(first: TypedFilter, *others: TypedFilter) -> TypedFilter: ...
@overload
def conjunction(first: Expr, *others: Expr) -> Expr: ...
def conjunction(first: TypedFilter | Expr, *others: TypedFilter | Expr) -> TypedFilter | Expr:
    """Return the filter that lets through what all given ones do."""
    if isinstance(first, TypedFilter):
        return TypedFilter(entity=first.entity, root=All(items=_roots(first, *others)))
    return And(items=_expressions(first, *others))


@overload
def disjunction(first: TypedFilter, *others: TypedFilter) -> TypedFilter: ...
@overload
def disjunction(first: Expr, *others: Expr) -> Expr: ...
def disjunction(first: TypedFilter | Expr, *others: TypedFilter | Expr) -> TypedFilter | Expr:
    """Return the filter that lets through what at least one of the given ones does."""
    if isinstance(first, TypedFilter):
        return TypedFilter(entity=first.entity, root=Some(items=_roots(first, *others)))
    return Or(items=_expressions(first, *others))


def _roots(*filters: TypedFilter | Expr) -> tuple[TypedExpr, ...]:
    typed = [each for each in filters if isinstance(each, TypedFilter)]
    if len(typed) != len(filters) or len({each.entity for each in typed}) != 1:
        raise TypeError("only typed filters of one entity can be joined")
    return tuple(each.root for each in typed)


def _expressions(*filters: TypedFilter | Expr) -> tuple[Expr, ...]:
    plain = tuple(each for each in filters if not isinstance(each, TypedFilter))
    if len(plain) != len(filters):
        raise TypeError("typed and untyped filters cannot be joined")
    return plain
