"""Waiting for a server that says nothing: how long, and what comes of it.

The network may be cut without a word, at one end or in both directions. Then the system ends a connection
whose bytes nobody acknowledges, here and at the server, whose locks are free again with it. That does not
help where something between the two acknowledges and keeps the bytes, as a proxy does whose other side is
gone: there a statement that PostgreSQL would have ended long ago by itself ends the connection. What such a
statement did, nobody knows.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.errors import OperationalError, _WaitTimeout

RV = TypeVar("RV")
# A client that vanished is noticed by the server, also inside a long statement, and its locks are free again:
# after a second when it was killed, after 11 when the network was cut, whoever had the last word.
SERVER_SETTINGS: Final = {
    "client_connection_check_interval": "1000",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
# The same on our side, for a server that vanished.
CLIENT_SETTINGS: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# That PostgreSQL ended a statement has to get here.
_ON_ITS_WAY_S: Final = 5.0
_INTERVAL_S: Final = 0.1
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class ServerSilent(OperationalError):
    """No answer came while one could still be hoped for; the connection is closed."""

    def __init__(self) -> None:
        super().__init__("the server has not answered in time")


class AnsweredConnection(AsyncConnection[Any]):
    """A connection that waits *answer_s* for each answer and is closed then, or for ever with None."""

    answer_s: float | None = None
    fell_silent = False

    def give_up(self) -> None:
        """Close at once: what has not been sent yet never is, so that it does not take effect much later."""
        self.fell_silent = True
        if not self.closed:
            with socket.socket(fileno=os.dup(self.pgconn.socket)) as ours:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.pgconn.finish()

    async def wait(
        self,
        gen: PQGen[RV],
        interval: float = _INTERVAL_S,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of its base
    ) -> RV:
        if timeout is not None or self.answer_s is None:
            return await super().wait(gen, interval, timeout)
        try:
            return await super().wait(gen, interval, self.answer_s)
        except _WaitTimeout:
            self.give_up()
            raise ServerSilent from None


def answer_s(statement_timeout_s: float) -> float | None:
    """Return how long the answer to a statement is waited for that PostgreSQL ends after that time."""
    return statement_timeout_s + _ON_ITS_WAY_S if statement_timeout_s else None


def wait_for_answers(conn: AsyncConnection[Any], seconds: float | None) -> float | None:
    """Let *conn* wait so long for each answer from now on; return how long it did before."""
    if not isinstance(conn, AnsweredConnection):
        return None
    before, conn.answer_s = conn.answer_s, seconds
    return before


def fell_silent(conn: AsyncConnection[Any]) -> bool:
    return isinstance(conn, AnsweredConnection) and conn.fell_silent


def is_alive(conn: AsyncConnection[Any]) -> bool:
    """Whether the server has not ended *conn*, which is idle, as far as its socket shows."""
    if conn.closed or conn.broken:
        return False
    poller = select.poll()
    poller.register(conn.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    # An idle connection has nothing to say, except that it ends.
    return not poller.poll(0)
