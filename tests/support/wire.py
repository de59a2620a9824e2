"""One connection to a server, speaking HTTP/1.1 as plainly as it goes: for clients in great numbers.

A general client would cost more than the server it talks to. This one says what it knows when a
connection breaks: ``Lost`` means that nobody can tell whether the request took effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 30.0


class Lost(Exception):
    """The connection broke before the answer was there as a whole."""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body, parse_float=Decimal)

    @property
    def code(self) -> str:
        """The code of a problem document, "" for anything else."""
        is_problem = self.headers.get("content-type", "") == "application/problem+json"
        return str(self.json()["code"]) if is_problem else ""


class Wire:
    """Keeps one connection to *url* and opens it again when it broke."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._address = parts.hostname, parts.port
        self._key = key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, document: Any = None, **headers: str) -> Reply:
        """Send *document* as JSON (bytes as they are) and return the answer.

        Raises:
            Lost: there is no answer; what was asked for may have happened.
        """
        body = b"" if document is None else document
        if not isinstance(body, bytes):
            body = json.dumps(document, default=str).encode()
            headers = {"Content-Type": "application/json", **headers}
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._exchange(self._head(method, path, headers, len(body)) + body)
        except (OSError, EOFError, TimeoutError) as error:
            await self.close()
            raise Lost(f"{type(error).__name__}: {error}") from None

    def _head(self, method: str, path: str, headers: dict[str, str], length: int) -> bytes:
        given = {
            "Host": "mdm.example",
            "X-API-Key": self._key,
            "Content-Length": str(length),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in given.items()), "", ""]
        return "\r\n".join(lines).encode()

    async def _exchange(self, message: bytes) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address, limit=2**24)
        reader, writer = self._streams
        writer.write(message)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ", 2)[1])
        headers = dict(_header(line) for line in head[1:] if line)
        reply = Reply(status, headers, await _body(reader, headers, status))
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return reply

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], status: int) -> bytes:
    if status == 204:
        return b""
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
