"""The plain form of YAML, read line by line: nearly all definition files are written in it.

Block mappings and lists of one-line values, and flat ones in brackets. Whatever else a text holds,
``read_plain`` leaves it to the parser, which takes three times as long. So there is no error here and no
reason: this module either says what the parser would say, or nothing. That it never says anything
else is a law that tests hold.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from mdm_gitops.model.names import one_object
from mdm_gitops.source.limits import MAX_NODES
from mdm_gitops.source.scalars import SHARED_LENGTH, ScalarRefused, resolve

_DEEPEST: Final = 16
_SHARED_LINE: Final = 120  # lines up to so long are remembered: most stand in many files
_KEY: Final = r"[A-Za-z][A-Za-z0-9_]{0,63}"
# Neither ':' nor '#', which may end a value, nor a first sign that means something to YAML.
_INNER: Final = r"""[\w()/.,+=;%*&!?@<>|~^$'"\[\]{}\\-]"""
_WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # in brackets
_PAIR: Final = rf"{_KEY}:[ ]+{_WORD}"

_LINE: Final = re.compile(rf"( *)(- +)?(?:({_KEY}):(?: +(.*))?|(.*))")
_IDLE: Final = re.compile(r" *(?:#.*)?")
_VALUE: Final = re.compile(
    rf"""(?: (?P<plain> \w (?:(?:{_INNER}|[ ])*{_INNER})? )
           | "(?P<double> [^"\\]* )"
           | '(?P<single> [^']* )'
           | \[[ ]*(?: (?P<list> {_WORD}(?:[ ]*,[ ]*{_WORD})* )[ ]* )?\]
           | \{{[ ]*(?: (?P<map> {_PAIR}(?:[ ]*,[ ]*{_PAIR})* )[ ]* )?\}}
         )(?:[ ]+\#.*|[ ]*)""",
    re.VERBOSE,
)


class _Line(NamedTuple):
    indent: int  # -1: nothing is on it
    inner: int  # where the item's value starts, 0 where there is no item
    key: str | None
    value: Any
    is_bare: bool = False  # the key's value is none, or on the lines that follow
    is_open: bool = False  # the value is a list or a dict: each reader needs its own


_NOTHING: Final = _Line(-1, 0, None, None)


class _NotPlain(Exception):
    """The parser must read it."""


def read_plain(text: str) -> dict[str, Any] | None:
    """Return the mapping that *text* holds, or None where only the parser can say what it holds.

    *text* has passed ``source.text``. No text that is read here goes beyond a limit of the parser's.
    """
    if len(text) > MAX_NODES or "\t" in text or "\r" in text:
        return None
    try:
        return _read(text) or None
    except _NotPlain:
        return None


def _read(text: str) -> dict[str, Any]:
    root: dict[str, Any] = {}
    stack: list[tuple[int, Any]] = []  # what is open around the container
    container: Any = root
    opened: Any
    level = 0  # the indentation of the container
    waiting: str | None = None  # the key of the container whose value may follow
    known = _known
    for line in text.split("\n"):
        indent, inner, key, value, is_bare, is_open = (
            known(line) if len(line) <= _SHARED_LINE else _line(line)
        )
        if indent < 0:
            continue
        if waiting is not None and (indent > level or (inner and indent == level)):
            stack.append((level, container))
            container[waiting] = opened = [] if inner else {}
            container, level = opened, indent
        else:
            while indent < level or (indent == level and not inner and type(container) is list):
                level, container = _closed(stack)
            if indent != level:
                raise _NotPlain
        waiting = None
        if is_open:
            value = value.copy()
        if inner:
            if type(container) is not list:
                raise _NotPlain
            if key is None:
                container.append(value)
                continue
            stack.append((level, container))
            opened = {}
            container.append(opened)
            container, level = opened, inner
        elif type(container) is not dict:
            raise _NotPlain
        if key in container or len(stack) > _DEEPEST:
            raise _NotPlain
        container[key] = value
        if is_bare:
            waiting = key
    return root


def _closed(stack: list[tuple[int, Any]]) -> tuple[int, Any]:
    if not stack:
        raise _NotPlain
    return stack.pop()


def _line(line: str) -> _Line:
    if _IDLE.fullmatch(line):
        return _NOTHING
    match = _LINE.fullmatch(line)
    assert match is not None, "it matches any line"
    spaces, dash, key, rest, alone = match.groups()
    indent = len(spaces)
    inner = indent + len(dash) if dash else 0
    if key is None:
        if not dash:
            raise _NotPlain
        value, is_open = _value(alone)
        return _Line(indent, inner, None, value, is_open=is_open)
    if rest is None or _IDLE.fullmatch(rest):
        return _Line(indent, inner, key, None, is_bare=True)
    value, is_open = _value(rest)
    return _Line(indent, inner, key, value, is_open=is_open)


_known: Final = lru_cache(maxsize=1_024)(_line)


def _value(text: str) -> tuple[Any, bool]:
    """Return the value, and whether it is a container."""
    match = _VALUE.fullmatch(text)
    if match is None:
        raise _NotPlain
    plain, double, single, items, pairs = match.groups()
    if plain is not None:
        return _scalar(plain), False
    if double is not None or single is not None:
        return _shared(single if double is None else double), False
    if text[0] == "[":
        return [_scalar(item.strip()) for item in items.split(",")] if items else [], True
    found = [pair.partition(":") for pair in pairs.split(",")] if pairs else []
    mapping = {name.strip(): _scalar(word.strip()) for name, _, word in found}
    if len(mapping) != len(found):
        raise _NotPlain
    return mapping, True


def _scalar(plain: str) -> Any:
    try:
        return resolve(_shared(plain))
    except ScalarRefused:
        raise _NotPlain from None


def _shared(text: str) -> str:
    return one_object(text) if len(text) <= SHARED_LENGTH else text
