"""The desired definitions of an origin: of a remote's branch, or of a revision of the folder's repository.

Only commits count that the operator would take, too: signed where they must be, and built on the last
one. A remote is asked again after a while, and nobody waits long for it: where it does not answer, the
last commit holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mdm_api.definitions import SourceFiles, Written, committed_files, in_thread, unreadable
from mdm_gitops.access.catalog import NOTHING_DESIRED, DesiredView
from mdm_gitops.errors import DefinitionError, MdmError, SettingsError
from mdm_gitops.source import read_tree_leniently
from mdm_gitops.source.commit_places import WorkTree
from mdm_gitops.source.commits import Author, Change, Committed, Place, WriteMode
from mdm_gitops.source.origin import Origin
from mdm_gitops.source.pushing import RemoteBranch

_ASK_AGAIN_S: Final = 15.0
_PATIENCE_S: Final = 2.0  # where there is a commit to go on with
_WRITTEN: Final = Path(".mdm", "write.git")


class OriginDefinitions(Written):
    """The definitions of *origin*; *folder* is where it keeps its mirrors."""

    def __init__(
        self,
        origin: Origin,
        folder: Path,
        *,
        reserved_schemas: Sequence[str],
        write_mode: WriteMode | None = None,
    ) -> None:
        place, mode = _place(origin, folder, write_mode)
        super().__init__(place, mode=mode, reserved_schemas=reserved_schemas)
        self._origin = origin
        self._asked_at = -_ASK_AGAIN_S
        self._asking: asyncio.Task[None] | None = None
        self._commit = ""
        self._problem = ""
        self._seen = ("", "")
        self._view = NOTHING_DESIRED
        self._lock = asyncio.Lock()

    async def current(self) -> DesiredView:
        async with self._lock:
            await self._ask()
            if (self._commit, self._problem) != self._seen:
                self._seen = (self._commit, self._problem)
                self._view = await in_thread(self._read)
            return self._view

    async def write(self, change: Change, *, author: Author, message: str) -> Committed:
        done = await super().write(change, author=author, message=message)
        self._asked_at = -_ASK_AGAIN_S
        return done

    async def files(self) -> SourceFiles:
        view = await self.current()
        if not self._commit:
            raise DefinitionError(view.findings)
        return await in_thread(lambda: committed_files(self._origin.tree(self._commit)))

    async def _ask(self) -> None:
        """Look which commit is the newest, and wait for the answer as long as is reasonable."""
        if self._asking is None:
            if time.monotonic() - self._asked_at < _ASK_AGAIN_S and self._origin.remote:
                return
            self._asking = asyncio.create_task(in_thread(self._look))
        task = self._asking
        done, _ = await asyncio.wait({task}, timeout=_PATIENCE_S if self._commit else None)
        if done:
            self._asking = None
            task.result()

    def _look(self) -> None:
        started = time.monotonic()
        try:
            commit = self._origin.newest()
            self._origin.refuse_rewind(commit, since=self._commit or None)
            self._origin.signer_of(commit)
        except MdmError as error:
            # The last commit holds; the operator's status tells why nothing newer is taken.
            self._problem = "" if self._commit else str(error)
        else:
            self._commit, self._problem = commit, ""
        self._asked_at = started

    def _read(self) -> DesiredView:
        if not self._commit:
            return DesiredView.broken((unreadable(self._problem),))
        try:
            definitions, findings = read_tree_leniently(
                self._origin.tree(self._commit),
                commit=self._commit,
                reserved_schemas=self._reserved_schemas,
            )
            return DesiredView.of(definitions, findings)
        except DefinitionError as error:
            return DesiredView.broken(error.findings)
        except MdmError as error:
            return DesiredView.broken((unreadable(str(error)),))


def _place(origin: Origin, folder: Path, mode: WriteMode | None) -> tuple[Place, WriteMode]:
    """Return where changes go. What we commit is not signed, so a person has to merge it where
    commits must be.

    Raises:
        SettingsError: commits were asked for all the same.
    """
    if origin.trust.is_required and mode is WriteMode.COMMIT:
        raise SettingsError(
            "Mdm__Repository__WriteMode=commit cannot be where commits must be signed",
            hint="this server signs nothing: set branch, and let somebody who may sign merge",
        )
    if origin.remote is not None:
        return RemoteBranch(origin.remote, folder / _WRITTEN), mode or WriteMode.BRANCH
    unsigned = WriteMode.BRANCH if origin.trust.is_required else WriteMode.COMMIT
    return WorkTree(folder), mode or unsigned
