"""The locks of an embedded server: who uses it, and whether its supervisor lives.

Each lock is an ``flock``, which the kernel lets go however its holder ends. That is why a number in
a file is only ever an address here, and never a proof of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

from mdm_gitops.errors import WarehouseError

PAUSE_S = 0.02
_STOP_TIMEOUT_S = 90.0
SHARED, ALONE = fcntl.LOCK_SH, fcntl.LOCK_EX


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def take_lease(home: Path) -> int:
    """Return the descriptor of a shared lock; waits while a supervisor is just stopping."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        lease = open_lock(home / "lease.lock")
        if try_lock(lease, SHARED) and _is_at(lease, home / "lease.lock"):
            return lease
        os.close(lease)
        await asyncio.sleep(PAUSE_S)
    raise _does_not_stop(home)


async def stop_if_unused(home: Path, lease: int) -> bool:
    """Turn our shared lock into the only one, if it is; then stop the server under it."""
    if not try_lock(lease, ALONE) or (home / "keep").exists():
        return False
    await stop_supervisor(home)
    return True


async def stop_supervisor(home: Path) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    asked = 0
    while (pid := living_supervisor(home)) is not None:
        if pid and pid != asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            asked = pid
        if time.monotonic() > deadline:
            raise _does_not_stop(home)
        await asyncio.sleep(PAUSE_S)


def living_supervisor(home: Path) -> int | None:
    """Return the pid of the living supervisor, None without one, 0 when it is just starting."""
    try:
        fd = os.open(home / "supervisor.lock", os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if try_lock(fd, SHARED):
            return None
        text = os.pread(fd, 20, 0)
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _does_not_stop(home: Path) -> WarehouseError:
    return WarehouseError(
        f"the PostgreSQL in {home} does not stop", hint=f"see {home / 'server.log'}"
    )
