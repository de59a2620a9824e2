"""Writing definitions: every change through the API is a commit by its caller.

A change is a function from the files of HEAD to new files. It is worked out on the commit, checked as
a whole, and put on the branch only if the branch is still where it was read; if somebody was faster
the function is asked again. Nothing is checked out and no hook runs: the commit is made from a tree
of its own. Where it goes is a place: a work tree (``source.commit_places``), or the branch of a
remote (``source.pushing``).
"""

from __future__ import annotations

import fcntl
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from mdm_gitops.errors import Conflict, WarehouseLocked
from mdm_gitops.model import Definitions
from mdm_gitops.model.checks import DEFAULT_RESERVED_SCHEMAS
from mdm_gitops.source.git import GitTree, run_git
from mdm_gitops.source.repository import read_tree

Files = Mapping[str, bytes | None]  # new content by path, None to remove the file
Change = Callable[[Mapping[str, bytes]], Files]

_ATTEMPTS: Final = 20
_BRANCH_PREFIX: Final = "mdm/"
_NO_LETTER: Final = re.compile(r"[^a-z0-9]+")
_NO_SIGN: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_ADDRESS: Final = re.compile(r"[^@\s<>]{1,64}@[^@\s<>]{1,255}\Z")
_UNUSABLE_IN_NAME: Final = re.compile(r"[\x00-\x1f\x7f<>\n]")
COMMITTER: Final = "mdm-gitops"
_NOWHERE: Final = "mdm.invalid"  # RFC 6761: no mail ever goes there
_LOCK: Final = "mdm-write.lock"


