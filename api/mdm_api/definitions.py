"""Where the desired definitions come from: a folder on disk, or nowhere (commits of a remote or of a
revision: ``mdm_api.origins``).

They are looked at when somebody asks, in a thread, and read again only when a file or the commit has
changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol, TypeVar

import anyio.to_thread

from mdm_gitops.access.catalog import NOTHING_DESIRED, DesiredView
from mdm_gitops.errors import Conflict, DefinitionError, Finding, InputError, Location
from mdm_gitops.model import Definitions
from mdm_gitops.source import folder_tree, read_tree_leniently
from mdm_gitops.source.commit_places import WorkTree
from mdm_gitops.source.commits import (
    Author,
    Change,
    Committed,
    CommitWriter,
    Place,
    WriteMode,
    files_of,
)
from mdm_gitops.source.git import GitTree, commit_of, head_of, run_git
from mdm_gitops.source.tree import FOLDERS, LOOKALIKES, ROOT_FILES

T = TypeVar("T")
# What moves when a commit is made, checked out or amended.
_GIT_FILES: Final = (".git/HEAD", ".git/logs/HEAD", ".git/index")


class DefinitionsProvider(Protocol):
    async def current(self) -> DesiredView:
        """Return what the definitions say now; broken ones are told as findings, never raised."""

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        """Commit *change*; see ``source.commits.CommitWriter.write`` for errors."""

    async def preview(self, change: Change) -> Definitions:
        """Return the definitions as ``write`` would leave them."""

    async def take_back(self, done: Committed, *, author: Author, message: str) -> None:
        """Undo a commit; see ``source.commits.CommitWriter.take_back`` for errors."""

    async def files(self) -> SourceFiles:
        """Return the files as they are committed; of a plain folder as they are."""


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """*commit* is None for a plain folder, and *committed_at* with it."""

    files: Mapping[str, bytes]
    commit: str | None = None
    committed_at: datetime | None = None


class NoDefinitions:
    """A server that was given none: it serves what is deployed."""

    async def current(self) -> DesiredView:
        return NOTHING_DESIRED

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        raise _none_given()

    async def preview(self, change: Change) -> Definitions:
        raise _none_given()

    async def take_back(self, done: Committed, *, author: Author, message: str) -> None:
        raise _none_given()

    async def files(self) -> SourceFiles:
        raise _none_given()


def _none_given() -> Conflict:
    return Conflict(
        "this server was started without definitions",
        hint="start it with their folder: mdm-gitops serve DIR",
        code="DEFINITIONS_IN_GIT",
    )


class Written:
    """What all that can be written have in common: changes are commits."""

    def __init__(self, place: Place, *, mode: WriteMode, reserved_schemas: Sequence[str]) -> None:
        self._reserved_schemas = tuple(reserved_schemas)
        self._commits = CommitWriter(place, mode=mode, reserved_schemas=self._reserved_schemas)

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        # Made to its end: a caller who goes away does not leave half of a commit.
        return await asyncio.shield(
            in_thread(lambda: self._commits.write(change, author=author, message=message))
        )

    async def preview(self, change: Change) -> Definitions:
        return await in_thread(lambda: self._commits.preview(change))

    async def take_back(self, done: Committed, *, author: Author, message: str) -> None:
        await asyncio.shield(
            in_thread(lambda: self._commits.take_back(done, author=author, message=message))
        )


class FolderDefinitions(Written):
    """The definitions of the folder *root*."""

    def __init__(
        self, root: Path, *, reserved_schemas: Sequence[str], write_mode: WriteMode | None = None
    ) -> None:
        mode = write_mode or WriteMode.COMMIT
        super().__init__(WorkTree(root), mode=mode, reserved_schemas=reserved_schemas)
        self._root = root
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

    async def files(self) -> SourceFiles:
        return await in_thread(self._files)

    def _files(self) -> SourceFiles:
        commit = head_of(self._root)
        if commit is None:
            tree = folder_tree(self._root)
            sound = [entry.path for entry in tree.entries() if not entry.problem]
            return SourceFiles(files={path: tree.read(path) for path in sound})
        return committed_files(GitTree(self._root, commit))

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
            finding = unreadable("the folder of definitions cannot be read")
            return DesiredView.broken((finding,))


def unreadable(message: str) -> Finding:
    return Finding(rule="not-readable", message=message, location=Location("mdm.yaml"))


def committed_files(tree: GitTree) -> SourceFiles:
    said = run_git(tree.repo, "show", "--no-patch", "--format=%ct", tree.commit)
    moment = datetime.fromtimestamp(int(said), UTC)
    return SourceFiles(files=files_of(tree), commit=tree.commit, committed_at=moment)


async def in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)


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
