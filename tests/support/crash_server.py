"""``mdm-gitops serve`` with worker processes that may be killed, one at a time."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.acceptance.processes import PROGRAM, environment
from tests.support import program

_PATIENCE_S = 60.0
_PROJECT = "name: lab\napiVersion: mdm-gitops/v1\ndomains: [{name: lab}]\n"


class Server:
    """``with Server(folder, url) as server``: answering at ``server.url``.

    *within* is a command that becomes it, as ``ip netns exec name``.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str,
        *,
        workers: int = 2,
        within: Sequence[str] = (),
        **variables: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        if not (folder / "mdm.yaml").exists():
            (folder / "mdm.yaml").write_text(_PROJECT)
        self._log = folder.with_suffix(".log") if (folder / ".git").exists() else folder / "log"
        self._workers = workers
        self._within = within
        self._command = ["serve", str(folder), "--port", "0", "--workers", str(workers)]
        self._environment = environment(
            Mdm__Database__Url=database_url,
            Mdm__Auth__BootstrapApiKey="bootstrap-key-of-the-tests",
            Mdm__RateLimit__Enabled="false",
            **variables,
        )
        self.url = ""

    def __enter__(self) -> Self:
        self._process = self._started()
        try:
            self._wait(lambda: bool(re.search(r"listening on \S+", self.log)))
            found = re.search(r"listening on (\S+)", self.log)
            assert found is not None
            self.url = found[1]
            self._wait(self._is_ready)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _started(self) -> subprocess.Popen[bytes] | program.Started:
        with self._log.open("wb") as log, Path(os.devnull).open("wb") as nowhere:
            if not self._within:  # then it is spared its imports
                return program.start(
                    *self._command, env=self._environment, stdout=nowhere, stderr=log
                )
            command = [*self._within, PROGRAM, *self._command]
            return subprocess.Popen(command, env=self._environment, stdout=nowhere, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def workers(self) -> list[int]:
        return list(_workers_of(self._process.pid)) if self._workers > 1 else [self._process.pid]

    def kill_worker(self, chance: random.Random) -> None:
        """Kill -9 one of the workers, one that has started, when there is one."""
        found = sorted(self.workers())
        if found:
            os.kill(chance.choice(found), signal.SIGKILL)

    def _wait(self, holds: object) -> None:
        assert callable(holds)
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            assert self.is_running and time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self) -> None:
        workers = self.workers()
        self._process.kill()
        self._process.wait()
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _workers_of(supervisor: int) -> Iterator[int]:
    """Yield the workers by their command lines: the supervisor has another child that counts."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            is_worker = b"spawn_main" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == supervisor and is_worker:
            yield int(folder.name)


def peak_memory_bytes(pid: int) -> int:
    """Return the most memory that process *pid* has had resident since ``forget_peak``."""
    for line in Path("/proc", str(pid), "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no peak")


def forget_peak(pid: int) -> None:
    Path("/proc", str(pid), "clear_refs").write_text("5")


assert sys.platform.startswith("linux"), "these campaigns read /proc"
