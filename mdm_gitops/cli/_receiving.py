"""Answers that become files: a file takes its name only when it is whole.

Until then it stands beside it as ``.part``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from mdm_gitops.client import Answer


async def copy(answer: Answer, target: IO[bytes], received: Callable[[int], None]) -> int:
    """Write the body of *answer* to *target*; return how many bytes it had."""
    size = 0
    async for chunk in answer.chunks():
        target.write(chunk)
        size += len(chunk)
        received(len(chunk))
    return size


@contextmanager
def target_file(file: Path | None) -> Iterator[IO[bytes]]:
    """Yield what is written to; a *file* is there at the end of the block, and only then."""
    if file is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if file.exists() and not file.is_file():
        with file.open("wb") as written:  # a pipe or a device, which keeps its place
            yield written
        return
    part = file.with_name(file.name + ".part")
    try:
        with part.open("wb") as written:
            yield written
            written.flush()
            os.fsync(written.fileno())
        part.replace(file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
