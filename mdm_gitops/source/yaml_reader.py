"""A guarded YAML reader: values out of the event stream of the C parser, in one pass.

The usual loader composes a tree first, so a small file can exhaust it: aliases and merge keys
multiply, and deep nesting overflows the C stack. Here each event is judged before anything is
built. Refused: anchors, aliases, tags, merge keys, directives, repeated keys, a second document,
and more depth or nodes than ``source.limits`` allows.

Files in the plain form do not come here (``source.yaml_plain``).

Positions are not kept: they are needed only when something is wrong, and then
``source.yaml_nodes`` reads the text again.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import yaml
from yaml._yaml import CParser

from mdm_gitops.errors import DefinitionError, Finding, Findings, Location
from mdm_gitops.model.names import one_object
from mdm_gitops.source.limits import MAX_DEPTH, MAX_NODES, MAX_YAML_BYTES
from mdm_gitops.source.scalars import SHARED_LENGTH, ScalarRefused, resolve
from mdm_gitops.source.text import check_printable, decode
from mdm_gitops.source.yaml_plain import read_plain

# What the C parser says, in words that help whoever did not write a YAML parser.
_SYNTAX_HINTS: Final = {
    "mapping values are not allowed": "put text that holds ': ' in quotes",
    "that cannot start any token": "indent with spaces, and put text that starts with a sign"
    " of its own (@ ` % or a tab) in quotes",
    "could not find expected ':'": "a key needs a colon and a space after it",
    "did not find expected key": "check the indentation of this line and the one above it",
    "did not find expected '-' indicator": "check the indentation of this list",
    "found unexpected end of stream": "a quote or bracket is never closed",
    "did not find expected ',' or": "a bracket is never closed, or a comma is missing",
    "found unknown escape character": "a backslash starts an escape in double quotes;"
    " use single quotes for patterns",
}


def load_yaml(data: bytes, path: str) -> Any:
    """Return the one document of *data* as dicts, lists and scalars.

    Raises:
        DefinitionError: with all findings up to the first that makes going on pointless.
    """
    text = decode(data, path, max_bytes=MAX_YAML_BYTES)
    check_printable(text, path)
    plain = read_plain(text)
    return parse_yaml(data, path) if plain is None else plain


def parse_yaml(data: bytes, path: str) -> Any:
    """Return the same by the parser alone, which knows all of YAML; *data* has passed the gate."""
    reader = _Reader(data, path)
    try:
        value = reader.read()
    except yaml.YAMLError as exc:
        raise DefinitionError([*reader.findings.items, _syntax_finding(exc, data, path)]) from None
    reader.findings.raise_if_any()
    return value


class _Reader:
    """Builds values; ``_open`` holds (container, key that waits) for each open collection."""

    def __init__(self, data: bytes, path: str) -> None:
        self.findings = Findings()
        self._path = path
        self._next_event = CParser(data).get_event
        self._open: list[tuple[Any, str | None]] = []

    def read(self) -> Any:
        next_event, resolve_plain = self._next_event, resolve
        scalar, alias = yaml.ScalarEvent, yaml.AliasEvent
        mapping_start, sequence_start = yaml.MappingStartEvent, yaml.SequenceStartEvent
        ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
        stack = self._open
        root: list[Any] = []
        container: Any = root
        key: str | None = None
        nodes = documents = 0
        while True:
            event: Any = next_event()
            kind = type(event)
            if kind is scalar:
                nodes += 1
                if event.tag is not None or event.anchor is not None:
                    self._refuse_properties(event)
                if key is None and type(container) is dict:
                    key = self._key(event, container)
                    continue
                value: Any = event.value
                if len(value) <= SHARED_LENGTH:
                    value = one_object(value)
                if event.implicit[0]:
                    try:
                        value = resolve_plain(value)
                    except ScalarRefused as exc:
                        self._add("number-not-exact", str(exc), event, "put it in quotes")
            elif kind is mapping_start or kind is sequence_start:
                nodes += 1
                if event.tag is not None or event.anchor is not None:
                    self._refuse_properties(event)
                if key is None and type(container) is dict:
                    self._fail("complex-key", "a key must be plain text", event)
                value = {} if kind is mapping_start else []
                if len(stack) >= MAX_DEPTH:
                    self._fail("too-deep", f"nested deeper than {MAX_DEPTH}", event)
                if nodes > MAX_NODES:
                    self._fail("too-many-nodes", f"more than {MAX_NODES:,} values", event)
                if type(container) is dict:
                    container[key] = value
                else:
                    container.append(value)
                stack.append((container, None))
                container, key = value, None
                continue
            elif kind in ends:
                container, key = stack.pop()
                continue
            elif kind is alias:
                self._add("alias", "aliases (*name) are not allowed", event, "write the value out")
                value = None
                if key is None and type(container) is dict:
                    self._fail("complex-key", "a key must be plain text", event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                self._check_document(event, documents)
                continue
            elif kind is yaml.StreamEndEvent:
                break
            else:
                continue
            if nodes > MAX_NODES:
                self._fail("too-many-nodes", f"more than {MAX_NODES:,} values", event)
            if type(container) is dict:
                container[key] = value
                key = None
            else:
                container.append(value)
        return root[0] if root else None

    def _key(self, event: Any, container: dict[str, Any]) -> str:
        key: str = event.value
        if key == "<<" and event.implicit[0]:
            self._add("merge-key", "merge keys (<<) are not allowed", event, "write the keys out")
        elif key in container:
            self._add("duplicate-key", f"key {key!r} is here twice", event, "remove one of them")
        return key

    def _check_document(self, event: Any, documents: int) -> None:
        if documents > 1:
            self._fail("second-document", "a file holds one document only", event)
        if event.version is not None or event.tags:
            self._add("directive", "directives (%) are not allowed", event, "remove the line")

    def _refuse_properties(self, event: Any) -> None:
        if event.anchor is not None:
            self._add("anchor", "anchors (&name) are not allowed", event, "write the value out")
        if event.tag is not None:
            self._add("tag", "tags (!name) are not allowed", event, "remove the tag")

    def _add(self, rule: str, message: str, event: Any, hint: str = "") -> None:
        self.findings.add(rule, message, _location(event.start_mark, self._path), hint=hint)

    def _fail(self, rule: str, message: str, event: Any) -> NoReturn:
        self._add(rule, message, event)
        raise DefinitionError(self.findings.items)


def _location(mark: Any, path: str) -> Location:
    return Location(path, mark.line + 1, mark.column + 1)


def _inside(mark: Any, data: bytes, path: str) -> Location:
    """The parser puts the end of a text without a last line feed on a line of its own."""
    lines = data.decode().split("\n")
    if mark.line < len(lines):
        return _location(mark, path)
    return Location(path, len(lines), len(lines[-1]) + 1)


def _syntax_finding(exc: yaml.YAMLError, data: bytes, path: str) -> Finding:
    problem = str(getattr(exc, "problem", None) or getattr(exc, "reason", None) or exc)
    context = getattr(exc, "context", None)
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    hint = next((hint for part, hint in _SYNTAX_HINTS.items() if part in problem), "")
    return Finding(
        rule="yaml-syntax",
        message=f"not valid YAML: {problem}" + (f" {context}" if context else ""),
        location=_inside(mark, data, path) if mark else Location(path),
        hint=hint,
    )
