"""A clock that a test can set while programs run: a small library, loaded before theirs, shifts what they
are told by as many seconds as a file says that all of them have in memory. Needs a C compiler.

The monotonic clock is left alone, as it is by whoever sets the clock of a machine.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift;

static long long shifted(void) {
    if (!shift) {
        const char *path = getenv("SHIFTED_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        static long long none;
        void *found = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        shift = found == MAP_FAILED ? &none : found;
    }
    return *shift;
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    int failed = syscall(SYS_clock_gettime, clock, told);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) told->tv_sec += shifted();
    return failed;
}

int gettimeofday(struct timeval *told, void *zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed && told) { told->tv_sec = now.tv_sec; told->tv_usec = now.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
"""


def why_not() -> str:
    """Return why there can be none here, "" where there can."""
    return "" if shutil.which("cc") else "no C compiler"


def build(folder: Path) -> Path:
    """Return the library, built in *folder*, which everybody can read."""
    source, library = folder / "shifted_clock.c", folder / "shifted_clock.so"
    source.write_text(_SOURCE)
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class ShiftedClock:
    """What programs started with ``variables`` take for the time is ``set`` for all of them at once."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(8))
        file.chmod(0o644)
        self.variables = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(file)}
        handle = os.open(file, os.O_RDWR)
        self._shift = mmap.mmap(handle, 8)
        os.close(handle)

    def set(self, seconds: int) -> None:
        self._shift[:] = struct.pack("q", seconds)
