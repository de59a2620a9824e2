"""Survivorship: which of two rows gives each value to the one that is kept. Pure.

Values are compared as the texts that the warehouse prints of them, so equal values are equal texts. A
rule decides, or leaves it to the next one; where none decides, the survivor keeps its value. Each rule
looks at one column only, beside the moment of the last change and the source, which everybody sees: so
what becomes of one column never tells the value of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from mdm_gitops.model import Column, Entity, fold
from mdm_gitops.model.entity import Survivorship, SurvivorshipRule
from mdm_gitops.model.survivorship_checks import unique_columns

Texts: TypeAlias = Mapping[str, str | None]  # by folded name of the column


class Origin(StrEnum):
    """Where the value of a column comes from."""

    SURVIVOR = "survivor"
    DUPLICATE = "duplicate"
    BOTH = "both"
    GIVEN = "values"  # the caller named it
    NEITHER = "neither"  # one of the two referred to the other, and they are one now


# What decides beside the rules of the definition.
UNIQUE: Final = "unique"  # the column tells rows apart
EQUAL: Final = "equal"
EXPLICIT: Final = "explicit"
SELF_REFERENCE: Final = "selfReference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two rows. *texts* are its values as they would be in the survivor."""

    texts: Texts
    changed_at: datetime
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The value that a column of the survivor gets, and why."""

    column: str
    origin: Origin
    rule: str
    text: str | None


def choose(
    entity: Entity, *, survivor: Side, duplicate: Side, given: Texts, before: Texts
) -> list[Choice]:
    """Return a choice for each column of *entity*, in their order.

    *given* are values that win over all rules; *before* is what the survivor holds as it is.
    """
    unique = unique_columns(entity)
    own_rules = {fold(each.name): each.rules for each in entity.survivorship.columns}
    found = []
    for column in entity.columns:
        name = column.folded
        if name in given:
            found.append(Choice(column=name, origin=Origin.GIVEN, rule=EXPLICIT, text=given[name]))
            continue
        mine, other = survivor.texts[name], duplicate.texts[name]
        if name in unique and mine == before[name]:
            origin = Origin.BOTH if mine == other else Origin.SURVIVOR
            found.append(Choice(column=name, origin=origin, rule=UNIQUE, text=mine))
        elif mine == other:
            ended = mine is None and before[name] is not None
            found.append(
                Choice(
                    column=name,
                    origin=Origin.NEITHER if ended else Origin.BOTH,
                    rule=SELF_REFERENCE if ended else EQUAL,
                    text=mine,
                )
            )
        elif name in unique:  # a reference to the row that is now the same one
            found.append(Choice(column=name, origin=Origin.NEITHER, rule=SELF_REFERENCE, text=None))
        else:
            rules = own_rules.get(name, entity.survivorship.rules)
            found.append(_by_rules(column, rules, entity.survivorship, survivor, duplicate))
    return found


def _by_rules(
    column: Column,
    rules: Sequence[SurvivorshipRule],
    survivorship: Survivorship,
    survivor: Side,
    duplicate: Side,
) -> Choice:
    name = column.folded
    for rule in rules:
        lead = _lead(column, rule, survivorship, survivor, duplicate)
        if lead:
            side, origin = (
                (survivor, Origin.SURVIVOR) if lead > 0 else (duplicate, Origin.DUPLICATE)
            )
            return Choice(column=name, origin=origin, rule=rule.value, text=side.texts[name])
    kept = SurvivorshipRule.SURVIVOR.value
    return Choice(column=name, origin=Origin.SURVIVOR, rule=kept, text=survivor.texts[name])


def _lead(
    column: Column,
    rule: SurvivorshipRule,
    survivorship: Survivorship,
    survivor: Side,
    duplicate: Side,
) -> int:
    """Return more than 0 if the survivor's value wins by *rule*, less if the duplicate's, 0 for neither."""
    mine, other = survivor.texts[column.folded], duplicate.texts[column.folded]
    match rule:
        case SurvivorshipRule.SURVIVOR:
            return 1
        case SurvivorshipRule.MOST_COMPLETE:
            return _is_filled(mine) - _is_filled(other)
        case SurvivorshipRule.MOST_RECENT:
            later, earlier = survivor.changed_at, duplicate.changed_at
            return (later > earlier) - (later < earlier)
        case SurvivorshipRule.LONGEST:
            is_text = column.data_type.is_text
            return len(mine or "") - len(other or "") if is_text else 0
        case SurvivorshipRule.TRUSTED_SOURCE:
            return _rank(survivorship, duplicate) - _rank(survivorship, survivor)


def _is_filled(text: str | None) -> int:
    return int(bool(text and text.strip()))


def _rank(survivorship: Survivorship, side: Side) -> int:
    """Return the place of a row's source, 0 for the most trusted."""
    order = survivorship.sources.order if survivorship.sources else ()
    return order.index(side.source) if side.source in order else len(order)
