"""The peer with the table of the larger benchmarks: in a database of its own, as an operator would tune it.

It has the columns, constraints and indexes of our table, its log of who changed what (activity and
revisions), and two static tokens: of an administrator, for whom it checks no permissions, and of a user
under a row filter. Values are judged by the constraints of the table alone, since the same rules told to
it as well cost it about a fifth of the processor time of a create. It runs in production mode, without
limits of rate and pressure, without what only its own pages and reports need, and without its cache of
answers: that is of one process, and the other would go on giving old rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from locations import COLUMNS, countries, write_csv
from peer_install import Peer
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

PROCESSES: Final = 2
DATABASE: Final = "peer"
ADMINISTRATOR: Final = "token-of-the-administrator"
FILTERED: Final = "token-of-the-filtered-user"
ITEMS: Final = "/items/location"
_PATIENCE_S: Final = 120.0
_TABLES: Final = """
CREATE TABLE public.country (code text PRIMARY KEY, name text);
CREATE TABLE public.location (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    code text NOT NULL CHECK (length(code) <= 12) CHECK (code ~ '^(?:[A-Z][0-9]{7})$'),
    name text NOT NULL CHECK (length(name) <= 100),
    country text NOT NULL REFERENCES public.country (code),
    city text CHECK (length(city) <= 80),
    kind text CHECK (kind IN ('port', 'rail', 'road', 'air')),
    amount numeric(12,2) CHECK (amount >= 0),
    pieces integer CHECK (pieces >= 0 AND pieces <= 1000000),
    active boolean NOT NULL,
    opened date, updated timestamptz, token uuid, note text);
CREATE UNIQUE INDEX ON public.location (code);
CREATE INDEX ON public.location (country);
"""
_ROW_FILTER: Final = {"_and": [{"country": {"_in": ["C1", "C2", "C3"]}}, {"active": {"_eq": True}}]}
_SETTINGS: Final = {
    "NODE_ENV": "production",
    "SECRET": "secret-of-the-benchmark-and-of-nothing-else",
    "ADMIN_EMAIL": "bench@example.com",
    "ADMIN_PASSWORD": "password-of-the-benchmark",
    "ADMIN_TOKEN": ADMINISTRATOR,
    "LOG_LEVEL": "warn",
    "DB_CLIENT": "pg",
    "DB_POOL__MIN": "4",
    "DB_POOL__MAX": "12",
    "RATE_LIMITER_ENABLED": "false",
    "PRESSURE_LIMITER_ENABLED": "false",
    "CACHE_ENABLED": "false",
    "CACHE_SCHEMA": "true",
    "SERVE_APP": "false",
    "WEBSOCKETS_ENABLED": "false",
    "METRICS_ENABLED": "false",
    "MCP_ENABLED": "false",
    "AI_ENABLED": "false",
    # Nothing leaves the machine: no reports, no mail, and nobody listens where they would go.
    "TELEMETRY": "false",
    "TELEMETRY_URL": "http://127.0.0.1:9",
    "COMPLIANCE_URL": "http://127.0.0.1:9",
    "EMAIL_VERIFY_SETUP": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the peer runs, and on which database."""

    peer: Peer
    url: str
    folder: Path

    def environment(self, port: int, processes: int) -> dict[str, str]:
        database = conninfo_to_dict(self.url)
        named = {"HOST": "host", "PORT": "port", "USER": "user", "DATABASE": "dbname"}
        return {
            **_SETTINGS,
            **{f"DB_{name}": str(database[key]) for name, key in named.items()},
            "DB_PASSWORD": str(database.get("password", "")),
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "CONFIG_PATH": str(self.folder / "no.env"),
            "EXTENSIONS_PATH": str(self.folder / "extensions"),
            "STORAGE_LOCAL_ROOT": str(self.folder / "uploads"),
            "TEMP_PATH": str(self.folder / "temporary"),
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "PUBLIC_URL": f"http://127.0.0.1:{port}",
            "PEER_PROCESSES": str(processes),
        }


async def prepared(peer: Peer, server_url: str, folder: Path, *, rows: int) -> Place:
    """Make the database with its rows, users and rights; nothing runs afterwards."""
    place = Place(peer=peer, url=make_conninfo(server_url, dbname=DATABASE), folder=folder)
    async with await AsyncConnection.connect(server_url, autocommit=True) as admin:
        await admin.execute(f"CREATE DATABASE {DATABASE}".encode())
    _bootstrap(place)
    async with await AsyncConnection.connect(place.url, autocommit=True) as conn:
        await conn.execute(_TABLES.encode())
        await _fill(conn, folder, rows)
    async with running(place, processes=1) as address:
        _describe(address)
    return place


def _bootstrap(place: Place) -> None:
    done = subprocess.run(
        [*place.peer.program, "bootstrap"],
        cwd=place.peer.folder,
        env=place.environment(0, 1),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the peer could not make its tables:\n{done.stdout}{done.stderr}")


async def _fill(conn: AsyncConnection, folder: Path, rows: int) -> None:
    file = folder / "rows.csv"
    write_csv(file, rows)
    for row in json.loads(countries()):
        given = (row["code"], row["name"])
        await conn.execute(b"INSERT INTO public.country VALUES (%s, %s)", given)
    statement = f"COPY public.location ({COLUMNS}) FROM STDIN (FORMAT csv, HEADER)"
    async with conn.cursor().copy(statement.encode()) as copy:
        await copy.write(file.read_bytes())
    await conn.execute(b"VACUUM ANALYZE public.location")


# --- its processes --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def running(place: Place, *, processes: int = PROCESSES) -> AsyncIterator[str]:
    """Yield the address at which it listens; its processes end with the block, or with this process."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = _start(place, place.environment(port, processes), log)
        try:
            await _wait(process, log.fileno())
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(place: Place, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*place.peer.program, "start"],
        cwd=place.peer.folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def _wait(process: subprocess.Popen[bytes], log: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    told = b""
    while time.monotonic() < deadline and process.poll() is None:
        told = os.pread(log, 1_000_000, 0)
        if b"peer is listening" in told:
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"the peer did not start:\n{told.decode(errors='replace')}")


# --- what it is told ------------------------------------------------------------------------------


def _describe(address: str) -> None:
    """Log changes of the table, and let a second user see a part of the rows."""
    for name in ("country", "location"):
        ask(address, "PATCH", f"/collections/{name}", {"meta": {"accountability": "all"}})
    permission = {
        "collection": "location",
        "action": "read",
        "fields": ["*"],
        "permissions": _ROW_FILTER,
    }
    policy = ask(address, "POST", "/policies", {"name": "Filtered", "permissions": [permission]})[
        "id"
    ]
    role = ask(address, "POST", "/roles", {"name": "Filtered", "policies": [{"policy": policy}]})
    user = {"email": "filtered@example.com", "role": role["id"], "token": FILTERED}
    ask(address, "POST", "/users", user)


def ask(
    address: str, method: str, path: str, body: object = None, *, token: str = ADMINISTRATOR
) -> Any:
    """Return the data of the answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data=sent, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            return json.loads(answer.read())["data"]
    except urllib.error.HTTPError as failed:
        raise SystemExit(f"{method} {path} of the peer: {failed.read().decode()}") from failed
