"""CSV on its way to COPY: bytes in, bytes out, and what COPY would misread is refused here.

PostgreSQL parses the CSV. It is more lenient than RFC 4180 in one point that loses data: a quote
inside an unquoted value opens a quotation (``5" pipe``), and with it the rest of the line, or of the
file, becomes part of the value. So the places of all quotes are checked, by counting in C: a chunk
without quotes costs three searches, one full of them a few passes. What COPY sees besides is: the
header taken off, a byte order mark taken off, empty lines at the end taken off, and a line ``\\.``
put in quotes, which older servers take for the end of all data.

Ragged rows, mixed line ends and bytes that are not of the encoding are found by COPY itself;
``data.staging`` tells them. Lines count from 1 and the header is one of them.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass, field
from typing import Final

from mdm_gitops.data.csv_text import ESCAPE
from mdm_gitops.errors import InputError

# PostgreSQL's name of each encoding that is read, by what clients call it. All hold ASCII.
ENCODINGS: Final = {
    "utf-8": "UTF8",
    "iso8859-1": "LATIN1",
    "cp1252": "WIN1252",
}
MAX_HEADER_BYTES: Final = 262_144
# A value may be longer than is accepted, to be told as an error of its row; but not without end.
MAX_ROW_BYTES: Final = 16_777_216
_BLOCK_TAIL: Final = 65_536
_SEPARATORS: Final = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_ENDS: Final = (b"\n", b"\r")
_MARKS: Final = [bytes([code]) for code in (*range(1, 9), 11, 12, *range(14, 32), 127)]
_ESCAPE: Final = ESCAPE.encode()
_WIDE: Final = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How the file is written. *encoding* is Python's name of one of ``ENCODINGS``."""

    sep: str = ","
    quote: str = '"'
    encoding: str = "utf-8"


def dialect(*, sep: str | None, quote: str | None, charset: str | None) -> Dialect:
    """Return what the caller says of the file.

    Raises:
        InputError: a sign cannot be what it shall be.
        LookupError: the encoding is not one of those that are read.
    """
    found = Dialect(
        sep=_SEPARATORS.get((sep or ",").lower(), sep or ","),
        quote=quote or '"',
        encoding=codecs.lookup(charset or "utf-8").name,
    )
    if found.encoding not in ENCODINGS:
        raise LookupError(charset)
    for name, sign in (("sep", found.sep), ("quote", found.quote)):
        is_sign = len(sign) == 1 and (sign == "\t" or " " <= sign <= "~")
        if not is_sign or sign.isalnum() or sign in "\\.":
            raise InputError(
                f"{name} must be one sign of ASCII other than a letter, a digit, . and \\",
                hint="a tab is written as tab",
                parameter=name,
            )
    if found.sep == found.quote:
        raise InputError("sep and quote are the same sign", parameter="quote")
    return found


class Unreadable(InputError):
    """The body cannot be read at all. *line* counts from 1, 0 where there is none."""

    code = "IMPORT_UNREADABLE"

    def __init__(self, cause: str, *, line: int = 0, hint: str = "") -> None:
        where = f"line {line}: " if line else ""
        super().__init__(f"the body cannot be read: {where}{cause}", hint=hint)
        if line:
            self.details["line"] = line


