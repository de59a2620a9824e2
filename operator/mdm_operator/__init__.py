"""The reconcile loop: keeps the warehouse what a folder or a repository of definitions says.

``loop`` knows when to run, ``reconcile`` what a run does, ``deciding`` and ``judge`` what of a plan is
done, ``sources`` where definitions come from, ``leader`` which of several operators works, ``state``
how it stands, ``stamp`` and ``watch`` whether files are new.
"""

from __future__ import annotations

import asyncio

from mdm_gitops.warehouse.reconciliation import listen
from mdm_operator import loop
from mdm_operator.loop import Pace
from mdm_operator.reconcile import Reconciler
from mdm_operator.watch import watch

__all__ = ["Reconciler", "run_operator"]


async def run_operator(reconciler: Reconciler, *, pace: Pace, stop: asyncio.Event) -> None:
    """Reconcile at *pace*, and at once when a file changes or somebody asks, until *stop*."""
    wake = asyncio.Event()
    watched = reconciler.source.watched
    async with asyncio.TaskGroup() as group:
        if watched is not None:
            group.create_task(watch(watched, wake.set, stop=stop))
        group.create_task(listen(reconciler.url, wake.set, schemas=reconciler.schemas, stop=stop))
        group.create_task(reconciler.leadership.keep(lambda: reconciler.connection, stop=stop))
        group.create_task(loop.run(reconciler.step, stop=stop, wake=wake, pace=pace))
