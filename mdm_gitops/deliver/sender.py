"""One attempt of a delivery over HTTP: bounded in time and size, and never where it must not go.

The address is judged when the socket is made (``targets``), after all spellings and names have become
one. Redirects are not followed, proxies of the environment are not used, cookies are not kept and
nothing of the answer is decompressed. Names are looked up in threads of their own: a name server that
hangs takes none from the rest of the process.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from mdm_gitops.deliver.targets import TargetRules, host_of

TIMEOUT_S: Final = 15.0
MAX_ANSWER_BYTES: Final = 65_536
_REST_OF_ANSWER_S: Final = 1.0
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)
_LOOKUPS: Final = 32  # of names, at a time
_THROTTLED: Final = frozenset({429, 502, 504})
_LONGER_WAIT_S: Final = 60.0
_REDIRECTED: Final = "redirects are not followed"
_USER_AGENT: Final = "mdm-gitops-webhooks/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How it went: *status* is that of the answer, 0 if there was none."""

    status: int
    seconds: float
    error: str = ""  # in our words; "" if an answer came
    blocked: bool = False  # not even tried
    retry_after_s: float | None = None

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """The receiver wants no more of it (410)."""
        return self.status == 410


class _Blocked(OSError):
    """The address is not one that may be connected to."""


class Sender:
    """``async with Sender(rules) as sender``. One per subscription, so that none waits for another."""

    def __init__(self, rules: TargetRules, *, timeout_s: float = TIMEOUT_S) -> None:
        self.rules = rules
        self._timeout_s = timeout_s
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._judged: dict[str, str] = {}  # by URL, why it is refused

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions.values()))
        self._sessions.clear()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> Attempt:
        """Post *body* once. Never raises."""
        started = time.monotonic()
        refused = self._judged.get(url)
        if refused is None:
            refused = self.rules.why_refused(url) or why_ambiguous(url)
            self._judged[url] = refused
        if refused:
            return Attempt(status=0, seconds=0.0, error=refused, blocked=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, body, headers, started)
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
            return Attempt(
                status=0, seconds=_since(started), error=error, retry_after_s=_LONGER_WAIT_S
            )
        except Exception as failure:  # noqa: BLE001 - a receiver can bring about anything
            blocked = _blocked_in(failure)
            if blocked is not None:
                return Attempt(status=0, seconds=_since(started), error=str(blocked), blocked=True)
            return Attempt(status=0, seconds=_since(started), error=_reason(failure))

    async def _post(
        self, url: str, body: bytes, headers: Mapping[str, str], started: float
    ) -> Attempt:
        async with self._session(url).post(
            url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            if not answer.content.at_eof():
                await _read_rest(answer)
            return _answered(answer, _since(started))

    def _session(self, url: str) -> aiohttp.ClientSession:
        session = self._sessions.get(url)
        if session is None:
            session = self._sessions[url] = self._new_session(url)
        return session

    def _new_session(self, url: str) -> aiohttp.ClientSession:
        def make_socket(address: Any) -> socket.socket:
            family, kind, protocol, _, place = address
            refused = self.rules.why_address_refused(url, str(place[0]))
            if refused:
                raise _Blocked(refused)
            return socket.socket(family, kind, protocol)

        connector = aiohttp.TCPConnector(
            limit=64,
            # Short, and judged like any other answer: so that many connections need one lookup.
            ttl_dns_cache=5,
            resolver=_Resolver(),
            socket_factory=make_socket,
            keepalive_timeout=30,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=_NO_TIMEOUT,  # that of send() is enough
            headers={"Content-Type": "application/json", "User-Agent": _USER_AGENT},
            max_line_size=8_190,
            max_field_size=8_190,
        )


class _Resolver(AbstractResolver):
    """Asks the system, in threads that nothing else uses."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(_lookups(), look_up, host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=socket.getnameinfo(place, _NUMERIC)[0] if len(place) > 3 else str(place[0]),
                port=port,
                family=family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for family, _, protocol, _, place in found
        ]

    async def close(self) -> None:
        return


_NUMERIC: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


def look_up(host: str, port: int, family: int) -> list[Any]:
    return socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )


@cache
def _lookups() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="webhook-names")


def why_ambiguous(url: str) -> str:
    """Refuse what the client would understand otherwise than the rules did."""
    try:
        meant = URL(url)
    except ValueError:
        return "is not a URL"
    is_same = _plain(host_of(url)) in (_plain(meant.host), _plain(meant.raw_host))
    return "" if is_same else "has a host that can be read in two ways"


def _plain(host: str | None) -> str:
    """Return *host* in the one way that it is written in."""
    text = (host or "").lower().rstrip(".")
    try:
        return str(ip_address(text))
    except ValueError:
        return text


async def _read_rest(answer: aiohttp.ClientResponse) -> None:
    """Read the body, so that the connection can be used again; whoever sends more is cut off.

    The status has come: nothing that happens now changes what it says.
    """
    left = MAX_ANSWER_BYTES
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_REST_OF_ANSWER_S):
            while left > 0 and (part := await answer.content.read(left)):
                left -= len(part)
    if not answer.content.at_eof():
        answer.close()


def _answered(answer: aiohttp.ClientResponse, seconds: float) -> Attempt:
    status = answer.status
    if 200 <= status < 300:
        return Attempt(status=status, seconds=seconds)
    return Attempt(
        status=status,
        seconds=seconds,
        error=_REDIRECTED if 300 <= status < 400 else "",
        retry_after_s=_retry_after(status, answer.headers.get("Retry-After", "")),
    )


def _blocked_in(failure: BaseException | None) -> _Blocked | None:
    """Return the refusal behind *failure*: the client wraps what its socket factory raises."""
    while failure is not None:
        if isinstance(failure, _Blocked):
            return failure
        inner = getattr(failure, "os_error", None)
        if isinstance(inner, _Blocked):
            return inner
        failure = failure.__cause__ or failure.__context__
    return None


def _reason(failure: Exception) -> str:
    match failure:
        case aiohttp.ClientConnectorDNSError():
            return "the host name leads nowhere"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "the TLS handshake failed"
        case aiohttp.ClientConnectorError():
            return "the connection was refused"
        case aiohttp.ServerDisconnectedError() | ConnectionResetError():
            return "the connection was closed before an answer came"
        case _:
            return "the answer could not be read"


def _retry_after(status: int, text: str) -> float | None:
    """Return the seconds that the receiver asks for (RFC 9110, section 10.2.3)."""
    least = _LONGER_WAIT_S if status in _THROTTLED else None
    seconds = text.strip()
    if seconds.isascii() and seconds.isdigit() and len(seconds) < 10:
        return max(float(seconds), least or 0.0)
    with suppress(ValueError, TypeError, OverflowError):
        return max(parsedate_to_datetime(text).timestamp() - time.time(), least or 0.0)
    return least


def _since(started: float) -> float:
    return time.monotonic() - started
