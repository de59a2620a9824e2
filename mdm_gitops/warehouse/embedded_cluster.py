"""One PostgreSQL data directory and the postmaster on it, seen from the process that owns both.

Everything that needs the rights of the caller happens here: PostgreSQL refuses to run as root, so
root hands it to an unprivileged user, and names each path such that this user can open it. Nobody
but ``embedded_supervisor`` uses this module. No pid file is trusted: a postmaster is ours when it
is our child, or when it answers at our private socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import locale
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.embedded_binaries import USE_ANOTHER_SERVER, Binaries

SUPERUSER = "postgres"
LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_FAST, _IMMEDIATE = signal.SIGINT, signal.SIGQUIT  # what these mean to a postmaster

# Written into postgresql.conf once, for the user to change.
_TUNABLE = {
    "shared_buffers": "128MB",
    "max_connections": "100",
    # A commit is deployed in one transaction, which locks each table and index that it makes: with
    # approval and history about 14 for an entity, so that these are enough for 4,000 new ones.
    "max_locks_per_transaction": "512",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
}
# Given on the command line at each start, so that no file can switch durability off.
_FIXED = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "client_connection_check_interval": "1s",
    "unix_socket_permissions": "0700",
    "logging_collector": "off",
    "log_destination": "stderr",
}


@dataclass(slots=True)
class Reach:
    """Names paths in a way the server's user can open them.

    A folder below, say, the 0700 home of root is closed to an unprivileged user by its parents
    alone. Instead of opening the parents up, such a path is handed over as an open file
    descriptor: ``/proc/self/fd/N`` leads straight to it. The descriptors have to be passed on to
    the child and stay open there.
    """

    user: tuple[int, int] | None
    fds: list[int] = field(default_factory=list)

    def path(self, path: Path) -> str:
        if self.user is None or can_reach(path, self.user):
            return str(path)
        if not LINUX:
            raise WarehouseError(
                f"the user that PostgreSQL runs as cannot reach {path}",
                hint=f"do not run as root, or {USE_ANOTHER_SERVER}",
                code="WAREHOUSE_UNUSABLE",
            )
        self.fds.append(os.open(path, os.O_RDONLY))
        return f"/proc/self/fd/{self.fds[-1]}"

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


def can_reach(path: Path, user: tuple[int, int]) -> bool:
    """Tell whether *user* (uid, gid) can read *path*, by trying it as that user."""
    mode = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user[1])
            os.setuid(user[0])
            os._exit(0 if os.access(path, mode) else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def server_user(home: Path) -> tuple[int, int] | None:
    """Return the (uid, gid) for PostgreSQL to run as, None where it is the caller's own.

    As root this is who owns the data already, else who owns the definitions (a folder of a user,
    worked on with sudo), else ``postgres`` or ``nobody``.
    """
    if os.geteuid() != 0:
        return None
    data = home / "data"
    if data.exists():
        owner = data.stat()
        return owner.st_uid, owner.st_gid
    names = [pwd.getpwuid(uid).pw_name for uid in _known_owner(home.parent.parent)]
    for name in [*names, "postgres", "nobody"]:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise WarehouseError(
        "PostgreSQL cannot run as root, and there is neither a user postgres nor nobody",
        hint=f"run as an ordinary user, or {USE_ANOTHER_SERVER}",
        code="WAREHOUSE_UNUSABLE",
    )


def _known_owner(folder: Path) -> Iterator[int]:
    uid = folder.stat().st_uid
    with contextlib.suppress(KeyError):
        if uid != 0 and pwd.getpwuid(uid):
            yield uid


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A data directory in *home*, run by *user* with *binaries*, logging to *log*."""

    home: Path
    binaries: Binaries
    user: tuple[int, int] | None
    log: Path

    @property
    def data(self) -> Path:
        return self.home / "data"

    def private_folder(self, path: Path) -> Path:
        """Make *path* a folder that only the server's user (and root) can look into."""
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if found.st_uid not in {os.geteuid(), self.user[0] if self.user else -1}:
            raise WarehouseError(
                f"{path} belongs to somebody else (uid {found.st_uid})", code="WAREHOUSE_UNUSABLE"
            )
        if self.user:
            os.chown(path, *self.user)
        path.chmod(0o700)
        return path

    def initialise(self, password: str) -> None:
        """Create the data directory; it appears under its name only when it is complete."""
        fresh, pwfile = self.home / "data.new", self.home / "initdb.password"
        shutil.rmtree(fresh, ignore_errors=True)
        self.private_folder(fresh)
        reach = Reach(self.user)
        try:
            write_private(pwfile, password, owner=self.user)
            done = subprocess.run(
                self._initdb(reach.path(fresh), reach.path(pwfile)),
                check=False, capture_output=True, text=True, pass_fds=reach.fds, **self._identity(),
            )  # fmt: skip
        finally:
            reach.close()
            pwfile.unlink(missing_ok=True)
        if done.returncode:
            raise _initdb_failed(done.stderr)
        fresh.rename(self.data)

    def _initdb(self, data: str, pwfile: str) -> list[str]:
        # Code point order everywhere: what sorts here sorts the same on any machine.
        libc = "C.UTF-8" if _libc_has("C.UTF-8") else "C"
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        return [
            str(self.binaries.program("initdb")), "-D", data, "-U", SUPERUSER,
            "--auth=scram-sha-256", f"--pwfile={pwfile}", "--data-checksums", "--encoding=UTF8",
            *(builtin if self.binaries.major >= 17 else []), f"--locale={libc}", "--lc-messages=C",
            "--no-instructions",
            *(part for item in _TUNABLE.items() for part in ("--set", "=".join(item))),
        ]  # fmt: skip

    def _identity(self) -> dict[str, Any]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
        who: dict[str, Any] = {"env": kept, "cwd": "/"}
        if self.user:
            who |= {"user": self.user[0], "group": self.user[1], "extra_groups": []}
        return who

    def start(self, *, socket_dir: Path, port: int, tcp: bool, stale_pid: int | None) -> Postmaster:
        """Start the postmaster as a child that does not outlive this process (on Linux).

        *stale_pid* is what postmaster.pid holds when that process is known to be none of ours.
        PostgreSQL then ignores the number, and still looks whether anybody is attached to the
        shared memory, which deleting the file would have made impossible.
        """
        reach = Reach(self.user)
        settings = _FIXED | {
            "unix_socket_directories": str(socket_dir),
            "listen_addresses": "127.0.0.1" if tcp else "",
            "port": str(port),
        }
        argv = [str(self.binaries.program("postgres")), "-D", reach.path(self.data)]
        argv += [part for item in settings.items() for part in ("-c", "=".join(item))]
        identity = self._identity()
        if stale_pid:
            identity["env"]["PG_GRANDPARENT_PID"] = str(stale_pid)
        with self.log.open("ab") as log:
            log_start = log.tell()
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=reach.fds,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - this process has one thread
                start_new_session=True, **identity,
            )  # fmt: skip
        reach.close()
        return Postmaster(process=process, cluster=self, log_start=log_start)


