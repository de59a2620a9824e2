"""A program: prints the first visible sheet of a workbook as CSV. Run by ``data.import_xlsx`` alone.

A workbook has to be unpacked as a whole before its first row can be read. That is done in a process of
its own: its memory is bounded and given back at once, and what a crafted file can do to the parser, it
does not do to the server.

Exit code 0: all of the sheet was printed. 1: the reason why not is on stderr, for the caller to tell.
"""

from __future__ import annotations

import datetime
import resource
import sys
import zipfile
from collections.abc import Iterator
from typing import Any, Final, TextIO

MEMORY_BYTES: Final = 3 * 1024**3
MAX_UNPACKED_BYTES: Final = 2 * 1024**3
_ROWS_AT_ONCE: Final = 512


class _NoSheet(Exception):
    """The message says what is wrong with the file, after "it"."""


def main(path: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        _refuse_bombs(path)
        _print(_rows(path), sys.stdout)
        sys.stdout.flush()
    except _NoSheet as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except MemoryError:
        sys.stderr.write("is too large to be unpacked\n")
        return 1
    return 0


def _refuse_bombs(path: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        raise _NoSheet("is no xlsx workbook") from None
    if unpacked > MAX_UNPACKED_BYTES:
        raise _NoSheet("is too large when unpacked")


def _rows(path: str) -> Iterator[list[Any]]:
    from python_calamine import (
        CalamineError,
        CalamineWorkbook,
        SheetTypeEnum,
        SheetVisibleEnum,
    )

    try:
        with CalamineWorkbook.from_path(path) as workbook:
            visible = [
                sheet.name
                for sheet in workbook.sheets_metadata
                if sheet.visible == SheetVisibleEnum.Visible
                and sheet.typ == SheetTypeEnum.WorkSheet
            ]
            if not visible:
                raise _NoSheet("has no visible sheet")
            yield from workbook.get_sheet_by_name(visible[0]).iter_rows()
    except (CalamineError, OSError, ValueError):
        raise _NoSheet("is no xlsx workbook that can be read") from None


def _print(rows: Iterator[list[Any]], out: TextIO) -> None:
    """Print *rows*: as many cells as the header has, and no empty rows at the end."""
    width, blank, lines = 0, 0, []
    for cells in rows:
        texts = [_text(cell) for cell in cells]
        while len(texts) > width and not texts[-1]:
            texts.pop()
        width = width or len(texts)
        if width == 0:
            continue  # before the header
        if not any(texts):
            blank += 1
            continue
        lines += [_line([""] * width)] * blank + [_line(texts)]
        blank = 0
        if len(lines) >= _ROWS_AT_ONCE:
            out.write("".join(lines))
            lines.clear()
    out.write("".join(lines))


def _line(texts: list[str]) -> str:
    return (
        ",".join(f'"{text.replace(_QUOTE, _QUOTE * 2)}"' if text else "" for text in texts) + "\n"
    )


_QUOTE: Final = '"'


def _text(cell: Any) -> str:
    """Return a cell as the text of its value; a number has no more digits than it needs."""
    match cell:
        case bool():
            return "true" if cell else "false"
        case float():
            return str(int(cell)) if cell.is_integer() and abs(cell) < 2**53 else repr(cell)
        case datetime.datetime():
            if cell.time() == datetime.time():
                return cell.date().isoformat()
            return cell.isoformat() + "Z"
        case _:
            return str(cell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
