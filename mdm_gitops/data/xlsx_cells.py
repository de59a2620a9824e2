"""Columns as cells of a workbook: expressions over ``t`` that PostgreSQL prints as SpreadsheetML.

A value becomes a cell of its own kind (number, date, moment, truth value) where that kind holds it
exactly, and text where it would lose something: numbers of more than 15 digits, days before March
1900, moments finer than a millisecond. Text is always written as text, so nothing is run; what a
spreadsheet would take for a formula when somebody edits the cell has the style that keeps it text.
"""

from __future__ import annotations

from typing import Final

from mdm_gitops.data.csv_text import starts_with_sign_sql
from mdm_gitops.data.export_columns import ExportColumn
from mdm_gitops.model import DataType

MAX_CELL_TEXT: Final = 32_767  # UTF-16 code units
# Numbers of the styles that the workbook declares.
STYLE_HEADER: Final = 1
STYLE_DATE: Final = 2
STYLE_MOMENT: Final = 3
STYLE_QUOTED: Final = 4
_EXACT_DIGITS: Final = 15
_TEXT: Final = (DataType.STRING, DataType.TEXT, DataType.JSON)


def xlsx_select_list(columns: tuple[ExportColumn, ...]) -> str:
    """Return a select list whose values, one after the other, are a row of the sheet."""
    return ", ".join(["'<row>'", *(_cell(each) for each in columns), "'</row>'"])


def _cell(column: ExportColumn) -> str:
    value = column.stored
    match column.data_type:
        case DataType.INT:
            return _number(f"{value}::text")
        case DataType.LONG:
            return f"CASE WHEN {_digits(value)} THEN {_number(value)} ELSE {_plain(value)} END"
        case DataType.DECIMAL:
            # NaN is greater than all of them.
            finite = f"{value} > '-Infinity' AND {value} < 'Infinity'"
            exact = f"{finite} AND {_digits(value)}"
            return f"CASE WHEN {exact} THEN {_number(value)} ELSE {_plain(value)} END"
        case DataType.BOOL:
            return f"CASE WHEN {value} THEN {_TRUE} WHEN NOT {value} THEN {_FALSE} END"
        case DataType.DATE:
            exact = f"{value} BETWEEN {_FIRST_DAY} AND {_LAST_DAY}"
            serial = f"({value} - {_DAY_ZERO})"
            return f"CASE WHEN {exact} THEN {_styled(serial, STYLE_DATE)} ELSE {_plain(value)} END"
        case DataType.DATETIME:
            return _moment(value, column.output.sql)
        case DataType.STRING | DataType.TEXT:
            return _text(value)
        case DataType.JSON:
            return _text(f"{value}::text")
        case DataType.GUID:
            return _plain(value)
        case None:
            return _plain(column.output.sql)


_TRUE: Final = "'<c t=\"b\"><v>1</v></c>'"
_FALSE: Final = "'<c t=\"b\"><v>0</v></c>'"
# Day 60 of spreadsheets is the 29th of February 1900, which never was.
_DAY_ZERO: Final = "date '1899-12-30'"
_FIRST_DAY: Final = "date '1900-03-01'"
_LAST_DAY: Final = "date '9999-12-31'"
_UNIX_DAY: Final = 25_569


def _number(value: str) -> str:
    return f"'<c><v>' || {value} || '</v></c>'"


def _styled(value: str, style: int) -> str:
    return f"'<c s=\"{style}\"><v>' || {value} || '</v></c>'"


def _digits(value: str) -> str:
    return f"length(translate({value}::text, '-.', '')) <= {_EXACT_DIGITS}"


def _moment(value: str, text: str) -> str:
    in_range = f"{value} >= '1900-03-01Z' AND {value} < '9999-12-31Z'"
    exact = f"{in_range} AND date_trunc('milliseconds', {value}) = {value}"
    serial = f"round(extract(epoch FROM {value}) / 86400 + {_UNIX_DAY}, 11)"
    return f"CASE WHEN {exact} THEN {_styled(serial, STYLE_MOMENT)} ELSE {_plain(text)} END"


def _plain(value: str) -> str:
    """Return the cell of a text that holds no special sign."""
    return f"'<c t=\"inlineStr\"><is><t>' || {value} || '</t></is></c>'"


def _text(value: str) -> str:
    style = f"CASE WHEN {starts_with_sign_sql(value)} THEN ' s=\"{STYLE_QUOTED}\"' ELSE '' END"
    return (
        f"'<c t=\"inlineStr\"' || {style} || '><is><t xml:space=\"preserve\">'"
        f" || {_escaped(value)} || '</t></is></c>'"
    )


# Signs that are no XML at all are written as SpreadsheetML does, and so is a text that looks so.
_UNWRITABLE: Final = r"[\x01-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|_x[0-9A-Fa-f]{4}_"
_SIGN_BY_SIGN: Final = """\
(SELECT string_agg(CASE WHEN s.sign = '&' THEN '&amp;' WHEN s.sign = '<' THEN '&lt;'
   WHEN s.sign = '>' THEN '&gt;' WHEN ascii(s.sign) IN (9, 10, 13) THEN '&#' || ascii(s.sign) || ';'
   WHEN ascii(s.sign) < 32 OR ascii(s.sign) > 65533 AND ascii(s.sign) < 65536
     THEN '_x' || lpad(upper(to_hex(ascii(s.sign))), 4, '0') || '_'
   WHEN s.sign = '_' THEN '_x005F_' ELSE s.sign END, '' ORDER BY s.n)
  FROM unnest(string_to_array({value}, NULL)) WITH ORDINALITY s(sign, n))"""


def _escaped(value: str) -> str:
    signs = value
    for sign, entity in (("'&'", "&amp;"), ("'<'", "&lt;"), ("'>'", "&gt;")):
        signs = f"replace({signs}, {sign}, '{entity}')"
    for code in (9, 10, 13):
        signs = f"replace({signs}, chr({code}), '&#{code};')"
    return (
        f"CASE WHEN {value} !~ '[&<>[:cntrl:]_\\ufffe\\uffff]' THEN {value}"
        f" WHEN {value} ~ '{_UNWRITABLE}' THEN {_SIGN_BY_SIGN.format(value=value)}"
        f" ELSE {signs} END"
    )


# --- what does not fit ----------------------------------------------------------------------------


def extent_select_list(columns: tuple[ExportColumn, ...]) -> str:
    """Return a select list that measures a row: *too_long*, the number of the first column with a
    text that no cell can hold, and *size*, the bytes of all texts.
    """
    texts = [
        (number, f"{each.stored}::text" if each.data_type is DataType.JSON else each.stored)
        for number, each in enumerate(columns)
        if each.data_type in _TEXT
    ]
    if not texts:
        return "NULL::int AS too_long, 0 AS size"
    tests = " ".join(f"WHEN {_too_long(text)} THEN {number}" for number, text in texts)
    size = " + ".join(f"coalesce(octet_length({text}), 0)::bigint" for _, text in texts)
    return f"CASE {tests} END AS too_long, {size} AS size"


def _too_long(text: str) -> str:
    beyond_16_bits = f"length(regexp_replace({text}, '[^\\U00010000-\\U0010ffff]', '', 'g'))"
    units = f"length({text}) + {beyond_16_bits}"
    return f"octet_length({text}) > {MAX_CELL_TEXT} AND {units} > {MAX_CELL_TEXT}"
