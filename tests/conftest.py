"""A real PostgreSQL for the tests, and a database of its own for each test that asks for one.

The server is the embedded one (``MDM_TEST_PG=16`` or ``18``, the default), or any other by
``MDM_TEST_DATABASE_URL``, whose role must be able to create databases. All workers of a parallel
run share one server. It lives in memory where there is room: then a durable commit costs nothing,
and a fresh database 10 ms instead of 60.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as law_settings
from psycopg import AsyncConnection, sql

from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.embedded import EmbeddedServer, acquire_server, running_server
from mdm_gitops.warehouse.migrate import migrate

# No test asserts a time: a machine that is busy with others draws and runs as slowly as it must.
law_settings.register_profile(
    "any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
law_settings.load_profile("any-speed")
# Tests ask faster than people; those of the limit itself say what they want.
os.environ.setdefault("Mdm__RateLimit__Enabled", "false")
# The transport of in-process requests looks for it three times for each of them.
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

# Puts into a database what the tests of a module find there.
Prepare = Callable[[AsyncConnection[Any]], Coroutine[Any, Any, None]]
CONFIG_SCHEMA, DATA_SCHEMA = "mdm", "mdm_data"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4_000_000_000
# A lock that a test forgot must fail that test, not hang the run.
_PATIENCE = "-c statement_timeout=20s -c idle_in_transaction_session_timeout=60s"


# What is made while tests are collected stays to the end: nothing to look through again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Spare the collector what stays to the end: thousands of tests and all modules."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Of the session, so that async fixtures may live as long as a module."""
    return "asyncio"


@pytest.fixture(scope="session")
def pg_major() -> int:
    """The major version that the embedded server of this run has."""
    return int(os.environ.get("MDM_TEST_PG") or 18)


