"""Writing definitions: every change through the API is a commit by its caller.

A change is a function from the files of HEAD to new files. It is worked out on the commit, checked as
a whole, and put on the branch only if the branch is still where it was read; if somebody was faster
the function is asked again. Nothing is checked out and no hook runs: the commit is made from a tree
of its own. Afterwards the same files are brought into the work tree. A file there that a person is
editing (it differs from HEAD) is never overwritten: the change is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mdm_gitops.errors import Conflict, InputError, WarehouseLocked
from mdm_gitops.model.checks import DEFAULT_RESERVED_SCHEMAS
from mdm_gitops.source.git import GitTree, head_of, run_git
from mdm_gitops.source.repository import read_tree

Files = Mapping[str, bytes | None]  # new content by path, None to remove the file
Change = Callable[[Mapping[str, bytes]], Files]

_ATTEMPTS: Final = 20
_BRANCH_PREFIX: Final = "mdm/"
_NO_SIGN: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_ADDRESS: Final = re.compile(r"[^@\s<>]{1,64}@[^@\s<>]{1,255}\Z")
_UNUSABLE_IN_NAME: Final = re.compile(r"[\x00-\x1f\x7f<>\n]")
COMMITTER: Final = "mdm-gitops"
_NOWHERE: Final = "mdm.invalid"  # RFC 6761: no mail ever goes there
_JOURNAL: Final = "mdm-write.json"
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


class CommitWriter:
    """Writes to the repository at *root*. Any number of processes may do so at the same time."""

    def __init__(
        self,
        root: Path,
        *,
        mode: WriteMode | None = None,
        reserved_schemas: tuple[str, ...] = DEFAULT_RESERVED_SCHEMAS,
    ) -> None:
        self._root = root
        self._mode = mode or WriteMode.COMMIT
        self._reserved_schemas = reserved_schemas

    def write(self, change: Change, *, author: Author, message: str) -> Committed:
        """Commit what *change* gives for the files of HEAD.

        Raises:
            Conflict: this folder or server is not written (``DEFINITIONS_IN_GIT``), or a file is
                being edited by hand (``DEFINITIONS_EDITED``).
            DefinitionError: the definitions would not be valid any more.
            WarehouseLocked: others were faster again and again.
        """
        self._refuse_unwritable()
        with self._alone():
            self._finish_interrupted()
            for _ in range(_ATTEMPTS):
                done = self._attempt(change, author, message)
                if done is not None:
                    return done
        raise WarehouseLocked("others are changing the definitions", hint="try again in a moment")

    def _attempt(self, change: Change, author: Author, message: str) -> Committed | None:
        head = head_of(self._root)
        if head is None:
            raise _in_git("the repository has no commit yet", hint="commit the definitions first")
        before = _files_of(GitTree(self._root, head))
        files = {path: data for path, data in change(before).items() if before.get(path) != data}
        if not files:
            return Committed(commit=None)
        self._check(before, files)
        commit = self._commit(head, files, author, message)
        if self._mode is WriteMode.BRANCH:
            return Committed(commit=commit, branch=self._push(commit))
        self._refuse_edited(before, files)
        return self._advance(head, commit, before, files)

    def _check(self, before: Mapping[str, bytes], files: Files) -> None:
        after = {**before, **files}
        kept = {path: data for path, data in after.items() if data is not None}
        read_tree(kept, reserved_schemas=self._reserved_schemas)

    # --- Git ---

    def _commit(self, parent: str, files: Files, author: Author, message: str) -> str:
        with tempfile.TemporaryDirectory(prefix="mdm-index-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            self._git("read-tree", parent, variables=index)
            self._git(
                *("update-index", "-z", "--index-info"),
                stdin=self._index_lines(files),
                variables=index,
            )
            tree = self._git("write-tree", variables=index).decode().strip()
        who = {
            "GIT_AUTHOR_NAME": author.name,
            "GIT_AUTHOR_EMAIL": author.email,
            "GIT_COMMITTER_NAME": COMMITTER,
            "GIT_COMMITTER_EMAIL": f"{COMMITTER}@{_NOWHERE}",
        }
        made = self._git(
            "commit-tree", tree, "-p", parent, stdin=message.encode() + b"\n", variables=who
        )
        return made.decode().strip()

    def _index_lines(self, files: Files) -> bytes:
        lines = []
        for path, data in files.items():
            if data is None:
                lines.append(f"0 {'0' * 40}\t{path}\0")
            else:
                blob = self._git("hash-object", "-w", "--stdin", stdin=data).decode().strip()
                lines.append(f"100644 {blob}\t{path}\0")
        return "".join(lines).encode()

    def _advance(
        self, head: str, commit: str, before: Mapping[str, bytes], files: Files
    ) -> Committed | None:
        """Put the branch on *commit*, unless it has moved; then bring the work tree along."""
        branch = self._git("symbolic-ref", "--quiet", "HEAD", may_fail=True).decode().strip()
        if not branch:
            raise _in_git("no branch is checked out", hint="`git switch main`")
        self._note(commit, before, files)
        try:
            self._git("update-ref", branch, commit, head)
        except InputError:
            self._journal.unlink(missing_ok=True)
            if head_of(self._root) == head:
                raise
            return None  # somebody was faster
        self._bring_along(commit, files)
        self._journal.unlink(missing_ok=True)
        return Committed(commit=commit)

    def _push(self, commit: str) -> str:
        branch = f"{_BRANCH_PREFIX}{commit[:12]}"
        self._git("push", "--quiet", "origin", f"{commit}:refs/heads/{branch}")
        return branch

    def _git(
        self,
        *arguments: str,
        stdin: bytes = b"",
        may_fail: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        return run_git(self._root, *arguments, stdin=stdin, may_fail=may_fail, variables=variables)

    # --- the work tree ---

    def _refuse_unwritable(self) -> None:
        if self._mode is WriteMode.READONLY:
            raise _in_git("this server does not write definitions", hint="change them in Git")
        if not (self._root / ".git").exists():
            raise _in_git(
                "the folder of definitions is not the root of a Git work tree",
                hint="`git init` and commit the definitions, or change the files themselves",
            )

    def _refuse_edited(self, before: Mapping[str, bytes], files: Files) -> None:
        for path in files:
            if _content(self._root / path) != before.get(path):
                raise Conflict(
                    f"{path} has changes that are not committed",
                    hint="commit or discard them first",
                    code="DEFINITIONS_EDITED",
                )

    def _bring_along(self, commit: str, files: Files) -> None:
        """Write the files, and what Git's index says of them."""
        for path, data in files.items():
            _replace(self._root / path, data)
        lines = self._index_lines(files)
        for _ in range(_ATTEMPTS):
            with suppress(InputError):  # a person's git holds the index for a moment
                self._git("update-index", "-z", "--index-info", stdin=lines)
                self._git("update-index", "--refresh", "-q", may_fail=True)
                return
            time.sleep(0.05)

    # --- one at a time, and what a crash leaves ---

    @property
    def _folder(self) -> Path:
        """Git's own folder; of a linked work tree its part of it."""
        found = self._git("rev-parse", "--absolute-git-dir").decode().strip()
        return Path(found)

    @property
    def _journal(self) -> Path:
        return self._folder / _JOURNAL

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / _LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _note(self, commit: str, before: Mapping[str, bytes], files: Files) -> None:
        """Write down what the work tree will need, before the branch moves."""
        note = {
            "commit": commit,
            "before": {path: _hash(before.get(path)) for path in files},
        }
        _replace(self._journal, json.dumps(note).encode())

    def _finish_interrupted(self) -> None:
        """Bring the work tree along for a commit after which its writer was killed."""
        text = _content(self._journal)
        if text is None:
            return
        with suppress(ValueError, KeyError, InputError):
            note = json.loads(text)
            commit = str(note["commit"])
            if head_of(self._root) == commit:
                after = _files_of(GitTree(self._root, commit))
                untouched = {
                    path: after.get(path)
                    for path, old in note["before"].items()
                    if _hash(_content(self._root / path)) == old
                }
                self._bring_along(commit, untouched)
        self._journal.unlink(missing_ok=True)


def _files_of(tree: GitTree) -> Mapping[str, bytes]:
    return {entry.path: tree.read(entry.path) for entry in tree.entries() if not entry.problem}


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _hash(data: bytes | None) -> str:
    return hashlib.sha256(data).hexdigest() if data is not None else ""


def _replace(path: Path, data: bytes | None) -> None:
    """Write *data* so that a reader sees the old file or the new one, nothing between."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".mdm-")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
    Path(name).chmod(0o644)
    Path(name).replace(path)


def _in_git(message: str, *, hint: str) -> Conflict:
    return Conflict(message, hint=hint, code="DEFINITIONS_IN_GIT")
