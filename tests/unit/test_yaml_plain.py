"""The reader of plain YAML says what the parser says, or nothing; and our own files are plain."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mdm_gitops.errors import DefinitionError
from mdm_gitops.source.yaml_plain import read_plain
from mdm_gitops.source.yaml_reader import load_yaml, parse_yaml

ROOT: Final = Path(__file__).parents[2]
PLAIN: Final = """\
# a comment
name: country
nullable: false
keyColumns: [code, name]
nothing: []
reference: {entity: region, column: code}
pattern: "[A-Z]{1,20}"  # another
description: One of many, (all  of them)
search:

empty:
columns:
  - name: code
    maxLength: 10
    scale: 1.50
    tags:
    - a b
    -   'c: d'
  -   name: no
      ui:
        message: null
after: 0x1F
"""
# What a value may be, and what only looks like one.
VALUES: Final = (
    *("", "", "x", "1", "014", "1.5", "1e400", ".5", "true", "null", "~", "-1", "a b", "a  b", "ä"),
    *("a #c", "a#b", "#c", '"q"', '"q" #c', '"q"x', '"a\\n"', '"a: b"', "'s'", "'s''t'", "' # '"),
    *(
        "[a]",
        "[]",
        "[ ]",
        "[a, b]",
        "[a, b,]",
        "[a b]",
        "[1, true]",
        "{a: b}",
        "{a: b, a: c}",
        "{}",
    ),
    *(
        "{a}",
        "[a] #c",
        "[a]#c",
        "|",
        ">",
        "&x",
        "*x",
        "!t",
        "? x",
        "a: b",
        "a:",
        "- x",
        "-x",
        "---",
    ),
    *(
        "...",
        "%x",
        "@x",
        "0x1F",
        "1:20",
        "x[0]",
        "a]",
        "\\d+",
        "\u0663",
        "a\u00a0b",
        "a -",
        "a - b",
    ),
)
LINES: Final = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(("", "", "  ", "  ", "    ", " ", "      ")),
    st.sampled_from(("", "", "", "- ", "-   ", "- - ", "-")),
    st.sampled_from(("a: ", "b: ", "c: ", "d:", "e:", "f:  ", "true: ", "", "g :", "h: #")),
    st.sampled_from(VALUES),
    st.sampled_from(("", "", "", " ", "  # z", "\t", "\r")),
)
TEXTS: Final = st.lists(LINES, max_size=8).map("\n".join)
NOISE: Final = st.text(alphabet="ab1 :-#\"'[]{},&*!|>?%.\n\t", max_size=20)


def _agree(text: str) -> bool:
    """Whether the text was read; then the parser must say the very same."""
    plain = read_plain(text)
    if plain is not None:
        assert repr(plain) == repr(parse_yaml(text.encode(), "f.yaml"))
    return plain is not None


@given(st.one_of(TEXTS, TEXTS, NOISE, st.tuples(TEXTS, NOISE, TEXTS).map("".join)))
@example("a:\n- b\nc:\n  - d\n")
@example("- a\n- b: c\n")
@example("a: 1\n- b\n")
@example("a:\n  b: 1\n c: 2\n")
@example("a: b\n  c\n")
@example("a: b\n  c: d\n")
@example("a:\n  - b\n  c: d\n")
@example("a: {b: c}\nd: {b: c}\n")
def test_what_is_read_as_plain_is_what_the_parser_says(text: str) -> None:
    _agree(text)


@given(
    st.integers(0, len(PLAIN) - 1), st.sampled_from("ab1 :-#\"'[]{},&*!|>?%.\n\t"), st.booleans()
)
def test_one_wrong_character_never_changes_what_the_parser_says(
    at: int, sign: str, instead: bool
) -> None:
    _agree(PLAIN[:at] + sign + PLAIN[at + instead :])


def test_plain_files_are_read_without_the_parser() -> None:
    assert _agree(PLAIN)
    entities = list((ROOT / "examples").glob("*/entities/**/*.yaml"))
    plain = [path for path in entities if _agree(path.read_text())]
    assert len(plain) > 0.8 * len(entities)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "a: &x 1\n",
        "a: |\n  b\n",
        "a: 1\na: 2\n",
        "- a\n",
        "a: .inf\n",
        "a:\tb\n",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(text: str) -> None:
    assert read_plain(text) is None


def test_lists_and_mappings_of_equal_lines_are_not_one_object() -> None:
    first, second = (load_yaml(b"a: [x]\nb: {c: d}\n", path) for path in ("1.yaml", "2.yaml"))
    first["a"].append("y")
    first["b"]["e"] = "f"
    assert second == {"a": ["x"], "b": {"c": "d"}}


def test_what_is_too_deep_or_too_long_is_told_by_the_parser() -> None:
    deep = "".join("  " * depth + "a:\n" for depth in range(40))
    assert read_plain(deep) is None
    with pytest.raises(DefinitionError, match="nested deeper"):
        load_yaml(deep.encode(), "f.yaml")
    assert read_plain("a: [" + "b," * 60_000 + "b]\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "a: [" + " " * 90_000 + "!",
        "a: [" + "a," * 45_000 + "!",
        "a: {" + "a: b," * 18_000 + "!",
        "a: " + "a " * 45_000 + ":",
        "a: b" + " " * 90_000 + "#:" * 100,
        "- " * 45_000,
    ],
    ids=lambda line: line[:8],
)
def test_hostile_lines_take_no_longer_than_they_are(line: str) -> None:
    """One that is looked through again from each of its places would take an hour."""
    _agree(line)
