"""A YAML document as it will be written: values with their comments, and the one way to print them.

``source.fmt`` makes a layout from a file, ``source.render`` from a definition; both print it here,
so what the toolkit writes is what ``fmt`` leaves alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

LINE_LENGTH: Final = 100
INDENT: Final = 2

# Words that YAML 1.1 reads as something else than text, in any case.
_WORDS_1_1: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_PLAIN: Final = re.compile(r"[^\W\d](?:[\w ./@()+*%$=<>!^~;?&'-]|:(?=[^\s]))*\Z")
_ESCAPED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(slots=True, kw_only=True)
class Scalar:
    """*plain* is the token as its author wrote it; *block* the lines of a block scalar."""

    value: str
    plain: str | None = None
    block: list[str] = field(default_factory=list)  # header first, body without indentation


@dataclass(slots=True, kw_only=True)
class Entry:
    """A pair of a mapping, or an item of a sequence (then *key* is None)."""

    key: Scalar | None
    value: Layout
    head: list[str] = field(default_factory=list)  # comment lines above; "" is a blank line
    tail: str = ""  # comment on its line


@dataclass(slots=True, kw_only=True)
class Collection:
    """A mapping (entries with keys) or a sequence; *flow* if it may stand on one line."""

    sequence: bool
    flow: bool
    entries: list[Entry] = field(default_factory=list)
    foot: list[str] = field(default_factory=list)


Layout = Scalar | Collection


def print_layout(root: Layout, *, header: list[str], footer: list[str]) -> str:
    """Return the text of a whole document, ending in a line feed."""
    if isinstance(root, Scalar) or _inline(root, width=LINE_LENGTH) is not None:
        text = token(root, flow=False) if isinstance(root, Scalar) else _inline(root, width=10**9)
        body = [text or ""]
    else:
        body = list(_collection(root, 0))
    lines = _without_extra_blanks([*header, *body, *footer])
    return "\n".join(lines) + "\n"


def token(scalar: Scalar, *, flow: bool) -> str:
    """Return *scalar* on one line: as written if it was plain, else with as few quotes as fit."""
    if scalar.plain is not None:
        return scalar.plain
    return quoted(scalar.value, flow=flow)


def quoted(text: str, *, flow: bool) -> str:
    """Return *text* so that YAML 1.1 and 1.2 both read it as this very text."""
    if is_plain(text, flow=flow):
        return text
    if _ESCAPED.search(text) or not ("\\" in text or '"' in text):
        escaped = json.dumps(text, ensure_ascii=False)
        return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped)
    return "'" + text.replace("'", "''") + "'"


def is_plain(text: str, *, flow: bool) -> bool:
    """Whether *text* needs no quotes; on the safe side."""
    if not _PLAIN.match(text) or text.endswith((" ", ":")) or " :" in text:
        return False
    return text.lower() not in _WORDS_1_1 and not (flow and ":" in text)


def block_of(text: str) -> list[str]:
    """Return *text* of several lines as a literal block, or nothing if it cannot be one."""
    body = text.removesuffix("\n")
    lines = body.split("\n")
    unsafe = (
        len(lines) < 2
        or not body.strip()
        or body.endswith("\n")
        or lines[0][:1] in ("", " ", "\t")
        or any(line != line.rstrip() or _ESCAPED.search(line) for line in lines)
    )
    if unsafe:
        return []
    return ["|" if text.endswith("\n") else "|-", *lines]


def _collection(node: Collection, indent: int) -> Iterator[str]:
    for entry in node.entries:
        yield from _entry(entry, indent)
    yield from _comments(node.foot, indent)


def _entry(entry: Entry, indent: int) -> Iterator[str]:
    yield from _comments(entry.head, indent)
    pad = " " * indent
    lead = f"{pad}{token(entry.key, flow=False)}:" if entry.key is not None else f"{pad}-"
    value = entry.value
    if isinstance(value, Scalar):
        yield from _scalar_lines(lead, value, entry.tail, indent)
        return
    inline = _inline(value, width=LINE_LENGTH - len(lead) - 1)
    if inline is not None:
        yield f"{lead} {inline}{_tail(entry)}"
    elif entry.key is not None:
        yield f"{lead}{_tail(entry)}"
        yield from _collection(value, indent + INDENT)
    else:
        yield from _item(entry, value, indent)


def _item(entry: Entry, value: Collection, indent: int) -> Iterator[str]:
    """An item that is itself a block: its first line stands beside the dash."""
    first, *others = value.entries
    yield from _comments([*([entry.tail] if entry.tail else []), *first.head], indent)
    bare = Entry(key=first.key, value=first.value, tail=first.tail)
    lines = _entry(bare, indent + INDENT)
    yield " " * indent + "- " + next(lines)[indent + INDENT :]
    yield from lines
    rest = Collection(sequence=value.sequence, flow=False, entries=others, foot=value.foot)
    yield from _collection(rest, indent + INDENT)


def _scalar_lines(lead: str, scalar: Scalar, tail: str, indent: int) -> Iterator[str]:
    if scalar.block:
        header, *lines = scalar.block
        yield f"{lead} {header}"
        pad = " " * (indent + INDENT)
        yield from (pad + line if line else "" for line in lines)
        return
    text = token(scalar, flow=False)
    yield lead + (f" {text}" if text else "") + (f"  {tail}" if tail else "")


def _inline(node: Layout, *, width: int) -> str | None:
    """Return *node* on one line, or None if it is to be a block."""
    if isinstance(node, Scalar):
        return None if node.block else token(node, flow=True)
    if not node.flow and node.entries:
        return None
    parts = []
    for entry in node.entries:
        value = _inline(entry.value, width=width)
        if value is None:
            return None
        key = f"{token(entry.key, flow=True)}: " if entry.key is not None else ""
        parts.append((key + value).rstrip())
    text = f"[{', '.join(parts)}]" if node.sequence else f"{{{', '.join(parts)}}}"
    return text if len(text) <= width else None


def _comments(lines: list[str], indent: int) -> Iterator[str]:
    for line in lines:
        yield " " * indent + line if line else ""


def _tail(entry: Entry) -> str:
    return f"  {entry.tail}" if entry.tail else ""


def _without_extra_blanks(lines: list[str]) -> list[str]:
    while lines and not lines[0]:
        lines = lines[1:]
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines
