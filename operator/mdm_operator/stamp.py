"""Whether a folder of definitions may have changed, without reading a single file of it.

Two equal stamps mean: same commit, and the same files by name, size, time and inode. A file that is
changed twice within one tick of the clock can escape; so the operator reads all files again from
time to time, whatever the stamp says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from mdm_gitops.source.git import head_of
from mdm_gitops.source.tree import FOLDERS, LOOKALIKES, ROOT_FILES


def take_stamp(root: Path) -> str:
    """Return a stamp of the definitions in *root*; take it before reading them."""
    digest = hashlib.sha256(repr(head_of(root)).encode())
    for name in (*ROOT_FILES, *LOOKALIKES):
        digest.update(repr(_look(root / name)).encode())
    for name in FOLDERS:
        for line in _walk(root / name):
            digest.update(repr(line).encode())
    return digest.hexdigest()


def definition_folders(root: Path) -> Iterator[Path]:
    """Yield *root* and each folder below it that may hold definitions."""
    yield root
    for name in FOLDERS:
        for folder, inner, _ in os.walk(root / name):
            inner[:] = [each for each in inner if not each.startswith(".")]
            yield Path(folder)


def _walk(folder: Path) -> Iterator[tuple[object, ...]]:
    try:
        found = sorted(os.scandir(folder), key=lambda item: item.name)
    except OSError as error:
        yield (str(folder), error.errno)
        return
    for item in found:
        if item.name.startswith("."):
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _walk(Path(item.path))
        else:
            yield (item.path, _seen(item.stat(follow_symlinks=False)))


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        return _seen(path.lstat())
    except OSError:
        return None


def _seen(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
