"""Trees printed by their shape: the same text as without it, for all that names and literals hold."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import ErrorLevel, exp, parse_one

from mdm_gitops.warehouse.ddl import shapes, trees
from mdm_gitops.warehouse.ddl.shapes import print_proven

Build = Callable[[str, str, int], exp.Expr]


def _insert(name: str, text: str, number: int) -> exp.Expr:
    row = exp.Tuple(expressions=[trees.text(text), trees.number(number), exp.Null()])
    return exp.Insert(
        this=exp.Schema(this=trees.table("s", name), expressions=[trees.identifier(name)]),
        expression=exp.Values(expressions=[row]),
    )


def _condition(name: str, text: str, number: int) -> exp.Expr:
    return exp.select(
        trees.template("LENGTH(:v) <= :n", v=trees.column(name), n=trees.number(number)),
        trees.template(":v ~ :p", v=trees.column(name, of="t"), p=trees.text(text)),
        trees.jsonb({"a": text, "n": number}),
        trees.text_array([text, "x"]),
    )


def _update(name: str, text: str, number: int) -> exp.Expr:
    return exp.Update(
        this=trees.table(name, "t"),
        expressions=[exp.EQ(this=trees.column("c"), expression=trees.text(text))],
        where=exp.Where(this=exp.EQ(this=trees.column(name), expression=trees.number(number))),
    )


def _later(name: str, text: str, number: int) -> exp.Expr:
    later = trees.template(":v + INTERVAL '2 DAYS'", v=trees.column(name))
    return exp.select(later, trees.text(text), trees.number(number))


HOSTILE = ('"', "'", "''", "\\", "\\'", "§0§", "§1§", '"§0§"', "--", "/*", "\n", "$$", "ü", "", ";")
NAMES = st.one_of(st.sampled_from(HOSTILE).filter(bool), st.text(min_size=1, max_size=20))
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))
NUMBERS = st.one_of(
    st.sampled_from((0, 9876000000006789, 9876000001006789)), st.integers(-(2**70), 2**70)
)


def _printed_alone(tree: exp.Expr) -> str:
    return tree.sql(dialect="postgres", unsupported_level=ErrorLevel.IGNORE, comments=False)


@pytest.mark.parametrize("build", [_insert, _condition, _update, _later])
@settings(max_examples=150, deadline=None)
@given(name=NAMES, text=TEXTS, number=NUMBERS)
def test_the_shape_changes_nothing_of_the_text(
    build: Build, name: str, text: str, number: int
) -> None:
    tree = build(name, text, number)
    expected = _printed_alone(tree)
    assert [print_proven(tree) for _ in range(3)] == [expected] * 3
    assert parse_one(expected, dialect="postgres") == tree


def test_the_second_of_a_shape_makes_the_template_and_the_third_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = _counting(monkeypatch)
    for number in range(10):
        print_proven(_insert(f"t{number}", "it's", number))
    # Alone, and with marks.
    assert ["it''s" in sql for sql in parsed] == [True, False]


@pytest.mark.parametrize("build", [_insert, _condition, _update, _later])
def test_a_long_text_is_never_read_back(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = build("t", "it's \\ long" * 10_000, 1)
    parsed = _counting(monkeypatch)
    assert print_proven(tree) == _printed_alone(tree)
    assert [len(sql) < 500 for sql in parsed] == [True]


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Forget all shapes; return the list that each text will be in that is read back."""
    parsed: list[str] = []

    def counting(sql: str, *, dialect: str) -> exp.Expr:
        parsed.append(sql)
        return parse_one(sql, dialect=dialect)

    monkeypatch.setattr(shapes, "_templates", {})
    monkeypatch.setattr(shapes, "parse_one", counting)
    return parsed


@pytest.mark.parametrize("round_", range(4))
@pytest.mark.parametrize("length", [1, 10_000])
def test_what_is_mangled_is_refused_however_often_it_comes(round_: int, length: int) -> None:
    action = exp.Drop(this=trees.column(f"c{round_}" * length), kind="COLUMN")
    mangled = exp.Alter(this=trees.table("s", "t"), kind="TABLE", actions=[action])
    with pytest.raises(RuntimeError, match="lost part"):
        print_proven(mangled)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (exp.Boolean(this=True), trees.number(1)),
        (trees.number(1), trees.text("1")),
        (trees.column("a"), exp.Column(this=exp.to_identifier("a", quoted=False))),
        (trees.column("a"), trees.text("a")),
        (trees.number(12), trees.number(Decimal("1.2"))),
    ],
)
def test_trees_of_different_shapes_are_told_apart(one: exp.Expr, other: exp.Expr) -> None:
    for tree in (one, other) * 3:
        query = exp.select(tree.copy())
        assert print_proven(query) == _printed_alone(query)
