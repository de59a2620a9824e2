"""Answers that are sent while they are made.

What goes wrong before the first byte is a problem document like any other. What goes wrong after it
breaks the connection, so that nobody takes a part for the whole; and when the client leaves, the
work is cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class BrokenOff(Exception):
    """An answer ended before its end. No error of ours: there is no second answer to a request."""


class Outlet:
    """Where the bytes of one answer go."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began = False

    async def send_all(self, chunks: AsyncIterator[bytes], headers: Mapping[str, str]) -> None:
        """Send *chunks* as the body. The first one is made before the answer begins; if it is the
        only one, the answer tells its length.

        Raises:
            BrokenOff: the chunks ended with an error after the answer had begun.
        """
        held = await anext(chunks, b"")
        following = await anext(chunks, None)
        if following is None:
            await self._begin({**headers, "Content-Length": str(len(held))})
        else:
            await self._begin(headers)
            try:
                while following is not None:
                    await self._body(held, more=True)
                    held, following = following, await anext(chunks, None)
            except Exception as error:
                raise BrokenOff("the answer broke off") from error
        await self._body(held, more=False)

    async def send_head(self, headers: Mapping[str, str]) -> None:
        """Send an answer without a body, as to a HEAD."""
        await self._begin(headers)
        await self._body(b"", more=False)

    async def send_piece(self, data: bytes, headers: Mapping[str, str], *, more: bool) -> None:
        """Send *data* at once, after *headers* if it is the first piece of the body."""
        if not self.began:
            await self._begin(headers)
        await self._body(data, more=more)

    async def _begin(self, headers: Mapping[str, str]) -> None:
        self.began = True
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class Streamed(Response):
    """The answer that *work* sends."""

    def __init__(self, work: Callable[[Outlet], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _while_connected(self._work(Outlet(send)), receive)


async def _while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run *work*, and cancel it when the client leaves."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        outcome, _ = await asyncio.gather(working, leaving, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
