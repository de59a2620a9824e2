"""The port of this machine that a browser comes back to after signing in (RFC 8252, 7.3).

It listens on the loopback address only, takes one answer with the right state, and is gone.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from mdm_gitops.errors import SignInFailed

_PATH: Final = "/callback"
_REQUEST_BYTES: Final = 16_384
_READ_S: Final = 10.0
_PAGE: Final = (
    "<!doctype html><meta charset=utf-8><title>mdm-gitops</title>"
    "<p>{text} You can close this page and go back to the command line.</p>"
)


class Loopback:
    """A server for one redirect; an async context manager."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[dict[str, str]] = asyncio.Queue(maxsize=1)
        self._server: asyncio.Server | None = None
        self._state = ""
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_REQUEST_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}{_PATH}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()

    async def answer(self, state: str, *, within_s: float) -> dict[str, str]:
        """Return the query of the redirect that has *state*; others are turned away."""
        self._state = state
        try:
            return await asyncio.wait_for(self._answers.get(), within_s)
        except TimeoutError:
            raise SignInFailed("nobody signed in in time", hint="try again") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_S)
            status, text = self._judge(head)
            page = _PAGE.format(text=text).encode()
            lines = (
                f"HTTP/1.1 {status}",
                "Content-Type: text/html; charset=utf-8",
                f"Content-Length: {len(page)}",
                "Cache-Control: no-store",
                "Referrer-Policy: no-referrer",
                "Connection: close",
            )
            writer.write("\r\n".join((*lines, "", "")).encode() + page)
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # whoever it was, it was no browser that comes back
        finally:
            writer.close()

    def _judge(self, head: bytes) -> tuple[str, str]:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        parts = urlsplit(rest.partition(" ")[0])
        if method != "GET" or parts.path != _PATH:
            return "404 Not Found", "There is nothing here."
        pairs = parse_qsl(parts.query)
        query = dict(pairs)
        state = query.get("state", "").encode()
        is_ours = self._state and hmac.compare_digest(state, self._state.encode())
        if not is_ours or len(query) != len(pairs) or self._answers.full():
            return "400 Bad Request", "This is not the answer that is waited for."
        self._answers.put_nowait(query)
        done = "error" not in query
        return "200 OK", "You are signed in." if done else "The sign-in was refused."