@dataclass(slots=True, kw_only=True)
class Postmaster:
    process: subprocess.Popen[bytes]
    cluster: Cluster
    log_start: int

    def is_ready(self) -> bool:
        """Tell whether it takes connections, as its own status line says."""
        lines = _pid_file(self.cluster.data)
        return len(lines) >= 8 and lines[0] == str(self.process.pid) and lines[7] == "ready"

    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        with self.cluster.log.open("rb") as log:
            log.seek(self.log_start)
            return log.read(100_000).decode(errors="replace")

    def stop(self) -> None:
        """Shut down with a checkpoint; harder only when that takes too long."""
        for sign, patience_s in ((_FAST, 60.0), (_IMMEDIATE, 10.0), (signal.SIGKILL, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=patience_s)
                return


def stale_pid(data: Path) -> int | None:
    """Return the pid in postmaster.pid if that process lives and is not the one that wrote it.

    After a reboot, and in each new container, small numbers come up again; and where nobody reaps
    processes, a dead postmaster keeps its number.
    """
    lines = _pid_file(data)
    if not lines or not lines[0].isdigit() or _works_in(int(lines[0]), data):
        return None
    return int(lines[0])


def _works_in(pid: int, data: Path) -> bool:
    """Tell whether process *pid* can be the postmaster of *data*."""
    if LINUX:
        try:
            return Path("/proc", str(pid), "cwd").samefile(data)
        except OSError:  # it is gone, or a zombie, or somebody else's
            return False
    ps = subprocess.run(
        ["ps", "-o", "stat=,comm=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return "postgres" in ps.stdout and not ps.stdout.startswith("Z")


def stop_orphans(socket_dir: Path) -> None:
    """Stop the postmaster that a killed supervisor left behind at our private socket, if any.

    The kernel tells who listens there; no file is asked.
    """
    deadline = time.monotonic() + 60
    for path in socket_dir.glob(".s.PGSQL.*[0-9]"):
        while (pid := _listener(path)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _FAST)
            if time.monotonic() > deadline:
                raise WarehouseError(
                    f"process {pid}, a PostgreSQL on this data directory, does not stop",
                    code="WAREHOUSE_UNUSABLE",
                )
            time.sleep(0.05)


def _listener(socket_path: Path) -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(5)
            probe.connect(str(socket_path))
        except OSError:
            return None
        if LINUX:
            raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", raw)[0])
        sol_local, local_peerpid = 0, 2  # <sys/un.h> of macOS
        return probe.getsockopt(sol_local, local_peerpid)


def write_private(path: Path, text: str, *, owner: tuple[int, int] | None = None) -> None:
    """Write *text* to *path* in one step, readable by its owner alone."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        if owner:
            os.fchown(fd, *owner)
        file.write(text)
        file.flush()
        os.fsync(fd)
    partial.rename(path)


def _pid_file(data: Path) -> list[str]:
    try:
        return [line.strip() for line in (data / "postmaster.pid").read_text().splitlines()]
    except OSError:
        return []


def _libc_has(name: str) -> bool:
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return True


def _die_with_parent() -> Callable[[], None] | None:
    """Return what the child runs after it changed its user, which would undo it, and before exec."""
    if not LINUX:
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, _FAST)
        if os.getppid() != parent:  # it died before we were told
            os._exit(1)

    return arrange


def _initdb_failed(stderr: str) -> WarehouseError:
    last = [line for line in stderr.splitlines() if "error:" in line] or stderr.splitlines()[-1:]
    reason = last[0].removeprefix("initdb: error: ") if last else "no reason given"
    unknown_user = "could not look up effective user" in reason
    hint = (
        f"give this user an entry in /etc/passwd, or {USE_ANOTHER_SERVER}" if unknown_user else ""
    )
    return WarehouseError(
        f"the data directory could not be created: {reason}", hint=hint, code="WAREHOUSE_UNUSABLE"
    )
