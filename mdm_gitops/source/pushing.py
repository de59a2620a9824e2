"""The branch of a remote as the place of commits: worked out on what was fetched a moment ago, pushed
as a fast-forward and in no other way.

Whoever pushed meanwhile wins: the push is refused by the remote, and the change is worked out again
on what is there now. Nothing is ever forced.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from mdm_gitops.errors import Conflict, SourceError
from mdm_gitops.source.commits import Files, in_git
from mdm_gitops.source.git import ask_git
from mdm_gitops.source.remote import Remote, fetch, run_remote_git

_REFUSED: Final = "failed to push"
_HEADS: Final = "refs/heads/"


@dataclass(frozen=True)
class RemoteBranch:
    """*repo* is a bare mirror of *remote* for writers alone: fetching tidies up what a killed git left
    in a mirror, and cannot tell it from what a writer is just writing."""

    remote: Remote
    repo: Path

    @property
    def subpath(self) -> str:
        return self.remote.subpath

    @property
    def lock_folder(self) -> Path:
        """Beside the mirror: in it, fetching would take the lock for one that a killed git left."""
        folder = self.repo.parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def refuse_unwritable(self) -> None:
        if self.remote.tag or self.remote.revision:
            raise in_git(
                "this server follows a tag or a commit, which do not move",
                hint="change the definitions in Git",
            )

    def tip(self) -> str:
        return fetch(self.remote, into=self.repo)

    def land(self, head: str, commit: str, before: Mapping[str, bytes], files: Files) -> bool:
        try:
            taken = self._push(commit, self._branch)
        except SourceError:
            # The answer was lost; perhaps the push was not.
            if not self._has(commit):
                raise
            taken = True
        if taken:
            return True
        if self.tip() != head:
            return False
        raise Conflict(
            f"the remote does not take a push to {self._branch}",
            hint="let this server push there, or set Mdm__Repository__WriteMode=branch",
            code="PUSH_REFUSED",
        )

    def _has(self, commit: str) -> bool:
        """Fetch, and return whether *commit* is on the branch."""
        with suppress(SourceError):
            tip = self.tip()
            found = ask_git(self.repo, "merge-base", "--is-ancestor", commit, tip)
            return found.returncode == 0
        return False

    def propose(self, commit: str, branch: str) -> None:
        if not self._push(commit, branch):
            raise Conflict(
                f"the remote does not take branch {branch}",
                hint="let this server push branches whose names begin with mdm/",
                code="PUSH_REFUSED",
            )

    def take_away(self, parent: str, commit: str, files: Files) -> bool:
        return False  # others may have it by now

    def _push(self, commit: str, branch: str) -> bool:
        """Return whether the remote took it; what is not a refusal is an error."""
        reference = f"{commit}:{_HEADS}{branch}"
        try:
            run_remote_git(
                self.remote,
                self.repo,
                *("push", "--quiet", "--no-verify", "--end-of-options", self.remote.url, reference),
            )
        except SourceError as error:
            if _REFUSED in str(error):
                return False
            raise
        return True

    @cached_property
    def _branch(self) -> str:
        """The branch that is followed; the remote says which one where the settings do not."""
        if self.remote.branch:
            return self.remote.branch
        told = run_remote_git(
            self.remote,
            self.repo,
            *("ls-remote", "--symref", "--end-of-options", self.remote.url, "HEAD"),
        )
        for line in told.splitlines():
            if line.startswith(f"ref: {_HEADS}"):
                return line.split()[1].removeprefix(_HEADS)
        raise in_git("the remote has no branch of its own", hint="set Mdm__Source__Branch")
