"""The PostgreSQL that comes with the package, for a folder of definitions.

Who uses it holds a lease (an ``flock`` that the kernel lets go however the process ends). The first
one starts a detached supervisor, which owns the server and stops it after the last lease
(``embedded_supervisor`` has the picture). So two commands share one server, a killed command leaves
nothing behind, and a killed server is started again. Nothing here believes a pid file: a server is
there when a connection to it works.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

import mdm_gitops
from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.embedded_binaries import USE_ANOTHER_SERVER, Binaries, find_binaries
from mdm_gitops.warehouse.embedded_supervisor import (
    APP_DATABASE,
    APP_ROLE,
    START_TIMEOUT_S,
    Task,
)

DEFAULT_MAJOR = 18
_STOP_TIMEOUT_S = 90.0
_PAUSE_S = 0.02
_WATCH_EVERY_S = 0.5


@dataclass(slots=True, kw_only=True, eq=False)
class EmbeddedServer:
    """A lease on a running server. ``url`` carries the password: never log it."""

    home: Path
    major: int
    bin_dir: Path
    url: str
    superuser_url: str
    tcp_url: str | None
    lease: int

    def __repr__(self) -> str:
        return f"EmbeddedServer(home={str(self.home)!r}, major={self.major})"

    async def aclose(self) -> bool:
        """Give the lease back, and wait for the server to stop if this was the last one.

        Returns whether it was. Closing again does nothing.
        """
        if self.lease < 0:
            return False
        lease, self.lease = self.lease, -1
        try:
            return await _stop_if_unused(self.home, lease)
        finally:
            os.close(lease)


@asynccontextmanager
async def embedded_server(
    folder: Path,
    *,
    major: int = DEFAULT_MAJOR,
    bin_dir: Path | None = None,
    port: int | None = None,
) -> AsyncIterator[EmbeddedServer]:
    """Have the server of *folder* run for as long as the context is open.

    If its supervisor is killed meanwhile, the server is started again at the same address.
    """
    server = await acquire_server(folder, major=major, bin_dir=bin_dir, port=port)
    watch = asyncio.create_task(_watch(server, folder, port))
    try:
        yield server
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await server.aclose()


async def acquire_server(
    folder: Path,
    *,
    major: int = DEFAULT_MAJOR,
    bin_dir: Path | None = None,
    port: int | None = None,
) -> EmbeddedServer:
    """Take a lease on the server of *folder*, starting it where needed; ``aclose`` gives it back.

    Args:
        folder: The definitions; the data is in ``.mdm/postgres`` below it.
        major: The PostgreSQL that the data belongs to.
        bin_dir: A folder with the programs of PostgreSQL, instead of the wheel's.
        port: Also listen on 127.0.0.1 at this port, 0 for any free one; by default there is only
            a private socket.

    Raises:
        WarehouseError: it cannot be started here; the message says what to do.
    """
    binaries = find_binaries(major=major, bin_dir=bin_dir)
    home = _prepare_home(folder)
    _check_data_major(home, major)
    lease = await _take_lease(home)
    try:
        await _ensure_running(Task(home=home, binaries=binaries, port=port))
        return _server(home, lease, port)
    except BaseException:
        await _stop_if_unused(home, lease)
        os.close(lease)
        raise


def home_of(folder: Path) -> Path:
    return folder.resolve() / ".mdm" / "postgres"


def is_running(folder: Path) -> bool:
    """Tell whether a supervisor lives; its server may still be starting."""
    return _supervisor(home_of(folder)) is not None


def is_kept(folder: Path) -> bool:
    return (home_of(folder) / "keep").exists()


def keep_running(server: EmbeddedServer) -> None:
    """Let the server run on without leases, until ``stop_server``."""
    (server.home / "keep").touch(mode=0o600)


async def stop_server(folder: Path, *, force: bool = False) -> bool:
    """End ``keep_running``; returns whether the server is down now.

    Others may still use it: then it stops after them, or with *force* at once.
    """
    home = home_of(folder)
    if not home.is_dir():
        return True
    (home / "keep").unlink(missing_ok=True)
    if force:
        await _stop_supervisor(home)
        return True
    lease = await _take_lease(home)
    try:
        return await _stop_if_unused(home, lease)
    finally:
        os.close(lease)


def _prepare_home(folder: Path) -> Path:
    if sys.platform == "win32":
        raise WarehouseError(
            "the embedded PostgreSQL runs on Linux and macOS only", hint=USE_ANOTHER_SERVER[3:]
        )
    home = home_of(folder)
    try:
        if not folder.is_dir():
            raise WarehouseError(f"there is no folder {folder}")
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(_open_lock(home / "lease.lock"))
    except PermissionError as error:
        raise _no_permission(home) from error
    except OSError as error:
        raise WarehouseError(
            f"{home} cannot be used: {error.strerror}",
            hint=USE_ANOTHER_SERVER[3:],
            code="WAREHOUSE_UNUSABLE",
        ) from error
    return home


def _no_permission(home: Path) -> WarehouseError:
    return WarehouseError(
        f"no permission to keep a PostgreSQL in {home}",
        hint="work as the user who owns that folder, " + USE_ANOTHER_SERVER,
        code="WAREHOUSE_UNUSABLE",
    )


def _check_data_major(home: Path, major: int) -> None:
    try:
        found = (home / "data" / "PG_VERSION").read_text().strip()
    except OSError:
        return
    if found != str(major):
        raise WarehouseError(
            f"the data in {home} was made by PostgreSQL {found}, this is PostgreSQL {major}",
            hint=f"go on with Mdm__Database__EmbeddedMajor={found}, or dump with it (mdm-gitops db"
            f" dump), move {home} away, and load the dump into the new one",
            code="WAREHOUSE_UNUSABLE",
        )


async def _take_lease(home: Path) -> int:
    """Return the descriptor of a shared lock; waits while a supervisor is just stopping."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        lease = _open_lock(home / "lease.lock")
        if _try_lock(lease, fcntl.LOCK_SH) and _is_at(lease, home / "lease.lock"):
            return lease
        os.close(lease)
        await asyncio.sleep(_PAUSE_S)
    raise WarehouseError(f"the PostgreSQL in {home} does not stop", hint="look at its server.log")


