"""One attempt of a delivery over HTTP: bounded in time and size, and never where it must not go.

The address is judged when the socket is made (``targets``), after all spellings and names have become
one. Redirects are not followed, proxies of the environment are not used, cookies are not kept and
nothing of the answer is decompressed. Names are looked up in threads of their own: a name server that
hangs takes none from the rest of the process. Connections are kept (``connection``), per URL; one that the
receiver had closed while nobody used it costs no attempt.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, Self

from aiohappyeyeballs import start_connection
from yarl import URL

from mdm_gitops.deliver.connection import Answer, Closed, Connection, Unreadable
from mdm_gitops.deliver.targets import TargetRules, host_of

TIMEOUT_S: Final = 15.0
_KEPT_S: Final = 30.0  # a connection that nobody uses
_LOOKED_UP_S: Final = 5.0  # short, and judged each time: so that many connections need one lookup
_NEXT_ADDRESS_S: Final = 0.25  # RFC 8305
_LOOKUPS: Final = 32  # of names, at a time
_THROTTLED: Final = frozenset({429, 502, 504})
_LONGER_WAIT_S: Final = 60.0
_REDIRECTED: Final = "redirects are not followed"
_CLOSED: Final = "the connection was closed before an answer came"
_HEADERS: Final = (
    "Content-Type: application/json\r\nUser-Agent: mdm-gitops-webhooks/1\r\nAccept: */*\r\n"
)


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


class _Blocked(Exception):
    """The address is not one that may be connected to."""


class _Failed(Exception):
    """No answer came, for a reason in our words."""


class Sender:
    """``async with Sender(rules) as sender``. One per subscription, so that none waits for another."""

    def __init__(self, rules: TargetRules, *, timeout_s: float = TIMEOUT_S) -> None:
        self.rules = rules
        self._timeout_s = timeout_s
        self._targets: dict[str, _Target] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for target in self._targets.values():
            target.close()
        self._targets.clear()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> Attempt:
        """Post *body* once. Never raises."""
        started = time.monotonic()
        try:
            answer = await self._target(url).post(body, headers, timeout_s=self._timeout_s)
        except _Blocked as blocked:
            return Attempt(status=0, seconds=_since(started), error=str(blocked), blocked=True)
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
            return Attempt(
                status=0, seconds=_since(started), error=error, retry_after_s=_LONGER_WAIT_S
            )
        except Exception as failure:  # noqa: BLE001 - a receiver can bring about anything
            return Attempt(status=0, seconds=_since(started), error=_reason(failure))
        return _answered(answer, _since(started))

    def _target(self, url: str) -> _Target:
        target = self._targets.get(url)
        if target is None:
            refused = self.rules.why_refused(url) or why_ambiguous(url)
            if refused:
                raise _Blocked(refused)
            target = self._targets[url] = _Target(url, self.rules)
        return target


class _Target:
    """Where one URL leads, and the connections that were made to it."""

    def __init__(self, url: str, rules: TargetRules) -> None:
        parts = URL(url)
        self._url = url
        self._rules = rules
        self._host = parts.raw_host or ""
        self._port = parts.port or 0
        self._is_tls = parts.scheme == "https"
        head = f"POST {parts.raw_path_qs} HTTP/1.1\r\nHost: {parts.host_port_subcomponent}\r\n"
        self._head = head + _HEADERS
        self._idle: list[Connection] = []
        self._found: asyncio.Task[Sequence[Any]] | None = None
        self._found_at = 0.0

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        if self._found is not None:
            self._found.cancel()

    async def post(self, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        request = self._request(body, headers)
        kept = self._kept()
        if kept is not None:
            try:
                return await self._exchange(kept, request, timeout_s)
            except Closed as closed:
                if not closed.is_silent:
                    raise
        async with asyncio.timeout_at(deadline):
            connection = await self._connect(loop)
        return await self._exchange(connection, request, deadline - loop.time())

    def _request(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers):
            raise ValueError("a header of a delivery holds a line break")
        return f"{self._head}{lines}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    async def _exchange(self, connection: Connection, request: bytes, timeout_s: float) -> Answer:
        answer = await connection.post(request, timeout_s=timeout_s)
        if connection.is_open:
            connection.rest(_KEPT_S)
            self._idle.append(connection)
        return answer

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    # --- connecting ---

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        opened = await self._socket(await self._addresses(loop))
        tls = _tls() if self._is_tls else None
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(loop),
                sock=opened,
                ssl=tls,
                server_hostname=self._host.rstrip(".") if tls else None,
            )
        except BaseException:
            opened.close()
            raise
        return connection

    async def _socket(self, places: Sequence[Any]) -> socket.socket:
        refusals: list[str] = []

        def make(place: Any) -> socket.socket:
            family, kind, protocol, _, address = place
            refused = self._rules.why_address_refused(self._url, str(address[0]))
            if refused:
                refusals.append(refused)
                raise OSError(refused)
            return socket.socket(family, kind, protocol)

        try:
            return await start_connection(
                places, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1, socket_factory=make
            )
        except OSError:
            if len(refusals) == len(places):
                raise _Blocked(refusals[0]) from None
            raise _Failed("the connection was refused") from None

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> Sequence[Any]:
        """Return where the host is now; those who ask at the same time share the answer."""
        if self._found is None or (
            self._found.done() and loop.time() > self._found_at + _LOOKED_UP_S
        ):
            self._found = asyncio.create_task(self._look_up(loop))
        try:
            return await asyncio.shield(self._found)
        except (OSError, UnicodeError):
            self._found = None
            raise _Failed("the host name leads nowhere") from None

    async def _look_up(self, loop: asyncio.AbstractEventLoop) -> Sequence[Any]:
        literal = _literal(self._host, self._port)
        found = literal or await loop.run_in_executor(
            _lookups(), look_up, self._host, self._port, socket.AF_UNSPEC
        )
        self._found_at = loop.time()
        if not found:
            raise OSError("no address")
        return found


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _literal(host: str, port: int) -> list[Any]:
    """Return the address that *host* is, if it is one as it stands."""
    try:
        address = ip_address(host)
    except ValueError:
        return []
    if "%" in host:
        return []
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    place = (host, port) if address.version == 4 else (host, port, 0, 0)
    return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place)]


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


def _answered(answer: Answer, seconds: float) -> Attempt:
    status = answer.status
    if 200 <= status < 300:
        return Attempt(status=status, seconds=seconds)
    return Attempt(
        status=status,
        seconds=seconds,
        error=_REDIRECTED if 300 <= status < 400 else "",
        retry_after_s=_retry_after(status, answer.retry_after),
    )


def _reason(failure: Exception) -> str:
    match failure:
        case _Failed():
            return str(failure)
        case Unreadable():
            return "the answer could not be read"
        case Closed() | ConnectionError():
            return _CLOSED
        case ssl.SSLError():
            return "the TLS handshake failed"
        case OSError():
            return "the connection was refused"
        case _:
            return "the delivery could not be sent"


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
