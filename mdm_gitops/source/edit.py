"""Small changes of definition files that leave everything else of the text alone.

An item of a list is appended, replaced or removed by splicing lines; comments and the author's own
layout of the other items stay. The result is for ``source.commits``, which reads all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from mdm_gitops.model.base import Definition
from mdm_gitops.source.render import render
from mdm_gitops.source.yaml_nodes import MappingNode, Node, SequenceNode, compose


def append_item(data: bytes | None, key: str, item: Definition) -> bytes:
    """Return the file *data* with *item* at the end of the list *key*; None is an absent file."""
    text = _text(data)
    items = _list(text, key)
    if items is None:
        separator = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{separator}{key}:\n{_rendered(item, 2)}".encode()
    if not items.items or items.flow:
        return _rewritten(text, key, items, item)
    lines = text.splitlines(keepends=True)
    last = items.items[-1]
    at = _last_line(lines, last) + 1
    head = lines[:at]
    if head and not head[-1].endswith("\n"):
        head[-1] += "\n"
    return "".join([*head, _rendered(item, items.start.column), *lines[at:]]).encode()


def replace_item(data: bytes, key: str, index: int, item: Definition | None) -> bytes:
    """Return the file *data* with *item* in the place of item *index* of the list *key*, or without
    it."""
    text = _text(data)
    items = _list(text, key)
    assert items is not None and index < len(items.items), "the caller has read the list"
    if items.flow:
        return _rewritten(text, key, items, item, instead_of=index)
    lines = text.splitlines(keepends=True)
    node = items.items[index]
    first, last = _first_line(lines, node, items.start.column), _last_line(lines, node)
    rest = len(items.items) - (item is None)
    if not rest:
        return _emptied(lines, key, first, last)
    new = _rendered(item, items.start.column) if item is not None else ""
    return "".join([*lines[:first], new, *lines[last + 1 :]]).encode()


def _text(data: bytes | None) -> str:
    return (data or b"").decode().replace("\r\n", "\n").replace("\r", "\n")


def _list(text: str, key: str) -> SequenceNode | None:
    root = compose(text.encode())
    if not isinstance(root, MappingNode):
        return None
    for name, value in root.pairs:
        if name.value == key:
            return value if isinstance(value, SequenceNode) else _empty(name, value)
    return None


def _empty(name: Node, value: Node) -> SequenceNode:
    """``permissions:`` with nothing after it."""
    return SequenceNode(start=value.start, end=value.end, flow=True)


def _rendered(item: Definition, indent: int) -> str:
    pad = " " * indent
    first, *others = render(item).splitlines(keepends=True)
    return "".join(
        [f"{pad}- {first}", *(f"{pad}  {line}" if line.strip() else line for line in others)]
    )


def _rewritten(
    text: str, key: str, items: SequenceNode, item: Definition | None, *, instead_of: int = -1
) -> bytes:
    """A list on one line is written as a block, its items as they stood."""
    kept: list[str] = []
    for number, node in enumerate(items.items):
        if number != instead_of:
            kept.append(f"  - {text[node.start.index : node.end.index]}\n")
        elif item is not None:
            kept.append(_rendered(item, 2))
    if item is not None and instead_of < 0:
        kept.append(_rendered(item, 2))
    before = text[: items.start.index].rstrip(" ")
    after = text[items.end.index :].lstrip(" ").removeprefix("\n")
    return (
        f"{before}\n{''.join(kept)}{after}".encode() if kept else f"{before} []\n{after}".encode()
    )


def _emptied(lines: Sequence[str], key: str, first: int, last: int) -> bytes:
    head = list(lines[:first])
    for number in range(len(head) - 1, -1, -1):
        if head[number].startswith(f"{key}:"):
            head[number] = head[number].replace(f"{key}:", f"{key}: []", 1)
            break
    return "".join([*head, *lines[last + 1 :]]).encode()


def _first_line(lines: Sequence[str], node: Node, indent: int) -> int:
    """Return the line with the item's dash; the item may begin on a later one."""
    number = int(node.start.line)
    while number > 0 and not lines[number].startswith(" " * indent + "-"):
        number -= 1
    return number


def _last_line(lines: Sequence[str], node: Node) -> int:
    """Return the last line with text of the item. The parser ends a block where the next thing begins;
    blank lines and comments before that belong to what follows."""
    number = int(node.end.line)
    if number >= len(lines) or not lines[number][: node.end.column].strip():
        number = max(number - 1, int(node.start.line))
    while number > node.start.line and (
        not lines[number].strip() or lines[number].lstrip().startswith("#")
    ):
        number -= 1
    return number
