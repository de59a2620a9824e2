"""Where a server is and who asks: values that show no secret, in ``repr`` or in an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit

from mdm_gitops.errors import InputError

DEFAULT_URL: Final = "http://127.0.0.1:8080"


class Credential(Protocol):
    """What a request is signed with."""

    async def headers(self) -> dict[str, str]:
        """Return the headers that prove who asks."""

    async def renewed(self) -> bool:
        """Say, after the server took no more of it, whether trying again makes sense."""


@dataclass(frozen=True, slots=True)
class NoCredential:
    """Nobody in particular."""

    async def headers(self) -> dict[str, str]:
        return {}

    async def renewed(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key of the server."""

    key: str = field(repr=False)

    def __post_init__(self) -> None:
        _no_strange_signs(self.key, "API key")

    async def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.key}

    async def renewed(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class BearerToken:
    """An access token of the identity provider, as it is; ``SignedIn`` renews its own."""

    token: str = field(repr=False)

    def __post_init__(self) -> None:
        _no_strange_signs(self.token, "access token")

    async def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def renewed(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server, and who asks it."""

    url: str = DEFAULT_URL
    credential: Credential = field(default_factory=NoCredential)

    def __post_init__(self) -> None:
        origin_of(self.url)

    def address(self, path: str) -> str:
        """Return the URL of *path*, which begins with a slash.

        Raises:
            InputError: it does not, so it might lead to another server.
        """
        if not path.startswith("/") or path.startswith("//"):
            raise InputError(
                f"{path[:80]!r} is no path of a server",
                hint="a path begins with one slash: /api/v1/me",
            )
        return self.url.rstrip("/") + path


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port: what decides who gets a credential.

    Raises:
        InputError: it is no URL of a server, or holds a password.
    """
    parts = _split(url)
    if parts is None:
        shown = url if "@" not in url else "what was given"
        raise InputError(f"{shown!r} is no URL of a server", hint=f"write it as {DEFAULT_URL}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").lower(), port


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return None
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    is_clean = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc
    known = parts.scheme in ("http", "https") and bool(parts.hostname)
    return parts if known and is_plain and is_clean and has_port else None


def _no_strange_signs(text: str, what: str) -> None:
    if not text or text != text.strip() or not (text.isascii() and text.isprintable()):
        raise InputError(f"the {what} has characters that no {what.rpartition(' ')[2]} has")
