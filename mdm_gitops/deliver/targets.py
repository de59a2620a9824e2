"""Where webhooks may go: the rules of the settings, for URLs when they are saved and for addresses
when they are connected to.

*AllowAllExceptLocalhost* lets any HTTP or HTTPS target through that is not this machine. *Strict* lets
through what is on the list of approved hosts and nothing else; an approved host that is given as an
IP address may be an inside one, a name must lead to public addresses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from mdm_gitops.deliver.addresses import is_inside, is_loopback
from mdm_gitops.settings import WebhookSettings

_PORTS: Final = {"http": 80, "https": 443}


class ValidationMode(StrEnum):
    ALLOW_ALL_EXCEPT_LOCALHOST = "AllowAllExceptLocalhost"
    STRICT = "Strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRules:
    """*allowed* are ``host`` (any port) or ``host:port``, in lower case."""

    mode: ValidationMode = ValidationMode.ALLOW_ALL_EXCEPT_LOCALHOST
    allowed: Collection[str] = ()

    def why_refused(self, url: str) -> str:
        """Say why *url* is no target, as far as its text tells; "" if it may be tried."""
        parts = _split(url)
        if parts is None:
            return "is not a URL"
        if parts.scheme not in _PORTS:
            return "must begin with https:// or http://"
        if parts.username or parts.password:
            return "must not hold a user or password"
        host = _host(parts)
        if not host:
            return "has no host"
        if self.mode is ValidationMode.STRICT:
            if not self._is_approved(host, _port(parts)):
                return "leads to a host that is not approved"
        elif (
            host in ("localhost", "localhost.localdomain")
            or host.endswith(".localhost")
            or (_is_address(host) and is_loopback(host))
        ):
            return "leads to this machine"
        return ""

    def why_address_refused(self, url: str, address: str) -> str:
        """Say why the *address* that *url* leads to right now must not be connected to."""
        if self.mode is not ValidationMode.STRICT:
            return "leads to this machine" if is_loopback(address) else ""
        parts = _split(url)
        host = _host(parts) if parts is not None else ""
        if _is_address(host):  # approved as it stands
            return ""
        return "leads to an address that is not public" if is_inside(address) else ""

    def _is_approved(self, host: str, port: int | None) -> bool:
        if ":" in host:  # IPv6, with or without its brackets
            return (
                host in self.allowed
                or {f"[{host}]", f"[{host}]:{port}"} & set(self.allowed) != set()
            )
        return host in self.allowed or f"{host}:{port}" in self.allowed


def rules_of(settings: WebhookSettings) -> TargetRules:
    return TargetRules(
        mode=ValidationMode(settings.Validation),
        allowed=frozenset(settings.AllowedHosts.lower().split()),
    )


def shown_url(url: str) -> str:
    """Return *url* as it may stand in a log: without user, password, query and fragment."""
    parts = _split(url)
    if parts is None:
        return "(not a URL)"
    port = f":{parts.port}" if _valid_port(parts) and parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"[:200]


def host_of(url: str) -> str:
    """Return the host of *url* as the rules judge it, "" if it is no URL."""
    parts = _split(url)
    return _host(parts) if parts is not None else ""


def _split(url: str) -> SplitResult | None:
    if any(sign <= " " or sign in "\\\x7f" for sign in url):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.hostname
    except ValueError:
        return None
    return parts if _valid_port(parts) else None


def _valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or 0 < parts.port < 65_536
    except ValueError:
        return False


def _host(parts: SplitResult) -> str:
    return (parts.hostname or "").lower().rstrip(".")


def _port(parts: SplitResult) -> int | None:
    return parts.port or _PORTS.get(parts.scheme)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
