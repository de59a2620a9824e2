"""How long the operator's look takes when neither the files nor the warehouse have changed."""

from __future__ import annotations

import time
from pathlib import Path

import corpus
from figures import Figure, best_of
from warehouse import Server

from mdm_gitops.settings import load_settings
from mdm_operator.reconcile import Reconciler

COUNTS = (10, 1_000)


async def measure(server: Server, folder: Path) -> list[Figure]:
    return [await _one(server, corpus.write(folder / f"operated-{n}", n), n) for n in COUNTS]


async def _one(server: Server, root: Path, count: int) -> Figure:
    reconciler = Reconciler(
        root,
        url=await server.fresh_database(),
        settings=load_settings(root),
        approve_first=True,
    )
    try:
        await reconciler.step()  # deploys
        started = time.perf_counter()
        await reconciler.step()  # looks once more, at everything
        whole_s = time.perf_counter() - started
        quick_s = await best_of(reconciler.step, rounds=20)
    finally:
        await reconciler.aclose()
    return Figure(
        case=f"reconcile of an unchanged commit, {count:,} entities",
        value=quick_s * 1000,
        unit="ms",
        limit=50.0,
        note=f"everything read again: {whole_s * 1000:.0f} ms",
    )
