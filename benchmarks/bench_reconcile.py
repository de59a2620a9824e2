"""How long the operator's look takes when neither the definitions nor the warehouse have changed.

From a commit of the folder's repository, as in production, and from the folder as it stands, of which each
file has to be looked at.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

import corpus
from figures import Figure, best_of
from warehouse import Server

from mdm_gitops.settings import Settings, load_settings
from mdm_operator.reconcile import Reconciler

COUNTS: Final = (10, 1_000)
_BRANCH: Final = "main"
_GIT: Final = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost")


async def measure(server: Server, folder: Path) -> list[Figure]:
    figures = []
    for count in COUNTS:
        root = corpus.write(folder / f"operated-{count}", count)
        url = await server.fresh_database()
        commit(root)
        quick_s, whole_s = await reconciled_s(url, root, of_commit(root))
        folder_s, _ = await reconciled_s(url, root, load_settings(root))
        figures.append(
            Figure(
                case=f"reconcile of an unchanged commit, {count:,} entities",
                value=quick_s * 1000,
                unit="ms",
                limit=50.0,
                note=f"everything read again: {whole_s * 1000:.0f} ms; of a folder as it stands, each"
                f" file looked at: {folder_s * 1000:.1f} ms",
            )
        )
    return figures


def commit(root: Path) -> None:
    """Put all files of *root* into a repository of its own."""
    for command in (
        ("init", "--quiet", f"--initial-branch={_BRANCH}"),
        ("add", "--all"),
        ("-c", "commit.gpgsign=false", "commit", "--quiet", "--message", "All"),
    ):
        subprocess.run([*_GIT, *command], cwd=root, check=True)


def of_commit(root: Path) -> Settings:
    """Return settings that take the definitions from the branch, not from the files."""
    settings = load_settings(root)
    source = settings.Source.model_copy(update={"Revision": _BRANCH})
    return settings.model_copy(update={"Source": source})


async def reconciled_s(
    url: str, root: Path, settings: Settings, *, rounds: int = 20
) -> tuple[float, float]:
    """Return the seconds of a look at what is known, and of one at everything."""
    reconciler = Reconciler(root, url=url, settings=settings, approve_first=True)
    try:
        await reconciler.step()  # deploys
        started = time.perf_counter()
        await reconciler.step()  # looks once more, at everything
        whole_s = time.perf_counter() - started
        return await best_of(reconciler.step, rounds=rounds), whole_s
    finally:
        await reconciler.aclose()
