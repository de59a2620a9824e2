"""HTTP on a connection: the server's own protocol, with a short way for what is most of the traffic.

A plain request (HTTP/1.1, a path of our own, nothing before it under way) whose answer is one piece of known
length goes the short way: its head and body leave in one write, parts of heads that come again and again are
checked once, and one timer per connection watches over its idle time instead of one per request. Everything
else, such as streams, pipelined requests and bodies with their pace, goes the server's way.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

Headers = list[tuple[bytes, bytes]]
_MAX_HEAD: Final = 65_536  # bytes; what comes at once is read at once, so it may be somewhat more
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_MAX_LINES: Final = 512
_LONGEST_KEPT: Final = 128


class ShortWayProtocol(HttpToolsProtocol):
    _idle_since: float | None = None  # None while a request is under way
    head_timeout_s: ClassVar[float] = 60.0
    _is_in_head = True  # or before the first one, or in what may come behind a body in its place
    _head_size = 0
    _head_since = 0.0
    _head_timer: asyncio.TimerHandle | None = None

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        url: bytes = self.url
        is_plain = (
            url[:1] == b"/"
            and b"#" not in url
            and (self.cycle is None or self.cycle.response_complete)
            and self.limit_concurrency is None
            and not self.expect_100_continue
            and not self.root_path
            and self.parser.get_http_version() == "1.1"
            and not self.parser.should_upgrade()
        )
        if not is_plain:
            super().on_headers_complete()
            return
        raw_path, _, query = url.partition(b"?")
        path = raw_path.decode("ascii")
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        self.cycle = _Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    # --- heads without end --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        super().data_received(data)
        if self._is_in_head:
            if not self._head_size:
                self._watch_head()
            self._head_size += len(data)
            if self._head_size > _MAX_HEAD and not self.transport.is_closing():
                self._refuse(_TOO_LARGE)

    def _watch_head(self) -> None:
        """Note that a head begins; few are not there at once, so most requests have no timer."""
        self._head_since = self.loop.time()
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_due)

    def _head_is_due(self) -> None:
        self._head_timer = None
        if not self._is_in_head or self._is_answering or self.transport.is_closing():
            return
        left = self._head_since + self.head_timeout_s - self.loop.time()
        if left > 0:
            self._head_timer = self.loop.call_later(left, self._head_is_due)
        else:
            self._refuse(_TOO_SLOW if self._head_size else b"")

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, answer: bytes) -> None:
        if answer and not self._is_answering:
            self.transport.write(answer)
        self.transport.close()

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_size = True, 0
        super().on_message_begin()

    def on_chunk_header(self) -> None:
        self._is_in_head, self._head_size = True, 0

    def on_body(self, body: bytes) -> None:
        self._is_in_head = False
        super().on_body(body)

    # --- idle connections ---------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again_in(self.timeout_keep_alive)

    def _look_again_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer alone: it looks by itself whether the connection is idle."""

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the answer to the request that is under way sets it again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_again_in(left)
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)


class _Cycle(RequestResponseCycle):
    _start: Message | None = None  # of an answer that is held back until its body is there

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if not self.response_started and _has_length(message):
            self._start = message  # in the place of one whose body could not be made
            return
        if self._start is None:
            await super().send(message)  # type: ignore[arg-type]
            return
        start, self._start = self._start, None
        is_whole = not (message.get("more_body") or self.flow.write_paused or self.disconnected)
        if is_whole and self.scope["method"] != "HEAD":
            self._send_whole(start, message.get("body", b""))
        else:
            await super().send(start)  # type: ignore[arg-type]
            await super().send(message)  # type: ignore[arg-type]

    def _send_whole(self, start: Message, body: bytes) -> None:
        lines = [STATUS_LINE[start["status"]]]
        is_told = False  # that the connection closes
        for header in (*self.default_headers, *start["headers"]):
            lines.append(_lines.get(header) or _line(header))
            name = header[0]
            if name == b"content-length" and int(header[1]) != len(body):
                raise RuntimeError("the body is not as long as its head says")
            if name == b"connection" and b"close" in header[1].lower():
                self.keep_alive, is_told = False, True
        lines.append(b"\r\n" if self.keep_alive or is_told else b"connection: close\r\n\r\n")
        lines.append(body)
        self.response_started = self.response_complete = True
        self.transport.write(b"".join(lines))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _has_length(message: Message) -> bool:
    if message["type"] != "http.response.start":
        return False
    for name, _ in message.get("headers", ()):  # noqa: SIM110 - a generator costs more than the rest
        if name == b"content-length":
            return True
    return False


_lines: dict[tuple[bytes, bytes], bytes] = {}


def _line(header: tuple[bytes, bytes]) -> bytes:
    """Return the line of a head, and keep it: those that come often are made, and looked at, once."""
    name, value = header
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        raise RuntimeError("a header holds what no header may hold")
    line = b"%b: %b\r\n" % (name.lower(), value)
    if len(line) <= _LONGEST_KEPT:
        if len(_lines) >= _MAX_LINES:  # dates that have passed, most of them
            _lines.clear()
        _lines[name, value] = line
    return line
