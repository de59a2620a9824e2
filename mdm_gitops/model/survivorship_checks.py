"""What must hold of an entity's ``survivorship``: rules that can decide, over columns that they may decide.

Pure, as ``model.checks`` is. A column that tells rows apart is no matter of survivorship: the row that
is merged away keeps its key, so the one that is kept could never take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mdm_gitops.model.entity import (
    Column,
    Entity,
    Survivorship,
    SurvivorshipColumn,
    SurvivorshipRule,
)
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Pointer, Problem
from mdm_gitops.model.suggest import did_you_mean


def check_survivorship(entity: Entity) -> Iterator[Problem]:
    """Yield what is wrong with the rules of survivorship of *entity*."""
    rules = entity.survivorship
    yield from _check_rules(entity, rules.rules, ("survivorship", "rules"))
    yield from _check_sources(entity, rules)
    seen: set[str] = set()
    for index, given in enumerate(rules.columns):
        at: Pointer = ("survivorship", "columns", index)
        yield from _check_rules(entity, given.rules, (*at, "rules"))
        if fold(given.name) in seen:
            yield Problem(
                rule="duplicate-name",
                message=f"column {given.name!r} is named twice",
                pointer=(*at, "name"),
            )
        seen.add(fold(given.name))
        column = entity.column(given.name)
        if column is None:
            yield _unknown(entity, given.name, (*at, "name"))
        else:
            yield from _check_column(entity, column, given, at)


def unique_columns(entity: Entity) -> frozenset[str]:
    """Return the folded names of the columns that, alone or together, tell rows apart."""
    found = {column.folded for column in entity.columns if column.unique}
    found.update(map(fold, entity.key_columns))
    for constraint in entity.unique_constraints:
        found.update(map(fold, constraint.columns))
    return frozenset(found)


def _check_rules(
    entity: Entity, rules: Sequence[SurvivorshipRule], at: Pointer
) -> Iterator[Problem]:
    for rule, count in Counter(rules).items():
        if count > 1:
            yield Problem(
                rule="duplicate-name",
                message=f"rule {rule.value!r} is named twice",
                pointer=(*at, len(rules) - 1 - list(reversed(rules)).index(rule)),
            )
    if SurvivorshipRule.SURVIVOR in rules[:-1]:
        yield Problem(
            rule="survivorship-never-asked",
            message="rules after 'survivor' are never asked, because it always decides",
            pointer=(*at, rules.index(SurvivorshipRule.SURVIVOR)),
            hint="put it last",
        )
    if SurvivorshipRule.TRUSTED_SOURCE in rules and entity.survivorship.sources is None:
        yield Problem(
            rule="survivorship-without-sources",
            message="rule 'trustedSource' needs sources",
            pointer=(*at, rules.index(SurvivorshipRule.TRUSTED_SOURCE)),
            hint="add `sources: {column: ..., order: [...]}` to survivorship",
        )


def _check_sources(entity: Entity, survivorship: Survivorship) -> Iterator[Problem]:
    sources = survivorship.sources
    if sources is None:
        return
    at: Pointer = ("survivorship", "sources")
    for index, source in enumerate(sources.order):
        if source in sources.order[:index]:
            yield Problem(
                rule="duplicate-name",
                message=f"source {source!r} is named twice",
                pointer=(*at, "order", index),
            )
    column = entity.column(sources.column)
    if column is None:
        yield _unknown(entity, sources.column, (*at, "column"))
        return
    if not column.data_type.is_text:
        yield Problem(
            rule="rule-not-for-type",
            message=f"sources are texts, but column {column.name!r} is {column.data_type.value}",
            pointer=(*at, "column"),
        )
    if column.restricted:
        yield Problem(
            rule="survivorship-tells-restricted",
            message=f"column {column.name!r} is restricted, and which values survive would tell it",
            pointer=(*at, "column"),
            hint="name a column that is not restricted",
        )
    allowed = [str(value) for value in column.allowed_values]
    for index, source in enumerate(sources.order):
        if allowed and source not in allowed:
            yield Problem(
                rule="survivorship-no-such-source",
                message=f"source {source!r} is not one of the allowed values of {column.name!r}",
                pointer=(*at, "order", index),
                hint=did_you_mean(source, allowed),
            )


def _check_column(
    entity: Entity, column: Column, given: SurvivorshipColumn, at: Pointer
) -> Iterator[Problem]:
    if column.folded in unique_columns(entity):
        yield Problem(
            rule="survivorship-of-unique",
            message=f"column {column.name!r} is unique, so the survivor always keeps its own value",
            pointer=(*at, "name"),
            hint="give another value with the merge itself",
        )
    if SurvivorshipRule.LONGEST in given.rules and not column.data_type.is_text:
        yield Problem(
            rule="rule-not-for-type",
            message=f"rule 'longest' is not for {column.data_type.value} column {column.name!r}",
            pointer=(*at, "rules", given.rules.index(SurvivorshipRule.LONGEST)),
        )


def _unknown(entity: Entity, name: str, at: Pointer) -> Problem:
    return Problem(
        rule="unknown-column",
        message=f"entity {entity.name!r} has no column {name!r}",
        pointer=at,
        hint=did_you_mean(name, (column.name for column in entity.columns)),
    )
