"""Exports as streams, from a real server: who leaves, what breaks, how long, how much memory."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from mdm_gitops.source import read_tree
from mdm_gitops.warehouse.connect import connect
from tests.conftest import DatabaseMaker
from tests.support import by_hand
from tests.support.server_process import KEY, PROGRAM, Process, serving

PATH = "/api/v1/entities/part/data/export"
ROWS = 200_000
FILES = {
    "mdm.yaml": b"name: test\napiVersion: mdm-gitops/v1\ndomains: [{name: ref}]\n",
    "entities/part.yaml": json.dumps(
        {
            "name": "part",
            "domain": "ref",
            "keyColumns": ["code"],
            "columns": [
                {"name": "code", "dataType": "string", "nullable": False},
                *({"name": f"text_{n}", "dataType": "string"} for n in range(5)),
                {"name": "number", "dataType": "int"},
                {"name": "amount", "dataType": "decimal"},
                {"name": "active", "dataType": "bool"},
                {"name": "since", "dataType": "date"},
                {"name": "checked", "dataType": "datetime"},
                {"name": "large", "dataType": "long"},
            ],
        }
    ).encode(),
}
FILL = """
INSERT INTO mdm_data.part (_sys_id, code, text_0, text_1, text_2, text_3, text_4, number, amount,
  active, since, checked, large, _sys_created_at, _sys_created_by, _sys_last_modified_at,
  _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'P' || n, 'Part ' || n, md5(n::text), md5((n * 7)::text), NULL, '=' || n,
       n % 1000, n / 8.0, n % 2 = 0, date '2000-01-01' + n % 9000, now(), n, now(), 'a', now(), 'a'
  FROM generate_series({first}, {last}) n"""


@pytest.fixture(scope="module")
def filled(
    admin: psycopg.Connection[Any], server_url: str, template: str
) -> Iterator[tuple[DatabaseMaker, str, str]]:
    """A warehouse of 200,000 rows to be copied, to which nobody connects, and a copy that none changes."""
    maker = DatabaseMaker(admin, server_url, template)
    url = maker()

    async def deploy() -> None:
        async with await connect(url, application_name="test") as conn:
            await by_hand.deploy(conn, read_tree(FILES))

    asyncio.run(deploy())
    with psycopg.connect(url, autocommit=True) as conn:
        # A worker of autovacuum would keep the database from being dropped.
        conn.execute("ALTER TABLE mdm_data.part SET (autovacuum_enabled = false)")
        conn.execute(FILL.format(first=1, last=ROWS).encode())
        conn.execute("ANALYZE mdm_data.part")
    yield maker, url, maker.copy_of(url)
    maker.drop_all()


@pytest.fixture
def warehouse(filled: tuple[DatabaseMaker, str, str], request: pytest.FixtureRequest) -> str:
    """The URL of the copy of all, or of another for a test that asks for its own."""
    maker, pristine, shared = filled
    return maker.copy_of(pristine) if getattr(request, "param", False) else shared


changes_rows = pytest.mark.parametrize("warehouse", [True], indirect=True, ids=["copy"])


@pytest.fixture
def watch(warehouse: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of a bystander."""
    with psycopg.connect(warehouse, autocommit=True) as conn:
        yield conn


Serve = Callable[..., AbstractContextManager[Process]]


@pytest.fixture
def serve(warehouse: str, tmp_path: Path) -> Serve:
    """``with serve(Mdm__...="...") as server``: the real program, on that warehouse."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "mdm.yaml").write_bytes(FILES["mdm.yaml"])
    return lambda **variables: serving(warehouse, home, **variables)


@pytest.fixture(scope="module")
def server(
    filled: tuple[DatabaseMaker, str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """The program as it is by default, for tests that count nothing of it."""
    home = tmp_path_factory.mktemp("home")
    (home / "mdm.yaml").write_bytes(FILES["mdm.yaml"])
    _, _, url = filled
    with serving(url, home) as server:
        yield server


class Reader:
    """A client that reads only when it is told to."""

    def __init__(self, server: Process, query: str = "") -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        request = f"GET {PATH}?{query} HTTP/1.1\r\nHost: test\r\nX-API-Key: {KEY}\r\n\r\n"
        self.socket.sendall(request.encode())
        self.response = http.client.HTTPResponse(self.socket)
        self.response.begin()
        assert self.response.status == 200

    def leave(self) -> None:
        self.response.close()
        self.socket.close()


def copies(watch: psycopg.Connection[Any]) -> list[int]:
    """Return the server processes that copy rows out, or hold a snapshot for it."""
    found = watch.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'mdm-gitops api' AND xact_start IS NOT NULL"
        " AND query LIKE 'COPY%' AND backend_type = 'client backend'"
    ).fetchall()
    return [pid for (pid,) in found]


def until(condition: Any, *, seconds: float = 10.0) -> float:
    """Wait for *condition*; return how long it took."""
    started = time.perf_counter()
    while not condition():
        assert time.perf_counter() - started < seconds, "it did not come about"
        time.sleep(0.01)
    return time.perf_counter() - started


# --- leaving and breaking -------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["format=csv", "format=json", "format=xlsx", "sort=-text_1"])
def test_who_leaves_frees_the_connection_at_once(
    watch: psycopg.Connection[Any],
    serve: Serve,
    query: str,
) -> None:
    with serve(Mdm__Database__PoolMaxSize="2") as server:
        for _ in range(3):
            reader = Reader(server, query)
            reader.response.read(1_000)
            time.sleep(0.2)
            assert len(copies(watch)) == 1, "who stays, however slowly, keeps it"
            reader.leave()
            assert until(lambda: not copies(watch)) < 8.0
        started = time.perf_counter()
        assert server.client.get(PATH, params={"take": 1}).status_code == 200
        assert time.perf_counter() - started < 8.0
        assert "Traceback" not in server.log
        assert rows_sent(server) == 1, "what nobody reads was not copied to its end"


def rows_sent(server: Process) -> int:
    found = re.search(r"mdm_rows_read_total (\d+)", server.client.get("/metrics").text)
    return int(found[1]) if found else -1


def test_a_lost_connection_to_the_warehouse_breaks_the_answer(
    watch: psycopg.Connection[Any],
    server: Process,
) -> None:
    reader = Reader(server)
    assert len(reader.response.read(100_000)) == 100_000
    [pid] = copies(watch)
    watch.execute("SELECT pg_terminate_backend(%s)", [pid])
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        reader.response.read()
    reader.leave()
    undisturbed = Reader(server)
    lines = undisturbed.response.read().count(b"\n")
    undisturbed.leave()
    assert lines == ROWS + 1, "without a disturbance the answer has an end"


def test_a_connection_that_died_in_the_pool_is_no_reason_to_fail(
    watch: psycopg.Connection[Any], server: Process
) -> None:
    assert server.client.get(PATH, params={"take": 1}).status_code == 200
    killed = watch.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'mdm-gitops api'"
    ).fetchone()
    assert killed and killed[0] > 0
    assert server.client.get(PATH, params={"take": 1}).status_code == 200


def test_an_export_ends_after_its_time_and_says_so(
    watch: psycopg.Connection[Any],
    serve: Serve,
) -> None:
    with serve(Mdm__Data__ExportTimeoutSeconds="1") as server:
        reader = Reader(server)
        reader.response.read(1_000)
        assert 0.2 < until(lambda: not copies(watch), seconds=5.0) < 3.0
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            reader.response.read()
        reader.leave()
        with watch.transaction():
            watch.execute("LOCK TABLE mdm_data.part")
            late = server.client.get(PATH)
        assert (late.status_code, late.json()["code"]) == (503, "QUERY_TIMEOUT")


def test_half_of_the_pool_is_left_to_the_others(
    watch: psycopg.Connection[Any],
    serve: Serve,
) -> None:
    limits = {"Mdm__Database__PoolMaxSize": "4", "Mdm__Database__PoolWaitSeconds": "1"}
    with serve(**limits) as server:
        readers = [Reader(server), Reader(server)]
        refused = server.client.get(PATH)
        assert (refused.status_code, refused.json()["code"]) == (503, "WAREHOUSE_LOCKED")
        assert refused.headers["retry-after"]
        assert server.client.get("/api/v1/entities/part/data").status_code == 200
        readers[0].leave()
        until(lambda: len(copies(watch)) == 1)
        assert server.client.get(PATH, params={"take": 1}).status_code == 200
        readers[1].leave()


# --- one moment -----------------------------------------------------------------------------------


@changes_rows
def test_the_rows_are_those_of_one_moment(
    watch: psycopg.Connection[Any],
    serve: Serve,
) -> None:
    with serve() as server:
        reader = Reader(server, "fields=code,number")
        first = reader.response.read(1_000)
        watch.execute("UPDATE mdm_data.part SET number = -1, _sys_is_deleted = true")
        lines = (first + reader.response.read()).splitlines()
        reader.leave()
        assert len(lines) == ROWS + 1
        assert not any(line.endswith(b",-1") for line in lines)
        after = server.client.get(PATH, params={"fields": "code,number"})
        assert after.text == "code,number\n"


@changes_rows
def test_a_definition_changes_only_when_the_export_has_ended(
    watch: psycopg.Connection[Any],
    serve: Serve,
) -> None:
    with serve() as server:
        reader = Reader(server)
        reader.response.read(1_000)
        watch.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            watch.execute("ALTER TABLE mdm_data.part RENAME COLUMN text_0 TO gone")
        reader.leave()
        until(lambda: not copies(watch))
        watch.execute("ALTER TABLE mdm_data.part RENAME COLUMN text_0 TO gone")
        moved = server.client.get(PATH)
        assert (moved.status_code, moved.json()["code"]) == (503, "WAREHOUSE_LOCKED")


# --- memory and others ------------------------------------------------------------------------------


def peak_mb(server: Process) -> float:
    """Return the most memory that the server has had, and start to count anew."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    assert found is not None
    return int(found[1]) / 1024


def measure(server: Process, **asked: Any) -> float:
    """Export and return the most memory that the server had meanwhile."""
    peak_mb(server)
    size = 0
    with server.client.stream("GET", PATH, params=asked, timeout=600) as response:
        assert response.status_code == 200
        for chunk in response.iter_bytes():
            size += len(chunk)
    assert size > 100
    return peak_mb(server)


def hold_memory(server: Process, *, limit_mb: float) -> None:
    for format_ in ("csv", "json", "xlsx"):
        small = measure(server, format=format_, take=1_000)
        assert measure(server, format=format_) < small + limit_mb, format_


def test_the_memory_is_that_of_a_chunk(
    watch: psycopg.Connection[Any],
    serve: Serve,
) -> None:
    with serve() as server:
        hold_memory(server, limit_mb=20)
        reader = Reader(server)
        reader.response.read(1_000)
        time.sleep(0.5)
        stalled = peak_mb(server)
        reader.leave()
        assert stalled < measure(server, take=1) + 20, "who does not read fills no memory"


@pytest.mark.soak
@changes_rows
def test_the_memory_is_that_of_a_chunk_for_a_million_rows(
    watch: psycopg.Connection[Any],
    serve: Serve,
) -> None:
    watch.execute("SET statement_timeout = 0")
    watch.execute(FILL.format(first=ROWS + 1, last=1_000_000).encode())
    with serve() as server:
        hold_memory(server, limit_mb=20)


@pytest.mark.parametrize("format_", ["csv", "json", "xlsx"])
def test_others_are_answered_meanwhile(
    watch: psycopg.Connection[Any],
    server: Process,
    format_: str,
) -> None:
    done = threading.Event()

    def export() -> None:
        with httpx2.Client(base_url=server.url, headers={"X-API-Key": KEY}, verify=False) as client:
            client.get(PATH, params={"format": format_}, timeout=60)
        done.set()

    thread = threading.Thread(target=export)
    thread.start()
    waits = []
    while not done.is_set():
        started = time.perf_counter()
        assert server.client.get("/healthz").status_code == 200
        waits.append(time.perf_counter() - started)
        time.sleep(0.002)  # the processor is for what is asked about
    thread.join()
    assert len(waits) > 20
    assert sorted(waits)[len(waits) // 2] < 0.5
    assert max(waits) < 5.0


# --- the command line -------------------------------------------------------------------------------


def run(server: Process, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [PROGRAM, "entities", "data", "export", *arguments, "--url", server.url]
    return subprocess.run(
        [*map(str, command), "--api-key", KEY], capture_output=True, timeout=60, check=False
    )


def test_the_command_writes_what_the_server_sends(
    watch: psycopg.Connection[Any],
    server: Process,
    tmp_path: Path,
) -> None:
    sent = server.client.get(PATH, params={"take": 3, "sort": "-code"}).content
    printed = run(server, "part", "--take", "3", "--sort", "-code")
    assert (printed.returncode, printed.stdout) == (0, sent), printed.stderr
    target = tmp_path / "parts.xlsx"
    told = run(server, "part", "--format", "xlsx", "-o", target, "--take", "3", "--json")
    assert json.loads(told.stdout) == {
        "entity": "part",
        "format": "xlsx",
        "file": str(target),
        "bytes": target.stat().st_size,
    }
    wrong = run(server, "part", "--filter", "[", "--file", tmp_path / "none")
    assert wrong.returncode == 1
    assert b"error:" in wrong.stderr
    assert run(server, "part", "--json").returncode == 64
    assert run(server, "part", "--format", "pdf").returncode == 64
    assert sorted(each.name for each in tmp_path.glob("*.xlsx")) == ["parts.xlsx"]
    assert not (tmp_path / "none").exists()


def test_the_command_keeps_no_file_that_is_not_whole(
    watch: psycopg.Connection[Any],
    server: Process,
    tmp_path: Path,
) -> None:
    target = tmp_path / "parts.csv"
    target.write_text("from yesterday")
    # A pipe that nobody empties: the export is still under way when its connection goes.
    command = [PROGRAM, "entities", "data", "export", "part", "--url", server.url]
    process = subprocess.Popen(
        [*command, "--api-key", KEY], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until(lambda: copies(watch))
    time.sleep(0.5)
    [pid] = copies(watch)
    watch.execute("SELECT pg_terminate_backend(%s)", [pid])
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"broke off" in said
    with terminating(watch):
        failed = run(server, "part", "-o", target)
    assert failed.returncode == 1, failed.stderr
    assert target.read_text() == "from yesterday"
    assert not target.with_name("parts.csv.part").exists()


@contextlib.contextmanager
def terminating(watch: psycopg.Connection[Any]) -> Iterator[None]:
    """End the next export that is seen, some time after its first byte."""

    def end_it() -> None:
        until(lambda: copies(watch), seconds=30)
        time.sleep(0.05)
        for pid in copies(watch):
            watch.execute("SELECT pg_terminate_backend(%s)", [pid])

    thread = threading.Thread(target=end_it)
    thread.start()
    try:
        yield
    finally:
        thread.join()
