"""Orders that a plan needs: which renames must step aside, what must wait, which seeds come first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from mdm_gitops.plan.changes import AddForeignKey, AddIndex, Change, Rename, RenameObject


def stepping_aside(renames: Iterable[Rename], *, prefix: str = "_aside_") -> dict[str, Rename]:
    """Return the renames by old name; one whose new name another still holds steps aside first.

    The prefix cannot begin a name of ours, so a name aside never clashes.
    """
    listed = list(renames)
    held = {rename.old for rename in listed}
    return {
        rename.old: replace(rename, aside=f"{prefix}{rename.old}"[:63])
        if rename.new in held and rename.new != rename.old
        else rename
        for rename in listed
    }


def groups_in_order(edges: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return the nodes in groups so that each group comes after all that it refers to.

    *edges* maps a node to those it refers to; others than its keys are ignored. Nodes that refer to
    each other in a circle share a group. Tarjan's algorithm, iterative: its groups come out with
    the targets first. Equal input gives equal output.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[tuple[str, ...]] = []
    for root in sorted(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(set(edges[root]) & edges.keys())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(set(edges[target]) & edges.keys()))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    groups.append(tuple(sorted(stack[cut:])))
                    del stack[cut:]
    return groups


def objects_aside(changes: list[Change]) -> list[Change]:
    """Let the renames of rules step aside where one takes a name that another still holds."""
    renames = [c.rename for c in changes if isinstance(c, RenameObject)]
    held = {rename.old for rename in renames}
    return [
        replace(c, rename=replace(c.rename, aside=f"_aside_{c.rename.old}"[:63]))
        if isinstance(c, RenameObject) and c.rename.new in held
        else c
        for c in changes
    ]


def linked_later(changes: list[Change]) -> Iterator[Change]:
    """Let a foreign key whose unique index is built online wait for it."""
    built_online = {
        (c.table, c.index.columns) for c in changes if isinstance(c, AddIndex) and c.online
    }
    for change in changes:
        if isinstance(change, AddForeignKey) and not change.online:
            key = change.foreign_key
            if (key.target_table, (key.target_column,)) in built_online:
                yield replace(change, online=True)
                continue
        yield change
