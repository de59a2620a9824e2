"""A tree of files, wherever it is kept: a folder, a commit, a mapping, later an archive.

A tree only lists and hands out bytes. What a path means is ``source.repository``'s business; that
nothing outside the layout is opened, and no link is followed, is this module's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

ROOT_FILES: Final = ("mdm.yaml", "permissions.yaml", "webhooks.yaml", "access-tests.yaml")
FOLDERS: Final = ("entities", "seed")
# Names that look like ours but would silently not be read.
LOOKALIKES: Final[Mapping[str, str]] = {
    name: right
    for right, names in {
        "mdm.yaml": ("mdm.yml", "project.yaml"),
        "permissions.yaml": ("permissions.yml", "permission.yaml"),
        "webhooks.yaml": ("webhooks.yml", "webhook.yaml"),
        "access-tests.yaml": ("access-tests.yml", "access-test.yaml", "access_tests.yaml"),
    }.items()
    for name in names
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a tree; *problem* says why it must not be read."""

    path: str  # relative to the root, with /
    size: int = 0
    problem: str = ""


class Tree(Protocol):
    def entries(self) -> Iterator[Entry]:
        """Yield the files that may be definitions; hidden files and folders never."""

    def read(self, path: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class MappingTree:
    """Files by path, for tests and for callers that have them in memory."""

    files: Mapping[str, bytes]

    def entries(self) -> Iterator[Entry]:
        for path, data in self.files.items():
            if is_of_interest(path):
                yield Entry(path=path, size=len(data), problem=why_unusable_path(path))

    def read(self, path: str) -> bytes:
        return self.files[path]


@dataclass(frozen=True, slots=True)
class FolderTree:
    """A folder on disk. Links are reported, never followed, also when swapped in while reading."""

    root: Path

    def entries(self) -> Iterator[Entry]:
        with os.scandir(self.root) as found:
            for item in sorted(found, key=lambda item: item.name):
                if is_of_interest(item.name) or item.name in FOLDERS:
                    yield from self._walk(item, item.name)

    def _walk(self, item: os.DirEntry[str], path: str) -> Iterator[Entry]:
        problem = _why_unreadable(item)
        if problem:
            yield Entry(path=path, problem=problem)
        elif not item.is_dir(follow_symlinks=False):
            size = item.stat(follow_symlinks=False).st_size
            yield Entry(path=path, size=size, problem=why_unusable_path(path))
        else:
            with os.scandir(item.path) as found:
                for inner in sorted(found, key=lambda inner: inner.name):
                    if not inner.name.startswith("."):
                        yield from self._walk(inner, f"{path}/{inner.name}")

    def read(self, path: str) -> bytes:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        handle = os.open(self.root / path, flags)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{path} is no regular file")
            return file.read()


def is_of_interest(path: str) -> bool:
    """Whether *path* belongs to the layout, or looks as if its author thought so."""
    top, _, rest = path.partition("/")
    if not rest:
        return path in ROOT_FILES or path in LOOKALIKES
    hidden = (part.startswith(".") and part not in (".", "..") for part in rest.split("/"))
    return top in FOLDERS and not any(hidden)


def why_unusable_path(path: str) -> str:
    """Say why a file with this path is refused; "" if it is not."""
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path:
        return "path is not a plain relative path"
    if not path.isprintable() or _half_decoded(path):
        return "path holds characters that cannot be shown"
    return ""


def _half_decoded(path: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in path)


def _why_unreadable(item: os.DirEntry[str]) -> str:
    if item.is_symlink():
        return "is a symbolic link; links are not followed"
    if not (item.is_file(follow_symlinks=False) or item.is_dir(follow_symlinks=False)):
        return "is neither a file nor a folder"
    return ""
