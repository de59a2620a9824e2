"""Who a token says somebody is: names that cannot be taken for others, roles, groups, services."""

from __future__ import annotations

from typing import Any

import pytest

from mdm_gitops.access import PrincipalKind
from mdm_gitops.access.identity import (
    MAX_NAMES,
    ClaimNames,
    Identity,
    bearer_of,
    found_at,
    principal_of,
    user_of,
)
from mdm_gitops.access.tokens import TokenRefused
from mdm_gitops.errors import AccessDenied


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": "https://id.example", "sub": "8f1c", "client_id": "app", **more}


NAMES = ClaimNames(name="preferred_username")


def test_a_user_is_known_by_the_claim_that_is_set() -> None:
    told = claims(preferred_username="anna", groups=["g", "h", "g"], roles=["r"])
    assert bearer_of(told, NAMES) == user_of(told, NAMES) == Identity(
        issuer="https://id.example",
        subject="8f1c",
        kind=PrincipalKind.USER,
        name="anna",
        groups=("g", "h"),
        roles=("r",),
    )  # fmt: skip
    assert user_of(told, ClaimNames()).name == "8f1c"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("roles", ["a"]),
        ("realm_access.roles", ["b"]),
        ("https://id.example/roles", ["c"]),
        ("realm_access.roles.x", None),
        ("realm_access.none", None),
        ("sub.x", None),
        ("nothing", None),
    ],
)
def test_claims_are_found_by_name_or_by_path(path: str, value: Any) -> None:
    told = claims(roles=["a"], realm_access={"roles": ["b"]}, **{"https://id.example/roles": ["c"]})
    assert found_at(told, path) == value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (None, "does not hold preferred_username"),
        (5, "does not hold"),
        (["anna"], "does not hold"),
        ("", "is empty"),
        ("  ", "is empty"),
        (" anna", "white space"),
        ("an\u202ena", "cannot be seen"),
        ("an\x00na", "cannot be seen"),
        ("an\nna", "cannot be seen"),
        ("\ud800", "cannot be seen"),
        ("x" * 256, "longer than 255"),
        ("apikey:import", "stands for a kind"),
        ("group:admins", "stands for a kind"),
        ("service:etl", "stands for a kind"),
        ("user:anna", "stands for a kind"),
        ("APIKEY:import", "stands for a kind"),
    ],
)
def test_names_that_cannot_be_anybodys(name: Any, words: str) -> None:
    with pytest.raises(TokenRefused, match=words):
        user_of(claims(preferred_username=name), NAMES)


@pytest.mark.parametrize(
    "name", ["anna", "anna@example.com", "idp|1", "urn:x:1", "Änne Öz", "x" * 255]
)
def test_names_that_can(name: str) -> None:
    assert user_of(claims(preferred_username=name), NAMES).name == name


@pytest.mark.parametrize("verified", [None, False, "true", 1])
def test_an_address_counts_when_the_provider_has_verified_it(verified: Any) -> None:
    names = ClaimNames(name="email")
    told = claims(email="anna@example.com", email_verified=verified)
    with pytest.raises(TokenRefused, match="not verified"):
        user_of(told, names)
    assert user_of({**told, "email_verified": True}, names).name == "anna@example.com"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, ()),
        ([], ()),
        ("one", ("one",)),
        (["a", "a", "b"], ("a", "b")),
        (
            ["apikey:x", "group:y", "Service:z", "", " pad", "u\u200bv", "x" * 256, "fine"],
            ("fine",),
        ),
    ],
)
def test_groups_that_could_be_taken_for_others_are_left_out(value: Any, kept: Any) -> None:
    identity = user_of(claims(preferred_username="anna", groups=value), NAMES)
    assert identity.groups == kept
    principal = principal_of(identity, admin_role="mdm-admin", entry_role="")
    assert not {name for name in principal.identities if name.startswith(("apikey:", "service:"))}


