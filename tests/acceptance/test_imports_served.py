"""Imports of a server in a process of its own: clients that leave, workers that are killed, and the
commands that import and export, on a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import fcntl
import json
import os
import pty
import random
import re
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.acceptance.processes import PROGRAM, environment, until
from tests.conftest import DatabaseMaker
from tests.support.crash_server import Server
from tests.support.importing import deploy
from tests.support.warehouses import opened
from tests.support.wire import Lost, Reply, Wire

KEY = "bootstrap-key-of-the-tests"
HEAD = "code,Name,country\n"
ROWS = 3_000
LEAVING = 8


@dataclass(frozen=True)
class Site:
    server: Server
    url: str
    watch: psycopg.Connection[Any]

    def ask(self, query: str) -> Any:
        row = self.watch.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def imports(self) -> int:
        """Count the imports that the warehouse is still busy with."""
        return int(
            self.ask(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'mdm-gitops import'"
            )
        )


@pytest.fixture(scope="module")
def site(
    admin: psycopg.Connection[Any],
    server_url: str,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    maker = DatabaseMaker(admin, server_url, template)
    url = maker()
    asyncio.run(_deploy(url))
    with (
        Server(tmp_path_factory.mktemp("imports"), url) as server,
        psycopg.connect(url, autocommit=True) as watch,
    ):
        watch.execute(
            "INSERT INTO mdm_data.country (_sys_id, code, _sys_created_at, _sys_created_by,"
            " _sys_last_modified_at, _sys_last_modified_by)"
            " VALUES (gen_random_uuid(), 'CH', now(), 'test', now(), 'test')"
        )
        yield Site(server, url, watch)
    maker.drop_all()


async def _deploy(url: str) -> None:
    async with opened(url) as conn:
        await deploy(conn)
        await conn.execute("DELETE FROM mdm.api_key WHERE name = 'bootstrap'")


def _body(token: str, rows: int = ROWS) -> bytes:
    """Return a file whose rows all have *token*, every hundredth of them wrong."""
    lines = (f"{token}{n},{token}-{n},{'XX' if n % 100 == 7 else 'CH'}\n" for n in range(rows))
    return (HEAD + "".join(lines)).encode()


def _token(number: int) -> str:
    return "".join(chr(ord("A") + (number // 26**k) % 26) for k in (1, 0))


def _good(rows: int = ROWS) -> int:
    return rows - len(range(7, rows, 100))


# --- clients that leave ---------------------------------------------------------------------------


def test_a_client_that_leaves_at_any_moment_leaves_nothing_or_all(site: Site) -> None:
    chance, whole = random.Random(5), 0
    for number in range(LEAVING):
        token, key = _token(number), f"leaving-{number}"
        body = _body(token)
        _leave(site, body, key, sent=len(body) if number % 2 else chance.randrange(len(body)))
        until(lambda: site.imports() == 0)
        there = _rows_of(site, token)
        assert there in (0, _good())
        whole += bool(there)
        # The key is free again, or has the answer that nobody heard.
        _hold_repeated(site, token, body, key)
    assert whole < LEAVING, "nobody left early"


def _head(key: str, size: int) -> bytes:
    lines = (
        "POST /api/v1/entities/place/data/bulk-csv HTTP/1.1",
        "Host: x",
        f"X-API-Key: {KEY}",
        "Content-Type: text/csv",
        f"Idempotency-Key: {key}",
        f"Content-Length: {size}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _leave(site: Site, body: bytes, key: str, *, sent: int) -> None:
    parts = urlsplit(site.server.url)
    with socket.create_connection((parts.hostname, parts.port)) as wire:
        # Broken off at once, without a word that more could come.
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.sendall(_head(key, len(body)) + body[:sent])
        until(lambda: site.imports() > 0 or _rows_of(site, _first_token(body)) > 0)


def _first_token(body: bytes) -> str:
    return body.decode().partition("\n")[2][:2]


def _rows_of(site: Site, token: str) -> int:
    return int(site.ask(f"SELECT count(*) FROM mdm_data.place WHERE name LIKE '{token}-%'"))


def _hold_repeated(site: Site, token: str, body: bytes, key: str) -> None:
    """The request with the same key is answered as if it had been the only one, and was done once."""
    reply = asyncio.run(_send(site, body, key))
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert (answer["received"], answer["inserted"]) == (ROWS, _good())
    assert answer["rejected"] == ROWS - _good()
    assert _rows_of(site, token) == _good()
    events = f"SELECT count(*) FROM mdm.event WHERE new ->> 'Name' LIKE '{token}-%'"
    assert site.ask(events) == _good()
    assert asyncio.run(_send(site, body, key)).body == reply.body


async def _send(site: Site, body: bytes, key: str) -> Reply:
    """Send the file, again while workers start anew."""
    wire = Wire(site.server.url, KEY)
    path = "/api/v1/entities/place/data/bulk-csv"
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Lost):
                    sent = await wire.request(
                        "POST", path, body, Content_Type="text/csv", Idempotency_Key=key
                    )
                    if sent.code != "IDEMPOTENCY_IN_FLIGHT":
                        return sent
                await asyncio.sleep(0.05)
    finally:
        await wire.close()


# --- workers that are killed ----------------------------------------------------------------------

# The phase is seen in the warehouse, by the statement that runs or is waited for.
_PHASES = ("COPY pg_temp", 'INSERT INTO pg_temp."next"', 'INSERT INTO "mdm_data"', "")


@pytest.mark.parametrize("phase", _PHASES, ids=["receiving", "judging", "writing", "whenever"])
def test_a_worker_killed_during_an_import_leaves_nothing_or_all(site: Site, phase: str) -> None:
    token, key = _token(100 + _PHASES.index(phase)), f"killed-{phase}"
    body = _body(token)
    with _held_at(site, phase):
        asyncio.run(_kill_during(site, body, key, phase))
    until(lambda: site.imports() == 0)
    assert _rows_of(site, token) in (0, _good())
    # What was staged was a temporary table of its own session, and has gone with it.
    until(lambda: _temporary_tables(site) == 0)
    _hold_repeated(site, token, body, key)


# Where the statement of a phase has to wait for whoever has locked what it looks at.
_LOCKS = {_PHASES[1]: "ACCESS EXCLUSIVE", _PHASES[2]: "EXCLUSIVE"}


@contextlib.contextmanager
def _held_at(site: Site, phase: str) -> Iterator[None]:
    """Hold the import in its phase: it must wait for the countries that it refers to."""
    if phase not in _LOCKS:
        yield
        return
    with psycopg.connect(site.url) as holding:
        holding.execute(f"LOCK TABLE mdm_data.country IN {_LOCKS[phase]} MODE".encode())
        yield


async def _kill_during(site: Site, body: bytes, key: str, phase: str) -> None:
    sending = asyncio.create_task(_once(site, body, key, slowly=phase.startswith("COPY")))
    seen = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mdm-gitops import'"
    if phase:
        seen += f" AND query LIKE '{phase}%'"
    await asyncio.to_thread(until, lambda: site.ask(seen) > 0 or (not phase and sending.done()))
    for pid in site.server.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.wait((sending,))


async def _once(site: Site, body: bytes, key: str, *, slowly: bool) -> None:
    parts = urlsplit(site.server.url)
    assert parts.hostname
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(_head(key, len(body)) + body[: -1 if slowly else None])
    with contextlib.suppress(OSError):
        await writer.drain()
        await reader.read(1)  # an answer, or the end of the worker
    writer.close()


def _temporary_tables(site: Site) -> int:
    return int(
        site.ask("SELECT count(*) FROM pg_class WHERE relname IN ('given', 'next', 'failed')")
    )


# --- the command line -----------------------------------------------------------------------------


def _run(
    site: Site, *arguments: str | Path, code: int = 0, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [PROGRAM, "entities", "data", *map(str, arguments)],
        env=environment(MDM_URL=site.server.url, MDM_API_KEY=KEY),
        capture_output=True,
        input=stdin,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    return done


def test_the_commands_import_what_the_commands_export(site: Site, tmp_path: Path) -> None:
    file, errors, back = (tmp_path / name for name in ("in.csv", "errors.csv", "back.csv"))
    file.write_text(
        'code,Name,country\nQQ1,"a, ""b""",CH\nqq2,x,CH\nQQ3,Zürich,XX\nQQ4,,\n', "utf-8"
    )
    errors.write_text("older")
    told = _run(site, "bulk-csv", "place", "--file", file, "--errors", errors)
    assert told.stdout.decode().split() == [
        *(["4", "rows", "received", "1", "inserted", "3", "rejected"]),
    ]
    said = told.stderr.decode().splitlines()
    assert said[0].startswith("row 2: code 'qq2' does not match") and said[-1].endswith(
        "errors.csv"
    )
    with errors.open(encoding="utf-8", newline="") as found:
        rows = list(csv.DictReader(found))
    assert [(r["row"], r["column"]) for r in rows] == [
        ("2", "code"),
        ("3", "country"),
        ("4", "Name"),
    ]
    # A pipe: nothing but words, no control characters, and the same file from standard input.
    assert b"\x1b" not in told.stdout + told.stderr and b"\r" not in told.stderr
    again = _run(
        site, "bulk-csv", "place", "--file", "-", "--mode", "upsert", "--fail-on-rejected", "--json",
        stdin=file.read_bytes(), code=1,
    )  # fmt: skip
    answer = json.loads(again.stdout)
    assert (answer["unchanged"], answer["rejected"]) == (1, 3)
    _run(site, "export", "place", "--filter", "[code] = 'QQ1'", "--file", back)
    _run(site, "bulk-csv", "place", "--file", back, "--mode", "upsert", "--errors", errors)
    assert not errors.exists()  # nothing was rejected
    for kind, format_ in (("bulk", "json"), ("bulk-xlsx", "xlsx")):
        back = tmp_path / f"back.{format_}"
        _run(site, "export", "place", "--format", format_, "-o", back, "--filter", "[code] = 'QQ1'")
        done = _run(site, kind, "place", "--file", back, "--mode", "upsert", "--dry-run", "--json")
        assert json.loads(done.stdout)["unchanged"] == 1


