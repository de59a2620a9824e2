"""Tells the loop early that a folder of definitions has changed.

Only a wake-up: when watching fails or misses something, the loop's own interval still finds it. Each
folder is watched by itself and not as a tree, because the tree also holds the embedded database
and the objects of Git.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch

from mdm_gitops.source.tree import FOLDERS, LOOKALIKES, ROOT_FILES
from mdm_operator.stamp import definition_folders

logger = logging.getLogger(__name__)

_SETTLE_MS: Final = 400  # a tool that writes many files is heard once
_RETRY_S: Final = 30.0
_TOP: Final = frozenset((*ROOT_FILES, *LOOKALIKES, *FOLDERS))


async def watch(root: Path, changed: Callable[[], None], *, stop: asyncio.Event) -> None:
    """Call *changed* after each change in the definitions of *root*, until *stop*."""
    root = await asyncio.to_thread(root.resolve)
    while not stop.is_set():
        try:
            await _watch_present_folders(root, changed, stop)
        except OSError as error:  # the root is gone, or the system has no more watches to give
            logger.warning("the folder cannot be watched, changes are found later: %s", error)
            await _sleep(stop, _RETRY_S)
        # Folders have come or gone. What happened while nobody watched is not lost:
        changed()


async def _watch_present_folders(
    root: Path, changed: Callable[[], None], stop: asyncio.Event
) -> None:
    folders = set(definition_folders(root))
    git = [path for path in (root / ".git", root / ".git" / "logs") if path.is_dir()]
    changes = awatch(
        *folders,
        *git,
        watch_filter=lambda _, path: _matters(Path(path), root),
        debounce=_SETTLE_MS,
        stop_event=stop,
        recursive=False,
    )
    async for found in changes:
        changed()
        if any(kind is not Change.modified for kind, _ in found) and (
            set(definition_folders(root)) != folders
        ):
            return


def _matters(path: Path, root: Path) -> bool:
    parent = path.parent
    if parent == root:
        return path.name in _TOP
    if parent in (root / ".git", root / ".git" / "logs"):
        return path.name == "HEAD"
    return not path.name.startswith(".")


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), timeout=seconds)
    except TimeoutError:
        return
