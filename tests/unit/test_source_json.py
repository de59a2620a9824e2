from __future__ import annotations

import json
import sys
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.errors import DefinitionError
from mdm_gitops.source.json_reader import load_rows, locate, locate_all


def test_numbers_are_exact() -> None:
    rows = load_rows(b'[{"a": 12345678901234567890123, "b": 0.10, "c": 1e2, "d": -0.0}]', "s.json")
    assert rows == [
        {
            "a": 12345678901234567890123,
            "b": Decimal("0.10"),
            "c": Decimal("1e2"),
            "d": Decimal("-0.0"),
        }
    ]
    assert str(rows[0]["b"]) == "0.10"


@pytest.mark.parametrize(
    ("data", "place", "rule", "says"),
    [
        (b"", "s.json:1:1", "json-syntax", "expecting value"),
        (b'[{"a": 1},\n {"a" 1}]', "s.json:2:7", "json-syntax", "expecting ':'"),
        # The comma, or what follows it: that differs between versions of Python.
        (
            b'[{"a": 1},]',
            f"s.json:1:{10 if sys.version_info >= (3, 13) else 11}",
            "json-syntax",
            ".",
        ),
        (b'[{"a": 1}] x', "s.json:1:12", "json-syntax", "extra data"),
        (b'[{"a": "\n"}]', "s.json:1:9", "json-syntax", "invalid control character"),
        (b'[{"a": 1},\n {"b": NaN}]', "s.json:2:2", "not-json", "NaN is not JSON"),
        (b'[{"b": -Infinity}]', "s.json:1:2", "not-json", "Infinity"),
        (b'[{"a": 1},\n{"b": 1, "b": 2}]', "s.json:2:1", "duplicate-key", "key 'b' is here twice"),
        (b'[{"a": {"x": 1, "x": 1}}]', "s.json:1:2", "duplicate-key", "key 'x' is here twice"),
        (b'[{"a": ' + b"1" * 5000 + b"}]", "s.json:1:2", "number-too-long", "40 digits"),
        (b'[{"a": 1e999999999}]', "s.json:1:2", "number-too-long", "out of all proportion"),
        (b"[" * 100_000, "s.json:1:1", "too-deep", "deeper than 32"),
        (b'{"a": 1}', "s.json:1:1", "not-an-array", "array of rows"),
        (b"[{},\n  7]", "s.json:2:3", "not-an-object", "row 2 is not an object"),
        (b"\xef\xbb\xbf[]", "s.json:1:1", "byte-order-mark", "byte order mark"),
        (b'[{"a": "\xe9"}]', "s.json:1:9", "not-utf-8", "0xe9"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_its_place(
    data: bytes, place: str, rule: str, says: str
) -> None:
    with pytest.raises(DefinitionError, match=says) as caught:
        load_rows(data, "s.json")
    finding = caught.value.findings[0]
    assert (str(finding.location), finding.rule) == (place, rule)


TEXT = '[\n  {"code": "a,]", "n": [1, {"x": 2}]},\n  {"code": "b",\n   "n": 3}\n]\n'


@pytest.mark.parametrize(
    ("pointer", "key", "place"),
    [
        ((0,), False, "s.json:2:3"),
        ((1,), False, "s.json:3:3"),
        ((1, "n"), False, "s.json:4:9"),
        ((1, "n"), True, "s.json:4:4"),
        ((0, "n"), False, "s.json:2:24"),
        ((1, "absent"), False, "s.json:3:3"),
        ((), False, "s.json:1:1"),
    ],
)
def test_a_pointer_leads_to_line_and_column(
    pointer: tuple[str | int, ...], key: bool, place: str
) -> None:
    assert str(locate(TEXT, pointer, "s.json", key=key)) == place
    assert list(map(str, locate_all(TEXT, [((1,), False), (pointer, key)], "s.json"))) == [
        "s.json:3:3",
        place,
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=5), st.booleans()
)
def test_rows_come_back_and_each_value_is_found(rows: list[dict[str, Any]], pretty: bool) -> None:
    text = json.dumps(rows, indent=2 if pretty else None, ensure_ascii=True)
    assert load_rows(text.encode(), "s.json") == rows
    lines = text.split("\n")
    for number, row in enumerate(rows):
        for name, value in row.items():
            place = locate(text, (number, name), "s.json", key=False)
            rest = "\n".join([lines[place.line - 1][place.column - 1 :], *lines[place.line :]])
            assert json.JSONDecoder().raw_decode(rest)[0] == value


def test_two_hundred_thousand_rows_are_read_and_located_quickly() -> None:
    rows = [{"code": f"c{n}", "name": "x", "n": n, "p": n / 8} for n in range(200_000)]
    data = json.dumps(rows).encode()
    started = time.process_time()
    assert len(load_rows(data, "s.json")) == 200_000
    locate(data.decode(), (199_999, "p"), "s.json", key=False)
    assert time.process_time() - started < 5
