"""``mdm-gitops`` run as often as tests want: ``run`` is ``subprocess.run``, and ``start`` is
``subprocess.Popen``, for a fork of a process that has imported the product already.

Each command has a process of its own, with its arguments, folder, environment and pipes; what it is
spared is half a second of imports. That a command imports all that it needs is shown by the tests
that start the program itself: those of the command line's framework and of acceptance.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("mdm_gitops", "mdm_api", "mdm_operator")
# What commands import when they need it.
_LATER = ("re2", "rich.console", "rich.table", "sqlglot.generators.postgres", "sqlglot.transforms")
_PATIENCE_S = 60.0
_FITS_INTO_A_PIPE = 32_768


def run(
    *arguments: str | Path,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    code: int | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; *code* is how it has to end."""
    command = {"arguments": list(map(str, arguments)), "env": dict(env), "cwd": str(cwd or _ROOT)}
    done = _started().run(command, stdin.encode())
    if code is not None:
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    return done


def start(
    *arguments: str | Path, env: Mapping[str, str], stdout: IO[Any], stderr: IO[Any]
) -> Started:
    """Start a command that runs until it is told to end, or is killed."""
    command = {"arguments": list(map(str, arguments)), "env": dict(env), "cwd": str(Path.cwd())}
    return _started().start(command, stdout, stderr)


class Started:
    """A command under way, as ``subprocess.Popen`` would show it."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float = _PATIENCE_S) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        # Until its end was seen here, nobody else can have its number.
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The process that is forked. It ends when nobody holds the other end of its socket."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._socket, other = socket.socketpair()
        self._socket.settimeout(_PATIENCE_S)
        self._alone = threading.Lock()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.program", str(other.fileno())],
                cwd=_ROOT,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def run(self, command: dict[str, Any], stdin: bytes) -> subprocess.CompletedProcess[str]:
        with self._alone:
            return self._run(command, stdin)

    def _run(self, command: dict[str, Any], stdin: bytes) -> subprocess.CompletedProcess[str]:
        out, err = _Reader(), _Reader()

        def begin() -> None:
            out.begin()
            err.begin()

        with _holding(stdin) as typed:
            fds = [typed.fileno(), out.given, err.given]
            code = int(self._asked(b"!", command, fds, sent=begin))
        arguments = ["mdm-gitops", *command["arguments"]]
        return subprocess.CompletedProcess(arguments, code, out.text(), err.text())

    def start(self, command: dict[str, Any], stdout: IO[Any], stderr: IO[Any]) -> Started:
        with self._alone, _holding(b"") as typed:
            fds = [typed.fileno(), stdout.fileno(), stderr.fileno()]
            return Started(self, int(self._asked(b"&", command, fds)))

    def ended(self, pid: int) -> int | None:
        """Return how a started command has ended, or nothing while it runs."""
        with self._alone:
            code = self._asked(b"?", {"pid": pid})
            return int(code) if code else None

    def _asked(
        self,
        what: bytes,
        message: dict[str, Any],
        fds: Sequence[int] = (),
        *,
        sent: Callable[[], None] = lambda: None,
    ) -> str:
        socket.send_fds(self._socket, [what], fds)
        sent()
        data = json.dumps(message).encode()
        self._socket.sendall(len(data).to_bytes(4, "big") + data)
        answer = self._socket.recv(64)
        assert answer, "the program that is forked is gone"
        return answer.decode().strip()

    def close(self) -> None:
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait()


@contextmanager
def _holding(stdin: bytes) -> Iterator[IO[bytes]]:
    """Open what a command shall read: a pipe where something was typed, else nothing at all."""
    if not stdin:
        with Path(os.devnull).open("rb") as nothing:
            yield nothing
        return
    assert len(stdin) <= _FITS_INTO_A_PIPE, "nobody reads it yet"
    mine, given = os.pipe()
    with os.fdopen(mine, "rb") as typed:
        with os.fdopen(given, "wb") as writer:
            writer.write(stdin)
        yield typed


class _Reader:
    """A pipe that is read beside what goes on, to its end."""

    def __init__(self) -> None:
        self._mine, self.given = os.pipe()
        self._found = b""
        self._thread = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        os.close(self.given)
        self._thread.start()

    def text(self) -> str:
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "somebody keeps the pipe of a command that has ended"
        return io.TextIOWrapper(io.BytesIO(self._found), encoding="utf-8").read()

    def _read(self) -> None:
        with os.fdopen(self._mine, "rb") as file:
            self._found = file.read()


_server: _Server | None = None


def _started() -> _Server:
    global _server
    if _server is None or _server.owner != os.getpid():
        _server = _Server()
        atexit.register(_server.close)
    return _server


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))
    for name in _PACKAGES:
        package = import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    for later in _LATER:
        import_module(later)
    gc.collect()
    gc.freeze()
    while True:
        what, fds, *_ = socket.recv_fds(listening, 1, 3)
        if not what:
            return
        command = json.loads(_received(listening, int.from_bytes(_received(listening, 4), "big")))
        if what == b"?":
            listening.sendall(_how_it_ended(command["pid"], os.WNOHANG))
            continue
        child = os.fork()
        if child == 0:
            listening.close()
            _become(command, fds)
            return
        for fd in fds:
            os.close(fd)
        listening.sendall(_how_it_ended(child) if what == b"!" else str(child).encode())


def _how_it_ended(child: int, options: int = 0) -> bytes:
    """Return the exit code as a text, a blank one while *child* runs."""
    found, status = os.waitpid(child, options)
    return str(os.waitstatus_to_exitcode(status)).encode() if found else b" "


def _received(listening: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = listening.recv(size - len(found))
        assert more, "the tests are gone"
        found += more
    return found


def _become(command: dict[str, Any], fds: list[int]) -> None:
    """Be the program from here on, as a new interpreter would be that was given all this."""
    from mdm_gitops.cli import main as program

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    sys.argv = ["mdm-gitops", *command["arguments"]]
    try:
        program(prog_name="mdm-gitops")
    except SystemExit as end:
        _end(int(end.code or 0))
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        _end(1)


def _end(code: int) -> NoReturn:
    """Do what an interpreter does at its end, but for taking everything apart piece by piece."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
