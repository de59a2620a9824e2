from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.errors import DefinitionError
from mdm_gitops.source.yaml_nodes import compose, locate
from mdm_gitops.source.yaml_reader import load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("On", "On"),
        ("014", 14),
        ("0o14", 12),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1:20", "1:20"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("+12", 12),
        ("1.10", 1.1),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.", 1.0),
        ("2020-01-01", "2020-01-01"),
        ("true", True),
        ("True", True),
        ("tRUE", "tRUE"),
        ("~", None),
        ("", None),
        ("null", None),
        ("=", "="),
        ("<<", "<<"),
        ("'014'", "014"),
        ('"\\u0041\\n"', "A\n"),
        ("[a, 1, {b: c}]", ["a", 1, {"b": "c"}]),
        ("|\n  x\n  y\n", "x\ny\n"),
        ("..", ".."),
        ("+", "+"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    got = load_yaml(f"k: {text}\n".encode(), "f.yaml")["k"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("data", "place", "rule", "says"),
    [
        (b"a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "duplicate-key", "key 'a' is here twice"),
        (b"a: &x 1\n", "f.yaml:1:4", "anchor", "anchors"),
        (b"b: *x\n", "f.yaml:1:4", "alias", "aliases"),
        (b"a: !!python/object:os.system x\n", "f.yaml:1:4", "tag", "tags"),
        (b"a: !x {b: c}\n", "f.yaml:1:4", "tag", "tags"),
        (b"a:\n  <<: {b: 1}\n", "f.yaml:2:3", "merge-key", "merge keys"),
        (b"? [a]\n: 1\n", "f.yaml:1:3", "complex-key", "plain text"),
        (b"? *a\n: 1\n", "f.yaml:1:3", "alias", "aliases"),
        (b"a: 1\n---\nb: 2\n", "f.yaml:2:1", "second-document", "one document"),
        (b"%YAML 1.1\n---\na: 1\n", "f.yaml:1:1", "directive", "directives"),
        (b"a: .inf\n", "f.yaml:1:4", "number-not-exact", ".inf"),
        (b"a: 1e400\n", "f.yaml:1:4", "number-not-exact", "more digits"),
        (b"a: 0.12345678901234567890\n", "f.yaml:1:4", "number-not-exact", "more digits"),
        (b"a: " + b"9" * 5000, "f.yaml:1:4", "number-not-exact", "40 digits"),
        (b"a: b: c\n", "f.yaml:1:5", "yaml-syntax", "mapping values"),
        (b"a: 'x\n", "f.yaml:2:1", "yaml-syntax", "unexpected end"),
        (b"a: [1,\n", "f.yaml:2:1", "yaml-syntax", "flow"),
        (b"a:\n\t- 1\n", "f.yaml:2:1", "yaml-syntax", "start any token"),
        (b"\xef\xbb\xbfa: 1\n", "f.yaml:1:1", "byte-order-mark", "byte order mark"),
        ("a: 1".encode("utf-16"), "f.yaml:1:1", "byte-order-mark", "byte order mark"),
        (b"a: 1\nb: \xff\n", "f.yaml:2:4", "not-utf-8", "byte 0xff"),
        (b"a: x\x07y\n", "f.yaml:1:5", "control-character", r"U\+0007"),
        ("a: x\u2028y\n".encode(), "f.yaml:1:5", "control-character", r"U\+2028"),
        (b"a: " + b"x" * 2**20, "f.yaml", "too-large", "at most 1,048,576"),
        (b"a: [" + b"1," * 100_001 + b"]", "f.yaml:1:199999", "too-many-nodes", "100,000"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_place(
    data: bytes, place: str, rule: str, says: str
) -> None:
    with pytest.raises(DefinitionError, match=says) as caught:
        load_yaml(data, "f.yaml")
    finding = caught.value.findings[0]
    assert (str(finding.location), finding.rule) == (place, rule)


@pytest.mark.parametrize("bomb", [b"[" * 1_000_000, b"- " * 500_000, b"{a: " * 250_000])
def test_a_million_brackets_end_at_once(bomb: bytes) -> None:
    started = time.process_time()
    with pytest.raises(DefinitionError, match="deeper than 32"):
        load_yaml(bomb, "f.yaml")
    assert time.process_time() - started < 0.1


def test_a_merge_bomb_ends_at_once() -> None:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 200)]
    started = time.process_time()
    with pytest.raises(DefinitionError):
        load_yaml("\n".join(lines).encode(), "f.yaml")
    assert time.process_time() - started < 0.1


def test_findings_of_one_file_are_reported_together() -> None:
    with pytest.raises(DefinitionError) as caught:
        load_yaml(b"a: &x 1\nb: 1\nb: .nan\nc: *x\nd: 'open\n", "f.yaml")
    assert [(f.location.line, f.rule) for f in caught.value.findings] == [
        (1, "anchor"),
        (3, "duplicate-key"),
        (3, "number-not-exact"),
        (4, "alias"),
        (6, "yaml-syntax"),
    ]


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.text("ab: #'\"\\\n-é", max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(DOCUMENTS, st.booleans())
def test_what_another_writer_wrote_is_read_the_same(document: Any, flow: bool) -> None:
    text = yaml.safe_dump({"k": document}, allow_unicode=True, default_flow_style=flow)
    assert load_yaml(text.encode(), "f.yaml") == {"k": document}


@given(st.binary(max_size=200) | st.text("a:-[]{}&*!|>'\"%@`#, \n\t", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        load_yaml(data, "f.yaml")
    except DefinitionError as exc:
        assert exc.findings
    else:
        compose(data)


@pytest.mark.parametrize(
    ("pointer", "key", "place"),
    [
        (("a", 1, "b"), False, "f.yaml:3:8"),
        (("a", 1, "b"), True, "f.yaml:3:5"),
        (("a", 0), False, "f.yaml:2:5"),
        (("a", 1, "absent"), True, "f.yaml:3:5"),
        (("a", 9), False, "f.yaml:2:3"),
        (("c",), True, "f.yaml:4:1"),
        ((), False, "f.yaml:1:1"),
    ],
)
def test_a_pointer_leads_to_line_and_column(
    pointer: tuple[str | int, ...], key: bool, place: str
) -> None:
    root = compose(b"a:\n  - x\n  - b: y\nc: {}\n")
    assert str(locate(root, pointer, "f.yaml", key=key)) == place
