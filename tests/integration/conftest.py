"""What modules of this folder share: warehouses that are deployed once and copied per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import DatabaseMaker, Prepare
from tests.support import approving, changes_lab, customers, merging
from tests.support.countries import countries
from tests.support.importing import deploy


@pytest.fixture
def importing_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities of ``support.importing``."""
    return copy_of(deploy)


@pytest.fixture
def approving_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities of ``support.approving``, for ``approving.opened_copy``."""
    return copy_of(approving.prepare)


@pytest.fixture
def countries_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities and rows of ``support.countries`` and the first key."""
    return copy_of(countries)


@pytest.fixture
def customers_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities of ``support.customers`` and the first key."""
    return copy_of(customers.prepare)


@pytest.fixture
def changes_url(copy_of: Callable[[Prepare], str]) -> str:
    """A database with the entities and keys of ``support.changes_lab``, to be opened there."""
    return copy_of(changes_lab.prepare)


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
