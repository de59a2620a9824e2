"""What permissions give: the rules one by one, and that a check costs the same however many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.access import NO_RIGHTS, Principal, may_administer, principal_named, rights_of
from mdm_gitops.access.explain import explain
from mdm_gitops.access.rights import ALL_RIGHTS, domain_actions
from mdm_gitops.access.roles import ROLES
from mdm_gitops.access.testing import state_of
from mdm_gitops.data.asking import Asking
from mdm_gitops.model import Action, Entity, PermissionGrant
from mdm_gitops.model.access import granted_by
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoreState
from tests.support import scenario
from tests.support.simulated import Warehouse
from tests.support.stored import store


def entity(name: str = "customer", *, domain: str = "crm", mode: str = "open") -> Entity:
    columns = [{"name": "code", "dataType": "string"}]
    document = {"name": name, "domain": domain, "access": {"mode": mode}, "columns": columns}
    return Entity.model_validate(document)


def grant(
    principal: str, *actions: str, entity: str = "", domain: str = "crm", where: str = ""
) -> PermissionGrant:
    return PermissionGrant(
        principal=principal,
        domain=domain,
        entity=entity,
        actions=tuple(sorted(Action(action) for action in actions)),
        row_filter=where,
    )


def actions(who: str, *grants: PermissionGrant, groups: tuple[str, ...] = (), **on: Any) -> str:
    rights = rights_of(principal_named(who, groups=groups), entity(**on), state_of(grants))
    return " ".join(action.value for action in Action if rights.may(action))


@pytest.mark.parametrize(
    ("granted", "given"),
    [
        ("read", "read"),
        ("write", "read write"),
        ("approve", "read approve"),
        ("viewrestricted", "viewrestricted"),
        ("admin", "read write approve viewrestricted admin"),
    ],
)
def test_what_an_action_lets_somebody_do(granted: str, given: str) -> None:
    assert actions("ana", grant("ana", granted)) == given


def test_rights_are_the_union_of_all_names_and_rows() -> None:
    everything = (
        grant("ana", "read"),
        grant("user:ana", "approve", entity="customer"),
        grant("group:sales", "write", domain="*"),
        grant("sales", "viewrestricted", entity="customer", domain="*"),
    )
    assert actions("ana", *everything, groups=("sales",)) == "read write approve viewrestricted"
    assert actions("ana", *everything) == "read approve"
    assert actions("group:sales", *everything) == "read write viewrestricted"
    assert actions("sales", *everything) == "viewrestricted"  # a user of the group's name
    assert actions("apikey:ana", *everything) == actions("service:ana", *everything) == ""
    assert actions("otto", *everything) == ""


def test_a_restricted_entity_is_reached_by_its_own_rows_only() -> None:
    wide, own = grant("ana", "admin", domain="*"), grant("ana", "read", entity="customer")
    assert actions("ana", wide, mode="restricted") == ""
    assert actions("ana", wide, own, mode="restricted") == "read"
    assert actions("ana", wide, own).endswith("admin")


def test_a_row_of_another_domain_or_entity_gives_nothing() -> None:
    assert actions("ana", grant("ana", "read", domain="ref")) == ""
    assert actions("ana", grant("ana", "read", entity="country")) == ""
    assert actions("ana", grant("ana", "read", entity="customer", domain="ref")) == ""


def filters(*grants: PermissionGrant, action: Action = Action.READ) -> tuple[str, ...]:
    return rights_of(principal_named("ana"), entity(), state_of(grants)).filters_for(action)


def test_filters_are_those_of_the_rows_that_grant_the_action() -> None:
    one = grant("ana", "read", entity="customer", where="one")
    two = grant("user:ana", "write", entity="customer", where="two")
    assert filters(one, two) == ("one", "two")
    assert filters(one, two, action=Action.WRITE) == ("two",)
    # A row of the domain never widens past them, one of the entity without a filter does.
    assert filters(one, grant("ana", "admin")) == ("one",)
    assert filters(one, grant("ana", "read", entity="customer")) == ()
    # An action that only the domain grants reaches all rows.
    assert filters(one, grant("ana", "admin"), action=Action.WRITE) == ()


def test_a_global_admin_has_everything_and_somebody_unknown_nothing() -> None:
    boss = principal_named("boss", is_global_admin=True)
    state = state_of([grant("boss", "read", entity="customer", where="x")])
    assert rights_of(boss, entity(mode="restricted"), state) == ALL_RIGHTS
    assert domain_actions(boss, state) == {"*": frozenset(Action)}
    assert rights_of(principal_named("ana"), entity(), state) == NO_RIGHTS
    assert may_administer(boss, state, domain="any", entity="")
    explained = explain(boss, entity(mode="restricted"), state)
    assert set(explained.summary.values()) == {"all rows, as a Global Admin"}


def deployed(*grants: PermissionGrant, mode: str = "open") -> StoreState:
    """Return a store with the entity ``customer`` of the domain ``lab``."""
    customer = scenario.entity("customer", access={"mode": mode})
    return store(Warehouse(scenario.definitions(customer)), *grants)


@pytest.mark.parametrize(
    ("granted", "reach"),
    [
        (grant("ana", "admin", domain="lab"), "lab, lab customer"),
        (grant("ana", "admin", domain="*"), "*, lab, hr, * customer, lab customer"),
        (grant("ana", "admin", domain="lab", entity="customer"), "lab customer"),
        (grant("ana", "admin", domain="hr"), "hr"),
        (grant("ana", "write", domain="lab"), ""),
        (grant("otto", "admin", domain="lab"), ""),
    ],
)
def test_who_may_say_who_may_what(granted: PermissionGrant, reach: str) -> None:
    """``lab`` is the whole domain, ``lab customer`` that entity as one of it."""
    ana, state = principal_named("ana"), deployed(granted)
    reached = [
        f"{domain} {name}".strip()
        for name in ("", "customer")
        for domain in ("*", "lab", "hr")
        if may_administer(ana, state, domain=domain, entity=name)
    ]
    assert ", ".join(reached) == reach


def test_a_restricted_entity_is_administered_by_its_own_rows_only() -> None:
    ana = principal_named("ana")
    wide = deployed(grant("ana", "admin", domain="lab"), mode="restricted")
    own = deployed(grant("ana", "admin", domain="lab", entity="customer"), mode="restricted")
    asked = {"domain": "lab", "entity": "customer"}
    assert [may_administer(ana, state, **asked) for state in (wide, own)] == [False, True]


def test_each_role_grants_what_its_action_does() -> None:
    assert {role.name: " ".join(role.grants) for role in ROLES} == {
        "Viewer": "read",
        "Editor": "read write",
        "Approver": "read approve",
        "Admin": "read write approve viewrestricted admin",
        "Restricted viewer": "viewrestricted",
    }


def test_who_asks_in_the_place_of_another_has_rights_of_their_own() -> None:
    admin = principal_named("root", is_global_admin=True)
    asking = Asking(principal=admin, state=state_of(()), schemas=Schemas(), now=datetime.now(UTC))
    assert asking.rights(entity()) == ALL_RIGHTS
    other = replace(asking, principal=principal_named("ana"))
    assert other.rights(entity()) == NO_RIGHTS
    assert asking.rights(entity()) == ALL_RIGHTS


def test_actions_by_domain_leave_out_rows_of_entities() -> None:
    state = state_of(
        [
            grant("ana", "read"),
            grant("user:ana", "approve"),
            grant("ana", "admin", entity="customer"),
            grant("ana", "viewrestricted", domain="*"),
        ]
    )
    assert domain_actions(principal_named("ana"), state) == {
        "crm": granted_by((Action.READ, Action.APPROVE)),
        "*": frozenset({Action.VIEWRESTRICTED}),
    }


# --- the law: the index changes nothing ---

_NAMES = st.sampled_from(["ana", "user:ana", "group:g", "g", "apikey:ana", "otto"])
_GRANTS = st.lists(
    st.builds(
        PermissionGrant,
        principal=_NAMES,
        domain=st.sampled_from(["crm", "ref", "*"]),
        entity=st.sampled_from(["", "customer", "country"]),
        actions=st.lists(st.sampled_from(Action), min_size=1, unique=True).map(
            lambda found: tuple(sorted(found))
        ),
        row_filter=st.sampled_from(["", "a", "b"]),
    ),
    max_size=8,
)


@given(grants=_GRANTS, mode=st.sampled_from(["open", "restricted"]), name=_NAMES)
def test_rights_are_those_of_going_through_all_rows(
    grants: list[PermissionGrant], mode: str, name: str
) -> None:
    who, on = principal_named(name, groups=("g",)), entity(mode=mode)
    reaching = [
        each
        for each in grants
        if each.principal in who.identities
        and each.domain in ("crm", "*")
        and (each.entity == "customer" or (not each.entity and mode == "open"))
    ]
    found = rights_of(who, on, state_of(grants))
    for action in Action:
        giving = [each for each in reaching if action in granted_by(each.actions)]
        own = {each.row_filter for each in giving if each.entity}
        assert found.may(action) is bool(giving)
        assert found.filters_for(action) == (() if "" in own else tuple(sorted(own)))
    # What explains says the same.
    explained = explain(who, on, state_of(grants))
    assert explained.rights == found
    for action in Action:
        assert bool(explained.reasons_for(action)) is found.may(action)
        assert explained.summary[action].startswith("no") is not found.may(action)


# --- the work of a check ---


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of Python *work* runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("users", [1, 1_000], ids=["all of the caller", "of a thousand"])
def test_a_check_does_the_same_work_with_10_assignments_as_with_10_000(users: int) -> None:
    """TARGETS: at most 1.1 times. Counted in lines, because seconds depend on the machine."""

    def work(count: int, check: Callable[[Principal, Any], object]) -> int:
        grants = [
            grant(f"u{number % users}", "read", entity=f"e{number}", where="x")
            for number in range(count)
        ]
        state, who = state_of(grants), principal_named("u0", groups=("a", "b"))
        assert who.identities and state.grants_by_scope  # made once per principal and per state
        return lines_run(lambda: check(who, state))

    def one(who: Principal, state: Any) -> object:
        assert rights_of(who, entity("e0"), state).may_read
        return domain_actions(who, state), may_administer(who, state, domain="crm", entity="")

    def naive(who: Principal, state: Any) -> object:
        return [each for name in state.grants for each in state.grants[name] if each.entity == "e0"]

    assert work(10, one) == work(10_000, one) > 10
    assert work(10_000, naive) > 100 * work(10, naive)  # the count does see a scan