@pytest.fixture(scope="session")
def server_url(pg_major: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server under test: a role that may create databases."""
    if url := os.environ.get("MDM_TEST_DATABASE_URL"):
        yield url
        return
    folder = _shared_folder(tmp_path_factory)
    server = asyncio.run(acquire_server(folder, major=pg_major))
    _make_signing_in_cheap(server)
    try:
        yield server.url
    finally:
        _release(server, folder)


def _make_signing_in_cheap(server: EmbeddedServer) -> None:
    """Spare thousands of connections the 4,096 rounds that make a stolen password dear to guess."""
    role = sql.Identifier(urlsplit(server.url).username or "")
    password = sql.Literal(server.running.application_password)
    with psycopg.connect(server.superuser_url, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(1)")  # the other workers of this run do the same
        conn.execute("SET scram_iterations = 1")
        conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, password))


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same folder in all workers of this run, and another one in the next run."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    root = _MEMORY if in_memory else Path(tempfile.gettempdir())
    _remove_leftovers(root)
    folder = root / f"mdm-test-{uuid.uuid5(uuid.NAMESPACE_URL, str(run)).hex[:12]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove_leftovers(root: Path) -> None:
    """Remove what runs that were killed have left in memory."""
    for folder in root.glob("mdm-test-*"):
        with contextlib.suppress(OSError):
            old = time.time() - folder.stat().st_mtime > 3_600
            if old and running_server(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)


def _release(server: EmbeddedServer, folder: Path) -> None:
    if asyncio.run(server.aclose()):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def admin(server_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server_url, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="session")
def template(admin: psycopg.Connection[Any], server_url: str) -> Iterator[str]:
    """A database with the config store in it, made once per worker and copied per test."""
    with _database(admin) as name:
        asyncio.run(_migrate(at_database(server_url, name)))
        yield name


async def _migrate(url: str) -> None:
    async with await AsyncConnection.connect(url, autocommit=True) as conn:
        await migrate(conn, config_schema=CONFIG_SCHEMA, data_schema=DATA_SCHEMA)


@pytest.fixture
def database_url(admin: psycopg.Connection[Any], server_url: str, template: str) -> Iterator[str]:
    """A fresh database with an empty config store: the test may commit, lock, run DDL."""
    with _database(admin, template=template) as name:
        yield at_database(server_url, name)


@pytest.fixture
def empty_database_url(admin: psycopg.Connection[Any], server_url: str) -> Iterator[str]:
    """A fresh database with nothing in it."""
    with _database(admin) as name:
        yield at_database(server_url, name)


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection to the database of this test, as the programs make theirs."""
    async with await connect(database_url, application_name="test") as conn:
        yield conn


class DatabaseMaker:
    """Makes fresh databases: for tests that compare several, or need new ones for each case."""

    def __init__(self, admin: psycopg.Connection[Any], server_url: str, template: str) -> None:
        self._admin = admin
        self._server_url = server_url
        self._template = template
        self._names: list[str] = []

    def __call__(self, *, store: bool = True) -> str:
        """Return the URL of one more database; without *store* there is nothing in it."""
        return self._make(self._template if store else None)

    def copy_of(self, url: str) -> str:
        """Return the URL of a copy of *url*, to which nobody may be connected now."""
        return self._make(urlsplit(url).path.removeprefix("/"))

    def drop_all(self) -> None:
        while self._names:
            _drop(self._admin, self._names.pop())

    def _make(self, template: str | None) -> str:
        name = _create(self._admin, template=template)
        self._names.append(name)
        return at_database(self._server_url, name)


@pytest.fixture
def make_database(
    admin: psycopg.Connection[Any], server_url: str, template: str
) -> Iterator[DatabaseMaker]:
    maker = DatabaseMaker(admin, server_url, template)
    yield maker
    maker.drop_all()


class Templates:
    """Databases with a store that are prepared once in this process, to be copied for each test.

    A copy costs a tenth of what it takes to deploy definitions.
    """

    def __init__(self, maker: DatabaseMaker) -> None:
        self._maker = maker
        self._urls: dict[Prepare, str] = {}

    def url_of(self, prepare: Prepare) -> str:
        """Return the URL of the database that *prepare* has filled; nobody is connected to it."""
        if prepare not in self._urls:
            url = self._maker()
            with ThreadPoolExecutor(1) as beside:  # here a loop may run already
                beside.submit(asyncio.run, _prepare(url, prepare)).result()
            self._urls[prepare] = url
        return self._urls[prepare]


async def _prepare(url: str, prepare: Prepare) -> None:
    async with await connect(url, application_name="test") as conn:
        await prepare(conn)


@pytest.fixture(scope="session")
def templates(
    admin: psycopg.Connection[Any], server_url: str, template: str
) -> Iterator[Templates]:
    maker = DatabaseMaker(admin, server_url, template)
    yield Templates(maker)
    maker.drop_all()


@pytest.fixture
def copy_of(make_database: DatabaseMaker, templates: Templates) -> Callable[[Prepare], str]:
    """Returns the URL of a database of this test, as the given function has prepared it."""
    return lambda prepare: make_database.copy_of(templates.url_of(prepare))


@pytest.fixture(scope="module")
def shared_copy_of(
    admin: psycopg.Connection[Any], server_url: str, template: str, templates: Templates
) -> Iterator[Callable[[Prepare], str]]:
    """As ``copy_of``, for all tests of a module: for those that leave nothing behind."""
    maker = DatabaseMaker(admin, server_url, template)
    yield lambda prepare: maker.copy_of(templates.url_of(prepare))
    maker.drop_all()


@contextmanager
def _database(admin: psycopg.Connection[Any], *, template: str | None = None) -> Iterator[str]:
    name = _create(admin, template=template)
    try:
        yield name
    finally:
        _drop(admin, name)


def _create(admin: psycopg.Connection[Any], *, template: str | None) -> str:
    name = f"mdm_test_{uuid.uuid4().hex[:12]}"
    source = sql.Identifier(template or "template0")
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    admin.execute(create.format(sql.Identifier(name), source))
    return name


def _drop(admin: psycopg.Connection[Any], name: str) -> None:
    drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
    for pause_s in (0.05, 0.2, 1.0, 3.0):
        try:
            admin.execute(drop)
            return
        except psycopg.errors.InsufficientPrivilege:
            # An autovacuum worker is in there, which only a superuser may throw out.
            time.sleep(pause_s)
    admin.execute(drop)


def at_database(url: str, name: str) -> str:
    """Return *url* with another database and the time limits of tests."""
    parts = urlsplit(url)
    query = "&".join(filter(None, [parts.query, f"options={quote(_PATIENCE)}"]))
    return urlunsplit(parts._replace(path=f"/{name}", query=query))