async def _ensure_running(task: Task) -> None:
    """Return when the server answers. The lease must be held."""
    home = task.home
    if _supervisor(home) and await _answers(home):
        return
    deadline = time.monotonic() + START_TIMEOUT_S
    starter = _open_lock(home / "start.lock")
    try:
        while not _try_lock(starter, fcntl.LOCK_EX):
            _give_up_after(deadline, home)
            await asyncio.sleep(_PAUSE_S)
        while not (_supervisor(home) and await _answers(home)):
            if _supervisor(home) is None:
                await _start_supervisor(task)
            _give_up_after(deadline, home)
            await asyncio.sleep(_PAUSE_S)
    finally:
        os.close(starter)


def _give_up_after(deadline: float, home: Path) -> None:
    if time.monotonic() > deadline:
        raise WarehouseError(
            f"the embedded PostgreSQL was not ready within {START_TIMEOUT_S:.0f} s",
            hint=f"see {home / 'server.log'}",
        )


async def _start_supervisor(task: Task) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "mdm_gitops.warehouse.embedded_supervisor", task.to_json(),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _python_path()},
    )  # fmt: skip
    assert process.stdout is not None
    line = await process.stdout.readline()
    await process.wait()  # the supervisor itself has forked away from it
    answer = json.loads(line) if line else {"error": "its supervisor ended", "hint": "", "code": ""}
    if "error" in answer:
        raise WarehouseError(answer["error"], hint=answer["hint"], code=answer["code"])


def _python_path() -> str:
    package = Path(mdm_gitops.__file__).resolve().parent.parent
    return os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])


