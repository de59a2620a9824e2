"""Signed tokens (JWT) of an OpenID provider: read strictly, checked as RFC 8725 asks, never trusted
before.

``parse`` takes a token apart, ``Token.claims_by`` checks its signature with a key that the caller
found, and ``check_access_token`` and ``check_id_token`` hold its claims against what is expected. The
two kinds are never taken for each other. What a token says about where its key is to be had (``jku``,
``x5u``, ``jwk``, ``x5c``) is never looked at. No network and no clock here.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mdm_gitops.errors import AuthRequired

if TYPE_CHECKING:
    from mdm_gitops.access.jwks import VerifyingKey

MAX_LENGTH: Final = 8_192
MAX_ID_TOKEN_LENGTH: Final = 65_536
LEEWAY_S: Final = 60.0
_END_OF_TIME: Final = 1e12  # seconds; not a number is on neither side of it
MAX_SUBJECT_LENGTH: Final = 255
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")
_ACCESS_TYPES: Final = frozenset({"at+jwt", "application/at+jwt"})
_PLAIN_TYPES: Final = frozenset({"jwt", ""})
# Claims that only ID tokens have; and, in providers that say the kind in a claim, the right ones.
_ID_TOKEN_CLAIMS: Final = ("nonce", "at_hash", "c_hash", "s_hash")
_ACCESS_WORDS: Final = frozenset({"bearer", "jwt", "at+jwt"})
# How providers call the client that a token was given to.
CLIENT_CLAIMS: Final = ("client_id", "azp", "cid", "appid")

Claims = Mapping[str, Any]


class TokenRefused(AuthRequired):
    """The token counts for nothing. The message says which check it failed, to whoever holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token taken apart. Nothing of it is proven yet."""

    algorithm: str
    key_id: str | None
    kind: str  # its typ, in lower case, "" without one
    signed: bytes = field(repr=False)
    payload: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def claims_by(self, key: VerifyingKey) -> Claims:
        """Return what the token says, proven by *key*.

        Raises:
            TokenRefused: it was not signed with *key*, or says nothing that can be read.
        """
        if key.algorithm != self.algorithm or not key.verifies(self.signed, self.signature):
            raise TokenRefused("the token's signature is wrong")
        return _object(self.payload, "claims")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """What an access token must be. *clients*: the only ones it may be given to, if there are any."""

    issuer: str
    audience: str
    clients: frozenset[str] = frozenset()
    only_typed: bool = True  # it must say that it is an access token (RFC 9068)
    own_client_id: str = ""  # that of ID tokens, which must not pass for access tokens


def parse(text: str, *, max_length: int = MAX_LENGTH) -> Token:
    """Take *text* apart.

    Raises:
        TokenRefused: it is too long, no signed token, or needs something that we do not do.
    """
    if len(text) > max_length:
        raise TokenRefused(f"the token is longer than {max_length:,} characters")
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenRefused("this is no signed token (JWT)")
    header, payload, signature = map(_decoded, parts)
    told = _object(header, "header")
    for name in ("crit", "b64", "zip", "enc"):
        if name in told:
            raise TokenRefused(f"the token's header has {name!r}, which is not supported")
    return Token(
        algorithm=_text(told, "alg", required=True),
        key_id=_text(told, "kid") if "kid" in told else None,
        kind=_text(told, "typ").lower(),
        signed=text.rpartition(".")[0].encode("ascii"),
        payload=payload,
        signature=signature,
    )


def _decoded(part: str) -> bytes:
    """Decode base64url, in the one spelling that each value has (RFC 7515, section 2)."""
    if not _BASE64URL.fullmatch(part):
        raise TokenRefused("the token is not base64url throughout")
    try:
        value = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise TokenRefused("the token is not base64url throughout") from None
    if base64.urlsafe_b64encode(value).rstrip(b"=") != part.encode("ascii"):
        raise TokenRefused("the token is not base64url throughout")
    return value


def _text(told: Claims, name: str, *, required: bool = False) -> str:
    value = told.get(name, "")
    if not isinstance(value, str) or (required and not value):
        raise TokenRefused(f"the token's {name} is no text")
    return value


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise TokenRefused(f"the token's {what} cannot be read") from None
    if not isinstance(value, dict):
        raise TokenRefused(f"the token's {what} cannot be read")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a member stands twice")
    return value


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_no_constant)


# --- what a token must say ----------------------------------------------------------------------


def check_access_token(token: Token, claims: Claims, rules: AccessRules, *, now: float) -> None:
    """Raise TokenRefused unless *claims* are those of an access token for us; *now* in Unix time."""
    _check_times(claims, now)
    _check_issuer(claims, rules.issuer)
    audiences = _audiences(claims)
    if not rules.audience or rules.audience not in audiences:
        raise TokenRefused("the token is meant for another audience")
    _check_subject(claims)
    _check_kind(token, claims, rules)
    if "cnf" in claims:
        raise TokenRefused("the token is bound to a key of its owner, which a bearer cannot prove")
    client = client_of(claims)
    if rules.clients and client not in rules.clients:
        raise TokenRefused("the token was given to a client that is not among those allowed")


def check_id_token(claims: Claims, *, issuer: str, client_id: str, nonce: str, now: float) -> None:
    """Raise TokenRefused unless *claims* answer our request to sign somebody in (OpenID Connect
    Core 1.0, section 3.1.3.7)."""
    _check_times(claims, now)
    _check_issuer(claims, issuer)
    audiences = _audiences(claims)
    if client_id not in audiences:
        raise TokenRefused("the ID token is meant for another application")
    presenter = claims.get("azp", client_id if len(audiences) == 1 else None)
    if presenter != client_id:
        raise TokenRefused("the ID token was given to another application")
    if claims.get("nonce") != nonce:
        raise TokenRefused("the ID token answers another sign-in")
    _check_subject(claims)


def client_of(claims: Claims) -> str:
    """Return the client that a token was given to, "" when it says none.

    Raises:
        TokenRefused: it says two different ones.
    """
    named = {_text(claims, name) for name in CLIENT_CLAIMS if claims.get(name) is not None}
    if len(named) > 1:
        raise TokenRefused("the token names two clients")
    return next(iter(named), "")


def _check_times(claims: Claims, now: float) -> None:
    if _moment(claims, "exp") <= now - LEEWAY_S:
        raise TokenRefused("the token has expired")
    if _moment(claims, "iat") > now + LEEWAY_S:
        raise TokenRefused("the token was issued in the future")
    if "nbf" in claims and _moment(claims, "nbf") > now + LEEWAY_S:
        raise TokenRefused("the token is not valid yet")


def _moment(claims: Claims, name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"the token has no {name}, or one that is no number")
    if not abs(value) < _END_OF_TIME:
        raise TokenRefused(f"the token's {name} is no moment")
    return value


def _check_issuer(claims: Claims, issuer: str) -> None:
    if claims.get("iss") != issuer:
        raise TokenRefused("the token is of another issuer")


def _audiences(claims: Claims) -> list[str]:
    value = claims.get("aud")
    audiences = [value] if isinstance(value, str) else value
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise TokenRefused("the token has no audience")
    return audiences


def _check_subject(claims: Claims) -> None:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.isprintable():
        raise TokenRefused("the token has no subject")
    if not 0 < len(subject) <= MAX_SUBJECT_LENGTH:
        raise TokenRefused("the token has no subject")


def _check_kind(token: Token, claims: Claims, rules: AccessRules) -> None:
    """An ID token says who signed in, to the application; it gives no right to call us."""
    if token.kind in _ACCESS_TYPES:
        return
    if rules.only_typed:
        raise TokenRefused(
            "the token does not say that it is an access token",
            hint="its typ must be at+jwt; for a provider that leaves it out,"
            " Mdm__Auth__TokenType can be set to any",
        )
    word = claims.get("typ", "bearer")
    is_other = not isinstance(word, str) or word.lower() not in _ACCESS_WORDS
    if token.kind not in _PLAIN_TYPES or is_other:
        raise TokenRefused("this is no access token")
    if any(name in claims for name in _ID_TOKEN_CLAIMS):
        raise TokenRefused("this is an ID token, which is no access token")
    # Where both kinds have the same audience, only what was granted tells them apart.
    granted = any(claims.get(name) for name in ("scope", "scp")) or claims.get("idtyp") == "app"
    if rules.own_client_id in _audiences(claims) and not granted:
        raise TokenRefused("this may be an ID token, which is no access token")
