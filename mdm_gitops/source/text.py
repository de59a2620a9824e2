"""Bytes to text: the first gate of every definition file.

After it the text is UTF-8 without a byte order mark, and holds no character that YAML 1.1 and 1.2,
an editor and PostgreSQL would each read in their own way.
"""

from __future__ import annotations

import re
from typing import Final

from mdm_gitops.errors import DefinitionError, Finding, Location

_BOM: Final = b"\xef\xbb\xbf"
# YAML 1.2, production c-printable, less the line breaks of YAML 1.1 that 1.2 took back.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
)


def decode(data: bytes, path: str, *, max_bytes: int) -> str:
    """Return *data* as text.

    Raises:
        DefinitionError: it is too large, is not UTF-8 or holds a forbidden character.
    """
    if len(data) > max_bytes:
        raise _refused(
            "too-large",
            f"file has {len(data):,} bytes, at most {max_bytes:,} are allowed",
            Location(path),
        )
    if data.startswith((_BOM, b"\xff\xfe", b"\xfe\xff")):
        raise _refused(
            "byte-order-mark",
            "file starts with a byte order mark",
            Location(path, 1, 1),
            hint="save it as UTF-8 without BOM",
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise _refused(
            "not-utf-8",
            f"byte 0x{data[exc.start]:02x} is not UTF-8",
            position(data[: exc.start].decode(errors="replace"), exc.start, path),
            hint="save the file as UTF-8",
        ) from None
    return text


def check_printable(text: str, path: str) -> None:
    """Refuse control characters, which no reviewer would see."""
    found = _UNPRINTABLE.search(text)
    if found is None:
        return
    raise _refused(
        "control-character",
        f"character U+{ord(found[0]):04X} cannot stand in a definition file",
        position(text, found.start(), path),
        hint=f'write it in double quotes as "\\u{ord(found[0]):04x}", or remove it',
    )


def position(text: str, index: int, path: str) -> Location:
    """Return the location of the character at *index*; lines end with a line feed."""
    index = min(index, len(text))
    line = text.count("\n", 0, index) + 1
    return Location(path, line, index - (text.rfind("\n", 0, index) + 1) + 1)


def _refused(rule: str, message: str, location: Location, *, hint: str = "") -> DefinitionError:
    return DefinitionError([Finding(rule=rule, message=message, location=location, hint=hint)])
