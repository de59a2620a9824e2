"""What may stand between the programs and PostgreSQL: a real PgBouncer, and a stand-in for one in session mode."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PATIENCE_S = 20.0
_WIRE_BYTES = 65_536


@asynccontextmanager
async def without_options(url: str) -> AsyncIterator[str]:
    """Yield an address that leads to *url*, past somebody who keeps ``options`` to himself."""
    parts = conninfo_to_dict(url)
    under_way: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.create_task(between(reader, writer)))

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        packet = _stripped(await reader.readexactly(size - 4))
        there, thither = await _reached(parts)
        thither.write((len(packet) + 4).to_bytes(4) + packet)
        await asyncio.gather(_pass_on(reader, thither), _pass_on(there, writer))

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        yield _through(parts, server.sockets[0].getsockname()[1])
        async with asyncio.timeout(_PATIENCE_S):  # who came in goes first
            await asyncio.gather(*under_way)


def _stripped(packet: bytes) -> bytes:
    version, words = packet[:4], packet[4:].split(b"\0")
    if version != b"\0\x03\0\0":  # a request to cancel, or for encryption
        return packet
    pairs = [pair for pair in zip(words[::2], words[1::2], strict=False) if pair[0]]
    kept = [name + b"\0" + value + b"\0" for name, value in pairs if name != b"options"]
    return version + b"".join(kept) + b"\0"


async def _reached(parts: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_WIRE_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextmanager
def pgbouncer(url: str, **settings: str) -> Iterator[str]:
    """Yield an address that leads to *url* through a PgBouncer with these *settings*."""
    parts = conninfo_to_dict(url)
    with tempfile.TemporaryDirectory(dir="/tmp") as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        through = _through(parts, port)
        with subprocess.Popen(
            _command(Path(name), parts, port, settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                _wait_for(port, process)
                yield through
            finally:
                process.terminate()


def _command(
    folder: Path, parts: dict[str, Any], port: int, settings: dict[str, str]
) -> list[str | Path]:
    program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    assert program is not None
    users = folder / "users.txt"
    users.write_text(f'"{parts["user"]}" "{parts.get("password", "")}"\n')
    values = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "scram-sha-256",
        "auth_file": str(users),
        "default_pool_size": "30",
        **settings,
    }
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host={parts['host']} port={parts.get('port') or 5432}\n[pgbouncer]\n"
        + "".join(f"{name} = {value}\n" for name, value in values.items())
    )
    if os.getuid() != 0:
        return [program, configuration]
    # It refuses to run as root, and must be let in where the server's socket is.
    host = str(parts["host"])
    owner = Path(host).stat().st_uid if host.startswith("/") else pwd.getpwnam("nobody").pw_uid
    for each in (folder, users, configuration):
        os.chown(each, owner, -1)
    return [program, "-u", pwd.getpwuid(owner).pw_name, configuration]


def _through(parts: dict[str, Any], port: int) -> str:
    changed = {**parts, "host": "127.0.0.1", "port": port}
    return make_conninfo("", **changed, sslmode="disable", gssencmode="disable")


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"PgBouncer ended with {process.returncode}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise TimeoutError("PgBouncer does not listen")
