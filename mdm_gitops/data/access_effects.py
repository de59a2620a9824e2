"""Who gains and loses which rows by a plan, counted over the rows of now.

Rights before and after are compared in memory first; only where they differ are rows counted, with
the compiled filters of both sides in one scan of the table. The work is bounded: what is beyond
``MAX_PAIRS``, or takes too long, is told as not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from psycopg import AsyncConnection, errors

from mdm_gitops.access import Principal, Rights, principal_named, rights_of
from mdm_gitops.data.access_prospect import DRIFTED, DRIFTED_WORDS, Prospect
from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.selecting import (
    Placed,
    conditions_on,
    predicate_sql,
    predicate_values,
    rows_source,
    where_clause,
)
from mdm_gitops.errors import AccessDenied
from mdm_gitops.filter import TypedFilter, columns_used
from mdm_gitops.model import Action, PermissionGrant
from mdm_gitops.model.access import ALL_DOMAINS
from mdm_gitops.plan.access_report import MAX_PAIRS, AccessEffect, RowChange
from mdm_gitops.warehouse.store import StoredEntity

MAX_LOOKED_AT: Final = 50_000  # pairs whose rights are compared
_PER_SCAN: Final = 24  # filters of one statement
_BUDGET_S: Final = 20.0  # for all statements together
_COUNTED: Final = (Action.READ, Action.WRITE, Action.APPROVE)
_TOO_LONG: Final = "counting took too long"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    principal: str
    entity: str
    before: Rights
    after: Rights

    @property
    def actions(self) -> Iterator[Action]:
        for action in Action:
            differs = self.before.may(action) != self.after.may(action)
            if differs or self.before.filters_for(action) != self.after.filters_for(action):
                yield action


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The conditions of one pair and action on both sides; None is a side that reaches nothing."""

    pair: _Pair
    action: Action
    before: _Side | None
    after: _Side | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    asking: Asking
    typed: TypedFilter | None  # None: all rows


async def access_effects(
    conn: AsyncConnection[Any], prospect: Prospect, *, max_pairs: int = MAX_PAIRS
) -> tuple[tuple[AccessEffect, ...], int]:
    """Return the effects, by entity, principal and action, and how many pairs were not counted."""
    looked_at = list(islice(_candidates(prospect), MAX_LOOKED_AT + 1))
    pairs = [pair for each in looked_at if (pair := _compared(each, prospect)) is not None]
    beyond = max(len(pairs) - max_pairs, 0) + (len(looked_at) > MAX_LOOKED_AT)
    by_entity: dict[str, list[_Pair]] = {}
    for pair in pairs[:max_pairs]:
        by_entity.setdefault(pair.entity, []).append(pair)
    effects: list[AccessEffect] = []
    deadline = time.monotonic() + _BUDGET_S
    for name in sorted(by_entity):
        effects += await _of_entity(conn, prospect, name, by_entity[name], deadline)
    return tuple(effects), beyond


# --- who is concerned ---


def _candidates(prospect: Prospect) -> Iterator[tuple[str, str]]:
    """Yield (principal, folded entity) whose rights may differ, each once."""
    before = {grant for each in prospect.before.grants.values() for grant in each}
    after = {grant for each in prospect.after.grants.values() for grant in each}
    changed = before ^ after
    moved = {n for n in prospect.after.entities if _decides_otherwise(prospect, n)}
    seen: set[tuple[str, str]] = set()
    for grant in sorted(changed):
        for name in _reached(grant, prospect):
            if (pair := (grant.principal, name)) not in seen:
                seen.add(pair)
                yield pair
    for name in sorted(moved):
        for principal in sorted({*prospect.before.grants, *prospect.after.grants}):
            if (pair := (principal, name)) not in seen:
                seen.add(pair)
                yield pair


def _decides_otherwise(prospect: Prospect, name: str) -> bool:
    old, new = prospect.before.entities[name], prospect.after.entities[name]
    return new is not old and (old.definition.domain, old.definition.access) != (
        new.definition.domain,
        new.definition.access,
    )


def _reached(grant: PermissionGrant, prospect: Prospect) -> Iterator[str]:
    if grant.entity:
        yield from [grant.entity] if grant.entity in prospect.after.entities else []
        return
    for name, stored in sorted(prospect.after.entities.items()):
        domains = (stored.definition.domain, prospect.before.entities[name].definition.domain)
        if grant.domain == ALL_DOMAINS or grant.domain in domains:
            yield name


