"""Which PostgreSQL a folder of definitions belongs to: the one in its settings, or its own.

The one place that decides it, so that every command, the operator and the API agree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.embedded import EmbeddedServer, acquire_server, embedded_server


@asynccontextmanager
async def warehouse_url(
    folder: Path, settings: Settings, *, url: str | None = None
) -> AsyncIterator[str]:
    """Yield the URL of the warehouse of *folder*; an embedded server runs for as long.

    *url* is that of an environment which has one of its own.

    Raises:
        WarehouseError: there is no URL and the embedded server cannot be started.
    """
    if url is not None:
        yield url
        return
    if settings.Database.Url:
        yield settings.Database.Url.get_secret_value()
        return
    database = settings.Database
    async with embedded_server(
        folder, major=database.EmbeddedMajor, bin_dir=database.EmbeddedBin
    ) as server:
        yield server.url


async def acquire_embedded(
    folder: Path, settings: Settings, *, port: int | None = None
) -> EmbeddedServer:
    """Take a lease on the embedded server of *folder* as its settings want it."""
    database = settings.Database
    return await acquire_server(
        folder, major=database.EmbeddedMajor, bin_dir=database.EmbeddedBin, port=port
    )
