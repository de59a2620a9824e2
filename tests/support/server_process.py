"""The program ``mdm-gitops serve`` in a process of its own, and the folder it serves."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support import program

KEY = "bootstrap-key-of-the-tests"
PROGRAM = str(Path(sys.executable).with_name("mdm-gitops"))


@contextmanager
def serving(
    database_url: str, folder: Path, *options: str, afresh: bool = False, **variables: str
) -> Iterator[Process]:
    """Serve *folder* while the context is open.

    It is spared its imports (``tests.support.program``), unless it is to start *afresh*.
    """
    environment = {
        **os.environ,
        "Mdm__Database__Url": database_url,
        "Mdm__Auth__BootstrapApiKey": KEY,
        **variables,
    }
    command = ["serve", str(folder), "--port", "0", *options]
    process: subprocess.Popen[bytes] | program.Started
    with (folder / "log").open("wb") as log, (folder / "out").open("wb") as out:
        if afresh:
            process = subprocess.Popen([PROGRAM, *command], env=environment, stdout=out, stderr=log)
        else:
            process = program.start(*command, env=environment, stdout=out, stderr=log)
    server = Process(process, folder / "log")
    try:
        server.start()
        yield server
    finally:
        server.client.close()
        process.kill()
        process.wait()


class Process:
    def __init__(self, process: subprocess.Popen[bytes] | program.Started, log: Path) -> None:
        self.process = process
        self._log = log
        self.url = ""
        self.client = httpx2.Client(headers={"X-API-Key": KEY}, verify=False)

    def start(self) -> None:
        self.url = self._wait_for(r"listening on (\S+)")
        self.client.base_url = self.url
        self._wait_until_ready()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _wait_for(self, pattern: str) -> str:
        for _ in range(600):
            if found := re.search(pattern, self.log):
                return found[1]
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(self.log)

    def _wait_until_ready(self) -> None:
        for _ in range(600):
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx2.TransportError:
                assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(self.log)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.client.close()
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "entities").mkdir()
    (tmp_path / "mdm.yaml").write_text("name: t\napiVersion: mdm-gitops/v1\ndomains: [{name: d}]\n")
    (tmp_path / "entities/thing.yaml").write_text(
        "name: thing\ndomain: d\ncolumns:\n  - {name: code, dataType: string}\n"
    )
    return tmp_path


def is_listening(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    except TimeoutError:
        return True
    return True
