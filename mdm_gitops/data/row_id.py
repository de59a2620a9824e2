"""Identifiers of new rows: UUIDs of version 7 (RFC 9562), so that new rows stand side by side in the index."""

from __future__ import annotations

import os
import time
from uuid import UUID


def new_row_id() -> UUID:
    """Return 48 bits of Unix milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)
