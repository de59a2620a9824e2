"""Databases for one moment: made beside the warehouse, used, and dropped however their user ends.

Three things see to the dropping: the context that made them; a keeper, a small process that notices
when its parent is gone (``kill -9`` too) and drops them then; and the next user on the same
warehouse, for what a machine left behind that lost its power. A database in use is told from such
a remainder by an advisory lock that its user holds.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol

from psycopg import AsyncConnection, errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.connect import SessionLimits, connect, in_our_words
from mdm_gitops.warehouse.lock import lock_key, try_lock

KEEPER: Final = "mdm_gitops.warehouse.scratch_keeper"
_PREFIX: Final = "mdm_scratch"
_NAME: Final = re.compile(rf"{_PREFIX}_(\d+)_([0-9a-f]{{12}})_\d+")
_LIMITS: Final = SessionLimits(statement_timeout_s=60, idle_in_transaction_timeout_s=0)
_PAUSES_S: Final = (0.05, 0.2, 1.0, 3.0)
_MOST: Final = 4
_APPLICATION: Final = "mdm-gitops scratch"


class Make(Protocol):
    async def __call__(self, *, like: str | None = None) -> str:
        """Make one more database and return its URL; *like* is that of one which nobody uses now."""


@asynccontextmanager
async def scratch_databases(url: str) -> AsyncIterator[Make]:
    """Yield what makes databases on the server of *url*; they are dropped at the end.

    Raises:
        WarehouseError: the server cannot be reached; ``make``: the role may not create databases.
    """
    async with await connect(url, application_name=_APPLICATION, limits=_LIMITS) as admin:
        with in_our_words("making a scratch database"):
            await sweep(admin)
            number = await _number_of(admin)
            token = secrets.token_hex(6)
            await try_lock(admin, lock_key("scratch", token))
        names = [f"{_PREFIX}_{number}_{token}_{n}" for n in range(_MOST)]
        made: list[str] = []

        async def make(*, like: str | None = None) -> str:
            name = names[len(made)]
            template = str(conninfo_to_dict(like)["dbname"]) if like else "template0"
            await _create(admin, name, template)
            made.append(name)
            return at_database(url, name)

        with _kept(url, names):
            try:
                yield make
            finally:
                await drop_all(admin, made)


def at_database(url: str, name: str) -> str:
    return make_conninfo("", **{**conninfo_to_dict(url), "dbname": name})


async def sweep(admin: AsyncConnection[Any]) -> list[str]:
    """Drop what users who are gone left behind; return the names."""
    number = await _number_of(admin)
    cursor = await admin.execute("SELECT datname FROM pg_database ORDER BY datname")
    left = []
    for (name,) in await cursor.fetchall():
        found = _NAME.fullmatch(name)
        if found and int(found[1]) == number:
            key = lock_key("scratch", found[2])
            if await try_lock(admin, key):
                await drop_all(admin, [name])
                await admin.execute("SELECT pg_advisory_unlock(%s)", [key])
                left.append(name)
    return left


async def drop_all(admin: AsyncConnection[Any], names: Sequence[str]) -> None:
    for name in names:
        await _drop(admin, name)


async def _drop(admin: AsyncConnection[Any], name: str) -> None:
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    for pause_s in _PAUSES_S:
        try:
            await admin.execute(statement)
            return
        except (errors.InsufficientPrivilege, errors.ObjectInUse):
            # An autovacuum worker is in there, which only a superuser may throw out.
            await asyncio.sleep(pause_s)
    await admin.execute(statement)


async def _create(admin: AsyncConnection[Any], name: str, template: str) -> None:
    statement = "CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8' CONNECTION LIMIT 20"
    try:
        await admin.execute(sql.SQL(statement).format(*map(sql.Identifier, (name, template))))
    except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction):
        raise WarehouseError(
            "no database can be made on the server of the warehouse with this role",
            hint="let it (ALTER ROLE ... CREATEDB), or use --prove-on embedded",
            code="WAREHOUSE_UNUSABLE",
        ) from None


async def _number_of(admin: AsyncConnection[Any]) -> int:
    """The database that *admin* is in: locks are known in there only."""
    query = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"
    row = await (await admin.execute(query)).fetchone()
    assert row is not None, "everybody is in some database"
    return int(row[0])


@contextmanager
def _kept(url: str, names: Sequence[str]) -> Iterator[None]:
    """Have the keeper drop *names* if this process ends before the context does."""
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", KEEPER],  # nothing is imported from this folder
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to our group is not for it
    )
    assert keeper.stdin is not None
    try:
        keeper.stdin.write(json.dumps({"url": url, "names": list(names)}).encode() + b"\n")
        keeper.stdin.flush()
        yield
        keeper.stdin.write(b"done\n")
    finally:
        keeper.stdin.close()
        keeper.wait()
