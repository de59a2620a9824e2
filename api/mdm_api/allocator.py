"""What the C library's allocator is told: to give large blocks back. Only glibc understands it.

It starts with giving blocks of 128 kB and more back as soon as they are free, and raises that bound
to each larger block it has seen. So one answer that tells of a thousand entities leaves a worker
with memory that it does not need again.
"""

from __future__ import annotations

import ctypes
from typing import Final

# malloc.h; a bound that is set stays what it is
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# What requests usually ask for stays below, and is not mapped each time.
_LARGE: Final = 1024 * 1024


def give_large_blocks_back() -> None:
    """Do it for this process, where its C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    for bound in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        mallopt(bound, _LARGE)
