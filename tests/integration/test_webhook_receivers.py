"""The sender against receivers that mean no good: bounded time and memory, our words, no exception."""

from __future__ import annotations

import asyncio
import resource
import ssl
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import patch

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
    real, answered = sender_module.look_up, threading.Event()

    def look_up(host: str, port: int, family: int) -> list[object]:
        if host == "nowhere.invalid":
            answered.wait(60)
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
        assert {(await each).error for each in hanging} == {"no answer within 0.5 s"}
        told = await good.send(url, b"{}", {})
        # Nor is the rest of the process kept from its own threads.
        await asyncio.to_thread(int)
        assert told.delivered and not answered.is_set()
        answered.set()


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


def replying(answers: list[bytes], *, closing_after: int = 0) -> tuple[Act, list[int]]:
    """Answer the nth request with the nth of *answers*; close each connection after so many."""
    left = iter(answers)
    connects: list[int] = []

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connects.append(0)
        number = len(connects) - 1
        while True:
            await reader.readuntil(b"\r\n\r\n{}")
            connects[number] += 1
            writer.write(next(left))
            await writer.drain()
            if connects[number] == closing_after:
                return

    return act, connects


DONE = OK + b"Content-Length: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"


async def test_a_kept_connection_that_was_closed_meanwhile_costs_no_attempt() -> None:
    act, connects = replying([DONE] * 9, closing_after=2)
    async with acting(act) as url, Sender(RULES) as sender:
        for _ in range(6):
            assert (await sender.send(url, b"{}", {})).delivered
            await asyncio.sleep(0)  # the end of the connection may be known by now, or not
    assert connects == [2, 2, 2]


async def test_who_closes_each_first_request_is_asked_once() -> None:
    """The control of the one above: only a kept connection is replaced by another."""
    act, connects = replying([b""] * 9, closing_after=1)
    async with acting(act) as url, Sender(RULES) as sender:
        told = await sender.send(url, b"{}", {})
    assert told.error == "the connection was closed before an answer came" and connects == [1]


@pytest.mark.parametrize("more", [BROKEN, b"x", b"\r\n" + BROKEN])
async def test_what_comes_after_an_answer_is_no_answer_to_the_next_request(more: bytes) -> None:
    act, connects = replying([DONE + more, DONE, DONE])
    async with acting(act) as url, Sender(RULES) as sender:
        told = [await sender.send(url, b"{}", {}) for _ in range(3)]
    assert [each.status for each in told] == [200, 200, 200], told
    assert connects == [1, 2]


async def test_what_comes_unasked_on_a_kept_connection_is_no_answer() -> None:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(DONE)
        await asyncio.sleep(0.05)
        writer.write(BROKEN)  # to nobody
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(DONE)

    async with acting(act) as url, Sender(RULES) as sender:
        assert (await sender.send(url, b"{}", {})).delivered
        await asyncio.sleep(0.2)
        assert (await sender.send(url, b"{}", {})).delivered


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + DONE, 200),
        (b"HTTP/1.1 102 Wait\r\nRetry-After: 9\r\n\r\n" + BROKEN, 500),
        (b"HTTP/1.1 101 Switch\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc", 101),
        (b"HTTP/1.0 200 OK\r\n\r\n", 200),
        (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", 200),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 200),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 0),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 0),
    ],
)
async def test_forms_of_answers(answer: bytes, status: int) -> None:
    act, _ = replying([answer, DONE], closing_after=1)
    async with acting(act) as url, Sender(RULES) as sender:
        told = await sender.send(url, b"{}", {})
        assert (told.status, told.retry_after_s) == (status, None), told
        assert told.delivered is (status == 200)
        assert (await sender.send(url, b"{}", {})).delivered


async def test_answers_in_any_pieces() -> None:
    for size in (1, 2, 3, 7):
        whole = OK + b"Content-Length: 3\r\nX: y\r\n\r\nabc"
        parts = [whole[n : n + size] for n in range(0, len(whole), size)]

        async def act(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: list[bytes] = parts
        ) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)

        async with acting(act) as url, Sender(RULES) as sender:
            for _ in range(3):
                told = await sender.send(url, b"{}", {})
                assert told.status == 200, told


async def test_a_header_with_a_line_break_is_not_sent() -> None:
    act, connects = replying([DONE])
    async with acting(act) as url, Sender(RULES) as sender:
        told = await sender.send(url, b"{}", {"webhook-id": "x\r\nHost: elsewhere"})
    assert told.error == "the delivery could not be sent" and not connects


async def test_tls_is_verified_and_names_its_host(tmp_path: Path) -> None:
    """A certificate that nobody vouches for is refused; one that is trusted is used, again and again."""
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    act, connects = replying([DONE] * 4)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, StopIteration):
            await act(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with Sender(RULES) as sender:
            told = await sender.send(url, b"{}", {})
            assert told.error == "the TLS handshake failed" and not connects
        trusting = ssl.create_default_context(cafile=str(certificate))
        with patch.object(sender_module, "_tls", lambda: trusting):
            async with Sender(RULES) as sender:
                for _ in range(3):
                    told = await sender.send(url, b"{}", {})
                    assert told.delivered, told
    assert connects == [3]


def self_signed(folder: Path) -> Path:
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "both.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path
