"""A folder of definitions under Git, deployed, and a server over it: what tests of commits begin with."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from mdm_api.app import create_app, folder_definitions
from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.settings import Settings
from mdm_gitops.source import read_folder
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from tests.support.serving import KEY, Client, served
from tests.support.warehouses import apply


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=dev", "-c", "user.email=dev@example.com"]
    done = subprocess.run(
        ["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def repository(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write *files* into *root* and commit them on ``main``."""
    for path, data in files.items():
        (root / path).parent.mkdir(exist_ok=True, parents=True)
        (root / path).write_bytes(data)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    return root


@asynccontextmanager
async def deployed(url: str, root: Path) -> AsyncIterator[AsyncConnection[Any]]:
    """Yield a connection to the warehouse at *url*, in which *root* has been applied."""
    async with await connect(url, application_name="test") as conn:
        await apply(conn, read_folder(root))
        await ensure_first_key(conn, schemas=Schemas(), configured=KEY)
        yield conn


@asynccontextmanager
async def served_folder(url: str, root: Path) -> AsyncIterator[Client]:
    """Yield a client without credentials of a server over both."""
    settings = Settings()
    app = create_app(
        database_url=url, settings=settings, definitions=folder_definitions(root, settings)
    )
    async with served(app) as client:
        yield client


@pytest.fixture
async def conn(database_url: str, root: Path) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection to the warehouse of a test, in which its *root* has been applied."""
    async with deployed(database_url, root) as conn:
        yield conn


@pytest.fixture
async def client(
    database_url: str, conn: AsyncConnection[Any], root: Path
) -> AsyncIterator[Client]:
    """A Global Admin's client of a server over both."""
    async with served_folder(database_url, root) as client:
        client.headers["X-API-Key"] = KEY
        yield client
