"""How the server looks from a browser: its address, its cookies, and what comes from its own pages.

The address is ``Mdm__Server__PublicUrl``; without it, what the request says. Where it begins with
https, cookies carry the prefix ``__Host-``: no neighbouring host can then plant one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from mdm_gitops.errors import AccessDenied

_PORTS: Final = {"http": 80, "https": 443}
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSION: Final = "mdm_session"
_ATTEMPT: Final = "mdm_sign_in"


@dataclass(frozen=True, slots=True)
class Cookie:
    name: str

    def set(self, value: str, *, max_age_s: int) -> str:
        """Return the header that gives the browser *value*."""
        return f"{self.name}={value}; Max-Age={max_age_s}; Path=/; HttpOnly; Secure; SameSite=Lax"

    def clear(self) -> str:
        return self.set("", max_age_s=0)


@dataclass(frozen=True, slots=True)
class Site:
    url: str  # without a slash at its end

    @property
    def origin(self) -> str:
        return origin_of(self.url)

    @property
    def session_cookie(self) -> Cookie:
        return Cookie(self._prefix + _SESSION)

    @property
    def attempt_cookie(self) -> Cookie:
        return Cookie(self._prefix + _ATTEMPT)

    @property
    def _prefix(self) -> str:
        return "__Host-" if self.url.startswith("https://") else ""

    def require_own_page(self, request: Request) -> None:
        """Raise AccessDenied if *request* writes and does not come from a page of this server.

        A browser adds the cookie to whatever page makes it send a request, but it also says which.
        """
        if request.method in _READING:
            return
        origins = request.headers.getlist("Origin")
        if origins != [self.origin]:
            raise AccessDenied(
                "a request with a session must come from a page of this server",
                hint="its Origin must be the server's address, which Mdm__Server__PublicUrl sets;"
                " programs use a token or a key",
            )


def site_of(request: Request, public_url: str | None) -> Site:
    if public_url:
        return Site(public_url.rstrip("/"))
    return Site(f"{request.scope['scheme']}://{request.headers.get('Host', '')}")


def origin_of(url: str) -> str:
    """Return scheme, host and port of *url* as browsers write them (RFC 6454)."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "nowhere"  # no browser says that it is there
    host = f"[{host}]" if ":" in host else host
    is_usual = port is None or port == _PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}" if is_usual else f"{parts.scheme}://{host}:{port}"
