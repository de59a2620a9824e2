"""The canonical form of a definition file: ``mdm-gitops fmt``.

Two spaces of indentation, keys in the order of the model, quotes only where YAML 1.1 or 1.2 needs
them, at most one blank line in a row. Comments stay with what they speak of. What a list or mapping
looks like (on one line or on many) is left to its author, unless the line gets too long.

The result is read again before it is given out: when it would not mean the same, or would lose a
comment, the text is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, get_args

from pydantic import BaseModel

from mdm_gitops.errors import DefinitionError
from mdm_gitops.model.access import Permissions, Webhooks
from mdm_gitops.model.access_tests import ACCESS_TESTS_FILE, AccessTests
from mdm_gitops.model.entity import Entity
from mdm_gitops.model.project import Project
from mdm_gitops.source.layout import Collection, Entry, Layout, Scalar, block_of, print_layout
from mdm_gitops.source.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode, compose
from mdm_gitops.source.yaml_reader import load_yaml

MODELINE: Final = "# yaml-language-server:"
_ROOT_MODELS: Final[dict[str, type[BaseModel]]] = {
    "mdm.yaml": Project,
    "permissions.yaml": Permissions,
    "webhooks.yaml": Webhooks,
    ACCESS_TESTS_FILE: AccessTests,
}


def format_yaml(data: bytes, path: str) -> str:
    """Return the canonical form of the definition file *path* with the content *data*.

    Raises:
        DefinitionError: it is not YAML that the reader accepts.
    """
    value = load_yaml(data, path)
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    root = compose(text.encode())
    if root is None:
        return text
    source = _Source.of(text, root)
    formatted = source.print(_ROOT_MODELS.get(path.rpartition("/")[2], Entity))
    return formatted if _means_the_same(formatted, value, source, path) else text


def _means_the_same(formatted: str, value: Any, source: _Source, path: str) -> bool:
    data = formatted.encode()
    try:
        again = load_yaml(data, path)
    except DefinitionError:
        return False
    root = compose(data)
    if root is None or _canonical(again) != _canonical(value):
        return False
    return _comments_of(formatted, root) == _comments_of(source.text, source.root)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _comments_of(text: str, root: Node) -> list[str]:
    return sorted(comment.text for comment in _find_comments(text, root))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comment:
    line: int
    column: int
    text: str  # from # to the end of the line; "" for a blank line
    alone: bool  # nothing else is on its line


class _Source:
    """A file's text, its nodes, and the comments that no node has taken yet."""

    def __init__(self, text: str, root: Node, comments: list[_Comment]) -> None:
        self.text = text
        self.root = root
        self._alone = [comment for comment in comments if comment.alone]
        self._tails = {comment.line: comment.text for comment in comments if not comment.alone}

    @classmethod
    def of(cls, text: str, root: Node) -> _Source:
        return cls(text, root, [*_find_comments(text, root), *_blank_lines(text, root)])

    def print(self, model: type[BaseModel]) -> str:
        self._alone.sort(key=lambda comment: comment.line)
        header = self._take_until(self.root.start.line)
        layout = self._layout(self.root, outer_column=-1)
        footer = [comment.text for comment in self._alone]
        if isinstance(layout, Collection) and layout.entries:
            # Blank lines alone part nothing, and must not move with a key that moves.
            header, above = _split_header(header) if any(header) else ([], [])
            layout.entries[0].head[:0] = above
            _sort_keys(layout, model)
        return print_layout(layout, header=_one_blank(header), footer=_one_blank(footer))

    def _take_until(self, line: int) -> list[str]:
        taken = [comment.text for comment in self._alone if comment.line < line]
        del self._alone[: len(taken)]
        return taken

    def _take_tails(self, line: int) -> list[str]:
        taken = []
        while self._tails and (first := next(iter(self._tails))) < line:
            taken.append(self._tails.pop(first))
        return taken

    def _take_foot(self, node: Node, outer_column: int) -> list[str]:
        """Comments below the last entry that are indented like the entries."""
        column = node.start.column
        count = 0
        for index, comment in enumerate(self._alone):
            if comment.line >= node.end.line and node.end.line != node.start.line:
                break
            if comment.text and (comment.column < column or comment.column <= outer_column):
                break
            if comment.text:
                count = index + 1
        taken = [comment.text for comment in self._alone[:count]]
        del self._alone[:count]
        return _one_blank(taken)

    def _layout(self, node: Node, outer_column: int) -> Layout:
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        pairs: list[tuple[ScalarNode | None, Node]] = []
        if isinstance(node, MappingNode):
            pairs += node.pairs
        elif isinstance(node, SequenceNode):
            pairs += ((None, item) for item in node.items)
        before = len(self._alone) + len(self._tails)
        made = Collection(sequence=isinstance(node, SequenceNode), flow=node.flow)
        for key, value in pairs:
            made.entries.append(self._entry(key, value, node))
        if node.flow:
            self._leave_flow_if_commented(made, before, node)
        else:
            made.foot = self._take_foot(node, outer_column)
        return made

    def _leave_flow_if_commented(self, made: Collection, before: int, node: Node) -> None:
        """A comment inside brackets ends the line, so that list must become a block."""
        made.foot = [text for text in self._take_until(node.end.line) if text]
        inside = made.foot or any(any(entry.head) or entry.tail for entry in made.entries)
        nested = any(
            isinstance(entry.value, Collection) and entry.value.entries and not entry.value.flow
            for entry in made.entries
        )
        made.flow = not inside and not nested

    def _entry(self, key: ScalarNode | None, value: Node, parent: Node) -> Entry:
        start = value if key is None else key
        head = self._take_until(start.start.line)
        beside = self._take_tails(value.start.line)  # of a key or dash whose value stands below it
        tail = ""
        if key is not None and not isinstance(value, ScalarNode) and not value.flow:
            tail = beside.pop() if beside else ""
        head += beside
        layout = self._layout(value, parent.start.column)
        one_line_end = isinstance(value, ScalarNode) or value.flow
        if one_line_end and not (parent.flow and value.end.line == parent.end.line):
            tail = tail or self._tails.pop(value.end.line, "")
        made_key = None if key is None else Scalar(value=key.value, plain=_plain_token(key))
        return Entry(key=made_key, value=layout, head=_one_blank(head), tail=tail)

    def _scalar(self, node: ScalarNode) -> Scalar:
        if node.style in ("|", ">"):
            raw = self.text[node.start.index : node.end.index]
            # Without a line feed at the end of the file, | means what |- means.
            block = _raw_block(raw) if raw.endswith("\n") else []
            return Scalar(value=node.value, block=block or block_of(node.value))
        if node.plain and node.start.line == node.end.line:
            return Scalar(value=node.value, plain=_plain_token(node))
        return Scalar(value=node.value, block=block_of(node.value))


