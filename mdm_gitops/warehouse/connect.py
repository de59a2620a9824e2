"""Connections to the warehouse, all with the same session settings, and what a server must offer.

A driver's failure to connect becomes a ``WarehouseError`` here; its message names the place and the
reason, never the password. The session settings travel in the start-up packet, so they hold before
the first statement; what not every version knows is set by a statement, and all of them are where a
pooler in session mode kept the packet to itself. What the URL itself says (``?options=-c ...``) has
the last word on the former.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from psycopg_pool.pool_async import AddConnection, MaintenanceTask

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.silence import (
    CLIENT_SETTINGS,
    SERVER_SETTINGS,
    AnsweredConnection,
    answer_s,
    fell_silent,
    is_alive,
    wait_for_answers,
)

# What the layers above write in their signatures, without naming the driver.
Connection: TypeAlias = AsyncConnection[Any]
ConnectionPool: TypeAlias = AsyncConnectionPool[AsyncConnection[Any]]

OLDEST_MAJOR: Final = 16
NEWEST_MAJOR: Final = 18
_OPTION_MAX = 2**31 - 1
# Of the pauses of a pool that cannot connect, which are a second at first and double.
_SOONER: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_SESSION: Final[Mapping[str, str]] = {
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "search_path": "",  # every name is written with its schema
    "client_encoding": "UTF8",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    **SERVER_SETTINGS,
}
# Where PostgreSQL 18 removes a join of a table with itself on its key, and the condition holds an OR
# with a subplan, it loses part of the condition (seen in 18.4): a filter that follows a reference
# of an entity to itself would show rows that it must hide. filter/compile.py writes such filters so
# that no join arises; this holds for every other query too. No plan of ours needs the removal.
_SELF_JOIN_ELIMINATION_SINCE: Final = 180_000
# Where the start-up packet did what it should, only the second list is set.
_SETTINGS_BY_STATEMENT: Final = """
SELECT count(set_config(key, value, false))
  FROM (SELECT * FROM json_each_text(%s) WHERE current_setting('search_path') <> ''
        UNION ALL SELECT * FROM json_each_text(%s)) AS wanted
"""
_OPTION: Final = re.compile(r"(?:-c\s*|--)([\w.-]+)=")
# A pooler that gives two of our sessions one server process does so within a few statements.
_ROUNDS: Final = 5
_SECOND_SESSION_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Times in seconds after which PostgreSQL itself ends what a session does; 0 is never."""

    statement_timeout_s: float = 15.0
    lock_timeout_s: float = 10.0
    idle_in_transaction_timeout_s: float = 30.0

    def options(self) -> dict[str, str]:
        return {
            "statement_timeout": _milliseconds(self.statement_timeout_s),
            "lock_timeout": _milliseconds(self.lock_timeout_s),
            "idle_in_transaction_session_timeout": _milliseconds(
                self.idle_in_transaction_timeout_s
            ),
        }


async def connect(
    url: str,
    *,
    application_name: str,
    limits: SessionLimits = SessionLimits(),
    connect_timeout_s: float = 5.0,
    read_only: bool = False,
) -> Connection:
    """Return a connection in autocommit mode: transactions are always opened by name.

    It leads to a primary; unless the URL says otherwise, only *read_only* takes a standby, too.

    Raises:
        WarehouseError: it could not be made.
    """
    arguments = _arguments(url, application_name, limits, connect_timeout_s)
    if read_only:
        arguments["target_session_attrs"] = _given(url).get("target_session_attrs", "any")
    try:
        conn = await AnsweredConnection.connect(autocommit=True, **arguments)
        try:
            await _configuring(url, limits, connect_timeout_s)(conn)
        except BaseException:
            await conn.close()
            raise
    except psycopg.Error as error:
        raise connection_failed(url, error) from None
    return conn


