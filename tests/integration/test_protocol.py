"""The short way of a connection against the server's own way: the same bytes come back for the same bytes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mdm_api.protocol import ShortWayProtocol
from mdm_api.server import bind

pytestmark = pytest.mark.anyio
_DATE = re.compile(rb"date: [^\r]+")
_BAD = {"/injected": (b"location", b"/a\r\nx-other: 1"), "/name": (b"a b", b"1")}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers what it was asked, in one of several forms by the path."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    asked = repr(
        [scope[name] for name in ("method", "path", "raw_path", "query_string", "http_version")]
    ).encode()
    answer = asked + b"|" + body
    path = scope["path"]
    headers = [(b"content-type", b"text/plain"), (b"X-Mixed", b"1")]
    if path in _BAD:
        headers.append(_BAD[path])
    if path == "/close":
        headers.append((b"connection", b"close"))
    if path == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in (b"one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    if path == "/in-pieces":
        headers.append((b"content-length", b"6"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})
        return
    if path == "/empty":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    length = len(answer) + (1 if path == "/short" else 0)
    headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if path == "/raises":
        raise ValueError("the body cannot be made")
    if path == "/forgets":
        return
    await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def running(protocol: type[asyncio.Protocol], **options: Any) -> AsyncIterator[int]:
    config = uvicorn.Config(
        app, http=protocol, lifespan="off", log_level="critical", server_header=False, **options
    )
    server = uvicorn.Server(config)
    bound = bind("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:  # noqa: ASYNC110 - it says so in no other way
        await asyncio.sleep(0.01)
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def answer_to(port: int, sent: bytes) -> bytes:
    """Return all that comes back until the server closes, or nothing more comes to a finished request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        if b"connection: close" not in sent.lower() and b"HTTP/1.0" not in sent:
            writer.write(b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(20):
            return _DATE.sub(b"date: -", await reader.read())
    finally:
        writer.close()


REQUESTS = {
    "plain": b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n",
    "query": b"GET /a?b=%20c&d HTTP/1.1\r\nhost: x\r\n\r\n",
    "empty query": b"GET /a? HTTP/1.1\r\nhost: x\r\n\r\n",
    "two question marks": b"GET /a?b?c HTTP/1.1\r\nhost: x\r\n\r\n",
    "escaped path": b"GET /a%2Fb%20%C3%BC HTTP/1.1\r\nhost: x\r\n\r\n",
    "not UTF-8": b"GET /a%FF HTTP/1.1\r\nhost: x\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nhost: x\r\n\r\n",
    "fragment in query": b"GET /a?b#c HTTP/1.1\r\nhost: x\r\n\r\n",
    "two slashes": b"GET //a/b HTTP/1.1\r\nhost: x\r\n\r\n",
    "colon": b"GET /a:80/b HTTP/1.1\r\nhost: x\r\n\r\n",
    "whole address": b"GET http://x/a?b HTTP/1.1\r\nhost: x\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    "head": b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n",
    "body": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello",
    "chunked body": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\n",
    "expect": b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nhi",
    "old version": b"GET /a HTTP/1.0\r\nhost: x\r\n\r\n",
    "close asked": b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "close told": b"GET /close HTTP/1.1\r\nhost: x\r\n\r\n",
    "upgrade": b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    "stream": b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n",
    "in pieces": b"GET /in-pieces HTTP/1.1\r\nhost: x\r\n\r\n",
    "head in pieces": b"HEAD /in-pieces HTTP/1.1\r\nhost: x\r\n\r\n",
    "no content": b"DELETE /empty HTTP/1.1\r\nhost: x\r\n\r\n",
    "three at once": b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n" * 3,
    "no request": b"nonsense\r\n\r\n",
    "not ASCII": "GET /ü HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "large body": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + b"x" * 300_000,
}


async def test_it_answers_as_the_server_does() -> None:
    idle = {"timeout_keep_alive": 1}  # one of them leaves the connection open
    async with (
        running(HttpToolsProtocol, **idle) as known,
        running(ShortWayProtocol, **idle) as ours,
    ):
        for name, sent in REQUESTS.items():
            found, expected = await asyncio.gather(answer_to(ours, sent), answer_to(known, sent))
            assert found == expected, name


@pytest.mark.parametrize("path", ["/injected", "/name", "/short", "/raises", "/forgets"])
async def test_a_head_that_cannot_be_is_not_sent(path: str) -> None:
    async with running(ShortWayProtocol) as port:
        told = await answer_to(port, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    assert told.startswith(b"HTTP/1.1 500 ")
    assert b"x-other" not in told


@pytest.mark.parametrize("behind", ["a head", "an answer", "a body"])
async def test_a_head_without_end_is_refused(behind: str) -> None:
    """Otherwise anybody could fill the memory of a server, without a credential."""
    before = {
        "a head": b"",
        "an answer": b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n",
        "a body": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
    }[behind]
    head = b"" if behind == "a body" else b"GET /a HTTP/1.1\r\nhost: x\r\n"
    async with running(ShortWayProtocol) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before)
        if behind == "an answer":
            await reader.readuntil(b"|")
        writer.write(head + b"x-large: ")
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(b"a" * 1_000_000)
                await writer.drain()
            pytest.fail("the server takes 100 MB of a header")
        told = b""
        with suppress(ConnectionError):  # what was still on its way makes the end a reset
            told = await reader.read()
        assert told == b"" or told.startswith(b"HTTP/1.1 431 ")


class Impatient(ShortWayProtocol):
    head_timeout_s = 0.5


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"GET /a HTTP/1.1\r\nhost:", b"HTTP/1.1 408 "),
        (b"GET /a HTTP/1.1\r\nhost: x\r\n\r\nGET /a HTTP/1.1\r\nx-slow: ", b"HTTP/1.1 408 "),
    ],
)
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    sent: bytes, told: bytes
) -> None:
    """Otherwise anybody could hold all connections that a server may have open."""
    async with running(Impatient) as port, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        if sent.startswith(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"):
            await reader.readuntil(b"|")
        assert (await reader.read()).startswith(told)
        writer.close()


async def test_a_request_that_takes_longer_than_its_head_may_is_answered() -> None:
    async with running(Impatient) as port, asyncio.timeout(60):
        _, writer = connection = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n")
        await asyncio.sleep(2 * Impatient.head_timeout_s)
        writer.write(b"x\r\n0\r\n\r\n")
        assert (await connection[0].readuntil(b"|")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_large_heads_and_bodies_pass() -> None:
    head = b"GET /a HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * 60_000 + b"\r\n\r\n"
    chunks = b"".join(b"7d0\r\n" + b"b" * 2_000 + b"\r\n" for _ in range(500)) + b"0\r\n\r\n"
    body = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks
    async with running(ShortWayProtocol) as port:
        assert (await answer_to(port, head)).startswith(b"HTTP/1.1 200 ")
        told = await answer_to(port, body)
        assert told.startswith(b"HTTP/1.1 200 ") and told.count(b"b") > 1_000_000


async def test_idle_connections_are_closed_and_used_ones_are_not() -> None:
    async with running(ShortWayProtocol, timeout_keep_alive=1) as port:
        used = await asyncio.open_connection("127.0.0.1", port)
        idle = await asyncio.open_connection("127.0.0.1", port)
        request = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
        idle[1].write(request)
        first = _DATE.sub(b"", await idle[0].readuntil(b"|"))
        ended = asyncio.create_task(idle[0].read())
        rounds = 0
        while not ended.done():  # the one is used as long as the other is not closed
            used[1].write(request)
            assert _DATE.sub(b"", await used[0].readuntil(b"|")) == first
            rounds += 1
            await asyncio.sleep(0.05)
        assert await ended == b""
        used[1].write(request)
        assert _DATE.sub(b"", await used[0].readuntil(b"|")) == first
        assert rounds > 1
        for _, writer in (used, idle):
            writer.close()
