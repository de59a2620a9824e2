"""Applies definitions in processes that may be killed: ``Applier`` in the test, ``main`` beside it.

One process imports the product, reads the definitions and prints their statements once (``warm``);
each run is a fork of it, so a hundred kills cost little more than what the database does for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from mdm_gitops.errors import MdmError
from mdm_gitops.warehouse import fault
from mdm_gitops.warehouse.apply import Patience, apply_plan
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support import scenario

# The server notices within a second that a killed applier is gone, and frees its lock.
PATIENCE = Patience(batch_rows=2, lock_retries=1, writer_lock_s=10)
CRASHED = 70  # the exit code of a run that ended with a traceback
_ROOT = Path(__file__).parents[2]


class Applier:
    """Runs ``apply`` of a scenario's definitions, each time in a process of its own."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.applier"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=_ROOT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def warm(self, url: str, wanted: str) -> None:
        """Apply *wanted* in the process that is forked: what it keeps, all later runs have."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([url, wanted, None]) + "\n")
        self._process.stdin.flush()
        assert int(self._line()) == 0

    def start(self, url: str, wanted: str, *, fault_at: str = "") -> int:
        """Begin to apply *wanted* (``a``, ``b``, ``c``); return the id of the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([url, wanted, fault_at]) + "\n")
        self._process.stdin.flush()
        return int(self._line())

    def wait(self) -> int:
        """Return the exit code of the run that was started: -9 for one that was killed."""
        return int(self._line())

    def run(self, url: str, wanted: str, *, fault_at: str = "") -> int:
        self.start(url, wanted, fault_at=fault_at)
        return self.wait()

    def killed_after(self, url: str, wanted: str, seconds: float) -> int:
        process_id = self.start(url, wanted)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
        return self.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the applier is gone"
        return line


def main() -> None:
    known = {"a": scenario.a(), "b": scenario.b(), "c": scenario.c()}
    for line in sys.stdin:
        url, wanted, fault_at = json.loads(line)
        if fault_at is None:
            print(asyncio.run(_applied(url, known[wanted])), flush=True)
            gc.collect()
            gc.freeze()  # else a collection in a fork copies all that there is
            continue
        child = os.fork()
        if child == 0:
            _apply(url, known[wanted], fault_at)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _apply(url: str, wanted: Any, fault_at: str) -> NoReturn:
    os.close(1)
    if fault_at:
        os.environ[fault.VARIABLE] = fault_at
    code = CRASHED
    try:
        code = asyncio.run(_applied(url, wanted))
    finally:
        if code == CRASHED:
            traceback.print_exc()
        os._exit(code)


async def _applied(url: str, wanted: Any) -> int:
    try:
        async with await connect(url, application_name="applier") as conn:
            await apply_plan(
                conn,
                wanted,
                None,
                schemas=Schemas(),
                actor="user:test",
                approved=True,
                patience=PATIENCE,
            )
    except MdmError as error:
        print(f"{error.kind_code}: {error}", file=sys.stderr, flush=True)
        return error.kind.exit_code
    return 0


if __name__ == "__main__":
    main()