class WriteMode(StrEnum):
    COMMIT = "commit"
    BRANCH = "branch"
    READONLY = "readonly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who makes the change; *actor* is a principal's name such as ``user:ana@example.com``."""

    actor: str

    @property
    def name(self) -> str:
        return _UNUSABLE_IN_NAME.sub("", self.actor.partition(":")[2] or self.actor) or "unknown"

    @property
    def email(self) -> str:
        if _ADDRESS.match(self.name):
            return self.name
        return f"{_NO_SIGN.sub('-', self.actor)[:64]}@{_NOWHERE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """*commit* is None when nothing had to change; *branch* is the one that was pushed, if one was."""

    commit: str | None
    branch: str | None = None
    parent: str | None = None  # what the change was worked out on


class Place(Protocol):
    """Where commits go: a repository for their objects, and a branch that others move, too."""

    @property
    def repo(self) -> Path: ...

    @property
    def subpath(self) -> str:
        """The folder of mdm.yaml in the repository."""

    @property
    def lock_folder(self) -> Path: ...

    def refuse_unwritable(self) -> None:
        """Raise Conflict (``DEFINITIONS_IN_GIT``) where nothing can be written."""

    def tip(self) -> str:
        """Return the commit at which the branch is now."""

    def land(self, head: str, commit: str, before: Mapping[str, bytes], files: Files) -> bool:
        """Put the branch from *head* on *commit*; False if it has moved meanwhile."""

    def propose(self, commit: str, branch: str) -> None:
        """Push *commit* as a new branch."""

    def take_away(self, parent: str, commit: str, files: Files) -> bool:
        """Put the branch back from *commit* on *parent*, if that can be done unseen."""


class CommitWriter:
    """Writes definitions at *place*. Any number of processes may do so at the same time."""

    def __init__(
        self,
        place: Place,
        *,
        mode: WriteMode,
        reserved_schemas: tuple[str, ...] = DEFAULT_RESERVED_SCHEMAS,
    ) -> None:
        self._place = place
        self._mode = mode
        self._reserved_schemas = reserved_schemas

    def write(self, change: Change, *, author: Author, message: str) -> Committed:
        """Commit what *change* gives for the newest files.

        Raises:
            Conflict: this folder or server is not written (``DEFINITIONS_IN_GIT``), a file is being
                edited by hand (``DEFINITIONS_EDITED``), or the remote does not take it
                (``PUSH_REFUSED``).
            DefinitionError: the definitions would not be valid any more.
            WarehouseLocked: others were faster again and again.
        """
        self._refuse_unwritable()
        with self._alone():
            for _ in range(_ATTEMPTS):
                done = self._attempt(change, author, message)
                if done is not None:
                    return done
        raise WarehouseLocked("others are changing the definitions", hint="try again in a moment")

    def preview(self, change: Change) -> Definitions:
        """Return the definitions as ``write`` would leave them; see there for errors."""
        self._refuse_unwritable()
        with self._alone():
            head = self._place.tip()
            before = self._files_at(head)
            return self._checked({**before, **change(before)}, commit=head)

    def take_back(self, done: Committed, *, author: Author, message: str) -> None:
        """Undo a commit: as if it had never been if nobody can have seen it, else by another commit.

        Raises:
            Conflict: somebody has changed the same files since (``DEFINITIONS_EDITED``).
        """
        if done.commit is None or done.parent is None or done.branch is not None:
            return
        old, new = self._files_at(done.parent), self._files_at(done.commit)
        changed = {path for path in {**old, **new} if old.get(path) != new.get(path)}
        back: Files = {path: old.get(path) for path in sorted(changed)}
        with self._alone():
            if self._place.take_away(done.parent, done.commit, back):
                return

        def change(files: Mapping[str, bytes]) -> Files:
            for path in back:
                if files.get(path) != new.get(path):
                    raise Conflict(
                        f"{path} was changed again since commit {done.commit}",
                        hint="take the commit back by hand",
                        code="DEFINITIONS_EDITED",
                    )
            return back

        self.write(change, author=author, message=message)

    def _attempt(self, change: Change, author: Author, message: str) -> Committed | None:
        head = self._place.tip()
        before = self._files_at(head)
        files = {path: data for path, data in change(before).items() if before.get(path) != data}
        if not files:
            return Committed(commit=None)
        self._checked({**before, **files}, commit=head)
        commit = self._commit(head, files, author, message)
        if self._mode is WriteMode.BRANCH:
            branch = f"{_BRANCH_PREFIX}{_slug(message)}-{commit[:8]}"
            self._place.propose(commit, branch)
            return Committed(commit=commit, branch=branch, parent=head)
        if not self._place.land(head, commit, before, files):
            return None  # somebody was faster
        return Committed(commit=commit, parent=head)

    def _refuse_unwritable(self) -> None:
        if self._mode is WriteMode.READONLY:
            raise in_git("this server does not write definitions", hint="change them in Git")
        self._place.refuse_unwritable()

    def _checked(self, after: Files, *, commit: str) -> Definitions:
        kept = {path: data for path, data in after.items() if data is not None}
        return read_tree(kept, commit=commit, reserved_schemas=self._reserved_schemas)

    def _files_at(self, commit: str) -> Mapping[str, bytes]:
        return files_of(GitTree(self._place.repo, commit, self._place.subpath))

    def _commit(self, parent: str, files: Files, author: Author, message: str) -> str:
        repo = self._place.repo
        with tempfile.TemporaryDirectory(prefix="mdm-index-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            run_git(repo, "read-tree", parent, variables=index)
            run_git(
                repo,
                *("update-index", "-z", "--index-info"),
                stdin=index_lines(repo, files, subpath=self._place.subpath),
                variables=index,
            )
            tree = run_git(repo, "write-tree", variables=index).decode().strip()
        who = {
            "GIT_AUTHOR_NAME": author.name,
            "GIT_AUTHOR_EMAIL": author.email,
            "GIT_COMMITTER_NAME": COMMITTER,
            "GIT_COMMITTER_EMAIL": f"{COMMITTER}@{_NOWHERE}",
        }
        made = run_git(
            repo, "commit-tree", tree, "-p", parent, stdin=message.encode() + b"\n", variables=who
        )
        return made.decode().strip()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with writing_alone(self._place.lock_folder):
            yield


@contextmanager
def writing_alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else writes to the repository whose own folder *folder* is."""
    with (folder / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def index_lines(repo: Path, files: Files, *, subpath: str = "") -> bytes:
    """Return what ``git update-index --index-info`` reads, after the contents are in *repo*."""
    lines = []
    for path, data in files.items():
        full = f"{subpath}/{path}" if subpath else path
        if data is None:
            lines.append(f"0 {'0' * 40}\t{full}\0")
        else:
            blob = run_git(repo, "hash-object", "-w", "--stdin", stdin=data).decode().strip()
            lines.append(f"100644 {blob}\t{full}\0")
    return "".join(lines).encode()


def files_of(tree: GitTree) -> Mapping[str, bytes]:
    return {entry.path: tree.read(entry.path) for entry in tree.entries() if not entry.problem}


def in_git(message: str, *, hint: str) -> Conflict:
    return Conflict(message, hint=hint, code="DEFINITIONS_IN_GIT")


def _slug(message: str) -> str:
    return _NO_LETTER.sub("-", message.partition("\n")[0].lower())[:40].strip("-") or "change"
