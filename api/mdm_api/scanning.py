"""The scans for duplicates that this server runs: each a process, and a connection that holds its lock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final
from uuid import UUID

from mdm_api import scan_process
from mdm_gitops.data.asking import Asking
from mdm_gitops.data.scans import ScanRequest, begin_scan, end_scan
from mdm_gitops.errors import Conflict, MdmError
from mdm_gitops.settings import Settings
from mdm_gitops.warehouse.connect import Connection, connect
from mdm_gitops.warehouse.names import Schemas

_LOG: Final = logging.getLogger("mdm_api.scanning")
_FAILED: Final = "the scan ended with an error; the log of the server says more"
_STOPPED: Final = "the server stopped"
Write = Callable[[Callable[[Asking], Awaitable[UUID]]], Awaitable[UUID]]


class Scanner:
    """Begins scans and sees them to their end."""

    def __init__(self, url: str, *, schemas: Schemas, settings: Settings) -> None:
        self._url = url
        self._schemas = schemas
        self._settings = settings
        self._running: set[asyncio.Task[None]] = set()
        self._beginning = 0

    async def begin(self, write: Write, *, entity: str, request: ScanRequest) -> UUID:
        """Begin a scan and return its identifier; *write* repeats what found the store moved.

        Raises:
            Conflict: this server runs as many as it may; or as ``begin_scan``, which raises more.
        """
        if len(self._running) + self._beginning >= self._settings.Data.MaxConcurrentScans:
            raise Conflict(
                "as many scans run as this server may run at once",
                hint="wait for one to end",
                code="DUPLICATE_SCAN_RUNNING",
            )
        self._beginning += 1
        try:
            async with AsyncExitStack() as stack:
                conn = await stack.enter_async_context(await self._connected())

                async def begin(asking: Asking) -> UUID:
                    await conn.execute("SELECT pg_advisory_unlock_all()")
                    return await begin_scan(conn, asking=asking, entity=entity, request=request)

                scan_id = await write(begin)
                task = asyncio.create_task(self._see_through(conn, scan_id, stack.pop_all()))
        finally:
            self._beginning -= 1
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return scan_id

    async def aclose(self) -> None:
        """End what runs; it is told as failed."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _connected(self) -> Connection:
        return await connect(
            self._url,
            application_name="mdm-gitops scan",
            connect_timeout_s=self._settings.Database.ConnectTimeoutSeconds,
        )

    async def _see_through(self, conn: Connection, scan_id: UUID, stack: AsyncExitStack) -> None:
        async with stack:
            error = _STOPPED
            try:
                error = await self._run(scan_id)
            except OSError:
                _LOG.exception("the process of scan %s could not be started", scan_id)
                error = _FAILED
            finally:
                # Where the process has ended the scan itself, this changes nothing.
                with contextlib.suppress(MdmError):
                    await end_scan(
                        conn, schemas=self._schemas, scan_id=scan_id, state="failed", error=error
                    )

    async def _run(self, scan_id: UUID) -> str:
        """Run the process and return what went wrong."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", scan_process.__name__, str(scan_id)),
            env={
                **os.environ,
                scan_process.URL_VARIABLE: self._url,
                scan_process.CONFIG_VARIABLE: self._schemas.config,
                scan_process.DATA_VARIABLE: self._schemas.data,
                scan_process.ROWS_VARIABLE: str(self._settings.Data.MatchMaxRows),
            },
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            return await _end_of(process, scan_id)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _end_of(process: Process, scan_id: UUID) -> str:
    assert process.stdout is not None and process.stderr is not None
    said, complaint = await asyncio.gather(process.stdout.read(), process.stderr.read())
    code = await process.wait()
    if code == scan_process.REFUSED:
        return said.decode(errors="replace")
    if code != 0:
        _LOG.error("scan %s ended with %d: %s", scan_id, code, complaint.decode(errors="replace"))
    return _FAILED
