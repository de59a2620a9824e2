"""Where the definitions of a run come from: a folder as it stands, or the commits of an origin.

``take`` looks whether anything is new and is cheap when nothing is; what it gives is then judged and
read. None of it touches the warehouse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mdm_gitops.errors import Finding, MdmError
from mdm_gitops.model import Definitions, Entity
from mdm_gitops.settings import Settings
from mdm_gitops.source import folder_tree, read_tree_over
from mdm_gitops.source.git import commit_of
from mdm_gitops.source.origin import Origin, origin_of
from mdm_operator.stamp import take_stamp

Reading = tuple[Definitions, tuple[Finding, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    stamp: str  # equal stamps: the same definitions
    commit: str | None = None  # None: known only after reading


class Source(Protocol):
    @property
    def watched(self) -> Path | None:
        """The folder whose files are worth watching; None where there is none."""

    def take(self) -> Taken:
        """Look what there is now; see ``Origin.newest`` for errors."""

    def judge(self, taken: Taken, *, accepted: str | None) -> str:
        """Return who signed what was taken, "" where nobody has to; raise SourceError if it must
        not be used."""

    def read(
        self, taken: Taken, deployed: Mapping[str, Entity], *, reserved: Sequence[str]
    ) -> Reading:
        """Read it, with what is *deployed* in place of what is broken."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    folder: Path

    @property
    def watched(self) -> Path | None:
        return self.folder

    def take(self) -> Taken:
        try:
            return Taken(stamp=take_stamp(self.folder))
        except MdmError as error:  # git refuses the repository; reading it says why
            return Taken(stamp=str(error))

    def judge(self, taken: Taken, *, accepted: str | None) -> str:
        return ""

    def read(
        self, taken: Taken, deployed: Mapping[str, Entity], *, reserved: Sequence[str]
    ) -> Reading:
        tree = folder_tree(self.folder)
        commit = commit_of(tree.root)
        return read_tree_over(tree, deployed, commit=commit, reserved_schemas=reserved)

    def __str__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True, slots=True)
class CommitSource:
    origin: Origin

    @property
    def watched(self) -> Path | None:
        return None

    def take(self) -> Taken:
        commit = self.origin.newest()
        return Taken(stamp=commit, commit=commit)

    def judge(self, taken: Taken, *, accepted: str | None) -> str:
        assert taken.commit is not None, "an origin has commits"
        signer = self.origin.signer_of(taken.commit)
        self.origin.refuse_rewind(taken.commit, since=accepted)
        return signer

    def read(
        self, taken: Taken, deployed: Mapping[str, Entity], *, reserved: Sequence[str]
    ) -> Reading:
        assert taken.commit is not None, "an origin has commits"
        tree = self.origin.tree(taken.commit)
        return read_tree_over(tree, deployed, commit=taken.commit, reserved_schemas=reserved)

    def __str__(self) -> str:
        return str(self.origin)


def source_of(folder: Path, settings: Settings) -> Source:
    """Return the source that the settings of *folder* name."""
    origin = origin_of(folder, settings)
    return FolderSource(folder) if origin is None else CommitSource(origin)
