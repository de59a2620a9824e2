"""Answers whose body is there already: JSON as bytes, under the headers that all answers with data have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class _Whole(Response):
    """A response that is told its headers as they go out; the general way to them costs each request more
    than it takes to write the answer."""

    def __init__(self, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.body = body
        self.status_code = status
        self.raw_headers = headers
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def json_answer(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return *body* as ``application/json``, not to be kept by caches."""
    raw = [_NO_STORE, (b"content-length", b"%d" % len(body)), _JSON]
    if headers:
        raw += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return _Whole(body, status, raw)
