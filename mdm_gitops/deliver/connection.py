"""One connection to a receiver: HTTP/1.1, one request at a time, read by the parser of httptools.

It knows nothing of addresses, of signatures or of what an answer means. All that a receiver may do is bounded:
an answer by its bytes, interim answers included, and by its time, with one timer per connection that is moved
lazily. What comes unasked or after the answer's end closes the connection, so that no answer can be taken for
that of another request. It is our own because a delivery is 500 bytes there and 100 back: a general client
takes eight times the processor time for that (measured; ``benchmarks/bench_webhooks.py``).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_ANSWER_BYTES: Final = 65_536
REST_OF_ANSWER_S: Final = 1.0  # for what comes after the status
_SWITCHING: Final = 101


class Unreadable(Exception):
    """What came is no answer, or has no end."""


class Closed(Exception):
    """The connection ended before an answer came; *is_silent* if nothing of one did."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__()
        self.is_silent = is_silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    retry_after: str


class Connection(asyncio.Protocol):
    """Made by ``loop.create_connection``; *is_open* says whether ``post`` may be called (again)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._deadline = 0.0
        self._begin()

    def _begin(self) -> None:
        self._left = MAX_ANSWER_BYTES
        self._status = 0  # once the head of the answer is there
        self._retry_after = ""
        self._is_complete = self._is_kept = False

    @property
    def is_open(self) -> bool:
        return (
            self._transport is not None
            and self._answer is None
            and not self._transport.is_closing()
        )

    async def post(self, request: bytes, *, timeout_s: float) -> Answer:
        """Send the bytes of a request; return the answer to it.

        Raises:
            TimeoutError: none came within *timeout_s*.
            Closed: the connection ended before.
            Unreadable: what came is none.
        """
        assert self._transport is not None
        self._begin()
        self._answer = self._loop.create_future()
        self._watch_until(self._loop.time() + timeout_s)
        try:
            self._transport.write(request)
            return await self._answer
        finally:
            self._answer = None
            if not self._is_kept:
                self._transport.abort()

    def rest(self, seconds: float) -> None:
        """Close when it was not used for so long."""
        self._watch_until(self._loop.time() + seconds)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- time ---

    def _watch_until(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timer is not None and self._timer_at > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._loop.time() < self._deadline:  # it was moved meanwhile
            self._watch_until(self._deadline)
        elif self._answer is None:
            self.close()
        elif self._status:
            self._finish()
        else:
            self._fail(TimeoutError())

    # --- transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._status:
            self._finish()
        else:
            self._fail(Closed(is_silent=self._left == MAX_ANSWER_BYTES))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()
            return
        part = data[: self._left]
        self._left -= len(part)
        try:
            self._parser.feed_data(part)
        except (HttpParserError, HttpParserUpgrade):
            # After the end of the answer it is no matter but for the connection.
            self._is_kept = False
            if not self._status:
                self._fail(Unreadable())
                return
            self._is_complete = True
        self._look(is_all=len(part) == len(data))

    def _look(self, *, is_all: bool) -> None:
        if self._is_complete:
            self._is_kept = self._is_kept and is_all
            self._finish()
        elif self._left <= 0:
            self._finish() if self._status else self._fail(Unreadable())
        elif self._status:
            # The status has come: nothing that happens now changes what it says.
            until = self._loop.time() + REST_OF_ANSWER_S
            self._watch_until(min(self._deadline, until))

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(status=self._status, retry_after=self._retry_after))

    def _fail(self, failure: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)

    # --- parser ---

    def on_message_begin(self) -> None:
        if self._is_complete:  # another answer that nobody asked for
            self._is_kept = False
        else:
            self._retry_after = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 11 and name.lower() == b"retry-after" and not self._is_complete:
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._is_complete and (status >= 200 or status == _SWITCHING):
            self._status = status

    def on_message_complete(self) -> None:
        if self._status and not self._is_complete:  # else it was an interim answer
            self._is_complete = True
            self._is_kept = self._parser.should_keep_alive() and self._status != _SWITCHING
