"""Each entity with its state, as a principal sees it: what Git says beside what is deployed."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.access import Principal, PrincipalKind
from mdm_gitops.access.catalog import NOTHING_DESIRED, Catalog, DesiredView, build_catalog
from mdm_gitops.errors import Finding, Location
from mdm_gitops.model import Action, Definitions, PermissionGrant
from mdm_gitops.warehouse.store import StoreState
from tests.support.scenario import column, definitions, entity
from tests.support.simulated import Warehouse
from tests.support.stored import store

POLICY = {"maxRemovedEntities": 9, "maxRemovedPercent": 100}
ADMIN = Principal(kind=PrincipalKind.USER, name="root", is_global_admin=True)
ITEM, CHANGED = entity("item"), entity("item", column("a"))


def having(*entities: dict[str, Any]) -> Definitions:
    return definitions(entity("other"), *entities, policy=POLICY)


def finding(path: str) -> Finding:
    return Finding(rule="wrong", location=Location(path=path, line=1), message="is wrong")


def catalog(
    state: StoreState, view: DesiredView, *, who: Principal = ADMIN, **last: str
) -> Catalog:
    return build_catalog(state, view, principal=who, last_deployments=last)


DEPLOYED = Warehouse(having(ITEM))
REMOVED = Warehouse(having(ITEM), having())
UNDER_WAY = Warehouse(having())
UNDER_WAY.deploy(having(ITEM), interrupted=True)


@pytest.mark.parametrize(
    ("warehouse", "wanted", "last", "state"),
    [
        (Warehouse(), having(ITEM), "", "draft"),
        (Warehouse(), having(ITEM), "failed", "failed"),
        (DEPLOYED, having(ITEM), "", "deployed"),
        (DEPLOYED, having(ITEM), "failed", "deployed"),
        (DEPLOYED, having(CHANGED), "", "changed"),
        (DEPLOYED, having(CHANGED), "succeeded", "changed"),
        (DEPLOYED, having(CHANGED), "failed", "failed"),
        (DEPLOYED, having(), "", "changed"),
        (DEPLOYED, None, "", "deployed"),
        (UNDER_WAY, having(ITEM), "running", "deployed"),
        (UNDER_WAY, having(ITEM), "failed", "failed"),
        (REMOVED, having(), "", "removed"),
        (REMOVED, having(), "failed", "removed"),
        (REMOVED, having(ITEM), "", "removed"),
        (REMOVED, having(ITEM), "failed", "failed"),
    ],
)
def test_states(warehouse: Warehouse, wanted: Definitions | None, last: str, state: str) -> None:
    view = DesiredView.of(wanted) if wanted else NOTHING_DESIRED
    entry = catalog(store(warehouse), view, item=last).find("ITEM")
    assert entry is not None
    assert entry.state.value == state
    assert entry.definition.name == "item"
    assert entry.is_in_use == (warehouse in (DEPLOYED, UNDER_WAY))
    # What is in use, which is not what is wanted while they differ.
    columns = [each.name for each in entry.deployed.columns] if entry.deployed else None
    assert columns == (["code"] if entry.is_in_use else None)
    if state == "deployed":  # no second one is parsed
        assert entry.deployed is entry.definition


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (DesiredView.broken((finding("entities/sales/item.yaml"),)), "failed"),
        (DesiredView.broken((finding("mdm.yaml"),)), "deployed"),
        (DesiredView.broken((finding("seed/item.json"),)), "deployed"),
        (DesiredView.of(having(), (finding("entities/Item.yaml"),)), "failed"),
        (DesiredView.of(having(ITEM), (finding("entities/item.yaml"),)), "deployed"),
    ],
)
def test_definitions_that_cannot_be_used(view: DesiredView, state: str) -> None:
    entry = catalog(store(DEPLOYED), view).find("item")
    assert entry is not None
    assert entry.state.value == state


def test_the_definition_is_the_one_of_the_repository_if_there_is_one() -> None:
    found = catalog(store(DEPLOYED), DesiredView.of(having(CHANGED))).entries
    assert [c.name for c in found["item"].definition.columns] == ["code", "a"]
    assert [
        c.name for c in catalog(store(DEPLOYED), NOTHING_DESIRED).entries["item"].definition.columns
    ] == ["code"]


@pytest.mark.parametrize(
    ("actions", "known"),
    [
        ((Action.READ,), ["item", "other"]),
        ((Action.ADMIN,), ["item", "other"]),
        ((Action.VIEWRESTRICTED,), []),
        ((), []),
    ],
)
def test_only_what_one_may_read_is_known(actions: tuple[Action, ...], known: list[str]) -> None:
    ann = Principal(kind=PrincipalKind.USER, name="ann")
    grants = [
        PermissionGrant(principal="ann", domain="lab", entity="", actions=actions, row_filter="")
    ] * bool(actions)
    found = catalog(store(DEPLOYED, *grants), DesiredView.of(having(ITEM)), who=ann)
    assert list(found.visible()) == known
    assert (found.find("item") is not None) == bool(known)
    assert found.find("nothing") is None
