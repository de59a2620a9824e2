"""Taking a commit back: the opposite of what it changed, as a new commit on the branch.

What ``git revert`` does, worked out beside the work tree: the three-way merge runs on trees, its
result is checked as definitions, and only a commit that may stand is brought in, by a fast-forward
that Git itself refuses where it would overwrite anything. So a conflict, a broken definition or a
branch that moved leave branch, index and files as they were. No hook runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model.checks import DEFAULT_RESERVED_SCHEMAS
from mdm_gitops.source.commits import Author, writing_alone
from mdm_gitops.source.git import DIRTY, ask_git, commit_of, head_of, resolve_revision, run_git
from mdm_gitops.source.repository import read_revision

_IDENTITY: Final = (
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
)
_MOST_NAMED: Final = 10
_ONLY_FORWARD: Final = ("--ff-only", "--no-stat", "--no-verify-signatures")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert:
    """*commit* takes *reverted* back; no branch knows it yet. None: there is nothing to take back."""

    reverted: str
    subject: str
    head: str
    commit: str | None


def prepare_revert(
    root: Path,
    revision: str,
    *,
    actor: str,
    message: str = "",
    mainline: int | None = None,
    reserved_schemas: tuple[str, ...] = DEFAULT_RESERVED_SCHEMAS,
) -> Revert:
    """Make the commit that takes *revision* back, without bringing it in.

    Its author is who Git says commits here, or *actor* where Git does not know. *mainline* is the
    number of the parent to go back to, for a merge.

    Raises:
        Conflict: the work tree has changes (``DEFINITIONS_EDITED``), later commits changed the same
            lines (``REVERT_CONFLICT``), or the folder is no repository (``DEFINITIONS_IN_GIT``).
        DefinitionError: the definitions would not be valid afterwards.
        InputError: *revision* is the first commit, or a merge without *mainline*.
        NotFound: there is no such commit.
    """
    head = _clean_head(root)
    reverted = resolve_revision(root, revision)
    parent = _parent(root, reverted, mainline)
    tree = _merged(root, head=head, reverted=reverted, parent=parent)
    subject = _one_line(root, "show", "--no-patch", "--format=%s", reverted)
    if tree == _one_line(root, "rev-parse", f"{head}^{{tree}}"):
        return Revert(reverted=reverted, subject=subject, head=head, commit=None)
    text = message or f'Revert "{subject}"\n\nThis reverts commit {reverted}.'
    commit = _commit(root, tree, head, text, actor)
    read_revision(root, commit, reserved_schemas=reserved_schemas)
    return Revert(reverted=reverted, subject=subject, head=head, commit=commit)


def bring_in(root: Path, revert: Revert) -> None:
    """Put the branch that is checked out, and the files, on the commit of *revert*.

    Raises:
        Conflict: the branch or the files moved since; nothing was changed.
    """
    if revert.commit is None:
        return
    with writing_alone(Path(_one_line(root, "rev-parse", "--absolute-git-dir"))):
        merged = ask_git(root, "merge", "--quiet", *_ONLY_FORWARD, revert.commit)
    if merged.returncode == 0 and head_of(root) == revert.commit:
        return
    raise Conflict(
        "the branch or the files changed while the revert was made",
        hint="nothing was reverted; look at `git status` and try again",
        code="DEFINITIONS_EDITED",
    )


def _clean_head(root: Path) -> str:
    head = commit_of(root)
    if head is None:
        raise Conflict(
            f"{root} is not the root of a Git work tree with a commit",
            hint="a revert is a commit: `git init` and commit the definitions first",
            code="DEFINITIONS_IN_GIT",
        )
    if not run_git(root, "symbolic-ref", "--quiet", "HEAD", may_fail=True):
        raise Conflict(
            "no branch is checked out", hint="`git switch main`", code="DEFINITIONS_IN_GIT"
        )
    changed = run_git(root, "status", "--porcelain", "-z", "--untracked-files=no")
    if changed or head.endswith(DIRTY):
        raise Conflict(
            "the work tree has changes that are not committed",
            hint="commit or discard them first; `git status` names them",
            code="DEFINITIONS_EDITED",
        )
    return head


def _parent(root: Path, commit: str, mainline: int | None) -> str:
    parents = _one_line(root, "show", "--no-patch", "--format=%P", commit).split()
    if not parents:
        raise InputError(
            f"{commit[:12]} is the first commit: nothing was there before it",
            hint="remove the files instead, and commit that",
        )
    if len(parents) > 1 and mainline is None:
        raise InputError(
            f"{commit[:12]} is a merge of {len(parents)} parents",
            hint="name the one to go back to, most often --mainline 1",
        )
    if mainline is not None and not 1 <= mainline <= len(parents):
        raise InputError(f"{commit[:12]} has no parent {mainline}", hint=f"it has {len(parents)}")
    return parents[(mainline or 1) - 1]


def _merged(root: Path, *, head: str, reverted: str, parent: str) -> str:
    """Return the tree of *head* with the step from *parent* to *reverted* taken back.

    The trees stand in commits of their own, so that the reverted one is the common ancestor,
    whatever the history says; Git names a base by itself only since 2.40.
    """
    base = _bare_commit(root, reverted)
    ours, theirs = (_bare_commit(root, each, base) for each in (head, parent))
    options = ("--write-tree", "--allow-unrelated-histories", "--name-only", "--no-messages", "-z")
    merged = ask_git(root, "merge-tree", *options, ours, theirs)
    names = [os.fsdecode(name) for name in merged.stdout.split(b"\0") if name]
    if merged.returncode == 0 and names:
        return names[0]
    if merged.returncode == 1 and names:
        raise _in_conflict(reverted, list(dict.fromkeys(names[1:])))
    raise InputError(
        "this git cannot merge without a work tree", hint="git 2.38 or newer is needed"
    )


def _in_conflict(reverted: str, paths: list[str]) -> Conflict:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    named = ", ".join(paths[:_MOST_NAMED]) + more
    return Conflict(
        f"commit {reverted[:12]} cannot be taken back by itself: later commits changed the same"
        f" lines of {named}",
        hint="nothing was changed; take the later commits back first, newest first, or edit the"
        " files yourself",
        code="REVERT_CONFLICT",
        paths=paths,
    )


def _bare_commit(root: Path, commit: str, *parents: str) -> str:
    """Return a commit of the same files that is reachable from nowhere."""
    before = [word for parent in parents for word in ("-p", parent)]
    nobody = dict(zip(_IDENTITY, ("x", "x@mdm.invalid") * 2, strict=True))
    made = run_git(root, "commit-tree", f"{commit}^{{tree}}", *before, variables=nobody)
    return made.decode().strip()


def _commit(root: Path, tree: str, parent: str, message: str, actor: str) -> str:
    signed = _one_line(root, "config", "--type=bool", "--default=false", "commit.gpgSign") == "true"
    made = run_git(
        *(root, "commit-tree", tree, "-p", parent),
        *(("-S",) if signed else ()),
        stdin=message.encode() + b"\n",
        variables=_identity(root, actor),
    )
    return made.decode().strip()


def _identity(root: Path, actor: str) -> Mapping[str, str]:
    """Who commits: the variables and the configuration of Git, else *actor*."""
    given = {name: os.environ[name] for name in _IDENTITY if os.environ.get(name)}
    kinds = ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    if all(ask_git(root, "var", kind, variables=given).returncode == 0 for kind in kinds):
        return given
    who = Author(actor=actor)
    return dict(zip(_IDENTITY, (who.name, who.email) * 2, strict=True)) | given


def _one_line(root: Path, *arguments: str) -> str:
    return run_git(root, *arguments).decode(errors="replace").strip()
