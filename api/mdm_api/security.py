"""Credentials of a request: where they stand, which one it is, and how a refusal is told.

An API key in ``X-API-Key``, an access token as ``Authorization: Bearer``, or the cookie of a session;
one of them, because of two it could not be told whose rights count. For the pages under /swagger a
browser may send the key as the password of HTTP Basic, with any user name; nowhere else, because a
browser repeats Basic unasked.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from starlette.requests import Request

from mdm_api.site import Site, site_of
from mdm_gitops.access.api_keys import MAX_LENGTH, is_well_formed, principal_of
from mdm_gitops.errors import AuthRequired, InputError
from mdm_gitops.settings import AuthSettings, Settings

__all__ = [
    "Credential",
    "CredentialKind",
    "cookie_refused",
    "key_refused",
    "may_be_unknown",
    "presented",
    "principal_of",
    "session_cookie",
    "token_refused",
]

HEADER: Final = "X-API-Key"
_REALM: Final = 'realm="mdm-gitops"'
_BASIC: Final = f'Basic {_REALM}, charset="UTF-8"'
_API_KEY: Final = f'ApiKey {_REALM}, header="{HEADER}"'


class CredentialKind(StrEnum):
    API_KEY = "apiKey"
    BEARER = "bearer"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Credential:
    kind: CredentialKind
    value: str = field(repr=False)


def presented(request: Request, settings: Settings, *, with_basic: bool = False) -> Credential:
    """Return the credential that the request carries.

    Raises:
        AuthRequired: there is none, or it cannot be read.
        InputError: there are several of different kinds.
    """
    key = _only_key(request)
    if key is not None:
        return Credential(CredentialKind.API_KEY, key)
    keys, authorizations, has_cookies = _headers(request)
    cookie = session_cookie(request, settings) if has_cookies else None
    tokens = _of_scheme(authorizations, "bearer")
    if (bool(keys) + bool(tokens) + (cookie is not None)) > 1:
        raise InputError(
            "more than one credential was sent",
            hint=f"send {HEADER}, Authorization: Bearer or a session's cookie; POST /logout ends a"
            " session",
        )
    if cookie is not None:
        return Credential(CredentialKind.SESSION, cookie)
    if tokens:
        return _token(tokens, authorizations, settings.Auth, with_basic=with_basic)
    if not keys and with_basic:
        keys = _passwords(_of_scheme(authorizations, "basic"))
    return _api_key(keys, settings.Auth, with_basic=with_basic)


def _only_key(request: Request) -> str | None:
    """Return the API key where it is the one thing that could be a credential, as it mostly is."""
    found = None
    for name, value in request.scope["headers"]:
        if name == b"x-api-key":
            if found is not None:
                return None
            found = value
        elif name in (b"authorization", b"cookie"):
            return None
    return str(found, "latin-1") if found and len(found) <= MAX_LENGTH else None


def _headers(request: Request) -> tuple[list[str], list[str], bool]:
    """Return the values of what may hold credentials; all headers are gone through once."""
    keys: list[str] = []
    authorizations: list[str] = []
    has_cookies = False
    for name, value in request.scope["headers"]:
        if name == b"x-api-key":
            keys.append(value.decode("latin-1"))
        elif name == b"authorization":
            authorizations.append(value.decode("latin-1"))
        elif name == b"cookie":
            has_cookies = True
    return keys, authorizations, has_cookies


def session_cookie(request: Request, settings: Settings) -> str | None:
    """Return the session's cookie, if the request has one."""
    site = site_of(request, settings.Server.PublicUrl)
    return request.cookies.get(site.session_cookie.name) or None


def _api_key(keys: list[str], auth: AuthSettings, *, with_basic: bool) -> Credential:
    if len(keys) == 1 and 0 < len(keys[0]) <= MAX_LENGTH:
        return Credential(CredentialKind.API_KEY, keys[0])
    if keys:
        raise _refused("the API key cannot be read", auth, with_basic=with_basic)
    what = "credential" if auth.Issuer else "API key"
    raise _refused(f"no {what} was sent", auth, with_basic=with_basic)


def _token(
    tokens: list[str], authorizations: list[str], auth: AuthSettings, *, with_basic: bool
) -> Credential:
    if len(authorizations) > 1 or not tokens[0]:
        raise _refused("the access token cannot be read", auth, with_basic=with_basic)
    return Credential(CredentialKind.BEARER, tokens[0])


def _of_scheme(authorizations: list[str], scheme: str) -> list[str]:
    split = (value.partition(" ") for value in authorizations)
    return [rest.strip() for name, _, rest in split if name.lower() == scheme]


def _passwords(encoded: list[str]) -> list[str]:
    if len(encoded) != 1:
        return []
    try:
        decoded = base64.b64decode(encoded[0], validate=True).decode()
    except (binascii.Error, ValueError):
        return []
    _, colon, password = decoded.partition(":")
    return [password] if colon else []


def may_be_unknown(key: str) -> bool:
    """Whether a key that is not known may have been made since: then the store is worth asking."""
    return is_well_formed(key)


# --- refusals -----------------------------------------------------------------------------------


def key_refused(auth: AuthSettings, *, with_basic: bool) -> AuthRequired:
    """One answer for wrong, revoked and expired keys."""
    return _refused("the API key is not valid", auth, with_basic=with_basic)


def token_refused(refusal: AuthRequired) -> AuthRequired:
    """Say in the way of RFC 6750 why the access token is not accepted."""
    told = str(refusal).encode("ascii", "replace").decode().replace('"', "'").replace("\\", "")
    challenge = f'Bearer {_REALM}, error="invalid_token", error_description="{told}"'
    return AuthRequired(str(refusal), hint=refusal.hint, headers={"WWW-Authenticate": challenge})


def cookie_refused(auth: AuthSettings, site: Site, *, with_basic: bool) -> AuthRequired:
    """The session has ended, or never was; the browser forgets the cookie."""
    refusal = _refused("the session has ended", auth, with_basic=with_basic)
    refusal.details["headers"]["Set-Cookie"] = site.session_cookie.clear()
    return refusal


def _refused(message: str, auth: AuthSettings, *, with_basic: bool) -> AuthRequired:
    challenges = [_BASIC] if with_basic else []
    ways = [f"send a key in the header {HEADER}"]
    if with_basic:
        ways.append("send it as the password of HTTP Basic")
    if auth.Audience:
        challenges.append(f"Bearer {_REALM}")
        ways.append("send an access token as Authorization: Bearer")
    if auth.ClientId:
        ways.append("sign in at /login")
    if not with_basic:
        challenges.append(_API_KEY)
    hint = ", or ".join(ways)
    return AuthRequired(message, hint=hint, headers={"WWW-Authenticate": ", ".join(challenges)})
