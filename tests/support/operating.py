"""An operator on a small repository and the API beside it: what their tests share.

They share nothing but the warehouse.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.model import Definitions
from mdm_gitops.plan.plan import Plan
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.apply import Progress
from mdm_gitops.warehouse.migrate import migrate
from mdm_gitops.warehouse.names import Schemas
from mdm_operator import Reconciler
from mdm_operator.reconcile import Listener
from mdm_operator.state import Outcome, Run
from tests.small_repository import SmallRepository
from tests.support.serving import KEY, served

Conn = AsyncConnection[Any]
Client = httpx2.AsyncClient
SECRET = "the secret of the hook"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday


def seeded(root: Path) -> SmallRepository:
    repository = SmallRepository(root)
    repository.seed([{"code": "CH"}, {"code": "DE"}])  # so that the name can go
    repository.commit()
    return repository


@asynccontextmanager
async def api_beside(url: str, conn: Conn) -> AsyncIterator[Client]:
    """Serve the warehouse at *url*, for the first key."""
    await migrate(conn, config_schema="mdm", data_schema="mdm_data")
    await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
    settings = Settings(Source={"HookSecret": SECRET})
    async with served(create_app(database_url=url, settings=settings)) as client:
        client.headers["X-API-Key"] = KEY
        yield client


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@asynccontextmanager
async def operating(
    repository: SmallRepository,
    url: str,
    *,
    source: dict[str, Any] | None = None,
    approve_first: bool = True,
    **more: Any,
) -> AsyncIterator[Reconciler]:
    operator = {"CheckIntervalSeconds": 3600.0, **more.pop("operator", {})}
    source = {"Revision": "main"} if source is None else source
    settings = Settings(Operator=operator, Source=source)
    reconciler = Reconciler(
        repository.root, url=url, settings=settings, approve_first=approve_first, **more
    )
    try:
        yield reconciler
    finally:
        await reconciler.aclose()


def following(
    repository: SmallRepository, url: str, *, check_interval_s: float = 3600.0, **more: Any
) -> AbstractAsyncContextManager[Reconciler]:
    """Operate on the folder as it is edited, not on what is committed."""
    operator = {"CheckIntervalSeconds": check_interval_s}
    return operating(repository, url, source={}, operator=operator, **more)


class Heard(Listener):
    def __init__(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.plans: list[Plan] = []
        self.runs: list[Run] = []
        self.on_progress = on_progress

    def planned(self, plan: Plan, definitions: Definitions) -> None:
        self.plans.append(plan)

    def progressed(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def finished(self, run: Run) -> None:
        self.runs.append(run)


async def outcome_of(reconciler: Reconciler) -> Outcome:
    run = await reconciler.step()
    assert run is not None, "there was something new"
    return run.outcome


async def one(conn: Conn, query: str) -> Any:
    row = await (await conn.execute(query.encode())).fetchone()
    return row and row[0]


async def columns(conn: Conn) -> list[str]:
    rows = await conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'mdm_data.country'::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_sys%' ORDER BY attnum"
    )
    return [row[0] for row in await rows.fetchall()]


async def waiting(client: Client, **headers: str) -> list[dict[str, Any]]:
    answer = await client.get("/api/v1/plans", headers=headers)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def stands(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/api/v1/reconciliation")).json()
    return found


async def started(reconciler: Reconciler) -> None:
    assert await outcome_of(reconciler) is Outcome.APPLIED
    assert await outcome_of(reconciler) is Outcome.IN_SYNC


def make_key(path: Path) -> None:
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)), check=True)
