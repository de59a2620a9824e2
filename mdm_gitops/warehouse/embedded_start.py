"""Getting an embedded server up, as a client that holds a lease on it.

A server is up when a connection to it works. Whoever finds it down starts a supervisor, one client
at a time; the others wait for that one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

import mdm_gitops
from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.embedded_lease import (
    ALONE,
    PAUSE_S,
    living_supervisor,
    open_lock,
    try_lock,
)
from mdm_gitops.warehouse.embedded_supervisor import (
    APP_DATABASE,
    APP_ROLE,
    START_TIMEOUT_S,
    Task,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How to reach a server. The URLs carry passwords and are kept out of the repr.

    ``url`` is for all work; its role owns the database and may create others, no more.
    ``superuser_url`` is for looking after the server itself. *port* is None without TCP.
    """

    major: int
    bin_dir: Path
    port: int | None
    url: str = field(repr=False)
    superuser_url: str = field(repr=False)
    tcp_url: str | None = field(repr=False)
    application_password: str = field(repr=False)


def read_running(home: Path) -> Running | None:
    """Return what the supervisor of *home* published; it may have been killed since."""
    try:
        found = json.loads((home / "server.json").read_text())
    except FileNotFoundError:
        return None
    return Running(**{**found, "bin_dir": Path(found["bin_dir"])})


async def ensure_running(task: Task) -> Running:
    """Return the server when it answers, having started it where needed."""
    if running := await _answering(task.home):
        return running
    deadline = time.monotonic() + START_TIMEOUT_S
    starter = open_lock(task.home / "start.lock")
    try:
        while not try_lock(starter, ALONE):
            await _pause(deadline, task.home)
        while (running := await _answering(task.home)) is None:
            if living_supervisor(task.home) is None:
                await _start_supervisor(task)
            else:
                await _pause(deadline, task.home)
        return running
    finally:
        os.close(starter)


async def _pause(deadline: float, home: Path) -> None:
    if time.monotonic() > deadline:
        raise WarehouseError(
            f"the embedded PostgreSQL was not ready within {START_TIMEOUT_S:.0f} s",
            hint=f"see {home / 'server.log'}",
        )
    await asyncio.sleep(PAUSE_S)


async def _start_supervisor(task: Task) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "mdm_gitops.warehouse.embedded_supervisor", task.to_json(),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _python_path()},
    )  # fmt: skip
    assert process.stdout is not None
    line = await process.stdout.readline()
    await process.wait()  # the supervisor itself has forked away from it
    if not line:
        raise WarehouseError(
            "the supervisor of the embedded PostgreSQL ended without a word",
            hint=f"see {task.home / 'server.log'}",
        )
    answer = json.loads(line)
    if "error" in answer:
        raise WarehouseError(answer["error"], hint=answer["hint"], code=answer["code"])


def _python_path() -> str:
    package = Path(mdm_gitops.__file__).resolve().parent.parent
    return os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])


async def _answering(home: Path) -> Running | None:
    """Return the server if it takes our connection; completes its first set-up."""
    running = read_running(home) if living_supervisor(home) else None
    if running is None:
        return None
    try:
        await _connect(running.url)
    except psycopg.OperationalError as error:
        # A refused login carries no SQLSTATE, only words; they are English (--lc-messages=C).
        if "password authentication" not in str(error) and "does not exist" not in str(error):
            return None
        await _set_up(running)
    return running


async def _connect(url: str) -> None:
    async with await AsyncConnection.connect(url, connect_timeout=5):
        pass


async def _set_up(running: Running) -> None:
    """Create the role and the database that everything works with; neither needs more rights."""
    try:
        async with await AsyncConnection.connect(
            running.superuser_url, autocommit=True, connect_timeout=5
        ) as conn:
            await _create_role_and_database(conn, running.application_password)
        await _connect(running.url)
    except psycopg.Error as error:
        raise WarehouseError(
            f"the embedded PostgreSQL could not be set up: {error}", code="WAREHOUSE_UNUSABLE"
        ) from error


async def _create_role_and_database(conn: AsyncConnection[Any], password: str) -> None:
    role, database = sql.Identifier(APP_ROLE), sql.Identifier(APP_DATABASE)
    if not await _exists(conn, "SELECT FROM pg_roles WHERE rolname = %s", APP_ROLE):
        await conn.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
    set_password = sql.SQL("ALTER ROLE {} PASSWORD {}")
    await conn.execute(set_password.format(role, sql.Literal(password)))
    if not await _exists(conn, "SELECT FROM pg_database WHERE datname = %s", APP_DATABASE):
        await conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, role))


async def _exists(conn: AsyncConnection[Any], query: Any, name: str) -> bool:
    return bool((await conn.execute(query, [name])).rowcount)
