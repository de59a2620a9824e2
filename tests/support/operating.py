"""An operator on a small repository and the API beside it: what their tests share.

They share nothing but the warehouse.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from psycopg import AsyncConnection

from mdm_api.app import create_app
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.migrate import migrate
from mdm_gitops.warehouse.names import Schemas
from mdm_operator import Reconciler
from mdm_operator.state import Outcome
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
    repository: SmallRepository, url: str, *, source: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Reconciler]:
    operator = {"CheckIntervalSeconds": 3600.0, **more.pop("operator", {})}
    settings = Settings(Operator=operator, Source=source or {"Revision": "main"})
    reconciler = Reconciler(repository.root, url=url, settings=settings, approve_first=True, **more)
    try:
        yield reconciler
    finally:
        await reconciler.aclose()


async def outcome_of(reconciler: Reconciler) -> Outcome:
    run = await reconciler.step()
    assert run is not None, "there was something new"
    return run.outcome


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


def git(folder: Path, *arguments: str) -> str:
    options = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(
        ("git", *options, *arguments), cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_key(path: Path) -> None:
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)), check=True)
