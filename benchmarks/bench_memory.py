"""What the processes hold: the API when idle, the operator between two looks (Linux)."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import corpus
from bench_deploy import apply
from figures import Figure, resident_mb
from warehouse import PROGRAM, Server, environment, opened

from mdm_gitops.source import read_folder

KEY = "a bootstrap key, 30 characters"
_PATIENCE_S = 60.0
_SETTLING_S = 5.0
_HOLDING = """
import sys
from pathlib import Path
from mdm_gitops.source import read_folder
held = read_folder(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


async def measure(server: Server, folder: Path) -> list[Figure]:
    root = corpus.write(folder / "held", 1_000)
    url = await server.fresh_database()
    async with opened(url) as conn:
        await apply(conn, read_folder(root))
    return [
        Figure(
            case="memory of a process that holds 1,000 entities",
            value=_holding_mb(root),
            unit="MB",
            note="the definitions and what reads them",
        ),
        _api(url, folder, "API worker, idle, 1,000 entities", []),
        _api(url, folder, "the same beside its folder", [str(root)]),
        Figure(
            case="operator, idle, 1,000 entities",
            value=_operator_mb(url, root, folder),
            unit="MB",
            limit=120.0,
        ),
    ]


def _holding_mb(root: Path) -> float:
    command = [sys.executable, "-c", _HOLDING, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident_mb(process.pid)


def _api(url: str, folder: Path, case: str, options: list[str]) -> Figure:
    command = [PROGRAM, "serve", *options, "--port", "0"]
    with _running(command, url, folder) as (process, log):
        address = _wait_for(r"listening on (\S+)", log, process)
        before = _get(address, "/readyz") and resident_mb(process.pid)
        for _ in range(3):
            _get(address, "/api/v1/entities")
            _get(address, "/api/v1/entities/entity_7/data")
        return Figure(
            case=case,
            value=resident_mb(process.pid),
            unit="MB",
            limit=100.0,
            note=f"after all entities were listed; before {before:.0f} MB",
        )


def _operator_mb(url: str, root: Path, folder: Path) -> float:
    with _running([PROGRAM, "operator", str(root)], url, folder) as (process, _):
        time.sleep(_SETTLING_S)
        assert process.poll() is None
        return resident_mb(process.pid)


@contextlib.contextmanager
def _running(
    command: list[str], url: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = folder / "log"
    variables = {"Mdm__Database__Url": url, "Mdm__Auth__BootstrapApiKey": KEY}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE_S)


def _wait_for(pattern: str, log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise TimeoutError(log.read_text())


def _get(address: str, path: str) -> bytes:
    """Return the answer; the server listens before it is ready, so it is asked until it answers."""
    request = urllib.request.Request(address + path, headers={"X-API-Key": KEY})
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        body: bytes = answer.read()
        return body
