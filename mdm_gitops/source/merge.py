"""New values into the old text of a definition file: what is equal stays as its author wrote it.

Old and new are compared as values with defaults left out, so a default that somebody wrote down is no
difference. Where they differ, the smallest part of the text that holds the difference is written
again; comments, order and layout of all other lines stay. Columns and other items with a name are
told apart by it. The result is read again, and a file that cannot be spliced is written as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mdm_gitops.errors import DefinitionError
from mdm_gitops.model.entity import Entity
from mdm_gitops.model.names import fold
from mdm_gitops.model.values import canonical_json
from mdm_gitops.source.documents import YamlDocument
from mdm_gitops.source.layout import LINE_LENGTH, Collection, Entry, print_layout
from mdm_gitops.source.render import layout_of, render_entity
from mdm_gitops.source.yaml_nodes import MappingNode, Node, ScalarNode, SequenceNode, compose

Document = Mapping[str, Any]
Edit = tuple[int, int, str]  # from, to, instead
_NAMES: Final = ("name", "column")  # what tells the items of a list apart
_RENAMED: Final = "renamedFrom"


def merge_entity(data: bytes, entity: Entity) -> bytes:
    """Return the file *data* as it has to be for *entity*; line ends stay as they are."""
    text = data.decode().removeprefix("\ufeff")
    windows = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    old = _value_of(text)
    if old is not None and _equal(old, entity.to_document()):
        return data
    merged = merge_document(text, old, entity.to_document()) if old is not None else ""
    if _value_of(merged) != entity.to_document():
        merged = _header(text) + render_entity(entity)
    return (merged.replace("\n", "\r\n") if windows else merged).encode()


def _value_of(text: str) -> Document | None:
    try:
        return YamlDocument("", text.encode()).as_model(Entity, "entity").to_document()
    except DefinitionError:
        return None


def _header(text: str) -> str:
    """Return the comments that a file begins with."""
    kept = []
    for line in text.split("\n"):
        if not line.startswith("#"):
            break
        kept.append(f"{line}\n")
    return "".join(kept)


def merge_document(text: str, old: Document, new: Document) -> str:
    """Return *text*, whose value is *old*, so that it says *new*; nothing if it is no block.

    *text* is YAML that the reader accepts, in line feeds. Comments of what goes away go with it.
    """
    text = text if text.endswith("\n") else text + "\n"
    merger = _Merger(text)
    root = compose(text.encode())
    if not isinstance(root, MappingNode) or root.flow:
        return ""
    merger.mapping(root, old, new, 0)
    return _reordered(merger.result(), new)


@dataclass
class _Merger:
    text: str
    edits: list[Edit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [f"{line}\n" for line in self.text.split("\n")[:-1]]
        self.offsets = [0]
        for line in self.lines:
            self.offsets.append(self.offsets[-1] + len(line))

    def result(self) -> str:
        parts, at = [], 0
        for start, end, instead in sorted(self.edits, key=lambda edit: edit[:2]):
            parts += [self.text[at:start], instead]
            at = max(at, end)
        return "".join([*parts, self.text[at:]])

    # --- mappings ---------------------------------------------------------------------------------

    def mapping(self, node: MappingNode, old: Document, new: Document, indent: int) -> None:
        """*indent* is the column in which the keys stand."""
        for number, (key, value) in enumerate(node.pairs):
            name = key.value
            if name not in new:
                if name in old:  # else a default that is written down, and still holds
                    self._without_pair(node, number)
            elif name not in old or not _equal(old[name], new[name]):
                self._value(key, value, old.get(name), new[name], indent)
        self._missing_pairs(node, new, indent)

    def _missing_pairs(self, node: MappingNode, new: Document, indent: int) -> None:
        lasts = {key.value: self._last_line(value, key) for key, value in node.pairs}
        first = lasts[node.pairs[0][0].value]
        before = first
        for name in new:
            if name in lasts:
                before = lasts[name]
                continue
            self._insert(before + 1, _rendered({name: new[name]}, indent))

    def _without_pair(self, node: MappingNode, number: int) -> None:
        key, value = node.pairs[number]
        line = int(key.start.line)
        if self.lines[line][: key.start.column].strip():  # beside the dash of its item
            if number + 1 < len(node.pairs):
                self._replace(self._at(key.start), self._at(node.pairs[number + 1][0].start), "")
            return
        self._drop_lines(line, self._last_line(value, key))

    # --- values -----------------------------------------------------------------------------------

    def _value(self, key: ScalarNode, value: Node, old: Any, new: Any, indent: int) -> None:
        if isinstance(value, MappingNode) and not value.flow and _keeps_some(value, new):
            inner = int(value.pairs[0][0].start.column)
            self.mapping(value, old if isinstance(old, dict) else {}, new, inner)
        elif self._spliced(value, old, new):
            pass
        elif isinstance(value, ScalarNode) and not isinstance(new, dict | list):
            self._scalar(key, value, new, indent)
        elif _is_inline(value) and (text := _inline(new, LINE_LENGTH - int(value.start.column))):
            self._replace(self._at(value.start), self._at(value.end), text)
        else:
            self._instead_of_pair(key, value, {key.value: new}, indent)

    def _spliced(self, value: Node, old: Any, new: Any) -> bool:
        """Whether *value* is a block of items of which some stay, and was merged with *new*."""
        if not isinstance(value, SequenceNode) or value.flow:
            return False
        if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(value.items):
            return False
        pairs = _pairs(old, new)
        if pairs is None or not any(at is not None for at in pairs):
            return False
        self._sequence(value, old, new, pairs)
        return True

    def _scalar(self, key: ScalarNode, value: ScalarNode, new: Any, indent: int) -> None:
        head, *others = _rendered({key.value: new}, indent).splitlines()
        if value.style in ("|", ">") or others or value.end.line != value.start.line:
            self._instead_of_pair(key, value, {key.value: new}, indent)
            return
        _, _, token = head.partition(": ")
        start = self._at(value.start)
        gap = " " if self.text[start - 1 : start] == ":" else ""
        self._replace(start, self._at(value.end), gap + token)

    def _instead_of_pair(self, key: ScalarNode, value: Node, new: Document, indent: int) -> None:
        last = self._last_line(value, key)
        text = _rendered(new, indent)[indent:]
        self._replace(self._at(key.start), self.offsets[last + 1], text)

    # --- lists ------------------------------------------------------------------------------------

    def _sequence(
        self, node: SequenceNode, old: list[Any], new: list[Any], pairs: Sequence[int | None]
    ) -> None:
        indent = int(node.start.column)
        firsts = [self._dash_line(item, indent) for item in node.items]
        lasts = [self._last_line(item, item) for item in node.items]
        for index in sorted(set(range(len(old))) - {at for at in pairs if at is not None}):
            self._drop_lines(firsts[index], lasts[index])
        blank = any(not self.lines[line - 1].strip() for line in firsts[1:])
        before = self._head(firsts[0]) - 1
        for item, at in zip(new, pairs, strict=True):
            if at is None:
                spaced = "\n" if blank and before >= firsts[0] else ""
                self._insert(before + 1, spaced + _item(item, indent))
                continue
            before = max(before, lasts[at])
            if not _equal(old[at], item):
                self._one_item(node.items[at], old[at], item, (firsts[at], lasts[at]))

    def _one_item(self, node: Node, old: Any, new: Any, lines: tuple[int, int]) -> None:
        both = isinstance(old, dict) and isinstance(new, dict)
        if both and isinstance(node, MappingNode) and not node.flow and _keeps_some(node, new):
            self.mapping(node, old, new, int(node.pairs[0][0].start.column))
            return
        room = LINE_LENGTH - int(node.start.column)
        if _is_inline(node) and (text := _inline(new, room)):
            self._replace(self._at(node.start), self._at(node.end), text)
            return
        indent = len(self.lines[lines[0]]) - len(self.lines[lines[0]].lstrip())
        self._replace(self.offsets[lines[0]], self.offsets[lines[1] + 1], _item(new, indent))

    # --- places -----------------------------------------------------------------------------------

    def _at(self, mark: Any) -> int:
        return self.offsets[int(mark.line)] + int(mark.column)

    def _replace(self, start: int, end: int, instead: str) -> None:
        self.edits.append((start, end, instead))

    def _insert(self, line: int, text: str) -> None:
        self.edits.append((self.offsets[line], self.offsets[line], text))

    def _drop_lines(self, first: int, last: int) -> None:
        head = self._head(first)
        if head > 0 and not self.lines[head - 1].strip():
            head -= 1  # the blank line above goes along, so that none is left over
        self._replace(self.offsets[head], self.offsets[last + 1], "")

    def _head(self, first: int) -> int:
        """Return the first of the comment lines right above line *first* that are not deeper."""
        depth = _depth(self.lines[first])
        while (
            first > 0
            and self.lines[first - 1].lstrip().startswith("#")
            and _depth(self.lines[first - 1]) <= depth
        ):
            first -= 1
        return first

    def _dash_line(self, node: Node, indent: int) -> int:
        number = int(node.start.line)
        while number > 0 and not self.lines[number].startswith(" " * indent + "-"):
            number -= 1
        return number

    def _last_line(self, node: Node, start: Node) -> int:
        """Return the last line with text: the parser ends a block where the next thing begins."""
        number = min(int(node.end.line), len(self.lines) - 1)
        if number == node.end.line and not self.lines[number][: node.end.column].strip():
            number -= 1
        floor, block = int(start.start.line), _ends_in_block(node)
        while number > floor and _is_no_text(self.lines[number], in_block=block):
            number -= 1
        return max(number, floor)


def _reordered(text: str, new: Document) -> str:
    """Put the items of lists into the order of *new*, each with the comments above it."""
    root = compose(text.encode())
    assert isinstance(root, MappingNode), "it was one"
    for key, node in root.pairs:
        wanted = new.get(key.value)
        if not isinstance(node, SequenceNode) or node.flow or not isinstance(wanted, list):
            continue
        merger = _Merger(text)
        names = [_written_name(item) for item in node.items]
        order = [_key(item) for item in wanted]
        if names != order and sorted(names) == sorted(order) and len(set(names)) == len(names):
            return _reordered(_permuted(merger, node, [names.index(each) for each in order]), new)
    return text


def _permuted(merger: _Merger, node: SequenceNode, order: Sequence[int]) -> str:
    indent = int(node.start.column)
    heads = [merger._head(merger._dash_line(item, indent)) for item in node.items]
    lasts = [merger._last_line(item, item) for item in node.items]
    blocks = [
        "".join(merger.lines[head : last + 1]) for head, last in zip(heads, lasts, strict=True)
    ]
    for place, index in enumerate(order):
        start, end = merger.offsets[heads[place]], merger.offsets[lasts[place] + 1]
        merger._replace(start, end, blocks[index])
    return merger.result()


# --- values -----------------------------------------------------------------------------------------


def _equal(old: Any, new: Any) -> bool:
    return canonical_json([old]) == canonical_json([new])


def _key(item: Any) -> str:
    if isinstance(item, dict):
        named = next((item[name] for name in _NAMES if isinstance(item.get(name), str)), None)
        if named is not None:
            return fold(f"{item.get('schema', '')}.{named}")
    return canonical_json([item])


def _written_name(node: Node) -> str:
    if isinstance(node, MappingNode):
        found = {k.value: v.value for k, v in node.pairs if isinstance(v, ScalarNode)}
        named = next((found[name] for name in _NAMES if name in found), "")
        return fold(f"{found.get('schema', '')}.{named}")
    return canonical_json([node.value]) if isinstance(node, ScalarNode) else ""


def _pairs(old: list[Any], new: list[Any]) -> list[int | None] | None:
    """Return for each item of *new* the number of the same one in *old*; None where items cannot be
    told apart."""
    numbers = {_key(item): number for number, item in enumerate(old)}
    if len(numbers) != len(old) or len({_key(item) for item in new}) != len(new):
        return None
    found = [numbers.get(_key(item)) for item in new]
    free = set(range(len(old))) - set(found)
    for place, item in enumerate(new):
        if found[place] is None and isinstance(item, dict) and _RENAMED in item:
            number = numbers.get(_key({"name": item[_RENAMED]}))
            if number in free:
                found[place] = number
                free.discard(number)
    return found


def _keeps_some(node: MappingNode, new: Any) -> bool:
    return isinstance(new, dict) and any(key.value in new for key, _ in node.pairs)


def _is_inline(node: Node) -> bool:
    if isinstance(node, MappingNode | SequenceNode):
        return node.flow
    return isinstance(node, ScalarNode) and node.style not in ("|", ">")


def _inline(value: Any, width: int) -> str:
    """Return *value* on one line, or nothing if it does not fit there."""
    layout = layout_of(value)
    _flow(layout)
    entries = [Entry(key=None, value=layout)]
    lines = print_layout(
        Collection(sequence=True, flow=False, entries=entries), header=[], footer=[]
    ).splitlines()
    text = lines[0].removeprefix("- ")
    return text if len(lines) == 1 and len(text) <= width else ""


def _flow(layout: Any) -> None:
    if isinstance(layout, Collection):
        layout.flow = True
        for entry in layout.entries:
            _flow(entry.value)


def _rendered(document: Document, indent: int = 0) -> str:
    text = print_layout(layout_of(dict(document)), header=[], footer=[])
    return _indented(text.splitlines(keepends=True), " " * indent)


def _item(value: Any, indent: int) -> str:
    layout = Collection(
        sequence=True, flow=False, entries=[Entry(key=None, value=layout_of(value))]
    )
    text = print_layout(layout, header=[], footer=[])
    return _indented(text.splitlines(keepends=True), " " * indent)


def _indented(lines: Iterable[str], pad: str) -> str:
    return "".join(_padded(lines, pad))


def _padded(lines: Iterable[str], pad: str) -> Iterator[str]:
    for line in lines:
        yield pad + line if line.strip() else line


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_no_text(line: str, *, in_block: bool) -> bool:
    return not line.strip() or (not in_block and line.lstrip().startswith("#"))


def _ends_in_block(node: Node) -> bool:
    """Whether the last thing of *node* is a block of text, in which # begins no comment."""
    while isinstance(node, MappingNode | SequenceNode) and not node.flow:
        node = node.pairs[-1][1] if isinstance(node, MappingNode) else node.items[-1]
    return isinstance(node, ScalarNode) and node.style in ("|", ">")
