"""Running the application beside other things in one event loop, as ``mdm-gitops up`` does.

``mdm_api.server`` runs it alone and owns loop and signals; here they are the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette

from mdm_api.server import make_server
from mdm_gitops.errors import WarehouseError

_LOOK_EVERY_S: Final = 0.01


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave them alone: the command has more to stop than a server."""
        yield


@asynccontextmanager
async def serving_app(app: Starlette, bound: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve *app* on *bound* for as long as the context is open.

    Yields the task that serves, once it does; it ends early only when something is badly wrong.
    """
    server = _Server(make_server(app, has_logs=True).config)
    # A line for each request belongs into the log of a server, not between what is said here.
    logging.getLogger("mdm_api.access").setLevel(logging.WARNING)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise WarehouseError("the API did not start", hint="the log above says why")
            await asyncio.sleep(_LOOK_EVERY_S)
        yield serving
    finally:
        server.should_exit = True
        await serving
