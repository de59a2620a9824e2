"""Orders of renames and seeds, against what a person would work out slowly."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.plan.changes import Rename
from mdm_gitops.plan.order import groups_in_order, stepping_aside

NODES = "abcdef"
GRAPHS = st.dictionaries(
    st.sampled_from(NODES), st.lists(st.sampled_from(NODES), max_size=4), max_size=6
)


@pytest.mark.parametrize(
    ("edges", "groups"),
    [
        ({}, []),
        ({"b": [], "a": []}, [("a",), ("b",)]),
        ({"a": ["b"], "b": ["c"], "c": []}, [("c",), ("b",), ("a",)]),
        ({"a": ["a"]}, [("a",)]),
        ({"a": ["elsewhere"]}, [("a",)]),
        ({"a": ["b"], "b": ["a"]}, [("a", "b")]),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, [("a", "b", "c"), ("x",)]),
        ({"a": ["b"], "b": ["a", "z"], "z": ["z"]}, [("z",), ("a", "b")]),
    ],
)
def test_groups_in_order(edges: Mapping[str, list[str]], groups: list[tuple[str, ...]]) -> None:
    assert groups_in_order(edges) == groups


def reachable(edges: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Return what each node reaches, by repeating one step until nothing is new."""
    found = {node: {t for t in targets if t in edges} for node, targets in edges.items()}
    for _ in edges:
        found = {n: r.union(*(found[t] for t in r)) for n, r in found.items()}
    return found


@given(GRAPHS)
def test_groups_are_the_circles_and_stand_after_what_they_refer_to(
    edges: Mapping[str, list[str]],
) -> None:
    reach = reachable(edges)
    groups = groups_in_order(edges)
    place = {node: number for number, group in enumerate(groups) for node in group}
    assert sorted(node for group in groups for node in group) == sorted(edges)
    for node in edges:
        for other in edges:
            circle = node == other or (other in reach[node] and node in reach[other])
            assert (place[node] == place[other]) == circle
        assert all(place[target] <= place[node] for target in reach[node])


@given(GRAPHS, st.randoms())
def test_groups_do_not_depend_on_how_the_input_is_written(
    edges: Mapping[str, list[str]], random: st.random.Random
) -> None:
    items = [(node, random.sample(targets, len(targets))) for node, targets in edges.items()]
    random.shuffle(items)
    assert groups_in_order(dict(items)) == groups_in_order(edges)


@given(st.permutations(NODES), st.permutations([*NODES, "x", "y"]), st.integers(0, len(NODES)))
def test_renames_one_by_one_never_meet(olds: list[str], news: list[str], many: int) -> None:
    """All step aside that must, then all arrive: as the flip carries them out."""
    renames = [Rename(old=o, new=n) for o, n in zip(olds[:many], news, strict=False)]
    chosen = stepping_aside(renames)
    standing = {old: old for old in olds[:many]}
    for rename in chosen.values():
        target = rename.aside or rename.new
        assert rename.new == rename.old or target not in standing
        standing[target] = standing.pop(rename.old)
    for rename in chosen.values():
        if rename.aside:
            assert rename.new not in standing
            standing[rename.new] = standing.pop(rename.aside)
    assert standing == {rename.new: rename.old for rename in renames}


def test_nobody_steps_aside_for_nothing() -> None:
    renames = [Rename(old="a", new="b"), Rename(old="b", new="c"), Rename(old="x", new="x")]
    assert stepping_aside(renames) == {
        "a": Rename(old="a", new="b", aside="_aside_a"),
        "b": Rename(old="b", new="c"),
        "x": Rename(old="x", new="x"),
    }


def test_a_name_aside_fits_into_an_identifier() -> None:
    longest = "n" * 63
    [aside] = {
        stepping_aside([Rename(old=longest, new=longest[:-1]), Rename(old=longest[:-1], new="x")])[
            longest
        ].aside
    }
    assert aside == "_aside_" + "n" * 56
