"""How keys look, and who a permission means."""

from __future__ import annotations

import pytest

from mdm_gitops.access import Principal, PrincipalKind, rights_of
from mdm_gitops.access.api_keys import digest, generate_key, is_well_formed
from mdm_gitops.model import AccessMode, Action, Column, DataType, Entity, PermissionGrant
from mdm_gitops.model.entity import Access
from mdm_gitops.warehouse.store import StoreState


def test_keys_have_a_checksum_that_finds_each_slip() -> None:
    key = generate_key()
    assert len(key) == 42 and key.startswith("mdm_") and is_well_formed(key)
    for place in range(len(key)):
        other = "x" if key[place] != "x" else "y"
        assert not is_well_formed(key[:place] + other + key[place + 1 :]), place


@pytest.mark.parametrize("text", ["", "mdm_", "mdm_" + "\u00e9" * 38, "mdm_" + "0" * 37, "x" * 42])
def test_what_is_no_key(text: str) -> None:
    assert not is_well_formed(text)
    assert len(digest(text + "\udcff")) == 32


def test_keys_do_not_repeat() -> None:
    assert len({generate_key() for _ in range(1_000)}) == 1_000


def principal(text: str, *groups: str, admin: bool = False) -> Principal:
    kind, _, name = text.partition(":")
    return Principal(kind=PrincipalKind(kind), name=name, groups=groups, is_global_admin=admin)


@pytest.mark.parametrize(
    ("who", "names", "not_names"),
    [
        (principal("user:anna"), {"anna", "user:anna"}, {"apikey:anna", "group:anna"}),
        (principal("user:anna", "g1"), {"g1", "group:g1"}, {"user:g1"}),
        (principal("apikey:anna"), {"apikey:anna"}, {"anna", "user:anna"}),
        (principal("service:shop", "g1"), {"service:shop", "group:g1"}, {"shop"}),
    ],
)
def test_names_under_which_permissions_reach_a_principal(
    who: Principal, names: set[str], not_names: set[str]
) -> None:
    assert who.identities >= names
    assert not who.identities & not_names


def test_me_of_a_key_is_nobody_elses_name() -> None:
    assert principal("user:anna").me == "anna"
    assert principal("apikey:anna").me == "apikey:anna"


def entity(*, restricted: bool = False) -> Entity:
    mode = AccessMode.RESTRICTED if restricted else AccessMode.OPEN
    return Entity(
        name="Customer",
        domain="crm",
        access=Access(mode=mode),
        columns=(Column(name="code", data_type=DataType.STRING),),
    )


def state(*grants: tuple[str, str, str, str, str]) -> StoreState:
    """Each grant: principal, domain, entity, actions apart by blanks, row filter."""
    by_principal: dict[str, list[PermissionGrant]] = {}
    for who, domain, name, actions, row_filter in grants:
        grant = PermissionGrant(
            principal=who,
            domain=domain,
            entity=name,
            actions=tuple(Action(action) for action in actions.split()),
            row_filter=row_filter,
        )
        by_principal.setdefault(who, []).append(grant)
    return StoreState(
        revision=1,
        entities={},
        removed=(),
        grants={who: tuple(given) for who, given in by_principal.items()},
        keys={},
    )


ALL = "admin approve read viewrestricted write"


@pytest.mark.parametrize(
    ("grants", "actions", "filters"),
    [
        pytest.param([], "", (), id="nothing-by-default"),
        pytest.param([("anna", "crm", "", "read", "")], "read", (), id="domain"),
        pytest.param([("anna", "*", "", "read", "")], "read", (), id="all-domains"),
        pytest.param([("anna", "erp", "", "read", "")], "", (), id="other-domain"),
        pytest.param([("anna", "crm", "order", "read", "")], "", (), id="other-entity"),
        pytest.param([("anna", "erp", "customer", "read", "")], "", (), id="entity-elsewhere"),
        pytest.param([("bert", "crm", "", "read", "")], "", (), id="other-user"),
        pytest.param([("g", "crm", "", "write", "")], "read write", (), id="group-write-reads"),
        pytest.param([("anna", "crm", "", "approve", "")], "approve read", (), id="approve-reads"),
        pytest.param(
            [("anna", "crm", "", "viewrestricted", "")],
            "viewrestricted",
            (),
            id="viewrestricted-alone-reads-nothing",
        ),
        pytest.param([("anna", "crm", "", "admin", "")], ALL, (), id="admin-implies-all"),
        pytest.param(
            [("anna", "crm", "customer", "read", "F")], "read", ("F",), id="filter-of-the-entity"
        ),
        pytest.param(
            [("anna", "crm", "", "read", ""), ("g", "crm", "customer", "read", "F")],
            "read",
            ("F",),
            id="a-domain-row-never-widens-past-a-filter",
        ),
        pytest.param(
            [("anna", "crm", "", "admin", ""), ("anna", "crm", "customer", "read", "F")],
            ALL,
            ("F",),
            id="not-even-admin-of-the-domain",
        ),
        pytest.param(
            [("anna", "crm", "customer", "read", "F"), ("g", "crm", "customer", "write", "G")],
            "read write",
            ("F", "G"),
            id="or-of-the-filters",
        ),
        pytest.param(
            [("anna", "crm", "customer", "read", "F"), ("g", "crm", "customer", "read", "")],
            "read",
            (),
            id="an-entity-row-without-a-filter-gives-all",
        ),
        pytest.param(
            [("anna", "crm", "customer", "viewrestricted", ""), ("g", "crm", "customer", "read", "F")],
            "read viewrestricted",
            ("F",),
            id="a-row-for-another-action-does-not-widen",
        ),
    ],
)  # fmt: skip
def test_rights(
    grants: list[tuple[str, str, str, str, str]], actions: str, filters: tuple[str, ...]
) -> None:
    got = rights_of(principal("user:anna", "g"), entity(), state(*grants))
    assert got.actions == {Action(action) for action in actions.split()}
    assert got.filters_for(Action.READ) == filters


def test_a_restricted_entity_is_reached_by_its_own_rows_only() -> None:
    by_domain = state(("anna", "*", "", "admin", ""), ("anna", "crm", "", "read", ""))
    assert not rights_of(principal("user:anna"), entity(restricted=True), by_domain).actions
    own = state(("anna", "crm", "customer", "read", ""))
    assert rights_of(principal("user:anna"), entity(restricted=True), own).may_read


def test_a_global_admin_passes_filters_and_restriction() -> None:
    who = principal("user:anna", admin=True)
    got = rights_of(who, entity(restricted=True), state(("anna", "crm", "customer", "read", "F")))
    assert got.actions == set(Action) and got.filters_for(Action.READ) == ()


def test_rights_are_worked_out_once_per_state() -> None:
    given = state(("anna", "crm", "", "read", ""))
    first = rights_of(principal("user:anna"), entity(), given)
    assert rights_of(principal("user:anna"), entity(), given) is first
    assert rights_of(principal("user:bert"), entity(), given).actions == set()
