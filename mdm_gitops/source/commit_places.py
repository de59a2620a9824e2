"""A work tree as the place of commits: its branch by compare-and-swap, then its files.

A file there that a person is editing (it differs from HEAD) is never overwritten: the change is
refused. The branch moves first and the files follow; a journal lets the next writer bring them along
after a crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.source.commits import Files, files_of, in_git, index_lines
from mdm_gitops.source.git import GitTree, head_of, run_git

_ATTEMPTS: Final = 20
_JOURNAL: Final = "mdm-write.json"


@dataclass(frozen=True)
class WorkTree:
    """The work tree at *repo*, on the branch that is checked out there."""

    repo: Path
    subpath: str = ""

    def refuse_unwritable(self) -> None:
        if not (self.repo / ".git").exists():
            raise in_git(
                "the folder of definitions is not the root of a Git work tree",
                hint="`git init` and commit the definitions, or change the files themselves",
            )

    def tip(self) -> str:
        self._finish_interrupted()
        head = head_of(self.repo)
        if head is None:
            raise in_git("the repository has no commit yet", hint="commit the definitions first")
        return head

    def land(self, head: str, commit: str, before: Mapping[str, bytes], files: Files) -> bool:
        self._refuse_edited(before, files)
        return self._move(head, commit, before, files)

    def propose(self, commit: str, branch: str) -> None:
        run_git(self.repo, "push", "--quiet", "origin", f"{commit}:refs/heads/{branch}")

    def take_away(self, parent: str, commit: str, files: Files) -> bool:
        if head_of(self.repo) != commit:
            return False
        present = files_of(GitTree(self.repo, commit))
        with suppress(Conflict):
            return self.land(commit, parent, present, files)
        return False

    @cached_property
    def lock_folder(self) -> Path:
        """Git's own folder; of a linked work tree its part of it."""
        found = run_git(self.repo, "rev-parse", "--absolute-git-dir").decode().strip()
        return Path(found)

    # --- the branch, then the files ---

    def _move(self, head: str, commit: str, before: Mapping[str, bytes], files: Files) -> bool:
        """Put the branch on *commit*, unless it has moved; then bring the work tree along."""
        found = run_git(self.repo, "symbolic-ref", "--quiet", "HEAD", may_fail=True)
        branch = found.decode().strip()
        if not branch:
            raise in_git("no branch is checked out", hint="`git switch main`")
        self._note(commit, before, files)
        try:
            run_git(self.repo, "update-ref", branch, commit, head)
        except InputError:
            self._journal.unlink(missing_ok=True)
            if head_of(self.repo) == head:
                raise
            return False
        self._bring_along(commit, files)
        self._journal.unlink(missing_ok=True)
        return True

    def _refuse_edited(self, before: Mapping[str, bytes], files: Files) -> None:
        for path in files:
            if _content(self.repo / path) != before.get(path):
                raise Conflict(
                    f"{path} has changes that are not committed",
                    hint="commit or discard them first",
                    code="DEFINITIONS_EDITED",
                )

    def _bring_along(self, commit: str, files: Files) -> None:
        """Write the files, and what Git's index says of them."""
        for path, data in files.items():
            _replace(self.repo / path, data)
            if data is None:
                self._without_empty_folders(path)
        lines = index_lines(self.repo, files)
        for _ in range(_ATTEMPTS):
            with suppress(InputError):  # a person's git holds the index for a moment
                run_git(self.repo, "update-index", "-z", "--index-info", stdin=lines)
                run_git(self.repo, "update-index", "--refresh", "-q", may_fail=True)
                return
            time.sleep(0.05)

    def _without_empty_folders(self, path: str) -> None:
        """Git knows no folders: those that the last file left go with it."""
        for folder in PurePosixPath(path).parents[:-1]:
            try:
                (self.repo / folder).rmdir()
            except OSError:
                return

    # --- what a crash leaves ---

    @property
    def _journal(self) -> Path:
        return self.lock_folder / _JOURNAL

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
            if head_of(self.repo) == commit:
                after = files_of(GitTree(self.repo, commit))
                untouched = {
                    path: after.get(path)
                    for path, old in note["before"].items()
                    if _hash(_content(self.repo / path)) == old
                }
                self._bring_along(commit, untouched)
        self._journal.unlink(missing_ok=True)


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
