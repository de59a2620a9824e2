"""Servers of the standard library, each in a thread of the test that asks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer


@contextmanager
def served_beside(server: BaseServer) -> Iterator[None]:
    """Serve until the block ends; that is seen at once, not in half a second as by default."""
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
