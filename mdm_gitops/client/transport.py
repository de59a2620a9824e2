"""Requests and answers: the one place that speaks HTTP with a server.

A request is made again when the server asks for that (``client.retries``). Nothing is followed
elsewhere: a redirect is an error, since it would carry the credential along.
"""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import httpx2

from mdm_gitops.client.connection import Connection
from mdm_gitops.client.problems import problem_of
from mdm_gitops.client.retries import Retries, asked_wait_s, is_busy, may_repeat
from mdm_gitops.errors import InputError, MdmError

Body: TypeAlias = bytes | AsyncIterable[bytes] | Callable[[], AsyncIterable[bytes]]
"""What is sent. A function makes the body anew for each attempt, so that it can be sent again."""

_PROBLEM_BYTES: Final = 1_048_576
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long is waited: for a connection, and for each part of an answer (None: for ever)."""

    connect_s: float = 10.0
    read_s: float | None = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    body: Body | None = None
    is_long: bool = False
    """The answer may take as long as it takes."""

    @property
    def may_repeat(self) -> bool:
        sendable = self.body is None or isinstance(self.body, bytes) or callable(self.body)
        return sendable and may_repeat(self.method, self.headers)


class Answer:
    """A good answer. Its body is read once, whole or piece by piece."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def length(self) -> int | None:
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isdigit() else None

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def json(self) -> Any:
        """Return the JSON value, None for an empty body."""
        body = await self.read()
        try:
            return json_module.loads(body) if body.strip() else None
        except ValueError:
            raise MdmError(
                "the server answered with something that is not JSON",
                hint="is this the address of a server of this program?",
                code="SERVER_UNREACHABLE",
            ) from None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            MdmError: ``INTERRUPTED``, it broke off before its end.
        """
        size = 0
        try:
            async for chunk in self._response.aiter_bytes():
                size += len(chunk)
                yield chunk
        except (httpx2.TransportError, httpx2.DecodingError):
            raise MdmError(
                f"the answer broke off after {size:,} bytes",
                hint="what was received is not the whole; try again, the log of the server says"
                " why",
                code="INTERRUPTED",
            ) from None


class Transport:
    """One server over one pool of connections."""

    def __init__(
        self,
        connection: Connection,
        *,
        limits: Limits,
        retries: Retries,
        transport: httpx2.AsyncBaseTransport | None,
        on_wait: Callable[[float], None],
    ) -> None:
        self.connection = connection
        self._retries = retries
        self._on_wait = on_wait
        self._limits = limits
        # Reading all known authorities costs more than a request; without TLS nobody asks for them.
        has_tls = connection.url.startswith("https:")
        self._http = httpx2.AsyncClient(transport=transport, follow_redirects=False, verify=has_tls)

    async def close(self) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def opened(self, request: Request) -> AsyncIterator[Answer]:
        """Yield a good answer whose body has not been read.

        Raises:
            MdmError: the server refused, or cannot be reached.
        """
        response = await self._patiently(request)
        try:
            yield Answer(response)
        finally:
            await response.aclose()

    async def _patiently(self, request: Request) -> httpx2.Response:
        attempt, waited, renewed = 1, 0.0, False
        while True:
            failure: MdmError
            asked: float | None = None
            try:
                response = await self._once(request)
            except httpx2.TransportError as error:
                failure = self._unreachable(error)
                if isinstance(error, httpx2.ConnectError | httpx2.UnsupportedProtocol):
                    raise failure from None  # nobody is there; whoever waits for that says so
            else:
                if response.status_code < 300:
                    return response
                failure = problem_of(response.status_code, await _some_of(response))
                if response.status_code == 401 and not renewed and _is_sendable(request):
                    renewed = True
                    if await self.connection.credential.renewed():
                        continue
                if not is_busy(response.status_code):
                    raise failure
                asked = asked_wait_s(response.headers.get("Retry-After", ""))
            wait = self._retries.wait_s(attempt=attempt, waited_s=waited, asked_s=asked)
            if wait is None or not request.may_repeat:
                raise failure from None
            self._on_wait(wait)
            await asyncio.sleep(wait)
            attempt, waited = attempt + 1, waited + wait

    async def _once(self, request: Request) -> httpx2.Response:
        limits = self._limits
        read = None if request.is_long else limits.read_s
        given = {name: _text(value) for name, value in request.query.items() if value is not None}
        body = request.body() if callable(request.body) else request.body
        headers = {**await self.connection.credential.headers(), **request.headers}
        try:
            message = self._http.build_request(
                request.method,
                self.connection.address(request.path),
                params=given or None,
                content=body,
                headers=headers,
                timeout=httpx2.Timeout(limits.connect_s, read=read, write=read),
            )
        except (httpx2.InvalidURL, UnicodeError, ValueError):
            raise InputError(
                "the request cannot be written as HTTP", hint="look at its path and headers"
            ) from None
        return await self._http.send(message, stream=True)

    def _unreachable(self, error: Exception) -> MdmError:
        said = str(error).rstrip(".").partition("\n")[0] or type(error).__name__
        return MdmError(
            f"the server at {self.connection.url} does not answer: {said}",
            hint="is it running, and is the URL right?",
            code="SERVER_UNREACHABLE",
        )


def _is_sendable(request: Request) -> bool:
    return request.body is None or isinstance(request.body, bytes) or callable(request.body)


async def _some_of(response: httpx2.Response) -> bytes:
    """Return the body of a refusal, up to what a problem document may have."""
    found = b""
    try:
        async for chunk in response.aiter_bytes():
            found += chunk
            if len(found) > _PROBLEM_BYTES:
                break
    except (httpx2.TransportError, httpx2.DecodingError):
        return b""
    finally:
        await response.aclose()
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def json_body(value: Any) -> tuple[bytes, dict[str, str]]:
    """Return *value* as a body and the header that says so."""
    text = json_module.dumps(value, ensure_ascii=False, default=_spelt)
    return text.encode(), {"Content-Type": _JSON}


def _spelt(value: Any) -> Any:
    from mdm_gitops.model.values import to_json_value  # costs more than a request, so only here

    return to_json_value(value)
