"""Two entities with every rule, one referring to the other, and how to compare with the oracle.

``REGION`` is what ``SITE`` refers to. Their key spaces are small, so that requests collide.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

from mdm_gitops.model import Definitions
from tests.support import scenario
from tests.support.oracle import (
    STATUS,
    Column,
    Entity,
    Fault,
    Imported,
    Kind,
    Proposal,
    Refused,
    Values,
    Version,
)

CODE = Column(name="code", required=True, pattern="[A-Z][0-9]?", max_length=2)
REGION = Entity(
    name="region",
    columns=(CODE, Column(name="name", max_length=8), Column(name="rank", kind=Kind.INT)),
)
SITE = Entity(
    name="site",
    columns=(
        CODE,
        Column(name="region", refers_to=("region", "code")),
        Column(name="email", unique=True),
        Column(name="level", kind=Kind.INT, minimum=0, maximum=9),
        Column(name="kind", allowed=("small", "large")),
        Column(name="slot", kind=Kind.INT),
        Column(name="price", kind=Kind.DECIMAL),
        Column(name="due", kind=Kind.DATE),
        Column(name="open", kind=Kind.BOOL, required=True, default=True),
    ),
    sets={"place": ("region", "slot")},
)


def entities(*, history: bool, approval: bool) -> tuple[Entity, Entity]:
    region = replace(REGION, history=history, approval=approval)
    return region, replace(SITE, history=history, approval=approval)


def definitions(given: Iterable[Entity], writers: Iterable[str]) -> Definitions:
    """Return a repository of *given*, whose *writers* may write and approve."""
    grants = [scenario.grant(name, "write", "approve") for name in writers]
    return scenario.definitions(*(entity.document() for entity in given), permissions=grants)


# --- values that clients send ---------------------------------------------------------------------

_GOOD: Mapping[str, tuple[Any, ...]] = {
    "region.code": ("A", "B", "C", "D", "E", "F"),
    "region.name": ("North", "South", "Ost", None),
    "region.rank": (1, 2, "3", None),
    "site.code": ("A1", "A2", "A3", "B1", "B2", "B3", "C1", "C2", "C3", "D1", "D2", "D3"),
    "site.region": ("A", "B", "C", "D", None),
    "site.email": ("a@x", "b@x", "c@x", "d@x", "e@x", None, None),
    "site.level": (0, 5, "9", None),
    "site.kind": ("small", "large", None),
    "site.slot": (1, 2, 3, 4, 5, None),
    "site.price": (1, "2.50", "0.05", 2.5, None),
    "site.due": ("2026-02-28", "2024-02-29", None),
    "site.open": (True, False, "true"),
}
_BAD: Mapping[str, tuple[Any, ...]] = {
    "region.code": (None, "a", "ABC", 7),
    "region.name": ("Northernmost", 1),
    "region.rank": ("x", True, 1.5),
    "site.code": (None, "a1", "LONG"),
    "site.region": ("Z", 5),
    "site.email": (7,),
    "site.level": (10, -1, "nine"),
    "site.kind": ("huge",),
    "site.slot": ("one",),
    "site.price": ("1,5", True),
    "site.due": ("2026-02-30", "tomorrow"),
    "site.open": ("maybe", None),
    "region.nope": (1, None),
    "site.nope": (1, None),
    "region._sys_version": (7,),
    "site._sys_version": (7,),
}


def values(entity: Entity, chance: Random, *, create: bool) -> Values:
    """Return what a client sends: mostly good; for a creation nearly always with a key."""
    names = [column.name for column in entity.columns]
    likely = 0.7 if create else 0.35
    found = {
        name: chance.choice(_GOOD[f"{entity.name}.{name}"])
        for name in names
        if chance.random() < likely or (create and name == "code" and chance.random() < 0.95)
    }
    while chance.random() < 0.2:
        bad = [name for name in _BAD if name.startswith(f"{entity.name}.")]
        name = chance.choice(bad)
        found[name.partition(".")[2]] = chance.choice(_BAD[name])
    return found


# --- comparing ------------------------------------------------------------------------------------


def parsed(text: bytes | str) -> Any:
    return json.loads(text, parse_float=Decimal)


def own_values(entity: Entity, body: Mapping[str, Any]) -> Values:
    """Return the entity's columns of an answered row, decimals as such."""
    found = {}
    for column in entity.columns:
        value = body[column.name]
        is_number = column.kind is Kind.DECIMAL and value is not None
        found[column.name] = Decimal(value) if is_number else value
    return found


