"""What modules of this folder share: warehouses that are deployed once and copied per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.access.api_keys import ensure_first_key
from mdm_gitops.source import read_tree
from tests.conftest import DatabaseMaker, Prepare
from tests.support import approving, merging
from tests.support.importing import deploy
from tests.support.warehouses import SCHEMAS, apply


@pytest.fixture
def importing_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities of ``support.importing``."""
    return copy_of(deploy)


@pytest.fixture
def approving_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities of ``support.approving``, for ``approving.opened_copy``."""
    return copy_of(approving.prepare)


@pytest.fixture
def customers_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities of ``test_writes`` and the first key."""
    return copy_of(_customers)


async def _customers(conn: AsyncConnection[Any]) -> None:
    from tests.integration.test_api_basics import KEY
    from tests.integration.test_writes import FILES

    await apply(conn, read_tree(FILES))
    await ensure_first_key(conn, schemas=SCHEMAS, configured=KEY)


@pytest.fixture(scope="session")
def merging_template(
    admin: psycopg.Connection[Any], server_url: str, template: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """A database with the entities of ``support.merging``, and the keys of those who act in it."""
    maker = DatabaseMaker(admin, server_url, template)
    url = maker()
    yield url, asyncio.run(merging.deploy(url))
    maker.drop_all()


@pytest.fixture
def merging_url(make_database: DatabaseMaker, merging_template: tuple[str, dict[str, str]]) -> str:
    return make_database.copy_of(merging_template[0])


@pytest.fixture
async def merge_lab(
    merging_url: str, merging_template: tuple[str, dict[str, str]]
) -> AsyncIterator[merging.MergeLab]:
    async with merging.opened(merging_url, merging_template[1]) as lab:
        yield lab
