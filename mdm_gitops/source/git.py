"""What is read from Git: the commit of a work tree, and the files of a revision.

The ``git`` program is run with fixed arguments; a revision is only ever passed after
``--end-of-options``. Nothing is checked out, no hook, filter or transport of the repository runs,
and nothing is written here (``source.commits`` does that).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mdm_gitops.errors import InputError, NotFound
from mdm_gitops.source.limits import MAX_JSON_BYTES, MAX_TREE_BYTES, MAX_YAML_BYTES
from mdm_gitops.source.tree import (
    FOLDERS,
    LOOKALIKES,
    ROOT_FILES,
    Entry,
    is_of_interest,
    why_unusable_path,
)

DIRTY: Final = "+dirty"
_TIMEOUT_SECONDS: Final = 60
_MAX_LISTING_BYTES: Final = 8 * 1024 * 1024
_OPTIONS: Final = (
    "--no-optional-locks",
    "--no-replace-objects",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=false",
)
_REGULAR_MODES: Final = (b"100644", b"100755")
_CREDENTIAL: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def commit_of(root: Path) -> str | None:
    """Return HEAD's hash if *root* is the root of a work tree, with ``+dirty`` if files differ.

    None for a plain folder, and for a repository without a commit.
    """
    head = head_of(root)
    return head and head + (DIRTY if _differs(root) else "")


def head_of(root: Path) -> str | None:
    """Return HEAD's hash if *root* is the root of a work tree that has a commit."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    head = run_git(root, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True)
    if not head:
        run_git(root, "rev-parse", "--git-dir")  # says why, if git refuses the repository itself
        return None
    return head.decode().strip()