def differences(entity: Entity, body: Mapping[str, Any], version: Version) -> list[str]:
    """Say how an answered row differs from what it must be."""
    state = "deleted" if version.deleted else "active"
    expected = {
        **version.values,
        "_sys_version": version.number,
        "_sys_last_modified_by": version.by,
        "_sys_is_deleted": version.deleted,
        "_sys_state": state,
    }
    return _unlike({**body, **own_values(entity, body)}, expected)


def proposal_differences(entity: Entity, body: Mapping[str, Any], proposal: Proposal) -> list[str]:
    expected = {
        **proposal.values,
        "_sys_version": proposal.base or 0,
        "_sys_state": proposal.state,
        "_sys_operation": proposal.operation,
        "_sys_batch_name": proposal.batch,
        "_sys_submitted_by": proposal.author,
    }
    return _unlike({**body, **own_values(entity, body)}, expected)


def _unlike(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    missing = object()
    return [
        f"{name} is {found.get(name, '(missing)')!r}, expected {value!r}"
        for name, value in expected.items()
        if found.get(name, missing) != value
    ]


def refusal_differences(problem: Mapping[str, Any], refusal: Refused) -> list[str]:
    """Say how a problem document differs from what is to be refused."""
    code, listed = problem["code"], problem.get("errors") or []
    if code not in refusal.codes:
        return [f"{code}, expected one of {sorted(refusal.codes)}"]
    found = []
    if problem["status"] != STATUS[code]:
        found.append(f"status {problem['status']} for {code}")
    if code == "ROW_KEY_DELETED":
        rows = {fault.row for fault in (*refusal.faults, *refusal.further)}
        found += [] if problem.get("rowId") in rows else [f"the row to restore is one of {rows}"]
    if not listed:
        is_validation = code.startswith("ENTITY_VALIDATION_") or len(refusal.faults) > 1
        return [*found, *(["no errors are listed"] if is_validation else [])]
    if listed[0]["code"] != code:
        found.append(f"{code} is not the first of the errors")
    return found + fault_differences(
        [Fault(each["code"], each["column"]) for each in listed], refusal
    )


def fault_differences(listed: list[Fault], refusal: Refused) -> list[str]:
    """Each fault must be listed once; what needs the other rows may be left out beside others."""
    rest = list(listed)
    found = []
    for fault in refusal.faults:
        match = next((each for each in rest if _is(each, fault)), None)
        if match is None:
            found.append(f"{fault} is not listed in {listed}")
        else:
            rest.remove(match)
    for fault in refusal.further:
        match = next((each for each in rest if _is(each, fault)), None)
        if match is not None:
            rest.remove(match)
    return found + [f"{fault} is listed" for fault in rest]


def _is(listed: Fault, fault: Fault) -> bool:
    return listed.code in fault.codes and fault.column in ("", listed.column)


def import_differences(answer: Mapping[str, Any], expected: Imported) -> list[str]:
    """Say how the answer of an import differs from what came of it."""
    counts = {
        "received": expected.received,
        "inserted": expected.inserted,
        "updated": expected.updated,
        "unchanged": expected.unchanged,
        "rejected": len(expected.rejected),
        "pending": expected.pending,
        "errorsTruncated": False,
    }
    found = _unlike(answer, counts)
    listed: dict[int, list[Fault]] = {}
    for error in answer["errors"]:
        listed.setdefault(error["row"], []).append(Fault(error["code"], error["column"]))
    for number in sorted({*listed, *expected.rejected}):
        refusal = expected.rejected.get(number)
        if refusal is None:
            found.append(f"row {number} is told to be wrong: {listed[number]}")
        elif wrong := fault_differences(listed.get(number, []), refusal):
            found.append(f"row {number}: {wrong}")
    return found