@dataclass(slots=True)
class CsvReader:
    """``feed`` it the body and hand on what it returns; ``finish`` returns the rest.

    *header* is None until the first line was seen. In its place a line is handed on that COPY is to
    skip (``HEADER``): by it COPY learns how lines end, before it counts those within values.
    """

    dialect: Dialect
    header: tuple[str, ...] | None = None
    header_lines: int = 0
    _held: bytes = b""  # not handed on yet
    _last: bytes = b"\n"  # the byte before what is held
    _lines: int = 0  # line ends handed on
    _inside: bool = False  # a quotation
    _row_bytes: int = 0  # handed on of a row that goes on
    _began: bool = False
    _first_line: bytes = b""
    _marks: list[bytes] = field(default_factory=list)
    may_be_escaped: bool = False  # a value handed on begins with the sign that exports put there
    _escapes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        signs = (self.dialect.sep, self.dialect.quote)
        self._marks = [mark for mark in _MARKS if mark.decode() not in signs]
        self._escapes = tuple(sign.encode() + _ESCAPE for sign in (*signs, "\n", "\r"))

    @property
    def line(self) -> int:
        """The line that is handed on next."""
        return self._lines + 1

    def feed(self, chunk: bytes) -> bytes:
        """Return what of the body can be handed on by now.

        Raises:
            Unreadable: it is no CSV in this dialect.
        """
        held = self._held + chunk
        if not self._began:
            if len(held) < 4:
                self._held = held
                return b""
            held = self._begun(held)
        if self.header is None:
            rest = self._take_header(held)
            if rest is None:
                self._held = held
                return b""
            return self._first_line + self._take(rest, self._cut(rest))
        return self._take(held, self._cut(held))

    def finish(self) -> bytes:
        """Return what is left at the end of the body. Raises Unreadable."""
        held = self._held if self._began else self._begun(self._held)
        if self.header is None:
            if not held.strip():
                raise Unreadable("it is empty", hint="the first line names the columns")
            rest = self._take_header(held + b"\n")
            if rest is None:
                raise Unreadable(
                    "a quotation in the header is not closed",
                    line=1,
                    hint=f"quotes are {self.dialect.quote} here; quote=... says otherwise",
                )
            return self._first_line + self._finished(rest)
        return self._finished(held)

    def _finished(self, held: bytes) -> bytes:
        if len(self.header or ()) > 1:  # of one column an empty line is a row
            held = held.rstrip(b"\r\n")
        # The last line may end without a line end, but not with another one than those before it.
        out = self._take(held, len(held)) if held else b""
        if self._inside:
            raise Unreadable(
                "a quotation is not closed until the end",
                line=self._lines,
                hint=f"quotes are {self.dialect.quote} here; quote=... says otherwise",
            )
        return out

    # --- the beginning ---

    def _begun(self, held: bytes) -> bytes:
        if held.startswith(_WIDE):
            raise Unreadable("it is UTF-16 or UTF-32", line=1, hint="send it as UTF-8")
        if held.startswith(b"PK\x03\x04"):
            raise Unreadable("it is a workbook or another archive", hint="xlsx goes to bulk-xlsx")
        if held.startswith(b"\x1f\x8b"):
            raise Unreadable("it is compressed", hint="send it as it is")
        self._began = True
        self._held = b""
        return held.removeprefix(codecs.BOM_UTF8) if self.dialect.encoding == "utf-8" else held

    def _take_header(self, held: bytes) -> bytes | None:
        """Read the header and return what follows it, None if it has not arrived as a whole."""
        quote, at = self.dialect.quote.encode(), -1
        while True:
            found = re.compile(rb"\r\n|\n|\r(?!\Z)").search(held, at + 1)
            if found is None or len(held) > MAX_HEADER_BYTES < found.start():
                if len(held) > MAX_HEADER_BYTES:
                    raise Unreadable("the header has no end", line=1)
                return None
            at = found.end() - 1
            if held.count(quote, 0, found.start()) % 2 == 0:
                break
        raw = held[: found.start()]
        if b"\0" in raw:
            raise Unreadable("it holds a NUL byte", line=1)
        self.header = self._names(raw)
        self._first_line = b"h" + found[0]
        self.header_lines = self._lines = _line_ends(held[: found.end()])
        return held[found.end() :]

    def _names(self, raw: bytes) -> tuple[str, ...]:
        try:
            text = raw.decode(self.dialect.encoding)
        except UnicodeDecodeError:
            raise Unreadable(
                f"the header is not {self.dialect.encoding.upper()}",
                line=1,
                hint="name the encoding: Content-Type: text/csv; charset=windows-1252",
            ) from None
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=self.dialect.sep,
            quotechar=self.dialect.quote,
            strict=True,
        )
        try:
            names = next(reader, [])
        except csv.Error:
            raise Unreadable("the quotes of the header are not those of CSV", line=1) from None
        if not any(name.strip() for name in names):
            raise Unreadable("the header is empty", line=1, hint="the first line names the columns")
        return tuple(name.strip() for name in names)

    # --- the rows ---

    def _cut(self, held: bytes) -> int:
        """Return how much can be handed on: whole lines, and of a very long one what is safe."""
        end = len(held.rstrip(b"\r\n"))
        cut = max(held.rfind(b"\n", 0, end), held.rfind(b"\r", 0, end)) + 1
        if end - cut <= _BLOCK_TAIL:
            # A line end is handed on with what follows it: the last ones may be empty lines.
            return len(held[:cut].rstrip(b"\r\n"))
        # What is cut off must not begin in the middle of quotes, or of a line that is only \.
        return len(held[:end].rstrip(self.dialect.quote.encode() + b"\\.\r\n"))

    def _take(self, held: bytes, cut: int) -> bytes:
        block, self._held = held[:cut], held[cut:]
        if not block:
            self._limit_row(len(self._held))
            return b""
        if b"\0" in block:
            line = self.line + _line_ends(block[: block.index(b"\0")])
            raise Unreadable("it holds a NUL byte", line=line)
        was_inside, has_quotes = self._inside, self.dialect.quote.encode() in block
        if has_quotes:
            self._check_quotes(block)
        self._look_for_escapes(block)
        out = self._without_end_mark(block, was_inside) if b"\\." in block else block
        ends = _line_ends(block)
        goes_on = not ends or (was_inside and not has_quotes)
        self._row_bytes = self._row_bytes + len(block) if goes_on else len(block) * self._inside
        self._limit_row(self._row_bytes)
        self._lines += ends
        self._last = block[-1:]
        return out

    def _look_for_escapes(self, block: bytes) -> None:
        if self.may_be_escaped or _ESCAPE not in block:
            return
        # What begins a block may begin a value; within a quotation it is looked at in vain.
        self.may_be_escaped = block.startswith(_ESCAPE) or any(
            sign in block for sign in self._escapes
        )

    def _limit_row(self, size: int) -> None:
        if size > MAX_ROW_BYTES:
            raise Unreadable(
                f"a row is longer than {MAX_ROW_BYTES:,} bytes",
                line=self.line,
                hint="are sep and quote those of the file?",
            )

    def _check_quotes(self, block: bytes) -> None:
        """Look whether each quotation begins and ends where a value does, and note the state.

        Doubled quotes become a mark; what is left alternates between opening and closing, and the
        ends of the parts outside of quotations are what stands beside each.
        """
        quote = self.dialect.quote.encode()
        mark = next((mark for mark in self._marks if mark not in block), None)
        if mark is None:
            raise Unreadable("it is no text", line=self.line)
        parts = block.replace(quote * 2, mark).split(quote)
        was_inside, self._inside = self._inside, self._inside ^ (len(parts) % 2 == 0)
        outside = parts[1::2] if was_inside else parts[0::2]
        if not was_inside:
            outside[0] = self._last + outside[0]
        if not self._inside and block.endswith(quote):
            outside[-1] += b"\n"  # there it was cut
        ends = {self.dialect.sep.encode(), *_ENDS}
        # Where much is quoted, nearly all parts are the same few.
        after = {part[:1] for part in set(outside[not was_inside :])}
        before = {part[-1:] for part in set(outside if self._inside else outside[:-1])}
        is_good = after <= ends and before <= {*ends, mark}
        if not is_good or not self._are_whole_values(set(outside), mark):
            raise self._misplaced(block, was_inside)

    def _are_whole_values(self, outside: set[bytes], mark: bytes) -> bool:
        """Whether doubled quotes outside of quotations are empty values, or begin a quotation."""
        text = b"\0".join([part for part in outside if mark in part])
        while mark * 2 in text:
            text = text.replace(mark * 2, mark)
        marks, ends = text.count(mark), (self.dialect.sep.encode(), *_ENDS)
        begun = sum(text.count(end + mark) for end in ends)
        ended = sum(text.count(mark + end) for end in (*ends, b"\0")) + text.endswith(mark)
        return begun == marks == ended

    def _misplaced(self, block: bytes, inside: bool) -> Unreadable:
        """Say where the first quote stands that is none of CSV."""
        quote, sep = self.dialect.quote.encode(), self.dialect.sep.encode()
        ends = (sep, *_ENDS)
        before, at = self._last, 0
        while at < len(block):
            sign = block[at : at + 1]
            if sign == quote and inside and block[at + 1 : at + 2] == quote:
                at += 1
            elif sign == quote and inside:
                inside = False
                if (after := block[at + 1 : at + 2]) and after not in ends:
                    return self._wrong_quote(block, at, "text follows a closing quote")
            elif sign == quote:
                if before not in ends:
                    return self._wrong_quote(block, at, "a quote stands inside an unquoted value")
                inside = True
            before = sign
            at += 1
        return self._wrong_quote(block, 0, "a quote is not where CSV has quotes")

    def _wrong_quote(self, block: bytes, at: int, cause: str) -> Unreadable:
        quote = self.dialect.quote
        return Unreadable(
            cause,
            line=self.line + _line_ends(block[:at]),
            hint=f"put the value in {quote} and write a {quote} of its own twice; if the file has"
            " no quotes at all, name a sign that it does not hold: quote=...",
        )

    def _without_end_mark(self, block: bytes, inside: bool) -> bytes:
        quote = self.dialect.quote.encode()

        def in_quotes(found: re.Match[bytes]) -> bytes:
            quotes = block.count(quote, 0, found.start())
            is_inside = inside ^ (quotes % 2 == 1)
            return found[0] if is_inside else quote + found[0] + quote

        before = rb"(?<![^\r\n])" if self._last in _ENDS else rb"(?<=[\r\n])"
        return re.sub(before + rb"\\\.(?=[\r\n]|\Z)", in_quotes, block)


def _line_ends(block: bytes) -> int:
    return block.count(b"\n") or block.count(b"\r")
