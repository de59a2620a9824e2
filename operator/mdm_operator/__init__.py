"""The reconcile loop: keeps the warehouse what a folder of definitions says.

``loop`` knows when to run, ``reconcile`` what a run does, ``state`` how it stands, ``stamp`` and
``watch`` whether anything is new. Remotes, a choice among several leaders and windows of time have no
place yet; they belong beside these, not into them.
"""

from __future__ import annotations

import asyncio

from mdm_operator import loop
from mdm_operator.loop import Pace
from mdm_operator.reconcile import Reconciler
from mdm_operator.watch import watch

__all__ = ["Reconciler", "run_operator"]


async def run_operator(reconciler: Reconciler, *, pace: Pace, stop: asyncio.Event) -> None:
    """Reconcile at *pace*, and at once when a file changes, until *stop*."""
    wake = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(reconciler.folder, wake.set, stop=stop))
        group.create_task(loop.run(reconciler.step, stop=stop, wake=wake, pace=pace))
