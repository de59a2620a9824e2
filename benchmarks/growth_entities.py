"""What plans, looks, definitions and reads cost while the number of entities grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import corpus
from bench_deploy import apply
from bench_reconcile import commit, of_commit, reconciled_s
from figures import best_of, best_s
from growing import FLAT, LINEAR, Growing, Law
from growth_rows import asking_of, ms
from warehouse import SCHEMAS, Server, opened

from mdm_gitops.data.rows import ListRequest, list_rows
from mdm_gitops.plan.structural import structural_plan
from mdm_gitops.settings import load_settings
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.connect import Connection
from mdm_gitops.warehouse.planning import make_plan
from mdm_gitops.warehouse.store import Store, read_state

# Columns of an entity. Fewer than elsewhere, since the largest repository is five times as large.
COLUMNS = 5
_AT_ONCE = 1_000
# It writes what a process that plans has read before; that is a part of it that does not grow.
_APPLY = Law(power=1.0, slack=1.0)


async def measure(server: Server, folder: Path, sizes: Sequence[int]) -> list[Growing]:
    growing = Growing(
        title="Definitions",
        x="entities",
        laws={
            "look at a folder": LINEAR,
            "read and validate": LINEAR,
            "state read by a server": LINEAR,
        },
    )
    plans = Growing(
        title="Plans",
        x="entities",
        laws={
            "plan, no change": LINEAR,
            "plan of one change": LINEAR,
            "plan between two revisions": LINEAR,
            "apply of one change": _APPLY,
        },
    )
    steady = Growing(
        title="What should not know how many entities there are",
        x="entities",
        laws={
            "reconcile of an unchanged commit": FLAT,
            "list of an entity": FLAT,
            "state asked for": FLAT,
        },
    )
    for size in sizes:
        url = await server.fresh_database()
        root = await _deployed(url, folder / f"entities-{size}", size)
        commit(root)
        quick_s, _ = await reconciled_s(url, root, of_commit(root))
        steady.add("reconcile of an unchanged commit", size, 1_000 * quick_s)
        folder_s, _ = await reconciled_s(url, root, load_settings(root))
        growing.add("look at a folder", size, 1_000 * folder_s)
        async with opened(url) as conn:
            await _planned(conn, root, growing, plans, size)
            await _served(conn, growing, steady, size)
    return [growing, plans, steady]


async def _deployed(url: str, root: Path, size: int) -> Path:
    """Deploy a thousand at a time: what one transaction may lock is a setting of the server."""
    corpus.write(root, min(size, _AT_ONCE), COLUMNS)
    async with opened(url) as conn:
        await apply(conn, read_folder(root))
        for first in range(_AT_ONCE, size, _AT_ONCE):
            for number in range(first, min(first + _AT_ONCE, size)):
                corpus.path_of(root, number).write_text(corpus.text(number, COLUMNS))
            await apply(conn, read_folder(root))
    return root


async def _planned(
    conn: Connection, root: Path, growing: Growing, plans: Growing, size: int
) -> None:
    await conn.execute(b"VACUUM ANALYZE")
    rounds = 3 if size > 100 else 5
    before = read_folder(root)
    growing.add("read and validate", size, 1_000 * best_s(lambda: read_folder(root), rounds=rounds))
    corpus.path_of(root, size // 2).write_text(corpus.text(size // 2, COLUMNS, length=101))
    after = read_folder(root)
    for name, wanted in (("plan, no change", before), ("plan of one change", after)):
        taken = await best_of(
            lambda wanted=wanted: make_plan(conn, wanted, schemas=SCHEMAS), rounds=rounds
        )
        plans.add(name, size, 1_000 * taken)
    between = best_s(lambda: structural_plan(before, after), rounds=rounds)
    plans.add("plan between two revisions", size, 1_000 * between)
    applied = []
    for definitions in (after, before, after, before):
        started = time.perf_counter()
        await apply(conn, definitions)
        applied.append(time.perf_counter() - started)
    plans.add("apply of one change", size, 1_000 * min(applied))


async def _served(conn: Connection, growing: Growing, steady: Growing, size: int) -> None:
    rounds = 3 if size > 100 else 5
    taken = await best_of(lambda: read_state(conn, schemas=SCHEMAS), rounds=rounds)
    growing.add("state read by a server", size, 1_000 * taken)
    asking = await asking_of(conn)

    async def listed() -> None:
        await list_rows(conn, asking=asking, entity="entity_7", request=ListRequest())

    steady.add("list of an entity", size, await ms(listed))
    store = Store(SCHEMAS)
    steady.add("state asked for", size, await ms(lambda: store.current(conn)))
