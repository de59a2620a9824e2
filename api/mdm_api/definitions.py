"""Where the desired definitions come from: a folder on disk, or nowhere.

The folder is looked at when somebody asks, in a thread, and read again only when a file of it or
the commit it is at has changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import anyio.to_thread

from mdm_gitops.access.catalog import NOTHING_DESIRED, DesiredView
from mdm_gitops.errors import Conflict, DefinitionError, Finding, InputError, Location
from mdm_gitops.source import folder_tree, read_tree_leniently
from mdm_gitops.source.commits import Author, Change, Committed, CommitWriter, WriteMode
from mdm_gitops.source.git import commit_of
from mdm_gitops.source.tree import FOLDERS, LOOKALIKES, ROOT_FILES

# What moves when a commit is made, checked out or amended.
_GIT_FILES: Final = (".git/HEAD", ".git/logs/HEAD", ".git/index")


class DefinitionsProvider(Protocol):
    async def current(self) -> DesiredView:
        """Return what the definitions say now; broken ones are told as findings, never raised."""

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        """Commit *change*; see ``source.commits.CommitWriter.write`` for errors."""


class NoDefinitions:
    """A server that was given none: it serves what is deployed."""

    async def current(self) -> DesiredView:
        return NOTHING_DESIRED

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        raise Conflict(
            "this server was started without definitions",
            hint="start it with their folder: mdm-gitops serve DIR",
            code="DEFINITIONS_IN_GIT",
        )


class FolderDefinitions:
    """The definitions of the folder *root*."""

    def __init__(
        self, root: Path, *, reserved_schemas: Sequence[str], write_mode: WriteMode | None = None
    ) -> None:
        self._root = root
        self._commits = CommitWriter(
            root, mode=write_mode, reserved_schemas=tuple(reserved_schemas)
        )
        self._reserved_schemas = tuple(reserved_schemas)
        self._seen: object = None
        self._view = NOTHING_DESIRED
        self._lock = asyncio.Lock()

    async def current(self) -> DesiredView:
        async with self._lock:
            seen = await anyio.to_thread.run_sync(self._look)
            if seen != self._seen:
                # Looked at before it is read: a change in between shows next time.
                self._view = await anyio.to_thread.run_sync(self._read)
                self._seen = seen
            return self._view

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        def commit() -> Committed:
            return self._commits.write(change, author=author, message=message)

        # Made to its end: a caller who goes away does not leave half of a commit.
        return await asyncio.shield(anyio.to_thread.run_sync(commit))

    def _look(self) -> object:
        return tuple(sorted(_stamps(self._root)))

    def _read(self) -> DesiredView:
        try:
            tree = folder_tree(self._root)
            definitions, findings = read_tree_leniently(
                tree, commit=commit_of(tree.root), reserved_schemas=self._reserved_schemas
            )
            return DesiredView.of(definitions, findings)
        except DefinitionError as error:
            return DesiredView.broken(error.findings)
        except (InputError, OSError):
            finding = Finding(
                rule="not-readable",
                message="the folder of definitions cannot be read",
                location=Location("mdm.yaml"),
            )
            return DesiredView.broken((finding,))


def _stamps(root: Path) -> Iterator[tuple[str, int, int, int]]:
    for name in (*ROOT_FILES, *LOOKALIKES, *_GIT_FILES):
        yield from _stamp(root / name)
    for top in FOLDERS:
        for folder, _, names in os.walk(root / top):
            for name in names:
                yield from _stamp(Path(folder, name))


def _stamp(path: Path) -> Iterator[tuple[str, int, int, int]]:
    try:
        found = path.lstat()
    except OSError:
        return
    yield str(path), found.st_mtime_ns, found.st_size, found.st_ino
