"""The embedded server: shared, found again, gone when nobody needs it, and hard to hurt."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse import embedded_binaries
from mdm_gitops.warehouse.connect import check_server, connect
from mdm_gitops.warehouse.embedded import (
    EmbeddedServer,
    acquire_server,
    embedded_server,
    home_of,
    keep_running,
    stop_server,
)
from mdm_gitops.warehouse.embedded_lease import living_supervisor

pytestmark = pytest.mark.anyio

# Takes a lease, says so, writes rows one transaction each, and says which are acknowledged.
WRITER = """
import asyncio, signal, sys
from pathlib import Path
from psycopg import AsyncConnection
from mdm_gitops.warehouse.embedded import embedded_server

# A shell starts what runs in the background with this one ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with embedded_server(Path(sys.argv[1]), major=int(sys.argv[2])) as server:
        async with await AsyncConnection.connect(server.url, autocommit=True) as conn:
            await conn.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
            print("ready", flush=True)
            for n in range(int(sys.argv[3])):
                await conn.execute("INSERT INTO kept VALUES (%s)", [n])
                print(n, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    _kill_everything(tmp_path)


def _kill_everything(folder: Path) -> None:
    """Leave nothing behind whatever the test did, and without trusting the code under test."""
    for pid in [*_processes(folder), *filter(None, [living_supervisor(home_of(folder))])]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes(folder: Path) -> list[int]:
    """Return the postmaster and the supervisor of *folder*, by their command lines."""
    # The socket folder is named after a hash of the path when it is not inside of it.
    home = str(home_of(folder))
    names = (home, hashlib.sha256(home.encode()).hexdigest()[:16])
    lines = [line.split(maxsplit=1) for line in _command_lines()]
    return [int(pid) for pid, args in lines if _is_server(args) and any(n in args for n in names)]


def _is_server(args: str) -> bool:
    return "bin/postgres -D" in args or "-m mdm_gitops.warehouse.embedded_supervisor" in args


def _command_lines() -> list[str]:
    done = subprocess.run(["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _postmaster(folder: Path) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int((home_of(folder) / "data" / "postmaster.pid").read_text().splitlines()[0])
    return 0


def _takes_connections(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(url).close()
        return True
    return False


def _writer(folder: Path, major: int, rows: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(major), str(rows)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _acknowledged(process: subprocess.Popen[str], *, at_least: int) -> set[int]:
    """Kill *process* after some of its writes; return all it said were done."""
    assert process.stdout is not None
    seen = {int(process.stdout.readline()) for _ in range(at_least)}
    process.kill()
    with process:
        return seen | {int(line) for line in process.stdout if line.endswith("\n")}


async def _until(condition: object, *, seconds: float = 15) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


async def _rows(server: EmbeddedServer) -> set[int]:
    async with await AsyncConnection.connect(server.url) as conn:
        return {n for (n,) in await (await conn.execute("SELECT n FROM kept")).fetchall()}


async def _one(conn: AsyncConnection[Any], query: str) -> object:
    row = await (await conn.execute(query)).fetchone()
    return row[0] if row else None


async def test_it_is_durable_unicode_and_sorts_by_code_point(folder: Path, pg_major: int) -> None:
    async with (
        embedded_server(folder, major=pg_major) as server,
        await connect(server.superuser_url, application_name="test") as conn,
    ):
        report = await check_server(conn)
        assert (report.version.split(".")[0], report.warnings) == (str(pg_major), ())
        assert await _one(conn, "SHOW data_checksums") == "on"
        assert await _one(conn, "SHOW listen_addresses") == ""
        assert await _one(conn, "SHOW password_encryption") == "scram-sha-256"
        words = "VALUES ('b'), ('Z'), ('ä'), ('a'), ('é'), ('😀'), ('zz')"
        ordered = f"SELECT string_agg(w, '' ORDER BY w) FROM ({words}) AS words (w)"
        assert await _one(conn, ordered) == "Zabzzäé😀"
        assert await _one(conn, "SELECT upper('éä')") == "ÉÄ"
    assert _processes(folder) == []


async def test_the_role_of_all_work_has_few_rights_and_needs_its_password(folder: Path) -> None:
    async with embedded_server(folder) as server:
        async with await connect(server.url, application_name="test") as conn:
            rights = "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles"
            cursor = await conn.execute(f"{rights} WHERE rolname = current_user")
            assert await cursor.fetchone() == (False, False, False, True)
            assert await _one(conn, "SELECT current_database()") == "mdm"
        password = server.url.partition("mdm:")[2].partition("@")[0]
        with pytest.raises(WarehouseError, match="password authentication failed") as caught:
            await connect(server.url.replace(password, "x" * 20), application_name="test")
        assert "x" * 20 not in str(caught.value)
        assert password not in repr(server)
        assert not [line for line in _command_lines() if password in line]
        home = home_of(folder)
        holders = [path for path in home.iterdir() if path.is_file() and _holds(path, password)]
        assert sorted(path.name for path in holders) == ["credentials.json", "server.json"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}


def _holds(path: Path, text: str) -> bool:
    return text in path.read_text(errors="replace")


async def test_a_warm_start_is_quick_and_keeps_the_data(folder: Path, pg_major: int) -> None:
    async with (
        embedded_server(folder, major=pg_major) as server,
        await AsyncConnection.connect(server.url) as conn,
    ):
        await conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
    times = []
    for _ in range(3):
        started = time.perf_counter()
        async with embedded_server(folder, major=pg_major) as server:
            times.append(time.perf_counter() - started)
            assert await _rows(server) == {7}
    assert min(times) < 10, times


async def test_two_commands_share_it_and_the_last_one_stops_it(folder: Path, pg_major: int) -> None:
    with _writer(folder, pg_major) as other:
        async with embedded_server(folder, major=pg_major) as server:
            pids = _processes(folder)
            assert len(pids) == 2
            other.terminate()
            other.wait()
            await asyncio.sleep(0.6)
            assert await _rows(server) == set()
            assert _processes(folder) == pids
        assert _processes(folder) == []


async def test_many_commands_at_once_on_a_new_folder_get_one_server(folder: Path) -> None:
    servers = await asyncio.gather(*(acquire_server(folder) for _ in range(6)))
    assert len({server.url for server in servers}) == 1
    assert len(_processes(folder)) == 2
    last = await asyncio.gather(*(server.aclose() for server in servers))
    assert sum(last) <= 1
    await _until(lambda: not _processes(folder))


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_killed_owner_leaves_nothing_running_and_loses_nothing(
    folder: Path, sign: signal.Signals
) -> None:
    owner = _writer(folder, 18, rows=100_000)
    assert owner.stdout is not None
    seen = {int(owner.stdout.readline()) for _ in range(50)}
    owner.send_signal(sign)
    with owner:
        seen |= {int(line) for line in owner.stdout if line.endswith("\n")}
    await _until(lambda: not _processes(folder))
    async with embedded_server(folder) as server:
        assert await _rows(server) >= seen


async def test_a_killed_postgres_is_started_again(folder: Path, pg_major: int) -> None:
    async with embedded_server(folder, major=pg_major) as server:
        acknowledged = _acknowledged(_writer(folder, pg_major, rows=100_000), at_least=50)
        killed = _postmaster(folder)
        os.kill(killed, signal.SIGKILL)

        await _until(lambda: _postmaster(folder) != killed and _takes_connections(server.url))
        assert await _rows(server) >= acknowledged


async def test_a_killed_supervisor_takes_postgres_along_and_both_come_back(folder: Path) -> None:
    async with embedded_server(folder) as server:
        async with await AsyncConnection.connect(server.url) as conn:
            await conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
        killed, postmaster = living_supervisor(home_of(folder)), _postmaster(folder)
        assert killed
        os.kill(killed, signal.SIGKILL)
        await _until(lambda: living_supervisor(home_of(folder)) not in (None, 0, killed))
        await _until(lambda: _takes_connections(server.url))
        assert _postmaster(folder) != postmaster
        assert await _rows(server) == {7}
    assert _processes(folder) == []


async def test_all_of_it_killed_at_once_loses_no_acknowledged_write(
    folder: Path, pg_major: int
) -> None:
    expected: set[int] = set()
    for _ in range(3):
        owner = _writer(folder, pg_major, rows=100_000)
        assert owner.stdout is not None
        expected |= {int(owner.stdout.readline()) for _ in range(100)}
        for pid in [*_processes(folder), owner.pid]:
            os.kill(pid, signal.SIGKILL)
        with owner:
            expected |= {int(line) for line in owner.stdout if line.endswith("\n")}
    async with embedded_server(folder, major=pg_major) as server:
        assert await _rows(server) >= expected


async def test_a_reused_pid_neither_stops_the_start_nor_is_harmed(folder: Path) -> None:
    async with embedded_server(folder):
        owner = (home_of(folder) / "data").stat().st_uid
    with _sleeping_process(owner) as innocent:
        pid_file = home_of(folder) / "data" / "postmaster.pid"
        pid_file.write_text(f"{innocent.pid}\n{home_of(folder) / 'data'}\n1\n5432\n\n\n\nready\n")
        os.chown(pid_file, owner, -1)
        async with embedded_server(folder) as server:
            assert await _connects(server.url)
        assert innocent.poll() is None, "a stranger's process was stopped"
        innocent.kill()


def _sleeping_process(uid: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], user=uid if os.geteuid() == 0 else None)


async def _connects(url: str) -> bool:
    async with await AsyncConnection.connect(url):
        return True


async def test_a_removed_folder_takes_its_server_along(tmp_path: Path) -> None:
    folder = tmp_path / "definitions"
    folder.mkdir()
    async with embedded_server(folder):
        shutil.rmtree(folder, ignore_errors=True)  # files go away while it is reading
        await _until(lambda: not _processes(folder))


async def test_kept_it_outlives_its_commands_until_it_is_stopped(folder: Path) -> None:
    server = await acquire_server(folder)
    keep_running(server)
    assert not await server.aclose()
    await asyncio.sleep(0.6)
    assert await _connects(server.url)
    async with embedded_server(folder) as again:
        assert again.url == server.url
        assert not await stop_server(folder), "somebody still uses it"
        assert await _connects(server.url)
    assert _processes(folder) == []
    assert await stop_server(folder)


async def test_force_stops_it_under_its_users(folder: Path) -> None:
    async with embedded_server(folder):
        assert await stop_server(folder, force=True)
        await asyncio.sleep(0.8)
        assert _processes(folder) == [], "the watch must respect an orderly stop"


async def test_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 60) / ("ä" * 30)
    folder.mkdir(parents=True)
    async with embedded_server(folder) as server:
        socket_dir = psycopg.conninfo.conninfo_to_dict(server.url)["host"]
        assert isinstance(socket_dir, str)
        assert not socket_dir.startswith(str(tmp_path))
        assert _mode(socket_dir) == 0o700
    assert _mode(socket_dir) is None


def _mode(path: str) -> int | None:
    try:
        return stat.S_IMODE(Path(path).stat().st_mode)
    except FileNotFoundError:
        return None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")
async def test_root_reaches_a_closed_folder_without_opening_it(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    folder = closed / "definitions"
    folder.mkdir(parents=True)
    closed.chmod(0o700)
    async with embedded_server(folder) as server:
        assert await _connects(server.url)
        assert (home_of(folder) / "data").stat().st_uid != 0
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert _processes(folder) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")
async def test_root_copies_programs_that_the_other_user_cannot_read(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    installed = _wheel(18)
    shutil.copytree(installed, closed / "wheel" / "pg", symlinks=True)
    libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, closed / libraries.name)
    closed.chmod(0o700)
    async with embedded_server(tmp_path, bin_dir=closed / "wheel" / "pg" / "bin") as server:
        assert await _connects(server.url)
        assert closed not in server.bin_dir.parents
        copy = server.bin_dir.parents[2]
        assert copy.name.startswith("pg-18.")
    shutil.rmtree(copy)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def _wheel(major: int) -> Path:
    return embedded_binaries.find_binaries(major=major).bin_dir.parent


async def test_a_port_is_opened_only_when_asked_for(folder: Path) -> None:
    async with embedded_server(folder, port=0) as server:
        address = server.running.tcp_url
        assert address is not None
        assert await _connects(address)
        with pytest.raises(WarehouseError, match="runs already and listens on port"):
            await acquire_server(folder, port=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WarehouseError, match=f"port {port} is taken by another program"):
            await acquire_server(folder, port=port)
    assert _processes(folder) == []


async def test_data_of_another_major_is_refused_with_the_way_out(folder: Path) -> None:
    async with embedded_server(folder, major=16):
        pass
    with pytest.raises(WarehouseError, match=r"made by PostgreSQL 16, this is PostgreSQL 18$") as e:
        await acquire_server(folder, major=18)
    assert "Mdm__Database__EmbeddedMajor=16" in e.value.hint


@pytest.mark.parametrize(
    ("bin_dir", "major", "message", "hint"),
    [
        pytest.param(None, 17, "no embedded PostgreSQL 17", "EmbeddedMajor=18", id="not-in-wheel"),
        pytest.param("nowhere", 18, "there is no PostgreSQL in", "MDM_PG_BIN", id="no-such-folder"),
        pytest.param("16", 18, "is 16.14, not 18", "MDM_PG_BIN", id="other-version"),
    ],
)
async def test_unusable_programs(
    folder: Path, bin_dir: str | None, major: int, message: str, hint: str
) -> None:
    path = {"nowhere": folder / "nowhere", "16": _wheel(16) / "bin"}.get(bin_dir or "")
    with pytest.raises(WarehouseError, match=message) as caught:
        await acquire_server(folder, major=major, bin_dir=path)
    assert hint in caught.value.hint


async def test_without_the_wheel_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_binaries, "WHEEL", "a_wheel_that_is_not_installed")
    with pytest.raises(WarehouseError, match="is not installed") as caught:
        await acquire_server(folder)
    assert caught.value.hint == (
        "pip install 'mdm-gitops[local]', or name a server with Mdm__Database__Url=postgresql://..."
    )


async def test_a_folder_that_cannot_hold_it(folder: Path) -> None:
    with pytest.raises(WarehouseError, match="there is no folder"):
        await acquire_server(folder / "absent")
    (folder / ".mdm").write_text("a file is in the way")
    with pytest.raises(WarehouseError, match="cannot be used"):
        await acquire_server(folder)


async def test_lost_passwords_are_told_apart_from_a_broken_server(folder: Path) -> None:
    async with embedded_server(folder):
        pass
    (home_of(folder) / "credentials.json").unlink()
    with pytest.raises(WarehouseError, match=r"credentials\.json is gone"):
        await acquire_server(folder)
    assert _processes(folder) == []


async def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    async with embedded_server(folder):
        pass
    with (home_of(folder) / "data" / "postgresql.conf").open("a") as file:
        file.write("shared_buffers = 'a lot'\n")
    with pytest.raises(WarehouseError, match="did not start") as caught:
        await acquire_server(folder)
    assert "server.log" in caught.value.hint
    assert _processes(folder) == []