def _differs(root: Path) -> bool:
    """Whether a definition file is not as in HEAD; a file that git ignores is read all the same."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching")
    listed = run_git(root, "status", *options, "--", *ROOT_FILES, *FOLDERS)
    paths = (os.fsdecode(row[3:]) for row in listed.split(b"\x00") if row)
    return any(is_of_interest(path) and path.endswith((".yaml", ".json", "/")) for path in paths)


def resolve_revision(repo: Path, revision: str) -> str:
    """Return the full hash of the commit that *revision* names.

    Raises:
        NotFound: there is no such commit.
    """
    if not revision or revision.startswith("-") or "\x00" in revision:
        raise InputError(f"{revision!r} is no revision", hint="name a commit, branch or tag")
    inside = run_git(repo, "rev-parse", "--show-prefix").decode().strip()
    if inside:
        raise InputError(
            f"{repo} is not the root of its repository", hint=f"it is {inside} of a larger one"
        )
    found = run_git(
        repo,
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"),
        may_fail=True,
    )
    if not found:
        run_git(repo, "rev-parse", "--git-dir")
        raise NotFound(
            f"revision {revision!r} does not exist in {repo}", hint="see `git log --oneline`"
        )
    return found.decode().strip()


@dataclass(frozen=True)
class GitTree:
    """The files of one commit, or of its folder *subpath*, read as blobs."""

    repo: Path
    commit: str  # full hash, from resolve_revision
    subpath: str = ""

    def entries(self) -> Iterator[Entry]:
        for path, (mode, kind, _, size) in self._listing.items():
            problem = why_unusable_path(path)
            if kind != b"blob":
                problem = "is a submodule"
            elif mode not in _REGULAR_MODES:
                problem = "is a symbolic link; links are not followed"
            if is_of_interest(path):
                yield Entry(path=path, size=int(size) if kind == b"blob" else 0, problem=problem)

    def read(self, path: str) -> bytes:
        return self._blobs[path]

    @cached_property
    def _listing(self) -> Mapping[str, tuple[bytes, bytes, bytes, bytes]]:
        listed = self._listed()
        rows = (row.partition(b"\t") for row in listed.split(b"\x00") if row)
        return {
            os.fsdecode(name): (parts[0], parts[1], parts[2], parts[3])
            for head, _, name in rows
            if len(parts := head.split()) == 4
        }

    def _listed(self) -> bytes:
        """Only our own paths are asked for, and so much is read: a few objects can list for ever."""
        tree = f"{self.commit}:{self.subpath}" if self.subpath else self.commit
        if self.subpath and not run_git(
            self.repo, "rev-parse", "--verify", "--quiet", tree, may_fail=True
        ):
            raise NotFound(
                f"there is no folder {self.subpath!r} in commit {self.commit[:12]}",
                hint="Mdm__Source__SubPath is the folder of mdm.yaml",
            )
        wanted = (*ROOT_FILES, *LOOKALIKES, *FOLDERS)
        return _run_bounded(
            self.repo, "ls-tree", "-r", "-z", "-l", "--full-tree", tree, "--", *wanted
        )

    @cached_property
    def _blobs(self) -> Mapping[str, bytes]:
        """All readable blobs by one call: a process for each of 1,000 files takes seconds."""
        wanted = [
            (entry.path, self._listing[entry.path][2])
            for entry in self.entries()
            if not entry.problem and entry.size <= _max_bytes(entry.path)
        ]
        # One object may stand at any number of paths: small to send, large to read.
        if sum(int(self._listing[path][3]) for path, _ in wanted) > MAX_TREE_BYTES:
            raise InputError(
                f"the definitions of {self.commit[:12]} are larger than anybody writes"
            )
        ids = b"".join(blob + b"\n" for _, blob in wanted)
        answer = run_git(self.repo, "cat-file", "--batch", stdin=ids)
        return dict(_split_batch(answer, [path for path, _ in wanted]))


def _max_bytes(path: str) -> int:
    return MAX_JSON_BYTES if path.endswith(".json") else MAX_YAML_BYTES


def _split_batch(answer: bytes, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    offset = 0
    for path in paths:
        end = answer.index(b"\n", offset)
        size = int(answer[offset:end].split()[2])
        yield path, answer[end + 1 : end + 1 + size]
        offset = end + 1 + size + 1


def _run_bounded(root: Path, *arguments: str) -> bytes:
    """Run git in *root* and return what it printed, which must not be more than is ours to read."""
    program = shutil.which("git")
    if program is None:
        raise InputError("git is not installed", hint="install git, or read a plain folder")
    with subprocess.Popen(
        [program, *_OPTIONS, "-C", str(root), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None, "it was asked for"
        printed = process.stdout.read(_MAX_LISTING_BYTES + 1)
        if len(printed) > _MAX_LISTING_BYTES:
            process.kill()
            raise InputError("the commit lists more files than anybody writes")
        if process.wait(_TIMEOUT_SECONDS):
            raise InputError(f"git cannot list the files of {arguments[5][:12]} in {root}")
    return printed


def run_git(
    root: Path,
    *arguments: str,
    stdin: bytes = b"",
    may_fail: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Run git in *root* and return what it printed; with *may_fail* nothing where it failed.

    Raises:
        InputError: git is not there, did not answer or refused.
    """
    done = ask_git(root, *arguments, stdin=stdin, variables=variables)
    if done.returncode == 0:
        return done.stdout
    if may_fail:
        return b""
    said = without_credentials(done.stderr.decode(errors="replace").strip())
    foreign = "dubious ownership" in said
    raise InputError(
        f"git cannot read {root}: {said.splitlines()[0] if said else 'no reason given'}",
        hint=f"`git config --global --add safe.directory {root}` trusts it" if foreign else "",
    )


def ask_git(
    root: Path,
    *arguments: str,
    stdin: bytes = b"",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[bytes]:
    """Run git in *root* and return how it ended, whatever that was: some codes are answers.

    Raises:
        InputError: git is not there or did not answer.
    """
    program = shutil.which("git")
    if program is None:
        raise InputError("git is not installed", hint="install git, or read a plain folder")
    try:
        return subprocess.run(
            [program, *_OPTIONS, "-C", str(root), *arguments],
            input=stdin,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            env={**clean_environment(), **variables},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"git did not answer within {_TIMEOUT_SECONDS} s") from None


def without_credentials(text: str) -> str:
    """Return *text* with what stands before the ``@`` of an address masked."""
    return _CREDENTIAL.sub("***", text)


def clean_environment() -> dict[str, str]:
    """Ours, without the variables that point git somewhere else, and never asking a person."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    trust = {n: v for n, v in os.environ.items() if n.startswith("GIT_CONFIG_")}
    return kept | trust | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