@pytest.mark.parametrize(
    "value", [5, True, {"a": 1}, [1], ["a", None], [["a"]], ["x"] * (MAX_NAMES + 1)]
)
@pytest.mark.parametrize("claim", ["groups", "roles"])
def test_lists_that_are_none(claim: str, value: Any) -> None:
    with pytest.raises(TokenRefused, match=f"the claim {claim}"):
        user_of(claims(preferred_username="anna", **{claim: value}), NAMES)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"sub": "etl", "client_id": "etl"}, "etl"),
        ({"sub": "etl", "client_id": ..., "cid": "etl"}, "etl"),
        (
            {"sub": "etl@clients", "client_id": ..., "azp": "etl", "gty": "client-credentials"},
            "etl",
        ),
        ({"sub": "0a", "client_id": ..., "appid": "etl", "idtyp": "app"}, "etl"),
        ({"sub": "0a", "client_id": ..., "idtyp": "app"}, "0a"),
    ],
)
def test_a_token_that_no_user_gave_away_is_a_services(told: dict[str, Any], name: str) -> None:
    given = {key: value for key, value in claims(**told).items() if value is not ...}
    identity = bearer_of(given, NAMES)
    assert (identity.kind, identity.name) == (PrincipalKind.SERVICE, name)
    assert principal_of(identity, admin_role="a", entry_role="").identities == {f"service:{name}"}


@pytest.mark.parametrize(
    ("marker", "told", "kind"),
    [
        ("", {}, PrincipalKind.USER),
        ("client_address", {"client_address": "10.0.0.1"}, PrincipalKind.SERVICE),
        ("client_address", {}, PrincipalKind.USER),
        ("kind=machine", {"kind": "machine"}, PrincipalKind.SERVICE),
        ("kind=machine", {"kind": "person"}, PrincipalKind.USER),
        ("a.b=c", {"a": {"b": "c"}}, PrincipalKind.SERVICE),
    ],
)
def test_services_can_have_a_mark(marker: str, told: dict[str, Any], kind: PrincipalKind) -> None:
    identity = bearer_of(claims(**told), ClaimNames(service_marker=marker))
    assert identity.kind is kind
    assert identity.name == ("app" if kind is PrincipalKind.SERVICE else "8f1c")


def test_a_service_named_like_a_person_or_a_key_is_neither() -> None:
    service = bearer_of(claims(sub="anna", client_id="anna"), NAMES)
    assert principal_of(service, admin_role="a", entry_role="").identities == {"service:anna"}
    with pytest.raises(TokenRefused):
        bearer_of(claims(sub="apikey:x", client_id="apikey:x"), NAMES)


@pytest.mark.parametrize(
    ("roles", "entry", "is_admin"),
    [
        ((), "", False),
        (("mdm-user",), "mdm-user", False),
        (("mdm-admin",), "", True),
        (("mdm-user", "mdm-admin"), "mdm-user", True),
        (("mdm-admins", "MDM-ADMIN", "mdm"), "", False),
    ],
)
def test_roles(roles: tuple[str, ...], entry: str, is_admin: bool) -> None:
    identity = user_of(claims(roles=list(roles)), ClaimNames())
    principal = principal_of(identity, admin_role="mdm-admin", entry_role=entry)
    assert principal.is_global_admin is is_admin


@pytest.mark.parametrize("roles", [(), ("mdm-admin",), ("mdm-use", "mdm-users")])
def test_without_the_entry_role_nobody_comes_in(roles: tuple[str, ...]) -> None:
    identity = user_of(claims(roles=list(roles), groups=["mdm-user"]), ClaimNames())
    with pytest.raises(AccessDenied, match="the role that lets you in"):
        principal_of(identity, admin_role="mdm-admin", entry_role="mdm-user")


def test_what_must_be_asked_for_separately() -> None:
    assert ClaimNames().all_in({"sub": "a", "roles": [], "groups": []})
    assert not ClaimNames().all_in({"sub": "a", "roles": []})
