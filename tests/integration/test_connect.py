"""Sessions are all alike, and a connection that cannot be made says why, without the password."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import WarehouseError
from mdm_gitops.warehouse.connect import (
    SessionLimits,
    borrow,
    check_server,
    connect,
    connection_pool,
    split_password,
)

pytestmark = pytest.mark.anyio

PASSWORD = "s3cr3t-pass word/@:%"


async def _setting(conn: AsyncConnection[Any], name: str) -> str:
    row = await (await conn.execute("SELECT current_setting(%s)", [name])).fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
async def session(empty_database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    url = empty_database_url.partition("options=")[0].rstrip("?&")
    limits = SessionLimits(
        statement_timeout_s=7.5, lock_timeout_s=0.25, idle_in_transaction_timeout_s=3
    )
    async with await connect(url, application_name="name of it", limits=limits) as conn:
        yield conn


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TimeZone", "UTC"),
        ("DateStyle", "ISO, MDY"),
        ("search_path", ""),
        ("client_encoding", "UTF8"),
        ("statement_timeout", "7500ms"),
        ("lock_timeout", "250ms"),
        ("idle_in_transaction_session_timeout", "3s"),
        ("client_connection_check_interval", "1s"),
        ("application_name", "name of it"),
    ],
)
async def test_session_settings(session: AsyncConnection[Any], name: str, value: str) -> None:
    assert await _setting(session, name) == value


async def test_a_session_commits_by_itself(session: AsyncConnection[Any]) -> None:
    assert session.autocommit


async def test_the_removal_of_self_joins_is_off_where_it_exists(empty_database_url: str) -> None:
    query = "SELECT setting, source FROM pg_settings WHERE name = 'enable_self_join_elimination'"
    async with (
        await connect(empty_database_url, application_name="test") as alone,
        connection_pool(empty_database_url, application_name="pool", min_size=1) as pool,
        borrow(pool) as lent,
    ):
        known = alone.info.server_version >= 180_000
        for conn in (alone, lent):
            found = await (await conn.execute(query)).fetchall()
            assert found == ([("off", "session")] if known else [])


async def test_the_url_has_the_last_word(empty_database_url: str) -> None:
    base = empty_database_url.partition("options=")[0]
    url = f"{base}options={quote('-c statement_timeout=1234 -c work_mem=7MB')}"
    async with await connect(url, application_name="test") as conn:
        assert await _setting(conn, "statement_timeout") == "1234ms"
        assert await _setting(conn, "work_mem") == "7MB"
        assert await _setting(conn, "search_path") == ""


async def test_a_statement_that_takes_too_long_is_ended(session: AsyncConnection[Any]) -> None:
    await session.execute("SET statement_timeout = 50")
    with pytest.raises(psycopg.errors.QueryCanceled):
        await session.execute("SELECT pg_sleep(5)")


def _with(url: str, **changes: str) -> str:
    parts = urlsplit(url)
    _, _, place = parts.netloc.rpartition("@")
    user = f"{changes.get('user', 'somebody')}:{quote(PASSWORD, safe='')}"
    path = f"/{changes['database']}" if "database" in changes else parts.path
    return urlunsplit(parts._replace(netloc=f"{user}@{place}", path=path))


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        pytest.param(
            "postgresql://u:{pw}@127.0.0.1:{closed}/d",
            "cannot connect to PostgreSQL at 127.0.0.1:{closed}, database d as u:"
            " Connection refused",
            "is the server running, and is this its host and port?",
            id="refused",
        ),
        pytest.param(
            "postgresql://u:{pw}@/d?host=/nowhere",
            "cannot connect to PostgreSQL at /nowhere, database d as u: No such file or directory",
            "is the server running, and is this its socket folder?",
            id="no-socket",
        ),
        pytest.param(
            "postgresql://u:{pw}@127.0.0.1:not-a-port/d",
            "cannot connect to PostgreSQL at 127.0.0.1:not-a-port, database d as u: invalid integer"
            ' value "not-a-port" for connection option "port"',
            "",
            id="bad-port",
        ),
        pytest.param(
            "mysql://u:{pw}@127.0.0.1/d",
            "Mdm__Database__Url is not a PostgreSQL URL",
            "write it as postgresql://user:password@host:5432/database, with special characters"
            " of the password percent-encoded",
            id="other-scheme",
        ),
    ],
)
async def test_a_failure_names_place_and_reason(url: str, message: str, hint: str) -> None:
    closed = _closed_port()
    with pytest.raises(WarehouseError) as caught:
        quoted = quote(PASSWORD, safe="")
        await connect(url.format(pw=quoted, closed=closed), application_name="test")
    assert str(caught.value) == message.format(closed=closed)
    assert caught.value.hint == hint
    _assert_no_password(caught.value)


async def test_a_password_that_was_not_quoted_does_not_leak() -> None:
    with pytest.raises(WarehouseError, match="is not a PostgreSQL URL") as caught:
        await connect(f"postgresql://u:{PASSWORD}@127.0.0.1/d", application_name="test")
    _assert_no_password(caught.value)


def _assert_no_password(error: BaseException) -> None:
    told = f"{error} {error.args} {vars(error)} {error.__cause__} {error.__suppress_context__}"
    assert PASSWORD not in told
    assert quote(PASSWORD, safe="") not in told
    assert error.__cause__ is None


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("url", "public", "password"),
    [
        ("postgresql://u:p%40%2F@h:1/d", "user=u dbname=d host=h port=1", "p@/"),
        ("postgresql://u@h/d", "user=u dbname=d host=h", ""),
        ("postgresql:///d?host=%2Ftmp", "dbname=d host=/tmp", ""),
        ("postgresql://u:p@/d?host=%2Ftmp&port=5", "user=u dbname=d host=/tmp port=5", "p"),
        ("postgresql://u@h/d?password=a%20b", "user=u dbname=d host=h", "a b"),
        ("host=h password='a b'", "host=h", "a b"),
    ],
)
def test_splitting_off_the_password(url: str, public: str, password: str) -> None:
    assert split_password(url) == (public, password)


async def test_a_wrong_password_and_a_missing_database(empty_database_url: str) -> None:
    with pytest.raises(WarehouseError, match="password authentication failed for user") as caught:
        await connect(_with(empty_database_url), application_name="test")
    _assert_no_password(caught.value)
    parts = urlsplit(empty_database_url)
    absent = urlunsplit(parts._replace(path="/absent"))
    with pytest.raises(WarehouseError, match=r'database "absent" does not exist$') as caught:
        await connect(absent, application_name="test")
    assert caught.value.hint == "create the database, or correct its name in Mdm__Database__Url"


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:{quote(PASSWORD, safe='')}@127.0.0.1:{silent.getsockname()[1]}/d"
        async with asyncio.timeout(8):
            with pytest.raises(WarehouseError, match="timeout") as caught:
                await connect(url, application_name="test", connect_timeout_s=1)
    _assert_no_password(caught.value)


async def test_a_pool_lends_sessions_that_are_alike(empty_database_url: str) -> None:
    async with connection_pool(empty_database_url, application_name="pool", max_size=2) as pool:
        async with borrow(pool) as one, borrow(pool) as two:
            assert one is not two
            assert [await _setting(each, "TimeZone") for each in (one, two)] == ["UTC", "UTC"]
        async with borrow(pool) as again:
            assert again.autocommit


async def test_a_pool_replaces_what_died_in_it(empty_database_url: str) -> None:
    async with connection_pool(
        empty_database_url, application_name="pool", min_size=1, max_size=1
    ) as pool:
        async with borrow(pool) as conn:
            first = conn.info.backend_pid
        async with await connect(empty_database_url, application_name="test") as other:
            await other.execute("SELECT pg_terminate_backend(%s)", [first])
        async with borrow(pool) as conn:
            assert conn.info.backend_pid != first
            assert await _setting(conn, "search_path") == ""


async def test_a_pool_does_not_wait_long_to_try_again() -> None:
    """After minutes without a server it would else take minutes until it looks for it again."""
    attempts = asyncio.Semaphore(0)

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.release()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    url = f"postgresql://127.0.0.1:{port}/x?gssencmode=disable&sslmode=disable"
    async with server, connection_pool(url, application_name="pool", max_size=1):
        async with asyncio.timeout(10):  # pauses that double from a second on are 15 s
            for _ in range(5):
                await attempts.acquire()


async def test_who_is_cancelled_while_returning_a_connection_returns_it(
    empty_database_url: str,
) -> None:
    async def use() -> None:
        async with borrow(pool):
            begun.set()
            await go_on.wait()

    pool = connection_pool(empty_database_url, application_name="pool", max_size=1, wait_s=5)
    async with pool:
        begun, go_on = asyncio.Event(), asyncio.Event()
        using = asyncio.create_task(use())
        await begun.wait()
        async with pool._lock:  # as somebody has it who is handing out another one
            go_on.set()
            for _ in range(10):
                await asyncio.sleep(0)
            using.cancel()
            with suppress(asyncio.CancelledError):
                await using
        async with borrow(pool) as conn:
            assert await _setting(conn, "search_path") == ""


async def test_an_exhausted_pool_is_an_error_not_a_hang(empty_database_url: str) -> None:
    pool = connection_pool(empty_database_url, application_name="pool", max_size=1, wait_s=0.1)
    async with pool, borrow(pool):
        with pytest.raises(WarehouseError, match=r"became free within 0\.1 s") as caught:
            async with borrow(pool):
                pass
    assert "PoolMaxSize" in caught.value.hint


async def test_the_server_under_test_is_usable(conn: AsyncConnection[Any]) -> None:
    report = await check_server(conn)
    assert int(report.version.split(".")[0]) >= 16
    assert not [warning for warning in report.warnings if "pooler" in warning]


async def test_lost_durability_is_told(conn: AsyncConnection[Any]) -> None:
    await conn.execute("SET synchronous_commit = off")
    assert (await check_server(conn)).warnings == (
        "synchronous_commit is off: a crash can lose writes that were acknowledged",
    )


async def test_sessions_without_our_settings_are_refused(empty_database_url: str) -> None:
    url = empty_database_url.replace("options=", f"options={quote('-c search_path=public ')}")
    async with await connect(url, application_name="test") as conn:
        with pytest.raises(WarehouseError, match="session settings of this program do not reach"):
            await check_server(conn)


async def test_a_database_of_another_encoding_is_refused(
    admin: psycopg.Connection[Any], empty_database_url: str
) -> None:
    name = "mdm_test_latin1"
    admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    admin.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
        " LOCALE_PROVIDER 'libc'"
    )
    try:
        url = urlunsplit(urlsplit(empty_database_url)._replace(path=f"/{name}"))
        async with await connect(url, application_name="test") as conn:
            with pytest.raises(WarehouseError, match="stores text as LATIN1, UTF8 is needed"):
                await check_server(conn)
    finally:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
