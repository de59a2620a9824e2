"""The command line as processes, in a folder with an embedded server of its own, leaving nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import program

PROGRAM = str(Path(sys.executable).with_name("mdm-gitops"))
KEY = "bootstrap-key-of-the-tests"
PATIENCE_S = 60.0


def environment(**more: str) -> dict[str, str]:
    """Return the caller's environment without settings of the caller's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("Mdm__")}
    return kept | {"NO_COLOR": "1", "COLUMNS": "100", **more}


def mdm(
    *arguments: str | Path, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end and check how it ended."""
    return program.run(*arguments, env=environment(**variables), code=code)


class Up:
    """A running ``mdm-gitops up``; *log* is what it has said so far.

    It is spared its imports (``tests.support.program``), unless it is to start *afresh*.
    """

    process: subprocess.Popen[bytes] | program.Started

    def __init__(self, folder: Path, *options: str, afresh: bool = False, **variables: str) -> None:
        self.folder = folder
        self._log = folder.parent / "up.log"
        self._out = folder.parent / "up.out"
        with self._log.open("w") as log, self._out.open("w") as out:
            command = ["up", str(folder), "--port", "0", "--json", *options]
            env = environment(Mdm__Auth__BootstrapApiKey=KEY, **variables)
            if afresh:
                self.process = subprocess.Popen(
                    [PROGRAM, *command], env=env, stdout=out, stderr=log, stdin=subprocess.DEVNULL
                )
            else:
                self.process = program.start(*command, env=env, stdout=out, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        address: str = json.loads(self._out.read_text())["url"]
        return address

    def wait_until_ready(self) -> Up:
        until(lambda: self._out.read_text().endswith("}\n"), lambda: self.log, self.process)
        assert self.get("/readyz")[0] == 200
        return self

    def wait_for(self, words: str) -> None:
        until(lambda: words in self.log, lambda: self.log, self.process)

    def get(self, path: str) -> tuple[int, Any]:
        request = urllib.request.Request(self.url + path, headers={"X-API-Key": KEY})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        return self.process.wait(PATIENCE_S)


def until(
    holds: Callable[[], bool],
    said: Callable[[], str] = lambda: "",
    process: subprocess.Popen[Any] | program.Started | None = None,
) -> None:
    """Wait until it *holds*; fail at once when the *process* that should see to it has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"it took too long\n{said()}"
        assert process is None or process.poll() is None, said()
        time.sleep(0.05)


def servers_of(folder: Path) -> list[int]:
    """Return the processes of the embedded server of *folder*, found by their command lines."""
    home = str(folder.resolve() / ".mdm" / "postgres")
    # The socket's folder is named after a hash of the path when it is not inside of it.
    names = (home, hashlib.sha256(home.encode()).hexdigest()[:16])
    done = subprocess.run(("ps", "-ewwo", "pid=,args="), capture_output=True, text=True, check=True)
    lines = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    return [
        int(pid)
        for pid, args in lines
        if ("bin/postgres" in args or "embedded_supervisor" in args)
        and any(name in args for name in names)
    ]


def kill_servers_of(folder: Path) -> None:
    """Leave nothing behind whatever the test did."""
    for pid in servers_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
