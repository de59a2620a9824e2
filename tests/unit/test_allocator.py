"""Large blocks go back as soon as they are free; where nobody knows how, nothing happens."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from mdm_api import allocator

# After a block of 4 MB was given back, glibc by itself would keep one of 3 MB among the small ones.
_LATER_BLOCK = """
import ctypes, sys
from mdm_api.allocator import give_large_blocks_back

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

if sys.argv[1] == "told":
    give_large_blocks_back()
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(4 << 20))
before = libc.mallinfo2().hblks
libc.malloc(3 << 20)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc")
@pytest.mark.parametrize(("told", "mapped"), [("told", "1"), ("not told", "0")])
def test_a_large_block_is_one_of_its_own_whatever_came_before(told: str, mapped: str) -> None:
    command = [sys.executable, "-c", _LATER_BLOCK, told]
    assert subprocess.check_output(command, text=True).strip() == mapped


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Library:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            raise AttributeError(name)

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: Library())
    allocator.give_large_blocks_back()
    assert asked == ["mallopt"]
