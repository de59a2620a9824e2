"""An embedded PostgreSQL for one run, with fresh databases in it, and the real programs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from psycopg import AsyncConnection, sql
from psycopg.pq import Trace

from mdm_gitops.warehouse.connect import Connection, SessionLimits, connect
from mdm_gitops.warehouse.embedded_binaries import find_binaries
from mdm_gitops.warehouse.migrate import migrate
from mdm_gitops.warehouse.names import Schemas

SCHEMAS: Final = Schemas()
PROGRAM: Final = str(Path(sys.executable).with_name("mdm-gitops"))
_NO_LIMITS: Final = SessionLimits(statement_timeout_s=0, lock_timeout_s=0)


class Server:
    """The server of *url*, whose role may create databases."""

    def __init__(self, url: str, *, prefix: str = "bench") -> None:
        self.url = url
        self._prefix = prefix
        self._made: list[str] = []

    async def fresh_database(self) -> str:
        """Return the URL of a new database with an empty config store."""
        name = f"{self._prefix}_{len(self._made) + 1}"
        async with await AsyncConnection.connect(self.url, autocommit=True) as admin:
            await admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        self._made.append(name)
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        async with opened(url) as conn:
            await migrate(conn, config_schema=SCHEMAS.config, data_schema=SCHEMAS.data)
        return url

    async def drop_databases(self) -> None:
        async with await AsyncConnection.connect(self.url, autocommit=True) as admin:
            for name in self._made:
                await admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Connection]:
    async with await connect(url, application_name="bench", limits=_NO_LIMITS) as conn:
        yield conn


async def statements_of(conn: Connection, work: Callable[[], Awaitable[object]]) -> int:
    """Return how many statements *work* sends over *conn*, counted on the wire."""
    with tempfile.TemporaryFile("w+") as file:
        conn.pgconn.trace(file.fileno())
        conn.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        await work()
        conn.pgconn.untrace()
        file.seek(0)
        sent = [line.split("\t") for line in file]
    return sum(line[0] == "F" and line[2].strip() in ("Query", "Execute") for line in sent)


def run_psql_s(url: str, script: Path) -> float:
    """Run *script* with psql and return the seconds it took."""
    psql = find_binaries(major=18).program("psql")
    return _run_s([psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script, url], {})


def run_program_s(*arguments: str | Path, url: str = "") -> float:
    """Run our command line and return the seconds it took."""
    variables = {"Mdm__Database__Url": url} if url else {}
    return _run_s([PROGRAM, *arguments], variables)


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return the caller's environment without settings of the caller's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("Mdm__")}
    return kept | variables


def _run_s(command: list[str | Path], variables: dict[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command],
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{command[:2]}: {done.stderr.decode(errors='replace')[-2_000:]}")
    return seconds
