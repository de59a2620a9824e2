"""What a permission check costs with 10,000 assignments, against the same check with 10.

A check is made once per state of the store, principal and entity, and remembered; both are measured,
as is the first check after a change, which also sorts the assignments.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

from figures import Figure

from mdm_gitops.access import Principal, PrincipalKind, rights_of
from mdm_gitops.access.testing import state_of
from mdm_gitops.model import Action, Entity, PermissionGrant
from mdm_gitops.warehouse.store import StoreState

FEW, MANY, LIMIT = 10, 10_000, 1.1
_CALLERS, _ROUNDS = 20, 200


def measure() -> list[Figure]:
    entities = [_entity(number) for number in range(FEW)]
    figures = []
    for whose, users in (("of others", 1_000), ("of the caller", 1)):
        sides = [state_of(_grants(count, users)) for count in (FEW, MANY)]
        for kind, ratio in _ratios(sides, entities).items():
            case = f"permission check, {MANY:,} assignments {whose} / {FEW}, {kind}"
            figures.append(Figure(case=case, value=ratio, unit="ratio", limit=LIMIT))
    state = state_of(_grants(MANY, 1_000))
    started = time.perf_counter()
    rights_of(_caller("first"), entities[0], state)
    first = 1_000 * (time.perf_counter() - started)
    case = f"first permission check after a change of {MANY:,} assignments"
    return [*figures, Figure(case=case, value=first, unit="ms")]


def checked_s(count: int) -> dict[str, float]:
    """Return the least seconds of a check with *count* assignments, by kind."""
    state, entities = state_of(_grants(count, 1)), [_entity(number) for number in range(FEW)]
    times: dict[str, list[float]] = {}
    for turn in range(_ROUNDS):
        callers = [_caller(f"{turn}-{number}") for number in range(_CALLERS)]
        for kind in ("not asked before", "asked before"):
            times.setdefault(kind, []).append(_all(callers, entities, state))
    return {kind: min(found) / (_CALLERS * FEW) for kind, found in times.items()}


def _ratios(sides: Sequence[StoreState], entities: Sequence[Entity]) -> dict[str, float]:
    """Return the ratios of checks that are new and of those that are remembered.

    Both sides take turns, so that noise meets both. Callers of each round are in a group that nobody
    has asked for before, so all that is checked is new once.
    """
    times: dict[tuple[int, str], list[float]] = {}
    gc.disable()
    for turn in range(_ROUNDS):
        callers = [_caller(f"{turn}-{number}") for number in range(_CALLERS)]
        for side, state in enumerate(sides):
            for kind in ("not asked before", "asked before"):
                times.setdefault((side, kind), []).append(_all(callers, entities, state))
    gc.enable()
    return {
        kind: min(times[1, kind]) / min(times[0, kind])
        for kind in ("not asked before", "asked before")
    }


def _caller(group: str) -> Principal:
    caller = Principal(kind=PrincipalKind.USER, name="ana", groups=("a", "b", "c", group))
    assert caller.identities, "worked out once per caller, and no part of the check"
    return caller


def _all(callers: Sequence[Principal], entities: Sequence[Entity], state: StoreState) -> float:
    started = time.perf_counter()
    for caller in callers:
        for entity in entities:
            rights_of(caller, entity, state)
    return time.perf_counter() - started


def _entity(number: int) -> Entity:
    columns = [{"name": "code", "dataType": "string"}]
    return Entity.model_validate({"name": f"e{number}", "domain": "d", "columns": columns})


def _grants(count: int, users: int) -> list[PermissionGrant]:
    """Return *count* grants on as many entities, for ana and *users* - 1 others in turn."""
    return [
        PermissionGrant(
            principal="ana" if number % users == 0 else f"user{number % users}",
            domain="d",
            entity=f"e{number}",
            actions=(Action.READ,),
            row_filter="[code] = me()",
        )
        for number in range(count)
    ]
