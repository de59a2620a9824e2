"""A real server process for one benchmark: everything on but the rate limit."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warehouse import PROGRAM, environment

KEY: Final = "bootstrap-key-of-the-benchmark"
_PATIENCE_S: Final = 60.0


@contextlib.contextmanager
def serving(url: str, *, workers: int = 1) -> Iterator[tuple[str, int]]:
    """Yield the address, ``http://host:port``, and the number of the process that was started.

    ``KEY`` is the key of a Global Admin. The server has no folder of definitions.
    """
    variables = {
        "Mdm__Database__Url": url,
        "Mdm__Auth__BootstrapApiKey": KEY,
        "Mdm__RateLimit__Enabled": "false",
    }
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [PROGRAM, "serve", "--port", "0", "--workers", str(workers)],
                cwd=name,
                env=environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
        try:
            yield _address(log, process), process.pid
        finally:
            process.terminate()
            process.wait(timeout=_PATIENCE_S)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"listening on (\S+)", log.read_text()):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{found[1]}/readyz", timeout=5).close()
                return found[1]
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")
