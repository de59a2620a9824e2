"""A workbook (``.xlsx``) with one sheet, written as a stream from the rows of the sheet.

The rows come as the XML that PostgreSQL made of them (``xlsx_cells``); here they are framed and
packed. Nothing is kept, neither in memory nor in a file. Packing runs in a thread, outside of the
interpreter's lock. The same rows give the same bytes.
"""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import IO, Final, cast
from xml.sax.saxutils import escape

from mdm_gitops.data.xlsx_cells import MAX_CELL_TEXT, STYLE_HEADER
from mdm_gitops.errors import InputError

MAX_ROWS: Final = 1_048_575  # beside the header
_COMPRESSION: Final = 1
_MAX_PLAIN_BYTES: Final = 2**31 - 1  # of a part; more needs a form that older programs do not read
_BYTES_PER_CELL: Final = 128  # at most, beside its text
_BYTES_PER_SIGN: Final = 7  # of a text, where each sign is written as _x0001_


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What the rows of a sheet measure; *too_long* is the place of a column with a text that no
    cell can hold."""

    rows: int
    too_long: int | None
    text_bytes: int


def refuse_excess(extent: Extent, *, entity: str, columns: Sequence[str]) -> None:
    """Raise InputError if a sheet cannot hold the rows."""
    if extent.rows > MAX_ROWS:
        raise InputError(
            f"{extent.rows:,} rows are more than the {MAX_ROWS:,} that a sheet holds",
            hint="use format=csv, or export parts with skip and take",
            parameter="format",
        )
    if extent.too_long is not None:
        raise InputError(
            f"column {columns[extent.too_long]!r} of {entity} holds a text of more than"
            f" {MAX_CELL_TEXT:,} characters, the most that a cell of a workbook holds",
            hint="use format=csv, or leave the column out with fields",
            parameter="format",
        )


async def workbook(
    rows: AsyncGenerator[bytes], *, title: str, columns: Sequence[str], extent: Extent
) -> AsyncGenerator[bytes]:
    """Yield the workbook; *rows* are ``<row>`` elements with tabs and line feeds between cells."""
    sink = _Sink()
    is_large = _most_bytes(extent, len(columns)) > _MAX_PLAIN_BYTES
    with zipfile.ZipFile(
        cast(IO[bytes], sink), "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION
    ) as archive:
        for name, text in _parts(title).items():
            with archive.open(name, "w") as part:
                part.write(text.encode())
        with archive.open(_SHEET, "w", force_zip64=is_large) as sheet:
            sheet.write(_head(columns).encode())
            async with aclosing(rows):
                async for chunk in rows:
                    await _packed(sheet, chunk)
                    if packed := sink.taken():
                        yield packed
            sheet.write(_TAIL)
    yield sink.taken()


def _most_bytes(extent: Extent, columns: int) -> int:
    return extent.rows * columns * _BYTES_PER_CELL + extent.text_bytes * _BYTES_PER_SIGN


async def _packed(sheet: IO[bytes], chunk: bytes) -> None:
    # Tabs only part the cells: those of a text are written as references.
    packing = asyncio.create_task(asyncio.to_thread(sheet.write, chunk.replace(b"\t", b"")))
    try:
        await asyncio.shield(packing)
    except asyncio.CancelledError:
        await packing  # nobody may close the sheet under the thread
        raise


class _Sink:
    """What zipfile writes to: it can only be written, so sizes follow the data they are of."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def taken(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found


# --- the parts ------------------------------------------------------------------------------------

_XML: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_CONTENT_TYPES: Final = f"""{_XML}<Types xmlns="{_PACKAGE}/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Default Extension="xml" ContentType="application/xml"/>
<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>
<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/>
<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>
</Types>"""
_ROOT_LINKS: Final = f"""{_XML}<Relationships xmlns="{_PACKAGE}/relationships">
<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/>
</Relationships>"""
_WORKBOOK: Final = f"""{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}">
<bookViews><workbookView/></bookViews>
<sheets><sheet name="{{title}}" sheetId="1" r:id="rId1"/></sheets>
</workbook>"""
_WORKBOOK_LINKS: Final = f"""{_XML}<Relationships xmlns="{_PACKAGE}/relationships">
<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/>
<Relationship Id="rId2" Type="{_OFFICE}/styles" Target="styles.xml"/>
</Relationships>"""
# In the order of the numbers in xlsx_cells: general, header, date, moment, text that stays text.
_STYLES: Final = f"""{_XML}<styleSheet xmlns="{_MAIN}">
<numFmts count="2"><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd"/>
<numFmt numFmtId="165" formatCode="yyyy\\-mm\\-dd\\ hh:mm:ss.000"/></numFmts>
<fonts count="2"><font><sz val="11"/><name val="Calibri"/></font>
<font><b/><sz val="11"/><name val="Calibri"/></font></fonts>
<fills count="2"><fill><patternFill patternType="none"/></fill>
<fill><patternFill patternType="gray125"/></fill></fills>
<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>
<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>
<cellXfs count="5"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>
<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>
<xf numFmtId="164" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>
<xf numFmtId="165" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>
<xf numFmtId="49" fontId="0" fillId="0" borderId="0" xfId="0" quotePrefix="1"
 applyNumberFormat="1"/></cellXfs>
<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>
</styleSheet>"""
_SHEET: Final = "xl/worksheets/sheet1.xml"
_MAX_TITLE: Final = 31


def _parts(title: str) -> dict[str, str]:
    return {
        "[Content_Types].xml": _CONTENT_TYPES,
        "_rels/.rels": _ROOT_LINKS,
        "xl/workbook.xml": _WORKBOOK.format(title=escape(title[:_MAX_TITLE])),
        "xl/_rels/workbook.xml.rels": _WORKBOOK_LINKS,
        "xl/styles.xml": _STYLES,
    }


def _head(columns: Sequence[str]) -> str:
    cells = "".join(
        f'<c s="{STYLE_HEADER}" t="inlineStr"><is><t>{escape(name)}</t></is></c>'
        for name in columns
    )
    return (
        f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
        '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
        '</sheetView></sheetViews><sheetFormatPr defaultRowHeight="15"/>'
        f'<cols><col min="1" max="{len(columns)}" width="18" customWidth="1"/></cols>'
        f"<sheetData><row>{cells}</row>"
    )


_TAIL: Final = b"</sheetData></worksheet>"