def _configuring(
    url: str, limits: SessionLimits, connect_timeout_s: float
) -> Callable[[Connection], Awaitable[None]]:
    """Return what sets in a new session what the start-up packet did not.

    That is what PostgreSQL knows from a version on, since an older one would refuse the whole session,
    and everything where a pooler did not pass the packet on.
    """
    given = {
        name.replace("-", "_") for name in _OPTION.findall(str(_given(url).get("options") or ""))
    }
    settings = {**_SESSION, **limits.options()}
    own = json.dumps({name: settings[name] for name in settings.keys() - given})

    async def configure(conn: Connection) -> None:
        knows = conn.info.server_version >= _SELF_JOIN_ELIMINATION_SINCE
        newer = {"enable_self_join_elimination": "off"} if knows else {}
        wait_for_answers(conn, connect_timeout_s)
        await conn.execute(_SETTINGS_BY_STATEMENT, [own, json.dumps(newer)], prepare=False)
        wait_for_answers(conn, answer_s(limits.statement_timeout_s))

    return configure


def connection_pool(
    url: str,
    *,
    application_name: str,
    min_size: int = 1,
    max_size: int = 16,
    wait_s: float = 10.0,
    limits: SessionLimits = SessionLimits(),
    connect_timeout_s: float = 5.0,
    checked: bool = True,
) -> ConnectionPool:
    """Return a pool that is still closed: ``async with pool`` opens it, without waiting.

    Take connections by ``borrow``, which speaks our errors. A connection that died in the pool is
    replaced before it is handed out. That costs a round trip: with *checked* false the borrower
    finds out himself, and repeats what is safe to repeat on one of ``borrow_checked``.
    """
    arguments = _arguments(url, application_name, limits, connect_timeout_s)
    return _Pool(
        conninfo="",
        connection_class=AnsweredConnection,
        kwargs={"autocommit": True, **arguments},
        min_size=min_size,
        max_size=max_size,
        timeout=wait_s,
        open=False,
        configure=_configuring(url, limits, connect_timeout_s),
        name=application_name,
        check=AsyncConnectionPool.check_connection if checked else None,
    )


_returning: Final[set[asyncio.Task[None]]] = set()  # a loop alone keeps its tasks weakly


class _Pool(AsyncConnectionPool[Connection]):
    """Tries again soon where it cannot connect: its base doubles its pauses, and would come back minutes
    after a server that was away for minutes. Where one connection fell silent, it trusts none that was
    made before. And who is cancelled while returning one returns it all the same: its base (3.3) would have
    one less from then on."""

    async def putconn(self, conn: Connection) -> None:
        returning = asyncio.create_task(self._put_back(conn))
        _returning.add(returning)
        returning.add_done_callback(_returning.discard)
        await asyncio.shield(returning)

    async def _put_back(self, conn: Connection) -> None:
        await super().putconn(conn)
        if fell_silent(conn):
            await self.drain()

    async def schedule_task(self, task: MaintenanceTask, delay: float) -> None:
        if isinstance(task, AddConnection):
            delay = min(delay * _SOONER, _LONGEST_PAUSE_S)
        await super().schedule_task(task, delay)


@asynccontextmanager
async def borrow(
    pool: ConnectionPool,
) -> AsyncIterator[Connection]:
    """Lend a connection of *pool*.

    Raises:
        WarehouseError: none became free in time, or none can be made.
    """
    try:
        conn = await pool.getconn()
    except PoolTimeout:
        raise WarehouseError(
            f"no connection to the warehouse became free within {pool.timeout:g} s",
            hint="the server is down or busy; Mdm__Database__PoolMaxSize allows more connections",
        ) from None
    try:
        yield conn
    finally:
        await pool.putconn(conn)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What ``check_server`` found: a usable server, perhaps with *warnings* to tell the user."""

    version: str
    warnings: tuple[str, ...]


async def check_server(conn: Connection) -> ServerReport:
    """Look whether the server can be our warehouse.

    Raises:
        WarehouseError: it is too old, does not store UTF-8, or is reached through a pooler that
            changes the server process between transactions.
    """
    cursor = await conn.execute(_SERVER_FACTS)
    row = await cursor.fetchone()
    assert row is not None
    version_number, version, encoding, fsync, commit, full_page_writes, path = row
    major = version_number // 10_000
    if major < OLDEST_MAJOR:
        raise _unusable(
            f"the warehouse is PostgreSQL {version}, {OLDEST_MAJOR} or newer is needed",
            hint="upgrade the server, or use the embedded one without Mdm__Database__Url",
        )
    if encoding != "UTF8":
        raise _unusable(
            f"the database stores text as {encoding}, UTF8 is needed",
            hint="CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )
    warnings = list(_durability_warnings(fsync, commit, full_page_writes))
    if major > NEWEST_MAJOR:
        warnings.append(
            f"PostgreSQL {version} is newer than the versions this program is tested on"
        )
    await refuse_transaction_mode(conn)
    if path != _SESSION["search_path"]:
        raise _unusable(
            "the session settings of this program do not reach the warehouse",
            hint="Mdm__Database__Url must not set search_path",
        )
    return ServerReport(version=version, warnings=tuple(warnings))


_SERVER_FACTS: Final = """
    SELECT current_setting('server_version_num')::int, current_setting('server_version'),
           current_setting('server_encoding'), current_setting('fsync'),
           current_setting('synchronous_commit'), current_setting('full_page_writes'),
           current_setting('search_path')
