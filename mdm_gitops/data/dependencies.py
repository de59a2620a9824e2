"""In which order proposals of one entity can be approved that refer to each other. Pure.

A proposal depends on another of the same set if it needs a value that only that one brings. Those that
depend on each other in a circle can only be approved together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Generic[K]):
    """What a proposal *needs* and what it *brings* that is not there yet: values with their key."""

    key: K
    needs: frozenset[Hashable] = frozenset()
    brings: frozenset[Hashable] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Generic[K]):
    """Proposals that do not depend on each other, or those of one circle."""

    keys: tuple[K, ...]
    is_circle: bool = False


def in_order(nodes: Sequence[Node[K]]) -> list[Group[K]]:
    """Return groups of which each depends on earlier ones only."""
    if not any(node.needs for node in nodes):
        return [Group(keys=tuple(node.key for node in nodes))] if nodes else []
    depends = _dependencies(nodes)
    if not any(depends.values()):
        return [Group(keys=tuple(depends))]
    level_of: dict[K, int] = {}
    levels: dict[int, list[K]] = {}
    circles: dict[int, list[tuple[K, ...]]] = {}
    for part in _components(depends):
        inside = set(part)
        outside = {key for member in part for key in depends[member]} - inside
        level = 1 + max((level_of[key] for key in outside), default=-1)
        level_of.update(dict.fromkeys(part, level))
        if len(part) == 1:
            levels.setdefault(level, []).append(part[0])
        else:
            circles.setdefault(level, []).append(part)
    return list(_groups(levels, circles))


def _groups(
    levels: Mapping[int, Sequence[K]], circles: Mapping[int, Sequence[tuple[K, ...]]]
) -> Iterator[Group[K]]:
    for level in sorted({*levels, *circles}):
        if level in levels:
            yield Group(keys=tuple(levels[level]))
        for circle in circles.get(level, ()):
            yield Group(keys=circle, is_circle=True)


def _dependencies(nodes: Sequence[Node[K]]) -> dict[K, list[K]]:
    brought: dict[Hashable, list[K]] = {}
    for node in nodes:
        for value in node.brings:
            brought.setdefault(value, []).append(node.key)
    return {
        node.key: [key for value in node.needs for key in brought.get(value, ()) if key != node.key]
        for node in nodes
    }


def _components(depends: Mapping[K, Sequence[K]]) -> Iterator[tuple[K, ...]]:
    """Yield the strongly connected parts, dependencies first (Tarjan, without recursion)."""
    index: dict[K, int] = {}
    low: dict[K, int] = {}
    path: list[K] = []
    on_path: set[K] = set()
    for root in depends:
        if root in index:
            continue
        work: list[tuple[K, Iterator[K]]] = []

        def enter(key: K, work: list[tuple[K, Iterator[K]]] = work) -> None:
            index[key] = low[key] = len(index)
            path.append(key)
            on_path.add(key)
            work.append((key, iter(depends[key])))

        enter(root)
        while work:
            key, rest = work[-1]
            for other in rest:
                if other not in index:
                    enter(other)
                    break
                if other in on_path:
                    low[key] = min(low[key], index[other])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[key])
                if low[key] == index[key]:
                    yield _taken_off(path, on_path, key)


def _taken_off(path: list[K], on_path: set[K], last: K) -> tuple[K, ...]:
    part = []
    while True:
        key = path.pop()
        on_path.discard(key)
        part.append(key)
        if key == last:
            return tuple(reversed(part))
