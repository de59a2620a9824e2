"""Statements straight through libpq: what a cursor would have given, also when something goes wrong."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.warehouse import prepared
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.prepared import Prepared, is_between_transactions, run_prepared

pytestmark = pytest.mark.anyio
NUMBER = Prepared.of(b"SELECT %(n)s::int + 1")
PREPARED = "SELECT count(*) FROM pg_catalog.pg_prepared_statements"
VALUES: list[Any] = [
    *(None, "", "a'b\\\\c", "ü\N{SNOWMAN}", 0, -1, 2**15, 2**31, 2**63 - 1, 2**70, True, 1.5),
    *(Decimal("-0.10"), date(2024, 2, 29), datetime(2024, 2, 29, 1, tzinfo=UTC), UUID(int=7)),
    *(b"\x00\xff", [1, 2], ["a", None], "x" * 3_000_000),
]


@pytest.fixture
async def conn(database_url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(database_url, application_name="test") as conn:
        yield conn


async def _one(conn: AsyncConnection[Any], number: int = 1) -> bytes | None:
    return (await run_prepared(conn, NUMBER, {"n": number})).get_value(0, 0)


async def _first(conn: AsyncConnection[Any], query: str) -> int:
    [(number,)] = await (await conn.execute(query.encode(), prepare=False)).fetchall()
    return int(number)


def test_parameters_get_numbers_by_their_first_place() -> None:
    given = b"SELECT %(b)s, %(a)s, '50 %%' WHERE %(b)s LIKE 'x%%' AND 7 %% 2 = %(c_2)s"
    assert Prepared.of(given) == Prepared(
        b"SELECT $1, $2, '50 %' WHERE $1 LIKE 'x%' AND 7 % 2 = $3", ("b", "a", "c_2")
    )


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
async def test_it_gives_what_a_cursor_gives(conn: AsyncConnection[Any], value: Any) -> None:
    cast = {str: "::text", type(None): "::text", list: "::text[]"}.get(type(value), "")
    sql = f"SELECT %(v)s{cast}, pg_typeof(%(v)s{cast}), %(v)s{cast} IS NULL, '%%'".encode()
    cursor = await conn.execute(sql, {"v": value})
    for _ in range(2):  # prepared now, and found
        result = await run_prepared(conn, Prepared.of(sql), {"v": value})
        assert cursor.pgresult is not None
        assert [result.get_value(0, n) for n in range(4)] == [
            cursor.pgresult.get_value(0, n) for n in range(4)
        ]


async def test_large_answers_come_whole(conn: AsyncConnection[Any]) -> None:
    many = Prepared.of(b"SELECT repeat('x', 1000) FROM generate_series(1, %(n)s::int)")
    result = await run_prepared(conn, many, {"n": 20_000})
    assert result.ntuples == 20_000
    assert result.get_value(19_999, 0) == b"x" * 1000


async def test_an_error_is_the_drivers_and_the_connection_goes_on(
    conn: AsyncConnection[Any],
) -> None:
    divide = Prepared.of(b"SELECT 1 / %(n)s::int")
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await run_prepared(conn, divide, {"n": 0})
    with pytest.raises(psycopg.errors.UndefinedTable):
        await run_prepared(conn, Prepared.of(b"SELECT * FROM nowhere.nothing"), {})
    assert await _one(conn) == b"2"
    assert is_between_transactions(conn)


async def test_what_was_forgotten_is_prepared_again(conn: AsyncConnection[Any]) -> None:
    assert await _one(conn) == b"2"
    await conn.execute("DEALLOCATE ALL")  # as a cursor does it when it sees a ROLLBACK
    assert await _one(conn, 2) == b"3"
    await conn.execute("DEALLOCATE ALL")
    async with conn.transaction():
        assert not is_between_transactions(conn)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await _one(conn)  # why it is not for transactions


async def test_what_was_forgotten_in_part_is_prepared_by_other_names(
    conn: AsyncConnection[Any],
) -> None:
    before, after = (
        [Prepared.of(b"SELECT %d" % n) for n in range(first, first + 4)] for first in (10, 20)
    )
    for statement in before:
        await run_prepared(conn, statement, {})
    await conn.execute("DEALLOCATE ALL")
    for statement in (
        *after[:1],
        *before,
        *after,
    ):  # one that is still there when others are missed
        await run_prepared(conn, statement, {})


async def test_a_connection_keeps_only_so_many(
    conn: AsyncConnection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = [Prepared.of(b"SELECT %d" % number) for number in range(9)]
    for statement in statements:
        await run_prepared(conn, statement, {})
    assert await _first(conn, PREPARED) == len(statements), "the number below is for the bound"
    monkeypatch.setattr(prepared, "_MOST_KEPT", 4)
    for number, statement in enumerate([*statements, Prepared.of(b"SELECT 9")]):
        assert (await run_prepared(conn, statement, {})).get_value(0, 0) == b"%d" % number
    assert await _first(conn, PREPARED) <= len(statements)


async def test_who_gives_up_leaves_no_answer_to_others(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    sleeping = asyncio.create_task(
        run_prepared(conn, Prepared.of(b"SELECT pg_sleep(%(n)s::int)"), {"n": 600})
    )
    async with await connect(database_url, application_name="other") as other:
        running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep(%'"
        async with asyncio.timeout(60):
            while await _first(other, running) != 1:  # noqa: ASYNC110 - only by asking
                await asyncio.sleep(0.01)
            sleeping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sleeping
            assert conn.closed
            with pytest.raises(psycopg.OperationalError):
                await _one(conn)
            while await _first(other, running) != 0:  # noqa: ASYNC110 - only by asking
                await asyncio.sleep(0.01)


async def test_a_server_that_ends_the_session_is_an_error_of_the_connection(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    assert await _one(conn) == b"2"
    async with await connect(database_url, application_name="other") as other:
        await other.execute("SELECT pg_terminate_backend(%s, 20000)", [conn.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        await _one(conn)
    assert conn.closed


class _Reused:
    """A connection of libpq whose socket's number is taken by another one as soon as it is closed."""

    def __init__(self, pgconn: Any, taken: Callable[[int], None]) -> None:
        self._pgconn, self._taken = pgconn, taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pgconn, name)

    def consume_input(self) -> None:
        number = self._pgconn.socket
        try:
            self._pgconn.consume_input()
        except psycopg.Error:
            asyncio.get_running_loop().call_soon(self._taken, number)
            raise


async def test_a_socket_that_took_the_place_of_a_lost_one_is_left_alone(
    conn: AsyncConnection[Any], database_url: str
) -> None:
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    ours, theirs = socket.socketpair()
    spare: list[int] = []

    def take(number: int) -> None:
        os.dup2(theirs.fileno(), number)
        spare.append(number)
        loop.add_reader(number, heard.set)

    conn.pgconn = _Reused(conn.pgconn, take)  # type: ignore[assignment]
    pid = conn.info.backend_pid
    waiting = asyncio.create_task(run_prepared(conn, Prepared.of(b"SELECT pg_sleep(60)"), {}))
    async with await connect(database_url, application_name="test") as other:
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND query ~ '^SELECT pg_sleep'"
        while not await (await other.execute(query, [pid])).fetchone():  # noqa: ASYNC110 - outside
            await asyncio.sleep(0.01)
        await other.execute("SELECT pg_terminate_backend(%s)", [pid])
    with pytest.raises(psycopg.OperationalError):
        await waiting
    try:
        ours.send(b"x")
        async with asyncio.timeout(10):
            await heard.wait()
    finally:
        for number in spare:
            loop.remove_reader(number)
            os.close(number)
        ours.close()
        theirs.close()
