"""Credentials of a request: where they stand, and whose they are.

Today an API key in ``X-API-Key``. For the pages under /swagger a browser may send the key as the
password of HTTP Basic, with any user name; nowhere else, because a browser repeats Basic unasked.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from starlette.requests import Request

from mdm_gitops.access.api_keys import MAX_LENGTH, is_well_formed, principal_of
from mdm_gitops.errors import AuthRequired

__all__ = ["may_be_unknown", "presented_key", "principal_of", "unknown_key"]

HEADER: Final = "X-API-Key"


def presented_key(request: Request, *, with_basic: bool = False) -> str:
    """Return the key that the request carries.

    Raises:
        AuthRequired: there is none, or more than one.
    """
    keys = request.headers.getlist(HEADER)
    if not keys and with_basic:
        keys = _basic_passwords(request)
    if len(keys) == 1 and 0 < len(keys[0]) <= MAX_LENGTH:
        return keys[0]
    if keys:
        raise _auth_required("the API key cannot be read", with_basic=with_basic)
    raise _auth_required("no API key was sent", with_basic=with_basic)


def _basic_passwords(request: Request) -> list[str]:
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return []
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return []
    _, colon, password = decoded.partition(":")
    return [password] if colon else []


def may_be_unknown(key: str) -> bool:
    """Whether a key that is not known may have been made since: then the store is worth asking."""
    return is_well_formed(key)


def unknown_key(*, with_basic: bool) -> AuthRequired:
    """One answer for wrong, revoked and expired keys."""
    return _auth_required("the API key is not valid", with_basic=with_basic)


def _auth_required(message: str, *, with_basic: bool) -> AuthRequired:
    hint = f"send a key in the header {HEADER}"
    if with_basic:
        return AuthRequired(message, hint=f"{hint}, or as the password of HTTP Basic", basic=True)
    return AuthRequired(message, hint=hint)
