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
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.embedded_binaries import USE_ANOTHER_SERVER, Binaries, find_binaries
from mdm_gitops.warehouse.embedded_lease import (
    living_supervisor,
    open_lock,
    stop_if_unused,
    stop_supervisor,
    take_lease,
)
from mdm_gitops.warehouse.embedded_start import Running, ensure_running, read_running
from mdm_gitops.warehouse.embedded_supervisor import Task

DEFAULT_MAJOR = 18
_WATCH_EVERY_S = 0.5


class EmbeddedServer:
    """A lease on a running server; ``running`` tells how to reach it."""

    def __init__(self, *, home: Path, running: Running, lease: int) -> None:
        self.home = home
        self.running = running
        self._lease = lease

    def __repr__(self) -> str:
        return f"EmbeddedServer(home={str(self.home)!r}, running={self.running!r})"

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def superuser_url(self) -> str:
        return self.running.superuser_url

    @property
    def bin_dir(self) -> Path:
        return self.running.bin_dir

    async def aclose(self) -> bool:
        """Give the lease back, and wait for the server to stop if this was the last one.

        Returns whether it was. Closing again does nothing.
        """
        if self._lease < 0:
            return False
        lease, self._lease = self._lease, -1
        try:
            return await stop_if_unused(self.home, lease)
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
    watch = asyncio.create_task(_watch(server))
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
    lease = await take_lease(home)
    try:
        running = await ensure_running(Task(home=home, binaries=binaries, port=port))
        _check_port(running, port, home)
        return EmbeddedServer(home=home, running=running, lease=lease)
    except BaseException:
        await stop_if_unused(home, lease)
        os.close(lease)
        raise


def home_of(folder: Path) -> Path:
    return folder.resolve() / ".mdm" / "postgres"


def running_server(folder: Path) -> Running | None:
    """Return how to reach the server of *folder* if it runs, without a lease on it."""
    home = home_of(folder)
    return read_running(home) if living_supervisor(home) else None


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
        await stop_supervisor(home)
        return True
    lease = await take_lease(home)
    try:
        return await stop_if_unused(home, lease)
    finally:
        os.close(lease)


async def _watch(server: EmbeddedServer) -> None:
    """Start the server again when its supervisor was killed; after an orderly stop, do not."""
    found = server.running
    binaries = Binaries(bin_dir=found.bin_dir, major=found.major)
    task = Task(home=server.home, binaries=binaries, port=found.port)
    must_start = False
    while True:
        await asyncio.sleep(_WATCH_EVERY_S)
        # A supervisor that stops in order takes its server.json away.
        killed = living_supervisor(server.home) is None and read_running(server.home) is not None
        if killed or must_start:
            try:
                await ensure_running(task)
                must_start = False
            except WarehouseError:
                must_start = True


def _prepare_home(folder: Path) -> Path:
    if sys.platform == "win32":
        raise WarehouseError(
            "the embedded PostgreSQL runs on Linux and macOS only", hint=USE_ANOTHER_SERVER
        )
    home = home_of(folder)
    if not folder.is_dir():
        raise WarehouseError(f"there is no folder {folder}", code="WAREHOUSE_UNUSABLE")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(open_lock(home / "lease.lock"))
        _keep_out_of_git(home.parent)
    except PermissionError as error:
        raise WarehouseError(
            f"no permission to keep a PostgreSQL in {home}",
            hint=f"work as the user who owns that folder, or {USE_ANOTHER_SERVER}",
            code="WAREHOUSE_UNUSABLE",
        ) from error
    except OSError as error:
        raise WarehouseError(
            f"{home} cannot be used: {error.strerror}",
            hint=USE_ANOTHER_SERVER,
            code="WAREHOUSE_UNUSABLE",
        ) from error
    return home


def _keep_out_of_git(state: Path) -> None:
    """Data and passwords must not end up in a commit, also where nobody thought of ignoring them."""
    with contextlib.suppress(FileExistsError), (state / ".gitignore").open("x") as file:
        file.write("*\n")


def _check_data_major(home: Path, major: int) -> None:
    try:
        found = (home / "data" / "PG_VERSION").read_text().strip()
    except OSError:
        return
    if found != str(major):
        raise WarehouseError(
            f"the data in {home} was made by PostgreSQL {found}, this is PostgreSQL {major}",
            hint=f"go on with Mdm__Database__EmbeddedMajor={found}, or dump with it (mdm-gitops db"
            " dump), move that folder away, and load the dump into the new one",
            code="WAREHOUSE_UNUSABLE",
        )


def _check_port(running: Running, port: int | None, home: Path) -> None:
    if port and running.port != port:
        listens = f"listens on port {running.port}" if running.port else "has no TCP port"
        raise WarehouseError(
            f"the PostgreSQL in {home} runs already and {listens}",
            hint="mdm-gitops db stop, then start it with the other port",
            code="WAREHOUSE_UNUSABLE",
        )