def _compared(each: tuple[str, str], prospect: Prospect) -> _Pair | None:
    principal, name = each
    if prospect.drafted.is_meant(name) and name not in prospect.definitions.entities:
        return None  # the plan takes the entity itself away, and says so
    who = principal_named(principal)
    pair = _Pair(
        principal=principal,
        entity=name,
        before=rights_of(who, prospect.before.entities[name].definition, prospect.before),
        after=rights_of(who, prospect.after.entities[name].definition, prospect.after),
    )
    return pair if any(pair.actions) else None


# --- counting ---


async def _of_entity(
    conn: AsyncConnection[Any],
    prospect: Prospect,
    name: str,
    pairs: Sequence[_Pair],
    deadline: float,
) -> list[AccessEffect]:
    effects: list[AccessEffect] = []
    questions: list[_Question] = []
    for pair in pairs:
        for action in pair.actions:
            asked = _question(prospect, pair, action)
            if isinstance(asked, _Question):
                questions.append(asked)
            else:
                effects.append(_effect(pair, action, reason=asked))
    for start in range(0, len(questions), _PER_SCAN):
        some = questions[start : start + _PER_SCAN]
        changes: list[RowChange] | str = _TOO_LONG
        if time.monotonic() < deadline:
            changes = await _counted(conn, prospect, prospect.after.entities[name], some)
        for number, asked in enumerate(some):
            pair, action = asked.pair, asked.action
            if isinstance(changes, str):
                effects.append(_effect(pair, action, reason=changes))
            else:
                effects.append(_effect(pair, action, rows=changes[number]))
    order = list(Action)
    return sorted(effects, key=lambda each: (each.principal, order.index(each.action)))


def _effect(
    pair: _Pair, action: Action, *, rows: RowChange | None = None, reason: str = ""
) -> AccessEffect:
    return AccessEffect(
        principal=pair.principal,
        entity=pair.entity,
        action=action,
        had=pair.before.may(action),
        has=pair.after.may(action),
        rows=rows,
        reason=reason,
    )


def _question(prospect: Prospect, pair: _Pair, action: Action) -> _Question | str:
    """Return what to count, or why nothing is; "" for an action that is about no rows."""
    if action not in _COUNTED:
        return ""
    who = principal_named(pair.principal)
    sides: list[_Side | None] = []
    for state, rights in ((prospect.before, pair.before), (prospect.after, pair.after)):
        side: _Side | None = None
        if rights.may(action):
            asking = prospect.asking(who, state)
            try:
                typed = row_filter(asking, state.entities[pair.entity].definition, action)
            except AccessDenied as error:
                if state is prospect.after and error.kind_code != "TIER_REQUIRED":
                    return "its row filter is about columns that are not deployed yet"
            else:
                side = _Side(asking=asking, typed=typed)
        sides.append(side)
    used = columns_used(sides[1].typed) if sides[1] is not None and sides[1].typed else ()
    if reason := prospect.why_not_yet(pair.entity, used):
        return reason
    return _Question(pair=pair, action=action, before=sides[0], after=sides[1])


async def _counted(
    conn: AsyncConnection[Any],
    prospect: Prospect,
    stored: StoredEntity,
    questions: Sequence[_Question],
) -> list[RowChange] | str:
    """Count for all *questions* in one scan, or return why that was not possible."""
    anybody = prospect.asking(_NOBODY, prospect.after)
    columns, values = ["count(*)"], dict[str, Any]()
    for number, asked in enumerate(questions):
        old, more = _condition(asked.before, f"b{number}_")
        new, most = _condition(asked.after, f"a{number}_")
        values |= {**more, **most}
        columns += (
            f"count(*) FILTER (WHERE {condition})"
            for condition in (old, new, f"{new} AND NOT {old}", f"{old} AND NOT {new}")
        )
    source = rows_source(anybody, stored, RowState.ACTIVE)
    where = where_clause(conditions_on(anybody, None, RowState.ACTIVE))
    query = f"SELECT {', '.join(columns)} FROM {source}{where}"
    try:
        async with conn.transaction():
            row = await (await conn.execute(query.encode(), values)).fetchone()
    except errors.QueryCanceled:
        return _TOO_LONG
    except DRIFTED:
        return DRIFTED_WORDS
    assert row is not None, "an aggregate has one row"
    return [
        RowChange(
            before=row[at], after=row[at + 1], gained=row[at + 2], lost=row[at + 3], total=row[0]
        )
        for at in range(1, len(row), 4)
    ]


def _condition(side: _Side | None, prefix: str) -> tuple[str, Mapping[str, Any]]:
    if side is None:
        return "false", {}
    if side.typed is None:
        return "true", {}
    placed: Placed = (prefix, "t", side.typed)
    text = predicate_sql(side.asking, side.typed, prefix=prefix, alias="t")
    return f"(({text}) IS TRUE)", predicate_values(side.asking, [placed])


_NOBODY: Final = Principal(kind=principal_named("").kind, name="")