async def _answers(home: Path) -> bool:
    """Tell whether the server of *home* takes our connection; completes its first set-up."""
    server = _read_server(home)
    if server is None:
        return False
    try:
        await _connect(server["url"])
    except psycopg.OperationalError as error:
        if not _lacks_role_or_database(error):
            return False
        try:
            await _set_up(server)
            await _connect(server["url"])
        except psycopg.OperationalError:
            return False
    return True


def _lacks_role_or_database(error: psycopg.OperationalError) -> bool:
    # A refused login carries no SQLSTATE, only words; they are English (--lc-messages=C).
    return "password authentication failed" in str(error) or "does not exist" in str(error)


async def _connect(url: str) -> None:
    async with await AsyncConnection.connect(url, connect_timeout=5):
        pass


async def _set_up(server: dict[str, Any]) -> None:
    """Create the role and the database that everything works with; neither needs more rights."""
    async with await AsyncConnection.connect(
        server["superuser_url"], autocommit=True, connect_timeout=5
    ) as conn:
        role, database = sql.Identifier(APP_ROLE), sql.Identifier(APP_DATABASE)
        password = sql.Literal(server["application_password"])
        if not await _exists(conn, "SELECT FROM pg_roles WHERE rolname = %s", APP_ROLE):
            await conn.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
        await conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, password))
        if not await _exists(conn, "SELECT FROM pg_database WHERE datname = %s", APP_DATABASE):
            create = sql.SQL("CREATE DATABASE {} OWNER {}")
            await conn.execute(create.format(database, role))


async def _exists(conn: AsyncConnection[Any], query: Any, name: str) -> bool:
    return bool((await conn.execute(query, [name])).rowcount)


async def _stop_if_unused(home: Path, lease: int) -> bool:
    """Turn our shared lock into the only one, if it is; then stop the server under it."""
    if not _try_lock(lease, fcntl.LOCK_EX) or (home / "keep").exists():
        return False
    await _stop_supervisor(home)
    return True


async def _stop_supervisor(home: Path) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    asked = 0
    while (pid := _supervisor(home)) is not None:
        if pid and pid != asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            asked = pid
        if time.monotonic() > deadline:
            raise WarehouseError(
                f"the PostgreSQL in {home} does not stop", hint="look at its server.log"
            )
        await asyncio.sleep(_PAUSE_S)


def _supervisor(home: Path) -> int | None:
    """Return the pid of the living supervisor, None without one, 0 when it is just starting.

    It is the lock that tells whether it lives; the number in the file is only its address.
    """
    try:
        fd = os.open(home / "supervisor.lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(fd, fcntl.LOCK_SH):
            return None
        text = os.pread(fd, 20, 0)
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)


async def _watch(server: EmbeddedServer, folder: Path, port: int | None) -> None:
    """Start the server again when its supervisor was killed; after an orderly stop, do not."""
    binaries = Binaries(root=server.bin_dir.parent, major=server.major)
    task = Task(home=server.home, binaries=binaries, port=port)
    while True:
        await asyncio.sleep(_WATCH_EVERY_S)
        if _supervisor(server.home) is None and _read_server(server.home) is not None:
            with contextlib.suppress(WarehouseError):
                await _ensure_running(task)


def _server(home: Path, lease: int, port: int | None) -> EmbeddedServer:
    found = _read_server(home)
    if found is None:
        raise WarehouseError(f"the PostgreSQL in {home} was stopped by somebody else")
    if port and found["port"] != port:
        listens = f"listens on port {found['port']}" if found["port"] else "has no TCP port"
        raise WarehouseError(
            f"the PostgreSQL in {home} runs already and {listens}",
            hint="mdm-gitops db stop, then start it with the other port",
            code="WAREHOUSE_UNUSABLE",
        )
    return EmbeddedServer(
        home=home,
        major=found["major"],
        bin_dir=Path(found["bin"]),
        url=found["url"],
        superuser_url=found["superuser_url"],
        tcp_url=found["tcp_url"],
        lease=lease,
    )


def _read_server(home: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((home / "server.json").read_text())
    except FileNotFoundError:
        return None
    return found


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