"""


def _durability_warnings(fsync: str, commit: str, full_page_writes: str) -> list[str]:
    found = []
    if fsync == "off":
        found.append("fsync is off: a power failure can destroy the whole database")
    if commit == "off":
        found.append("synchronous_commit is off: a crash can lose writes that were acknowledged")
    if full_page_writes == "off":
        found.append("full_page_writes is off: a power failure can damage tables")
    return found


async def refuse_transaction_mode(conn: Connection) -> None:
    """Look whether the server process of *conn* is its own.

    Behind a pooler in transaction mode it is not: locks of a session, its settings and prepared
    statements would be those of whoever is next.

    Raises:
        WarehouseError: it is not.
    """
    try:
        async with asyncio.timeout(_SECOND_SESSION_S):
            is_shared = await _is_shared(conn)
    except TimeoutError:  # the pooler has no process left for a second one, so ours is our own
        return
    except psycopg.Error as error:
        raise connection_failed(conn.info.dsn, error) from None
    if is_shared:
        raise _unusable(
            "the warehouse is reached through a pooler in transaction mode",
            hint="let Mdm__Database__Url name the server itself, or a pooler in session mode",
        )


async def _is_shared(conn: Connection) -> bool:
    mine = {await _backend_pid(conn)}
    if mine == {conn.info.backend_pid}:
        return False  # it greeted us, so there is no pooler
    other = await AsyncConnection.connect(
        conn.info.dsn, password=conn.info.password, autocommit=True
    )
    async with other:
        for _ in range(_ROUNDS):
            async with other.transaction():
                theirs = await _backend_pid(other)
                mine.add(await _backend_pid(conn))
            if theirs in mine or len(mine) > 1:
                return True
    return False


async def _backend_pid(conn: Connection) -> int:
    row = await (await conn.execute("SELECT pg_backend_pid()")).fetchone()
    return int(row[0]) if row else 0


def split_password(url: str) -> tuple[str, str]:
    """Return *url* as a connection string without the password, and the password.

    Raises:
        WarehouseError: it is no connection string.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise connection_failed(url, error) from None
    password = str(parts.pop("password", None) or "")
    return make_conninfo("", **parts), password