def test_the_exit_code_says_what_went_wrong(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("code,nope\nQQ1,a\n")
    wrong = _run(site, "bulk-csv", "place", "--file", file, code=1)
    assert b"error: the header names 'nope', which is no column of place" in wrong.stderr
    assert _run(site, "bulk-csv", "nothing", "--file", file, code=1).stdout == b""
    _run(site, "bulk-csv", "place", code=64)
    _run(site, "bulk-csv", "place", "--file", tmp_path / "none.csv", code=64)
    _run(site, "bulk-csv", "place", "--file", file, "--mode", "replace", code=64)


def test_progress_is_shown_on_a_terminal(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(_body("PT", rows=20_000))
    code, shown = _on_a_terminal(site, "bulk-csv", "place", "--file", file)
    assert code == 0, shown
    assert f"sending {file}"[:20] in shown and "checking and writing" in shown
    assert "20,000 rows received" in shown
    target = tmp_path / "out.csv"
    code, shown = _on_a_terminal(site, "export", "place", "--file", target)
    assert code == 0 and "receiving place" in shown, shown
    assert target.read_bytes().count(b"\n") > 19_000


def _on_a_terminal(site: Site, *arguments: str | Path) -> tuple[int, str]:
    """Run a command whose input and outputs are a terminal; return its exit code and what it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 140, 0, 0))
    variables = environment(MDM_URL=site.server.url, MDM_API_KEY=KEY, TERM="xterm", COLUMNS="140")
    process = subprocess.Popen(
        [PROGRAM, "entities", "data", *map(str, arguments)],
        env={name: value for name, value in variables.items() if name != "NO_COLOR"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    return process.wait(60), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
