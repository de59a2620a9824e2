"""YAML text as a tree of nodes that know where they stand and how they were written.

Used where ``source.yaml_reader`` has already accepted the text: to say where a wrong value is, and
to rewrite a file without losing its comments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml._yaml import CParser

from mdm_gitops.errors import Location

Pointer = tuple[str | int, ...]


@dataclass(slots=True, kw_only=True)
class Node:
    """One scalar, mapping or sequence. Lines, columns and indexes count from 0."""

    start: Any  # mark of the parser: index, line, column
    end: Any
    flow: bool = False


@dataclass(slots=True, kw_only=True)
class ScalarNode(Node):
    value: str
    style: str  # "", ', ", | or >

    @property
    def plain(self) -> bool:
        return self.style == ""


@dataclass(slots=True, kw_only=True)
class MappingNode(Node):
    pairs: list[tuple[ScalarNode, Node]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class SequenceNode(Node):
    items: list[Node] = field(default_factory=list)


def compose(data: bytes) -> Node | None:
    """Return the root node of text that ``load_yaml`` accepts, None for an empty document."""
    next_event = CParser(data).get_event
    while True:
        event: Any = next_event()
        if type(event) is yaml.StreamEndEvent:
            return None
        if type(event) not in (yaml.StreamStartEvent, yaml.DocumentStartEvent):
            return _node(event, next_event)


def _node(event: Any, next_event: Any) -> Node:
    if type(event) is yaml.ScalarEvent:
        return ScalarNode(
            start=event.start_mark, end=event.end_mark, value=event.value, style=event.style or ""
        )
    if type(event) is yaml.SequenceStartEvent:
        sequence = SequenceNode(start=event.start_mark, end=None, flow=bool(event.flow_style))
        while type(inner := next_event()) is not yaml.SequenceEndEvent:
            sequence.items.append(_node(inner, next_event))
        sequence.end = inner.end_mark
        return sequence
    mapping = MappingNode(start=event.start_mark, end=None, flow=bool(event.flow_style))
    while type(inner := next_event()) is not yaml.MappingEndEvent:
        key = _node(inner, next_event)
        assert isinstance(key, ScalarNode), "the reader admits scalar keys only"
        mapping.pairs.append((key, _node(next_event(), next_event)))
    mapping.end = inner.end_mark
    return mapping


def locate(root: Node | None, pointer: Sequence[str | int], path: str, *, key: bool) -> Location:
    """Return the place of the value at *pointer*, or of its key; the nearest parent if absent."""
    if root is None:
        return Location(path)
    spot = here = root
    for step in pointer:
        found = _step(here, step)
        if found is None:
            break
        spot, here = found
    return _location(spot if key and pointer else here, path)


def _step(node: Node, step: str | int) -> tuple[Node, Node] | None:
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.pairs if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.items):
        return node.items[step], node.items[step]
    return None


def _location(node: Node, path: str) -> Location:
    return Location(path, node.start.line + 1, node.start.column + 1)
