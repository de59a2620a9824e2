"""The detached process that keeps one embedded PostgreSQL, for as long as somebody needs it.

    client ── shared lock on lease.lock ──┐
    client ── shared lock on lease.lock ──┤   supervisor ── parent of ──> postmaster
                                          └── wants that lock alone: gets it when nobody is left

A lock is let go by the kernel however its holder ends, so a client that is killed counts as gone.
The supervisor starts the postmaster, starts it again after a crash, and stops it when the last
lease is gone, unless the file ``keep`` asks it to stay. Files in ``<definitions>/.mdm/postgres``:

    data/             the PostgreSQL data directory
    run/              its socket (elsewhere when the path is too long for one)
    lease.lock        held shared by each client
    start.lock        held alone by the client that is just starting a supervisor
    supervisor.lock   held alone by the living supervisor; its pid is inside
    credentials.json  the passwords (0600)
    server.json       how to connect, while it runs (0600)
    keep              stay without clients, until ``db stop``
    server.log        what initdb and PostgreSQL said

Only the standard library, to start fast. It reports once, as one line of JSON on its stdout.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mdm_gitops.errors import MdmError, WarehouseError
from mdm_gitops.warehouse.embedded_binaries import Binaries, readable_copy
from mdm_gitops.warehouse.embedded_cluster import (
    SUPERUSER,
    Cluster,
    Postmaster,
    can_reach,
    server_user,
    stale_pid,
    stop_orphans,
    write_private,
)

APP_ROLE = APP_DATABASE = "mdm"
SOCKET_PORT = 5432  # names the socket; nothing listens there over TCP
START_TIMEOUT_S = 180.0  # crash recovery of a big log takes its time
_POLL_S = 0.2
_RETRY_S = 30.0
_LONGEST_SOCKET_PATH = 100  # bytes; the system's limit is 103 to 107
_LOG_LIMIT_BYTES = 5_000_000
_CRASHES_ALLOWED = 5  # within a minute
_HELD_BY_DYING_SERVER = ("pre-existing shared memory block", 'lock file "postmaster.pid"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the client asks for. *port* None means no TCP, 0 any free port."""

    home: Path
    binaries: Binaries
    port: int | None

    @classmethod
    def from_json(cls, text: str) -> Task:
        raw = json.loads(text)
        binaries = Binaries(bin_dir=Path(raw["bin_dir"]), major=raw["major"])
        return cls(home=Path(raw["home"]), binaries=binaries, port=raw["port"])

    def to_json(self) -> str:
        binaries = self.binaries
        return json.dumps(
            {
                "home": str(self.home),
                "bin_dir": str(binaries.bin_dir),
                "major": binaries.major,
                "port": self.port,
            }
        )


def main() -> None:
    task = Task.from_json(sys.argv[1])
    report = os.dup(1)
    if os.fork():
        os._exit(0)  # the client is not our parent: nobody has to wait for us
    os.setsid()
    os.chdir("/")
    supervisor = None
    try:
        _detach_output(task.home / "server.log")
        supervisor = Supervisor(task)
        supervisor.start()
        _report(report, {"ready": True})
        supervisor.run()
    except MdmError as error:
        _report(report, {"error": str(error), "hint": error.hint, "code": error.kind_code})
    except OSError as error:
        _report(report, {"error": str(error), "hint": "", "code": "WAREHOUSE_UNUSABLE"})
    finally:
        if supervisor:
            supervisor.stop()


def _report(fd: int, answer: dict[str, Any]) -> None:
    """Tell the client; once it has been told, or is gone, this does nothing."""
    line = json.dumps(answer) + "\n"
    with contextlib.suppress(OSError):
        os.write(fd, line.encode())
    with contextlib.suppress(OSError):
        os.close(fd)
    sys.stderr.write(line)  # into server.log
    sys.stderr.flush()


