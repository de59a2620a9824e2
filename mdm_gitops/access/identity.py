"""Who an OpenID provider says somebody is, and which principal that makes here.

Which claims hold the name, the roles and the groups is set (``Mdm__Auth__NameClaim`` and its
neighbours). A name or group that could be read as one of another kind (``apikey:import``) is never
taken over: permissions must not be reached by choosing a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mdm_gitops.access.principal import Principal, PrincipalKind
from mdm_gitops.access.tokens import Claims, TokenRefused, client_of
from mdm_gitops.errors import AccessDenied
from mdm_gitops.model.access_checks import PRINCIPAL_KINDS, why_not_principal

MAX_NAMES: Final = 2_000
_MAX_NAME_LENGTH: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What is remembered of a sign-in. Issuer and subject never name anybody else."""

    issuer: str
    subject: str
    kind: PrincipalKind
    name: str
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """Where claims are found; dots lead into objects unless a claim is spelt with them."""

    name: str = "sub"
    roles: str = "roles"
    groups: str = "groups"
    service_marker: str = ""  # "claim" or "claim=value" that only services have

    def all_in(self, claims: Claims) -> bool:
        wanted = (self.name, self.roles, self.groups)
        return all(found_at(claims, each) is not None for each in wanted)


def found_at(claims: Claims, path: str) -> Any:
    """Return the claim at *path*, or None."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for step in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def user_of(claims: Claims, names: ClaimNames) -> Identity:
    """Return the user of proven *claims*.

    Raises:
        TokenRefused: they hold no usable name, or roles and groups in another form than a list.
    """
    if names.name == "email" and claims.get("email_verified") is not True:
        raise TokenRefused("the provider has not verified the address in the claim email")
    name = _usable_name(found_at(claims, names.name), names.name)
    return _identity(claims, names, PrincipalKind.USER, name)


def bearer_of(claims: Claims, names: ClaimNames) -> Identity:
    """Return whose access token this is: that of a service when no user gave it away.

    Raises:
        TokenRefused: as ``user_of`` does.
    """
    client = client_of(claims)
    if not _is_service(claims, client, names.service_marker):
        return user_of(claims, names)
    name = _usable_name(client or claims["sub"], "the client")
    return _identity(claims, names, PrincipalKind.SERVICE, name)


def _is_service(claims: Claims, client: str, marker: str) -> bool:
    """RFC 9068 has the client as its own subject; some providers have marks of their own."""
    if client and claims["sub"] == client:
        return True
    if claims.get("gty") == "client-credentials" or claims.get("idtyp") == "app":
        return True
    claim, equals, value = marker.partition("=")
    found = found_at(claims, claim) if claim else None
    return found == value if equals else found is not None


def _identity(claims: Claims, names: ClaimNames, kind: PrincipalKind, name: str) -> Identity:
    return Identity(
        issuer=claims["iss"],
        subject=claims["sub"],
        kind=kind,
        name=name,
        groups=tuple(each for each in _texts(claims, names.groups) if not _unusable(each)),
        roles=tuple(each for each in _texts(claims, names.roles) if each.isprintable()),
    )


def _texts(claims: Claims, path: str) -> tuple[str, ...]:
    """Return the texts at *path*; one alone need not stand in a list."""
    value = found_at(claims, path)
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise TokenRefused(f"the claim {path} is no list of texts")
    if len(texts) > MAX_NAMES:
        raise TokenRefused(f"the claim {path} has more than {MAX_NAMES:,} values")
    return tuple(dict.fromkeys(texts))


def _usable_name(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TokenRefused(f"the token does not hold {what}, by which its owner is known here")
    if reason := _unusable(value):
        raise TokenRefused(f"the name in {what} {reason}")
    return value


def _unusable(name: str) -> str:
    """Say why *name* cannot stand for anybody here; "" if it can."""
    if len(name) > _MAX_NAME_LENGTH:
        return f"is longer than {_MAX_NAME_LENGTH} characters"
    prefix, colon, _ = name.partition(":")
    if colon and prefix.casefold() in PRINCIPAL_KINDS:
        return f"begins with {prefix}:, which stands for a kind of principal"
    return why_not_principal(name) if name.isprintable() else "has characters that cannot be seen"


def principal_of(identity: Identity, *, admin_role: str, entry_role: str) -> Principal:
    """Return the principal that *identity* is here.

    Raises:
        AccessDenied: it lacks the role that lets somebody in.
    """
    if entry_role and entry_role not in identity.roles:
        raise AccessDenied(
            "the identity provider has not given you the role that lets you in",
            hint="ask whoever manages this application at the provider",
        )
    return Principal(
        kind=identity.kind,
        name=identity.name,
        groups=identity.groups,
        is_global_admin=admin_role in identity.roles,
    )
