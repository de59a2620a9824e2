"""What stops a plan whatever is allowed, decided on values alone."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.model import Definitions
from mdm_gitops.plan.live import LiveRelation
from tests.support.scenario import column, definitions, entity
from tests.support.simulated import SCHEMA, Warehouse

NAMES = ("a", "b", "c", "d")
VIEW = {"views": [{"schema": "lab_views", "name": "v"}]}


def having(*names: str, **policy: int) -> Definitions:
    return definitions(*(entity(name) for name in names), policy=policy)


def refusals(warehouse: Warehouse, wanted: Definitions, **more: Any) -> list[str]:
    return [f"{r.code} {r.entity}".rstrip() for r in warehouse.plan(wanted, **more).refusals]


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        (having("a", "b", "c"), []),
        (having("a", "b", "c", maxRemovedEntities=0), ["PRUNE_CAP"]),
        (having("a", "b", maxRemovedEntities=2, maxRemovedPercent=50), []),
        (having("a", "b", maxRemovedEntities=2, maxRemovedPercent=49), ["PRUNE_CAP"]),
        (having("a", "b", maxRemovedEntities=1, maxRemovedPercent=50), ["PRUNE_CAP"]),
        (having("a", "b", "c", maxRemovedPercent=0), []),
    ],
)
def test_the_prune_cap(wanted: Definitions, refused: list[str]) -> None:
    assert refusals(Warehouse(having(*NAMES)), wanted) == refused


def test_an_entity_that_is_protected() -> None:
    kept = entity("b", lifecycle={"preventRemove": True})
    assert refusals(Warehouse(definitions(entity("a"), kept)), having("a")) == ["PREVENT_REMOVE b"]


@pytest.mark.parametrize(
    ("name", "kind", "wanted", "refused"),
    [
        ("b", "r", having("a", "b"), ["UNOWNED_OBJECT b"]),
        ("b", "v", having("a", "b"), ["UNOWNED_OBJECT b"]),
        ("x", "r", having("a", "b"), []),
        (
            "a__history",
            "r",
            definitions(entity("a", historyEnabled=True)),
            ["UNOWNED_OBJECT a"],
        ),
        ("b", "r", definitions(entity("b", renamedFrom="a")), ["UNOWNED_OBJECT b"]),
    ],
)
def test_a_stranger_in_the_way(
    name: str, kind: str, wanted: Definitions, refused: list[str]
) -> None:
    warehouse = Warehouse(having("a"))
    warehouse.put(LiveRelation(schema=SCHEMA, name=name, kind=kind, objects={}))
    assert refusals(warehouse, wanted) == refused


@pytest.mark.parametrize("recorded", [{}, {"view": "SELECT 1"}], ids=["foreign", "ours"])
def test_a_stranger_at_the_name_of_a_view(recorded: dict[str, Any]) -> None:
    warehouse = Warehouse(having("a"))
    found = {"view": "SELECT 1"}
    warehouse.put(
        LiveRelation(schema="lab_views", name="v", kind="v", objects=found, recorded=recorded)
    )
    wanted = definitions(entity("a", consumption=VIEW))
    assert refusals(warehouse, wanted) == ([] if recorded else ["UNOWNED_OBJECT a"])


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        (["b"], ["TARGET_INCOMPLETE b"]),
        (["b", "c"], []),
        (["a"], []),
        (["nothing"], []),
    ],
)
def test_a_target_needs_what_it_refers_to(target: list[str], refused: list[str]) -> None:
    wanted = definitions(
        entity("a"),
        entity(
            "b",
            column("to_a", reference={"entity": "a"}),
            column("to_c", reference={"entity": "c"}),
        ),
        entity("c"),
    )
    assert refusals(Warehouse(having("a")), wanted, target=target) == refused