class Supervisor:
    def __init__(self, task: Task) -> None:
        self.home = task.home
        self.tcp = task.port is not None
        self.port = _free_port() if task.port == 0 else task.port or SOCKET_PORT
        self._lock = lock_alone(self.home / "supervisor.lock")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self._lease = os.open(self.home / "lease.lock", os.O_RDWR)
        self._wake = _wake_on_signals()
        user = server_user(self.home)
        binaries = readable_copy(task.binaries, user=user) if user else task.binaries
        self.cluster = Cluster(
            home=self.home, binaries=binaries, user=user, log=self.home / "server.log"
        )
        self.postmaster: Postmaster | None = None
        self.socket_dir = self._socket_dir()

    def start(self) -> None:
        """Bring PostgreSQL up and tell in server.json how to reach it."""
        (self.home / "server.json").unlink(missing_ok=True)  # of a supervisor that was killed
        if self.cluster.user:
            self.home.chmod(0o711)  # its user passes through, and reads nothing
        credentials = self._credentials()
        if not self.cluster.data.exists():
            self.cluster.initialise(credentials["superuser"])
        stop_orphans(self.socket_dir)
        self.postmaster = self._start_postmaster()
        self._publish(credentials)

    def run(self) -> None:
        """Keep PostgreSQL up until nobody needs it."""
        crashes: list[float] = []
        while not self._asked_to_stop() and not self._unused():
            if self.postmaster is None or self.postmaster.has_exited():
                now = time.monotonic()
                crashes = [at for at in crashes if at > now - 60] + [now]
                if len(crashes) > _CRASHES_ALLOWED:
                    break
                self.postmaster = self._start_postmaster()

    def stop(self) -> None:
        (self.home / "server.json").unlink(missing_ok=True)
        if self.postmaster:
            self.postmaster.stop()
        if self.socket_dir != self.home / "run":
            with contextlib.suppress(OSError):
                self.socket_dir.rmdir()

    def _asked_to_stop(self) -> bool:
        """Wait a moment; true when a signal came, or when our folder is not there any more."""
        if select.select([self._wake], [], [], _POLL_S)[0]:
            return True
        try:
            there = (self.home / "lease.lock").stat()
            return not os.path.samestat(os.fstat(self._lease), there)
        except FileNotFoundError:
            return True

    def _unused(self) -> bool:
        """Tell whether no client is left. The lock stays ours then: who comes now has to wait."""
        try:
            fcntl.flock(self._lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if (self.home / "keep").exists():
            fcntl.flock(self._lease, fcntl.LOCK_UN)
            return False
        return True

    def _start_postmaster(self) -> Postmaster:
        retry_until = time.monotonic() + _RETRY_S
        while True:
            postmaster = self.cluster.start(
                socket_dir=self.socket_dir,
                port=self.port,
                tcp=self.tcp,
                stale_pid=stale_pid(self.cluster.data),
            )
            if _wait_until_ready(postmaster):
                return postmaster
            output = postmaster.output()
            dying = any(words in output for words in _HELD_BY_DYING_SERVER)
            if not dying or time.monotonic() > retry_until:
                raise _start_failed(output, self.port)
            time.sleep(0.1)

    def _publish(self, credentials: dict[str, str]) -> None:
        place = f"host={quote(str(self.socket_dir), safe='')}&port={self.port}"
        secret = f"{APP_ROLE}:{credentials['application']}"
        server = {
            "url": f"postgresql://{secret}@/{APP_DATABASE}?{place}",
            "superuser_url": f"postgresql://{SUPERUSER}:{credentials['superuser']}@/postgres?{place}",
            "tcp_url": f"postgresql://{secret}@127.0.0.1:{self.port}/{APP_DATABASE}"
            if self.tcp
            else None,
            "application_password": credentials["application"],
            "major": self.cluster.binaries.major,
            "bin_dir": str(self.cluster.binaries.bin_dir),
            "port": self.port if self.tcp else None,
        }
        write_private(self.home / "server.json", json.dumps(server))

    def _credentials(self) -> dict[str, str]:
        path = self.home / "credentials.json"
        if not path.exists():
            if self.cluster.data.exists():
                raise WarehouseError(
                    f"{path} is gone, and with it the passwords of the data beside it",
                    hint="restore the file from a backup",
                    code="WAREHOUSE_UNUSABLE",
                )
            made = {who: secrets.token_urlsafe(24) for who in ("superuser", "application")}
            write_private(path, json.dumps(made))
        found: dict[str, str] = json.loads(path.read_text())
        return found

    def _socket_dir(self) -> Path:
        """Return the folder of the socket: ours, or a private one with a shorter path."""
        near, user = self.home / "run", self.cluster.user
        if len(os.fsencode(near / ".s.PGSQL.65535")) <= _LONGEST_SOCKET_PATH and (
            user is None or can_reach(self.home.parent, user)
        ):
            return self.cluster.private_folder(near)
        name = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return self.cluster.private_folder(_runtime_dir(for_other_user=user is not None) / name)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def lock_alone(path: Path) -> int:
    """Open and lock *path*, for this process alone, as long as the descriptor is open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise WarehouseError(f"{path} is held by another process") from None
    return fd


def _runtime_dir(*, for_other_user: bool) -> Path:
    """Return a folder with a short path, in which nobody else can put anything."""
    candidates = [Path("/run"), Path(tempfile.gettempdir()), Path("/tmp")]
    if not for_other_user and os.environ.get("XDG_RUNTIME_DIR"):
        candidates.insert(0, Path(os.environ["XDG_RUNTIME_DIR"]))
    for base in candidates:
        folder = base / f"mdm-gitops-{os.geteuid()}"
        if len(os.fsencode(folder)) > 50:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o711, exist_ok=True)
            found = folder.lstat()
            if found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                return folder
    raise WarehouseError(
        "there is no folder for the socket of PostgreSQL",
        hint="give the definitions a shorter path",
        code="WAREHOUSE_UNUSABLE",
    )


def _wait_until_ready(postmaster: Postmaster) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if postmaster.has_exited():
            return False
        if postmaster.is_ready():
            return True
        time.sleep(0.01)
    postmaster.stop()
    return False


def _start_failed(output: str, port: int) -> WarehouseError:
    if "Address already in use" in output or "could not bind IPv4" in output:
        return WarehouseError(
            f"port {port} is taken by another program", hint="choose another one with --port"
        )
    fatal = [
        line.partition("FATAL:")[2].strip() for line in output.splitlines() if "FATAL:" in line
    ]
    reason = fatal[-1] if fatal else "no reason given"
    return WarehouseError(
        f"the embedded PostgreSQL did not start: {reason}",
        hint="see .mdm/postgres/server.log",
        code="WAREHOUSE_UNUSABLE",
    )


def _wake_on_signals() -> int:
    """Return a descriptor that becomes readable when we are asked to end."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return ours


def _detach_output(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(nothing)
    os.close(fd)


if __name__ == "__main__":
    main()
