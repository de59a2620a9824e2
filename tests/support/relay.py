"""A relay between the programs and PostgreSQL that can hold, throw away, delay, reset and refuse.

The harder case of a network that is cut: the relay's own system acknowledges what nobody gets, so that no
end of a connection learns from TCP that something is wrong. In a thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_CHUNK: Final = 65_536
_DELAY_S: Final = 0.4
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Trouble(StrEnum):
    NONE = "none"
    RESET = "reset"  # all connections at the beginning, new ones as soon as they are made
    REFUSED = "refused"
    HELD = "held"  # both ways, nothing is lost: it arrives when the trouble ends
    ASKING_HELD = "asking held"
    ANSWERS_HELD = "answers held"
    DELAYED = "delayed"
    DEAD = "dead"  # its other side is gone, ours stays open and says nothing, for ever


_HELD_TO_SERVER: Final = (Trouble.HELD, Trouble.ASKING_HELD)
_HELD_TO_CLIENT: Final = (Trouble.HELD, Trouble.ANSWERS_HELD)


class _Flow:
    """One connection, both ways."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self._client = client
        self.server: asyncio.StreamWriter | None = None
        self.is_dead = False

    def die(self) -> None:
        self.is_dead = True
        if self.server is not None:
            self.server.transport.abort()

    def reset(self) -> None:
        sock = self._client.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._client.transport.abort()
        if self.server is not None:
            self.server.transport.abort()


class Relay:
    """``with Relay(url) as relay``: reached at ``relay.url``; ``relay.trouble(kind)`` from any thread."""

    def __init__(self, url: str) -> None:
        self._parts = conninfo_to_dict(url)
        self._trouble = Trouble.NONE
        self._flows: set[_Flow] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        given = {**self._parts, "host": "127.0.0.1", "port": self._port}
        return make_conninfo("", **given)

    def trouble(self, kind: Trouble) -> None:
        async def change() -> None:
            self._trouble = kind
            async with self._changed:
                self._changed.notify_all()
            if kind is Trouble.REFUSED:
                await self._stop_listening()
            elif self._server is None:
                await self._listen()
            for flow in tuple(self._flows):
                if kind in (Trouble.RESET, Trouble.REFUSED):
                    flow.reset()
                elif kind is Trouble.DEAD:
                    flow.die()

        self._do(change)

    def _do(self, work: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        # Whoever was let in a moment ago gets a transport first: a closed server gives none, and leaks him.
        self._loop.remove_reader(server.sockets[0].fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        server.close()

    async def _end(self) -> None:
        await self._stop_listening()
        self._trouble = Trouble.RESET
        async with self._changed:
            self._changed.notify_all()
        for flow in tuple(self._flows):
            flow.reset()
        await asyncio.gather(*self._tasks)

    # --- connections ---

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = _Flow(writer)
        if self._trouble is Trouble.RESET:
            flow.reset()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._flows.add(flow)
        try:
            if self._trouble is not Trouble.DEAD:
                path = f"{self._parts['host']}/.s.PGSQL.{self._parts.get('port') or 5432}"
                there, flow.server = await asyncio.open_unix_connection(path)
                passing = asyncio.create_task(self._pass_on(flow, there, writer, _HELD_TO_CLIENT))
                await self._pass_on(flow, reader, flow.server, _HELD_TO_SERVER)
                flow.reset()
                await passing
            else:
                flow.die()
                await self._pass_on(flow, reader, writer, ())
        except OSError:  # the server is not there
            return
        finally:
            flow.reset()
            self._flows.discard(flow)
            self._tasks.discard(task)

    async def _pass_on(
        self,
        flow: _Flow,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        held: tuple[Trouble, ...],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._trouble is Trouble.DELAYED:
                    await asyncio.sleep(_DELAY_S)
                async with self._changed:
                    await self._changed.wait_for(lambda: self._trouble not in held)
                if flow.is_dead:
                    continue
                writer.write(data)
                await writer.drain()
        if not flow.is_dead:
            flow.reset()
