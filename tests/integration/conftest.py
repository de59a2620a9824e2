"""What modules of this folder share: a warehouse to import into, deployed once and copied per test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import DatabaseMaker
from tests.support.importing import deploy
from tests.support.warehouses import opened


@pytest.fixture(scope="session")
def importing_template(
    admin: psycopg.Connection[Any], server_url: str, template: str
) -> Iterator[str]:
    """A database with the entities of ``support.importing``, to which nobody is connected."""
    maker = DatabaseMaker(admin, server_url, template)
    url = maker()
    asyncio.run(_deploy(url))
    yield url
    maker.drop_all()


async def _deploy(url: str) -> None:
    async with opened(url) as conn:
        await deploy(conn)


@pytest.fixture
def importing_url(make_database: DatabaseMaker, importing_template: str) -> str:
    return make_database.copy_of(importing_template)
