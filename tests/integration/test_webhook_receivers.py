"""The sender against receivers that mean no good: bounded time and memory, our words, no exception."""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from mdm_gitops.deliver import sender as sender_module
from mdm_gitops.deliver.sender import Attempt, Sender
from mdm_gitops.deliver.targets import TargetRules, ValidationMode

pytestmark = pytest.mark.anyio
RULES = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1", "nowhere.invalid"))
Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
MB = 1_000_000


@asynccontextmanager
async def acting(act: Act) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await act(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def saying(*parts: bytes, again: bytes = b"", every_s: float = 0.0) -> Act:
    """Read the request, write *parts*, and then *again* until the other side has enough."""

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
        while again:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(every_s)

    return act


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(bytes(MB)) for _ in range(100)]) + packer.flush()


async def attempt(act: Act, *, timeout_s: float = 2.0) -> tuple[Attempt, float, int]:
    """Return what came of it, the seconds, and by how many KB the peak of our memory rose."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with acting(act) as url, Sender(RULES, timeout_s=timeout_s) as sender:
        started = time.monotonic()
        told = await sender.send(url, b"{}", {})
        seconds = time.monotonic() - started
    return told, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


HOSTILE = {
    "endless body": (saying(OK + b"\r\n", again=b"x" * MB), 200, ""),
    "endless chunks": (
        saying(OK + b"Transfer-Encoding: chunked\r\n\r\n", again=b"100000\r\n" + b"x" * 0x100000 + b"\r\n"),
        200,
        "",
    ),
    "slow body": (saying(OK + b"Content-Length: 99\r\n\r\n", again=b"x", every_s=0.2), 200, ""),
    "short body": (saying(OK + b"Content-Length: 99\r\n\r\nx"), 200, ""),
    "gzip bomb": (saying(OK + b"Content-Encoding: gzip\r\n\r\n" + _bomb()), 200, ""),
    "broken gzip": (saying(OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"), 200, ""),
    "many cookies": (saying(OK + b"Set-Cookie: a=b\r\n" * 50 + b"Content-Length: 0\r\n\r\n"), 200, ""),
    "refusal": (saying(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n"), 400, ""),
    "huge header": (
        saying(OK + b"X: ", again=b"x" * MB),
        0,
        "the answer could not be read",
    ),
    "endless headers": (saying(OK, again=b"X: y\r\n" * 9_999), 0, "the answer could not be read"),
    "endless status line": (saying(b"HTTP/1.1 200 ", again=b"x" * MB), 0, "the answer could not be read"),
    "garbage": (saying(b"\x00\xff\x16\x03nonsense\r\n\r\n"), 0, "the answer could not be read"),
    "endless interim answers": (
        saying(again=b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000),
        0,
        "",
    ),
    "nothing": (saying(), 0, "the connection was closed before an answer came"),
    "reset": (resetting, 0, "the connection was closed before an answer came"),
    "silence": (silent, 0, "no answer within 2 s"),
    "drops": (saying(again=b"H", every_s=0.3), 0, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_receivers(name: str) -> None:
    act, status, error = HOSTILE[name]
    told, seconds, more_kb = await attempt(act)
    assert told.status == status, told
    assert told.error == error or (not error and status == 0 and told.error), told
    assert told.delivered is (status == 200) and not told.blocked
    assert seconds < 3 and more_kb < 40_000


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_nobody_there(scheme: str) -> None:
    async with acting(silent) as url:
        pass
    async with Sender(RULES, timeout_s=2) as sender:
        told = await sender.send(url.replace("http", scheme), b"{}", {})
        assert told.error == "the connection was refused" and not told.blocked
        told = await sender.send(f"{scheme}://nowhere.invalid/", b"{}", {})
        assert told.error == "the host name leads nowhere" and not told.blocked


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n", b"\x16\x03\x03\x00\x01\x00", b""])
async def test_no_tls(answer: bytes) -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()

    async with acting(act) as url, Sender(RULES, timeout_s=2) as sender:
        told = await sender.send(url.replace("http", "https"), b"{}", {})
    assert told.status == 0 and not told.delivered
    assert told.error in (
        "the TLS handshake failed",
        "the connection was closed before an answer came",
        "the connection was refused",
    )
    assert ssl.OPENSSL_VERSION.split()[0] not in told.error


async def test_a_name_server_that_hangs_takes_only_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = sender_module.look_up

    def look_up(host: str, port: int, family: int) -> list[object]:
        if host == "nowhere.invalid":
            time.sleep(1.5)
        return real(host, port, family)

    monkeypatch.setattr(sender_module, "look_up", look_up)
    async with (
        acting(saying(OK + b"Content-Length: 0\r\n\r\n")) as url,
        Sender(RULES, timeout_s=0.5) as bad,
        Sender(RULES) as good,
    ):
        hanging = [
            asyncio.create_task(bad.send("http://nowhere.invalid/", b"", {})) for _ in range(64)
        ]
        await asyncio.sleep(0.1)
        told = await good.send(url, b"{}", {})
        # Nor is the rest of the process kept from its own threads.
        started = time.monotonic()
        await asyncio.to_thread(int)
        assert told.delivered and told.seconds < 0.4 and time.monotonic() - started < 0.4
        assert {(await each).error for each in hanging} == {"no answer within 0.5 s"}


async def test_connections_are_used_again() -> None:
    connects = 0

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connects
        connects += 1
        while True:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(OK + b"Content-Length: 20000\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)  # in two packets
            writer.write(b"x" * 20_000)

    async with acting(act) as url, Sender(RULES) as sender:
        for _ in range(20):
            assert (await sender.send(url, b"{}", {})).delivered
    assert connects == 1
