"""A JSON array of rows on its way to COPY: read row by row as it arrives, with the memory of one row.

Each row is judged by ``data.row_input`` as a row of a single request is, and becomes a line of the
staging table: its values as texts, which columns were given, and what is wrong already. Rows whose
values are of the kinds that need no thought take a short cut to the same texts.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import orjson

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.import_csv import MAX_ROW_BYTES, Unreadable
from mdm_gitops.data.row_input import read_row
from mdm_gitops.errors import InputError
from mdm_gitops.model import DataType, Entity, fold
from mdm_gitops.source.limits import MAX_DEPTH
from mdm_gitops.source.strict_json import DECODER, check_text, in_words
from mdm_gitops.warehouse.ddl.trees import json_text

MAX_SHOWN: Final = 200
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# So far from the end a mistake cannot come from a text that goes on.
_CERTAIN: Final = 64
_MOST_PLANS: Final = 256


class _At(StrEnum):
    """What comes next."""

    START = "["
    FIRST = "a row or ]"
    ROW = "a row"
    NEXT = ", or ]"
    END = "nothing more"


@dataclass(slots=True)
class JsonReader:
    """``feed`` it the body and take the rows it yields; ``finish`` says that it is all."""

    rows: int = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("strict")
    )
    _text: str = ""
    _place: int = 0  # what stands before it was read
    _lines: int = 0  # line ends in what was dropped
    _at: _At = _At.START
    _enough: int = 0  # do not try again with less text than this
    _began: bool = False
    _head: bytes = b""  # before it began

    def feed(self, chunk: bytes, *, last: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows that are whole by now.

        Raises:
            Unreadable: it is no array of objects in strict JSON.
        """
        self._lines += self._text.count("\n", 0, self._place)
        self._text, self._place = self._text[self._place :] + self._decoded(chunk, last), 0
        while last or len(self._text) - self._place >= self._enough:
            self._place = _SPACE.match(self._text, self._place).end()  # type: ignore[union-attr]
            if self._place == len(self._text):
                break
            if self._at in (_At.FIRST, _At.ROW) and self._text[self._place] not in "],":
                row = self._row(last)
                if row is None:
                    break
                yield row
            else:
                self._sign(self._text[self._place])

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yield what is left. Raises Unreadable, also if the array has no end."""
        yield from self.feed(b"", last=True)
        if self._at is _At.START:
            raise Unreadable("it is empty", hint="send a JSON array of row objects")
        if self._at is not _At.END:
            raise self._unreadable(f"it ends where {self._at.value} should stand")

    def _decoded(self, chunk: bytes, last: bool) -> str:
        if not self._began:
            chunk = self._head = self._head + chunk
            if len(chunk) < len(codecs.BOM_UTF8) and not last:
                return ""
            self._began = True
            if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise Unreadable("it is UTF-16", line=1, hint="send it as UTF-8")
            if chunk.startswith(b"\x1f\x8b"):
                raise Unreadable("it is compressed", hint="send it as it is")
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        try:
            return self._decoder.decode(chunk, final=last)
        except UnicodeDecodeError as error:
            line = self._lines + 1 + self._text.count("\n") + chunk.count(b"\n", 0, error.start)
            raise Unreadable("it is not UTF-8", line=line) from None

    def _sign(self, sign: str) -> None:
        after = {
            (_At.START, "["): _At.FIRST,
            (_At.FIRST, "]"): _At.END,
            (_At.NEXT, ","): _At.ROW,
            (_At.NEXT, "]"): _At.END,
        }.get((self._at, sign))
        if after is None:
            hint = "send a JSON array of row objects" if self._at is _At.START else ""
            raise self._unreadable(f"{sign!r} stands where {self._at.value} should stand", hint)
        self._at = after
        self._place += 1
        self._enough = 0

    def _row(self, last: bool) -> dict[str, Any] | None:
        """Return the row that begins here, None if more of it must arrive first."""
        number = self.rows + 1
        try:
            value, end = DECODER.raw_decode(self._text, self._place)
        except json.JSONDecodeError as error:
            if not last and self._may_go_on(error):
                self._wait()
                return None
            raise self._unreadable(
                f"row {number} is not valid JSON: {in_words(error)}", at=error.pos
            ) from None
        except RecursionError:
            raise self._unreadable(f"row {number} is nested deeper than {MAX_DEPTH}") from None
        except InputError as error:
            raise self._unreadable(f"row {number}: {error}") from None
        if not isinstance(value, dict):
            raise self._unreadable(f"row {number} is no object", "send a JSON array of row objects")
        self._check(value, number, end)
        self.rows, self._place, self._at, self._enough = number, end, _At.NEXT, 0
        return value

    def _check(self, row: Mapping[str, Any], number: int, end: int) -> None:
        """Refuse what cannot be stored; only an escape can stand for it."""
        text, at = self._text, self._place
        if text.count("[", at, end) + text.count("{", at, end) > MAX_DEPTH and _is_deeper(
            row, MAX_DEPTH
        ):
            raise self._unreadable(f"row {number} is nested deeper than {MAX_DEPTH}")
        if self._text.find("\\u", self._place, end) >= 0:
            try:
                check_text(row)
            except InputError as error:
                raise self._unreadable(f"row {number}: {error}") from None

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        is_open = error.msg.startswith("Unterminated string")
        return is_open or len(self._text) - error.pos <= _CERTAIN

    def _wait(self) -> None:
        size = len(self._text) - self._place
        if size > MAX_ROW_BYTES:
            raise self._unreadable(f"row {self.rows + 1} is longer than {MAX_ROW_BYTES:,} bytes")
        # Twice as much each time: a long row is not read again with every piece of it.
        self._enough = 2 * size

    def _unreadable(self, cause: str, hint: str = "", *, at: int | None = None) -> Unreadable:
        before = self._text.count("\n", 0, self._place if at is None else at)
        return Unreadable(cause, line=self._lines + before + 1, hint=hint)


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels <= 0 or any(_is_deeper(each, levels - 1) for each in inner)


# --- rows as lines of COPY ------------------------------------------------------------------------

NULL: Final = "\\N"
_SPECIAL: Final = re.compile(r"[\\\t\n\r]").search
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_Kinds = Mapping[type, Callable[[Any], str]]
# What becomes of a value of a JSON kind that fits the column's type, as ``row_input`` has it.
_TEXT: Final[_Kinds] = {str: str}
_INTEGER: Final[_Kinds] = {str: str, int: str}
_KINDS: Final[Mapping[DataType, _Kinds]] = {
    DataType.INT: _INTEGER,
    DataType.LONG: _INTEGER,
    DataType.DECIMAL: {**_INTEGER, Decimal: str},
    DataType.BOOL: {str: str, bool: {True: "true", False: "false"}.__getitem__},
    DataType.JSON: {},
}


@dataclass(frozen=True, slots=True)
class _Plan:
    """For rows with the same members: which column each is, and what ``_given`` says."""

    places: tuple[tuple[int, _Kinds], ...]
    given: str


class RowLines:
    """Writes rows as lines for ``COPY (<columns>, _given, _own) FROM STDIN``, in its text format."""

    def __init__(self, asking: Asking, entity: Entity) -> None:
        self._asking = asking
        self._entity = entity
        self._width = len(entity.columns)
        self._plans: dict[tuple[str, ...], _Plan | None] = {}

    def line(self, row: Mapping[str, Any]) -> str:
        plan = self._plan(tuple(row))
        return (plan and self._short(plan, row)) or self._judged(row)

    def _plan(self, names: tuple[str, ...]) -> _Plan | None:
        try:
            return self._plans[names]
        except KeyError:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            found = self._plans[names] = self._planned(names)
            return found

    def _planned(self, names: tuple[str, ...]) -> _Plan | None:
        """Return the plan, None where each row needs a judgement."""
        columns, folded = self._entity.column_by_name, [fold(name) for name in names]
        if len(set(folded)) < len(folded) or any(name not in columns for name in folded):
            return None
        sees_restricted = self._asking.rights(self._entity).sees_restricted
        if any(columns[name].restricted for name in folded) and not sees_restricted:
            return None
        order = list(columns)
        return _Plan(
            tuple(
                (order.index(name), _KINDS.get(columns[name].data_type, _TEXT)) for name in folded
            ),
            "".join("1" if name in folded else "0" for name in order),
        )

    def _short(self, plan: _Plan, row: Mapping[str, Any]) -> str | None:
        """Return the line of a row all of whose values are of the kind of their column."""
        values, texts = [NULL] * self._width, []
        for (place, kinds), value in zip(plan.places, row.values(), strict=True):
            if value is None:
                continue
            to_text = kinds.get(type(value))
            if to_text is None:
                return None
            values[place] = text = to_text(value)
            texts.append(text)
        if _SPECIAL("".join(texts)):
            return None
        return "\t".join(values) + f"\t{plan.given}\t{NULL}\n"

    def _judged(self, row: Mapping[str, Any]) -> str:
        found = read_row(self._asking, self._entity, row)
        values = [_escaped(found.texts.get(name)) for name in self._entity.column_by_name]
        own = None
        if found.errors:
            errors = [
                {
                    "column": error.column,
                    "code": error.code,
                    "message": error.message,
                    "value": shown_value(error.value),
                }
                for error in found.errors
            ]
            own = orjson.dumps(errors).decode()
        return "\t".join([*values, found.given, _escaped(own)]) + "\n"


def _escaped(text: str | None) -> str:
    return NULL if text is None else text.translate(_ESCAPES)


def shown_value(value: Any) -> str | None:
    """Return a value as the text that an import's errors show."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json_text(value))[:MAX_SHOWN]
