"""A PostgreSQL server of a test's own, that may be killed: all of its processes at once, any time.

Nothing of the product starts or watches it. Its data lives in memory where there is room: a killed
process takes nothing with it that it had given to the operating system, so durability against kills
is the same there as on a disk.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from mdm_gitops.warehouse.embedded_binaries import find_binaries, readable_copy

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2_000_000_000
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "64MB",
    "max_connections": "80",
    "max_locks_per_transaction": "256",
    "logging_collector": "off",
    "log_min_messages": "warning",
}


class Cluster:
    """``with Cluster(major=18) as cluster``: initialised and running; gone afterwards."""

    def __init__(
        self,
        *,
        major: int,
        folder: Path | None = None,
        init: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self._init, self._environment = init, environment
        self._host = settings.get("listen_addresses", "")
        self._identity = _identity()
        found = find_binaries(major=major)
        if self._identity:
            user = self._identity["user"], self._identity["group"]
            found = readable_copy(found, user=user)
        self._binaries = found
        self._settings = _SETTINGS | settings
        in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
        # The folder's name has to be short: a socket lives in it.
        place = folder or (_MEMORY if in_memory else None)
        self._home = Path(tempfile.mkdtemp(prefix="mdm-kill-", dir=place))
        self._postmaster: subprocess.Popen[bytes] | None = None

    @classmethod
    def reached_at(cls, host: str, *, major: int) -> Self:
        """Return one that is reached over the network, too, at an address of this machine, by everybody there."""
        with socket.socket() as free:
            free.bind((host, 0))
            port = str(free.getsockname()[1])
        return cls(major=major, listen_addresses=host, port=port)

    def __enter__(self) -> Self:
        if "user" in self._identity:
            os.chown(self._home, self._identity["user"], self._identity["group"])
        self._run("initdb", "-D", self._data, "-U", "mdm", "-A", "trust", "-E", "UTF8", "--no-sync",
                  "--locale=C", "--data-checksums", *self._init)  # fmt: skip
        if self._host:
            with Path(self._data, "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self._host}/24 trust\n")
        self.start()
        with psycopg.connect(self._url("postgres"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE lab")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def url(self) -> str:
        return self._url("lab")

    @property
    def network_url(self) -> str:
        return f"postgresql://mdm@{self._host}:{self._settings['port']}/lab"

    def start(self) -> None:
        """Start the server and wait until it takes connections, crash recovery included."""
        assert self._postmaster is None
        options = [part for item in self._settings.items() for part in ("-c", "=".join(item))]
        command = [str(self._binaries.program("postgres")), "-D", self._data, "-k", str(self._home)]
        with (self._home / "log").open("ab") as log:
            self._postmaster = subprocess.Popen(
                [*command, *options], stdout=log, stderr=log, start_new_session=True,
                env=self._environment, **self._identity,
            )  # fmt: skip
        self._wait_until_ready()

    def kill(self) -> None:
        """Kill -9 every process of the server: none gets to say or write anything any more."""
        if self._postmaster is None:
            return
        # Stopped first, so that no new child appears between looking and killing.
        with contextlib.suppress(ProcessLookupError):
            self._postmaster.send_signal(signal.SIGSTOP)
        children = list(_children(self._postmaster.pid))
        for pid in (*children, self._postmaster.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._postmaster.wait()
        self._postmaster = None
        while any(_is_alive(pid) for pid in children):  # they hold the shared memory
            time.sleep(0.002)

    def start_if_ended(self) -> bool:
        """Start the server if it has ended by itself, as a supervisor would; return whether it had."""
        if self._postmaster is None or self._postmaster.poll() is None:
            return False
        self._postmaster = None
        self.start()
        return True

    @property
    def log(self) -> str:
        return (self._home / "log").read_text(errors="replace")

    @property
    def _data(self) -> str:
        return str(self._home / "data")

    def _url(self, database: str) -> str:
        port = self._settings.get("port", "5432")
        return f"postgresql://mdm@/{database}?host={self._home}&port={port}"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries.program(program)), *arguments],
            capture_output=True, text=True, check=False, **self._identity,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self._url("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self._postmaster is not None
                assert self._postmaster.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.01)


def _identity() -> dict[str, Any]:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}
    raise AssertionError("neither postgres nor nobody is a user here")


def _children(parent: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields and fields[1] == str(parent):
            yield int(folder.name)


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """Return what /proc says of a process from its state on; nothing of one that is gone."""
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
