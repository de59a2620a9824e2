"""A sign-in that is under way: the server remembers nothing, the browser keeps one secret.

The secret is a cookie. State, nonce and PKCE verifier are worked out from it, a salt and the moment, so
what comes back from the provider is accepted only in the browser that set out, and only for so long.
Where to go afterwards travels in the state, and cannot be changed on the way.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from mdm_gitops.errors import InputError, SignInFailed

MAX_AGE_S: Final = 600
MAX_RETURN_LENGTH: Final = 1_024
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_SALT_BYTES: Final = 16
_MOMENT_BYTES: Final = 6
_AGAIN: Final = "begin again at /login, with cookies allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    return_to: str
    state: str
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    @property
    def challenge(self) -> str:
        """What the provider is told of the verifier (PKCE, S256)."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def is_secret(text: str) -> bool:
    return _SECRET.fullmatch(text) is not None


def begin(secret: str, *, return_to: str, now: float) -> Attempt:
    """Return a new attempt of the browser that has *secret*.

    Raises:
        InputError: *return_to* does not lead to a page of this server.
    """
    check_return(return_to)
    started = secrets.token_bytes(_SALT_BYTES) + int(now).to_bytes(_MOMENT_BYTES, "big")
    return _attempt(secret, started, return_to)


def resume(secret: str, state: str, *, now: float) -> Attempt:
    """Return the attempt that *state* belongs to.

    Raises:
        SignInFailed: another browser began it, or it was too long ago.
    """
    try:
        started, return_to, _ = map(_bytes, state.split("."))
        attempt = _attempt(secret, started, return_to.decode())
        check_return(attempt.return_to)
    except InputError:
        raise SignInFailed("the sign-in leads elsewhere", hint=_AGAIN) from None
    except (ValueError, binascii.Error):
        raise SignInFailed("the sign-in was not begun here", hint=_AGAIN) from None
    if not is_secret(secret) or not hmac.compare_digest(attempt.state.encode(), state.encode()):
        raise SignInFailed("the sign-in was not begun in this browser", hint=_AGAIN)
    begun = int.from_bytes(started[_SALT_BYTES:], "big")
    if not begun <= now + MAX_AGE_S or now - begun > MAX_AGE_S:
        raise SignInFailed("the sign-in took too long", hint=_AGAIN)
    return attempt


def check_return(path: str) -> None:
    """Raise InputError unless *path* is one of this server, however a browser reads it."""
    parts = urlsplit(path)
    is_own = path.startswith("/") and not path.startswith("//") and not parts.netloc
    if not is_own or "\\" in path or not path.isprintable() or len(path) > MAX_RETURN_LENGTH:
        raise InputError(
            "returnTo does not lead to a page of this server",
            hint="give a path, such as /swagger",
            parameter="returnTo",
        )


def _attempt(secret: str, started: bytes, return_to: str) -> Attempt:
    def derived(purpose: bytes) -> str:
        said = b"\x00".join((purpose, started.hex().encode(), return_to.encode()))
        return _text(hmac.digest(secret.encode(), said, "sha256"))

    state = ".".join((_text(started), _text(return_to.encode()), derived(b"state")))
    return Attempt(
        return_to=return_to, state=state, nonce=derived(b"nonce"), verifier=derived(b"verifier")
    )


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
