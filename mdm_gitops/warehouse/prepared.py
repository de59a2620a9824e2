"""Prepared statements straight through libpq: what a cursor does, without what it can do beside.

A request that reads a row spends more of its time in a cursor's generality than in PostgreSQL. Here a statement
is sent by the name under which the connection has it prepared, its answer is waited for with one callback, and
the result is handed on as it came, in text. For statements that are run again and again, outside of pipelines,
on a connection that nobody else uses meanwhile; everything else goes through a cursor.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from mdm_gitops.warehouse.silence import AnsweredConnection, ServerSilent

_MOST_KEPT: Final = 256  # statements of one connection
_PARAMETER: Final = re.compile(rb"%\((\w+)\)s|%(%)")
_GOOD: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement with ``$1``, and the names of its parameters in that order."""

    sql: bytes
    names: tuple[str, ...]

    @classmethod
    def of(cls, sql: bytes) -> Prepared:
        """Return *sql*, whose parameters are written ``%(name)s`` and its percent signs twice."""
        names: dict[str, int] = {}

        def numbered(found: re.Match[bytes]) -> bytes:
            if found[2]:
                return b"%"
            return b"$%d" % names.setdefault(found[1].decode(), len(names) + 1)

        return cls(_PARAMETER.sub(numbered, sql), tuple(names))


_numbers: Final = itertools.count(1)
_Key = tuple[bytes, tuple[int, ...]]  # the types of parameters are part of what is prepared
_kept: WeakKeyDictionary[AsyncConnection[Any], dict[_Key, bytes]] = WeakKeyDictionary()


async def run_prepared(
    conn: AsyncConnection[Any], statement: Prepared, values: Mapping[str, Any]
) -> PGresult:
    """Return what *statement* gives, each value as PostgreSQL's text.

    It is prepared on *conn*, which is in no transaction, when it is run there for the first time. Whoever is
    cancelled while it waits leaves a closed connection behind: what still runs on it could otherwise be taken for
    the next answer.

    Raises:
        psycopg.Error: as a cursor does.
    """
    transformer = Transformer(conn)
    given = transformer.dump_sequence(
        [values[name] for name in statement.names], [PyFormat.AUTO] * len(statement.names)
    )
    names = _kept.setdefault(conn, {})
    key = (statement.sql, transformer.types or ())
    try:
        try:
            return await _run(conn, names, key, given, transformer.formats)
        except InvalidSqlStatementName:  # nothing was run
            names.clear()
            return await _run(conn, names, key, given, transformer.formats)
    except ServerSilent:
        if isinstance(conn, AnsweredConnection):
            conn.give_up()
        raise
    except psycopg.Error:
        raise
    except BaseException:
        await conn.close()
        raise


def is_between_transactions(conn: AsyncConnection[Any]) -> bool:
    """Whether ``run_prepared`` can be used: a cursor forgets all that is prepared on its connection when it
    sees a ROLLBACK or a DROP, which is found out, and mended, only where no transaction is lost by it."""
    return conn.pgconn.transaction_status == TransactionStatus.IDLE


async def _run(
    conn: AsyncConnection[Any],
    names: dict[_Key, bytes],
    key: _Key,
    given: Sequence[Any],
    formats: Sequence[Any] | None,
) -> PGresult:
    name = names.get(key)
    if name is None:
        name = await _prepare(conn, names, key)
    conn.pgconn.send_query_prepared(name, given, param_formats=formats)
    return await _answer(conn)


async def _prepare(conn: AsyncConnection[Any], names: dict[_Key, bytes], key: _Key) -> bytes:
    pgconn = conn.pgconn
    if len(names) >= _MOST_KEPT:
        oldest = next(iter(names))
        pgconn.send_query(b"DEALLOCATE " + names.pop(oldest))
        await _answer(conn)
    # Never a name again: of those that are forgotten here, some may still be prepared there.
    name = b"mdm_%d" % next(_numbers)
    pgconn.send_prepare(name, key[0], param_types=key[1])
    await _answer(conn)
    names[key] = name
    return name


async def _answer(conn: AsyncConnection[Any]) -> PGresult:
    """Return the last result of what was sent, once all of it is there."""
    loop, pgconn = asyncio.get_running_loop(), conn.pgconn
    waiter: asyncio.Future[PGresult] = loop.create_future()
    last: PGresult | None = None
    is_watching = True

    def watch_no_more() -> None:
        """Called at once: where libpq has closed the socket, its number is soon somebody else's."""
        nonlocal is_watching
        if is_watching:
            is_watching = False
            loop.remove_reader(socket)
            loop.remove_writer(socket)

    def look() -> None:
        nonlocal last
        try:
            if not pgconn.flush():
                loop.remove_writer(socket)
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    break
                last = result
            else:
                return
        except psycopg.Error as error:
            watch_no_more()
            _settle(waiter, error)
            return
        watch_no_more()
        _settle(waiter, last)

    socket = pgconn.socket
    loop.add_reader(socket, look)
    seconds = conn.answer_s if isinstance(conn, AnsweredConnection) else None
    timer = None if seconds is None else loop.call_later(seconds, _give_up, waiter)
    try:
        if pgconn.flush():  # more than the socket takes at once
            loop.add_writer(socket, look)
        result = await waiter
    finally:
        watch_no_more()
        if timer is not None:
            timer.cancel()
    if result.status not in _GOOD:
        raise error_from_result(result, encoding="utf-8")
    return result


def _give_up(waiter: asyncio.Future[PGresult]) -> None:
    _settle(waiter, ServerSilent())


def _settle(waiter: asyncio.Future[PGresult], outcome: PGresult | Exception | None) -> None:
    if waiter.done():
        return
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
    elif outcome is None:
        waiter.set_exception(psycopg.OperationalError("the server gave no answer"))
    else:
        waiter.set_result(outcome)
