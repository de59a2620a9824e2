"""A workbook on its way to COPY: its first visible sheet as CSV, which goes the way of all CSV.

The body is put into a file, since a workbook is read from its end. ``import_sheet`` unpacks it in a
process of its own; here only what that prints is passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Final

from mdm_gitops.data import import_sheet
from mdm_gitops.data.import_csv import Unreadable

_CHUNK_BYTES: Final = 262_144
_MAGIC: Final = b"PK\x03\x04"


async def sheet_as_csv(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the first visible sheet of the workbook that *chunks* are, as CSV in UTF-8.

    Raises:
        Unreadable: it is no workbook, or has no such sheet.
    """
    with tempfile.TemporaryDirectory(prefix="mdm-import-") as folder:
        file = Path(folder) / "workbook.xlsx"
        await _store(chunks, file)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            import_sheet.__name__,
            str(file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None and process.stderr is not None, "both are pipes"
            while chunk := await process.stdout.read(_CHUNK_BYTES):
                yield chunk
            said = (await process.stderr.read()).decode(errors="replace").strip()
            if code := await process.wait():
                raise Unreadable(
                    f"it {said.splitlines()[-1]}" if code == 1 and said else "it is no workbook",
                    hint="save it as .xlsx, or send it as CSV",
                )
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _store(chunks: AsyncIterator[bytes], file: Path) -> None:
    size = 0
    with file.open("wb") as out:
        async for chunk in chunks:
            if not size and not chunk.startswith(_MAGIC):
                raise Unreadable("it is no xlsx workbook", hint="CSV goes to bulk-csv")
            size += len(chunk)
            # The page cache takes it; a thread for each piece would cost more.
            out.write(chunk)
    if not size:
        raise Unreadable("it is empty")
