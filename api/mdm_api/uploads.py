"""Uploaded files: ``multipart/form-data`` with one file, read as it arrives and kept out of memory."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from mdm_api import bodies
from mdm_gitops.errors import InputError, MdmError

_IN_MEMORY: Final = 1024 * 1024
_MAX_FIELD_BYTES: Final = 4096
_MAX_PARTS: Final = 32
_AROUND_BYTES: Final = 256 * 1024  # boundaries, headers and fields


@dataclass(kw_only=True)
class Upload:
    """*fields* are the other fields of the form, as text."""

    file: IO[bytes]
    has_file: bool = False
    fields: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def received(request: Request, *, name: str, max_bytes: int) -> AsyncIterator[Upload]:
    """Yield the file in the field *name*; it is gone after the block.

    Raises:
        InputError: the body is no form, or has no such file, or another one.
        MdmError: it is not ``multipart/form-data``, or too large.
    """
    kind, options = parse_options_header(request.headers.get("Content-Type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise bodies.unsupported(request, "multipart/form-data")
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        upload = Upload(file=spool)
        form = _Form(upload, name, max_bytes)
        try:
            parser = MultipartParser(boundary, form.callbacks())
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes + _AROUND_BYTES:
                    raise _too_large(max_bytes)
                parser.write(chunk)
            parser.finalize()
        except FormParserError:
            raise InputError("the body is not a form that can be read") from None
        if not form.ended:
            raise InputError("the body ends before the form does")
        if not upload.has_file:
            raise InputError(f"the form has no file in the field {name!r}", parameter=name)
        spool.seek(0)
        yield upload


class _Form:
    """Takes the parts of a form as the parser finds them."""

    def __init__(self, upload: Upload, name: str, max_bytes: int) -> None:
        self._upload, self._wanted, self._max_bytes = upload, name, max_bytes
        self._headers: dict[bytes, bytes] = {}
        self._key, self._value = b"", b""
        self._name, self._is_file = "", False
        self._text = b""
        self._size = 0
        self._parts = 0
        self.ended = False

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._all,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise InputError(f"the form has more than {_MAX_PARTS} fields")
        self._headers, self._text = {}, b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._key.lower()] = self._value
        self._key, self._value = b"", b""

    def _headers_finished(self) -> None:
        given = self._headers.get(b"content-disposition", b"")
        kind, options = parse_options_header(given)
        if kind != b"form-data" or b"name" not in options:
            raise InputError("a part of the form has no name")
        self._name = options[b"name"].decode(errors="replace")[:100]
        self._is_file = b"filename" in options
        if self._is_file and (self._name != self._wanted or self._upload.has_file):
            raise InputError(f"one file is expected, in the field {self._wanted!r}")
        self._upload.has_file |= self._is_file

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._size += end - start
            if self._size > self._max_bytes:
                raise _too_large(self._max_bytes)
            self._upload.file.write(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MAX_FIELD_BYTES:
            raise InputError(f"field {self._name!r} is longer than {_MAX_FIELD_BYTES} bytes")

    def _end(self) -> None:
        if self._is_file:
            return
        if self._name in self._upload.fields:
            raise InputError(f"{self._name} is given twice", parameter=self._name)
        try:
            self._upload.fields[self._name] = self._text.decode()
        except UnicodeDecodeError:
            raise InputError(f"field {self._name!r} is not UTF-8") from None

    def _all(self) -> None:
        self.ended = True


def _too_large(max_bytes: int) -> MdmError:
    return MdmError(f"the file has more than {max_bytes:,} bytes", code="BODY_TOO_LARGE")