def _plain_token(node: ScalarNode) -> str | None:
    return node.value if node.plain else None


def _raw_block(raw: str) -> list[str]:
    """Return a block scalar as written, without its indentation; nothing if that is not simple."""
    header, *lines = raw.split("\n")
    sign = header.partition("#")[0]
    if any(digit.isdigit() for digit in sign):
        return []
    while lines and not lines[-1].strip() and "+" not in sign:
        lines.pop()
    indent = next((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), 0)
    if "+" in sign or not indent:
        return []
    return [header.rstrip(), *(line[indent:] for line in lines)]


def _find_comments(text: str, root: Node) -> Iterator[_Comment]:
    """Yield comments: what follows a # outside of all scalars."""
    spans = sorted((node.start.index, node.end.index) for node in _scalars(root))
    for (_, left), (right, _) in pairwise([(0, 0), *spans, (len(text), len(text))]):
        at = left
        while (at := text.find("#", at, right)) != -1:
            end = text.find("\n", at)
            end = len(text) if end == -1 else end
            line_start = text.rfind("\n", 0, at) + 1
            yield _Comment(
                line=text.count("\n", 0, at),
                column=at - line_start,
                text=text[at:end].rstrip(),
                alone=not text[line_start:at].strip(),
            )
            at = end


def _blank_lines(text: str, root: Node) -> Iterator[_Comment]:
    """Yield blank lines outside of all scalars as comments without text."""
    covered: set[int] = set()
    lines = text.split("\n")
    for node in _scalars(root):
        last = node.end.line
        if node.style in ("|", ">"):
            last = min(last, len(lines)) - 1
            while last > node.start.line and not lines[last].strip():
                last -= 1
        covered.update(range(node.start.line, last + 1))
    for number, line in enumerate(lines):
        if not line.strip() and number not in covered:
            yield _Comment(line=number, column=0, text="", alone=True)


def _scalars(node: Node) -> Iterator[ScalarNode]:
    if isinstance(node, ScalarNode):
        yield node
    elif isinstance(node, SequenceNode):
        for item in node.items:
            yield from _scalars(item)
    elif isinstance(node, MappingNode):
        for key, value in node.pairs:
            yield key
            yield from _scalars(value)


def _one_blank(lines: list[str]) -> list[str]:
    """Collapse blank lines, so that at most one separates two comments."""
    return [line for line, before in zip(lines, ["x", *lines], strict=False) if line or before]


def _split_header(lines: list[str]) -> tuple[list[str], list[str]]:
    """Part the comment of the file from that of its first key.

    A blank line parts them; without one, the line for editors is the header.
    """
    if "" in lines:
        last = len(lines) - 1 - lines[::-1].index("")
        return lines[: last + 1], lines[last + 1 :]
    last = max((n for n, line in enumerate(lines) if line.startswith(MODELINE)), default=-1)
    return lines[: last + 1], lines[last + 1 :]


def _sort_keys(node: Layout, model: type[BaseModel] | None) -> None:
    """Bring the keys of each mapping into the order of its model; unknown keys go last."""
    if not isinstance(node, Collection):
        return
    order: dict[str, int] = {}
    inner: dict[str, type[BaseModel] | None] = {}
    if model is not None and not node.sequence:
        for number, (name, info) in enumerate(model.model_fields.items()):
            order[info.alias or name] = number
            inner[info.alias or name] = _model_in(info.annotation)
        node.entries.sort(key=lambda entry: order.get(_key(entry), len(order)))
    for entry in node.entries:
        _sort_keys(entry.value, model if node.sequence else inner.get(_key(entry)))


def _key(entry: Entry) -> str:
    return entry.key.value if entry.key is not None else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field's values, or their items, are of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