def connection_failed(url: str, error: psycopg.Error) -> WarehouseError:
    """Translate a failure to connect to *url*; the password cannot get into the message."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        # libpq quotes what it cannot read, and that may be the password.
        return _unusable(
            "Mdm__Database__Url is not a PostgreSQL URL",
            hint="write it as postgresql://user:password@host:5432/database, with special"
            " characters of the password percent-encoded",
        )
    reason = _reason(error, str(parts.get("password") or ""))
    hint = next((hint for words, hint in _HINTS if words in reason.lower()), "")
    return WarehouseError(f"cannot connect to {_place(parts)}: {reason}", hint=hint)


@contextmanager
def in_our_words(doing: str) -> Iterator[None]:
    """Translate what the driver raises inside; *doing* is what then did not work, for a person.

    Raises:
        WarehouseError: instead of any error of the driver.
    """
    try:
        yield
    except psycopg.errors.QueryCanceled:
        raise WarehouseError(
            f"{doing} took longer than a statement may",
            hint="allow more with Mdm__Apply__StatementTimeoutSeconds, or look for a busy server",
            code="QUERY_TIMEOUT",
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise _unusable(
            f"{doing} failed: {_primary(error)}",
            hint="the role of Mdm__Database__Url must own the schemas of config and entity data",
        ) from None
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise WarehouseError(
            f"{doing} failed: {_primary(error)}", hint="run it again when the server answers"
        ) from None
    except psycopg.Error as error:
        raise _unusable(f"{doing} failed: {_primary(error)}", hint="") from error


def _primary(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).partition("\n")[0]
    if isinstance(error, psycopg.DataError):  # what it quotes is a value
        text = _QUOTED.sub("***", text)
    return text.strip().rstrip(".") or "the connection was lost"


_QUOTED: Final = re.compile(r'".*"', re.DOTALL)
_HINTS: Final = (
    ("password authentication failed", "look at the user and the password in Mdm__Database__Url"),
    ("no password supplied", "give Mdm__Database__Url a password"),
    ("starting up", "wait until the server has started"),
    ("shutting down", "wait until the server has started again"),
    (
        "hot standby",
        "Mdm__Database__Url must name the primary; of several hosts, host1,host2, it is found",
    ),
    ("database", "create the database, or correct its name in Mdm__Database__Url"),
    ("role", "create the role, or correct its name in Mdm__Database__Url"),
    ("refused", "is the server running, and is this its host and port?"),
    ("no such file", "is the server running, and is this its socket folder?"),
    (
        "unsupported startup parameter",
        "let PgBouncer have ignore_startup_parameters = options, or connect to the server itself",
    ),
    ("too many", "the server has no free connection: raise its max_connections"),
    ("timeout", "is the server reachable from here?"),
    ("resolve", "is the host name right?"),
    ("translate host", "is the host name right?"),
)


def _reason(error: psycopg.Error, password: str) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith("Is the server running")]
    text = telling[-1] if telling else type(error).__name__
    text = (
        text.rpartition("FATAL:")[2]
        .strip()
        .removeprefix("connection failed: ")
        .removeprefix("connection is bad: ")
    )
    text = re.sub(r"^connection to server (at|on) .*? failed: ", "", text)
    if len(password) >= 4:  # libpq does not quote it; a driver to come might
        text = text.replace(password, "***")
    return text.removeprefix("fe_sendauth: ").rstrip(".")


def _place(parts: Mapping[str, Any]) -> str:
    host = str(parts.get("host") or parts.get("hostaddr") or "the local socket")
    host = f"[{host}]" if ":" in host else host
    port = f":{parts['port']}" if parts.get("port") and not host.startswith("/") else ""
    user = f" as {parts['user']}" if parts.get("user") else ""
    return f"PostgreSQL at {host}{port}, database {parts.get('dbname') or 'of the user'}{user}"


def _arguments(
    url: str, application_name: str, limits: SessionLimits, connect_timeout_s: float
) -> dict[str, Any]:
    given = _given(url)
    options = " ".join(
        f"-c {name}={_escaped(value)}" for name, value in {**_SESSION, **limits.options()}.items()
    )
    own = {
        "application_name": application_name,
        # libpq takes whole seconds, and 1 as 2.
        "connect_timeout": max(2, round(connect_timeout_s)),
        # Of several hosts the one that takes writes, and never a standby, which would refuse them one
        # by one. A primary that takes none for a time, since its disk is full, can still be read.
        "target_session_attrs": "primary",
        **CLIENT_SETTINGS,
    }
    return {**own, **given, "options": f"{options} {given.get('options') or ''}".strip()}


def _given(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.Error as error:
        raise connection_failed(url, error) from None


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _milliseconds(seconds: float) -> str:
    return str(min(round(seconds * 1000), _OPTION_MAX))


def _unusable(message: str, *, hint: str) -> WarehouseError:
    return WarehouseError(message, hint=hint, code="WAREHOUSE_UNUSABLE")


@asynccontextmanager
async def borrow_checked(pool: ConnectionPool) -> AsyncIterator[Connection]:
    """Lend a connection of *pool* that has not died in it: for writes, which are not repeated.

    Costs no round trip: a server that went away has closed its end, which the socket shows.
    """
    for _ in range(pool.max_size + 1):
        async with borrow(pool) as conn:
            if is_alive(conn):
                yield conn
                return
            await conn.close()
    async with borrow(pool) as conn:
        yield conn
