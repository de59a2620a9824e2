"""A worker process ends when the process that started it does, however that ended.

The parent holds one end of a pipe that nobody ever writes to (``multiprocessing`` keeps one per process that it
spawns). When the parent is gone, even by ``kill -9``, the kernel closes that end, and the other one wakes us:
no polling, no process id that could be somebody else's by now, and the same on every system.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import Final

_SHUTDOWN_S: Final = 30.0  # more than the server takes for the requests under way
_LOG: Final = logging.getLogger("mdm_api.parent")


def end_with_parent() -> None:
    """Ask this process to stop when its parent has; a process that was not spawned has none to watch."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_watch, args=(parent.sentinel,), name="parent-watch", daemon=True
        ).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    _LOG.warning("the parent process is gone, this worker ends")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SHUTDOWN_S)
    os._exit(1)  # it did not end by itself
