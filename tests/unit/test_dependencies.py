"""The order of proposals that refer to each other, against a slow definition of what it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.data.dependencies import Group, Node, in_order


def nodes(**edges: str) -> list[Node[str]]:
    """``nodes(a="bc")``: a needs what b and c bring."""
    return [
        Node(key=key, needs=frozenset(needs), brings=frozenset(key)) for key, needs in edges.items()
    ]


def test_nothing_depends_on_anything() -> None:
    assert in_order([]) == []
    assert in_order(nodes(a="", b="x")) == [Group(keys=("a", "b"))]
    assert in_order(nodes(a="a")) == [Group(keys=("a",))]


def test_a_chain_is_one_group_after_the_other() -> None:
    assert in_order(nodes(a="b", b="c", c="")) == [
        Group(keys=("c",)),
        Group(keys=("b",)),
        Group(keys=("a",)),
    ]


def test_a_circle_is_one_group_and_what_hangs_on_it_follows() -> None:
    found = in_order(nodes(a="b", b="a", c="a", d=""))
    assert [set(group.keys) for group in found] == [{"d"}, {"a", "b"}, {"c"}]
    assert [group.is_circle for group in found] == [False, True, False]


def test_a_long_chain_needs_no_stack() -> None:
    many = [Node(key=n, needs=frozenset([n + 1]), brings=frozenset([n])) for n in range(20_000)]
    assert [group.keys for group in in_order(many)] == [(n,) for n in reversed(range(20_000))]


EDGES = st.integers(1, 8).flatmap(
    lambda n: st.lists(st.frozensets(st.integers(0, n - 1), max_size=4), min_size=n, max_size=n)
)


@given(edges=EDGES)
def test_each_group_depends_on_earlier_ones_and_circles_are_circles(
    edges: list[frozenset[int]],
) -> None:
    graph = dict(enumerate(edges))
    groups = in_order(
        [Node(key=n, needs=frozenset(m), brings=frozenset([n])) for n, m in graph.items()]
    )
    assert sorted(key for group in groups for key in group.keys) == sorted(graph)
    seen: set[int] = set()
    for group in groups:
        own = set(group.keys)
        for key in group.keys:
            assert graph[key] <= seen | (own if group.is_circle else {key})
            reached = _reached(graph, key)
            mutual = {other for other in reached if key in _reached(graph, other)} | {key}
            assert (mutual == own) if group.is_circle else (mutual == {key})
        seen |= own


def _reached(graph: dict[int, frozenset[int]], start: int) -> set[int]:
    found: set[int] = set()
    todo = list(graph[start])
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo += graph[key]
    return found
