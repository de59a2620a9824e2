"""CSV before COPY: what is refused and what is handed on, held to a reader that goes sign by sign."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdm_gitops.data.import_csv import CsvReader, Dialect, Unreadable, dialect
from mdm_gitops.data.import_json import JsonReader
from mdm_gitops.errors import InputError


def read(body: bytes, cuts: list[int], written: Dialect) -> bytes | None:
    """Return what is handed on after the line in place of the header, None if it is refused."""
    reader, out, start = CsvReader(written), b"", 0
    try:
        for cut in [*sorted(cuts), len(body)]:
            out += reader.feed(body[start:cut])
            start = cut
        out += reader.finish()
    except Unreadable:
        return None
    head, _, rest = out.partition(b"\n")
    assert head == b"h"
    return rest


def is_strict(text: str, sep: str, quote: str) -> bool:
    """Whether each quotation of *text* is a whole value, as RFC 4180 has it."""
    state, at = "start", 0
    while at < len(text):
        sign = text[at]
        ends = sign in (sep, "\n", "\r")
        match state:
            case "start" if sign == quote:
                state = "quoted"
            case "start" | "plain" if ends:
                state = "start"
            case "start":
                state = "plain"
            case "plain" if sign == quote:
                return False
            case "quoted" if sign == quote and text[at + 1 : at + 2] == quote:
                at += 1
            case "quoted" if sign == quote:
                state = "closed"
            case "closed":
                if not ends:
                    return False
                state = "start"
        at += 1
    return state != "quoted"


@settings(max_examples=1_500, deadline=None)
@given(
    st.text(alphabet='",a\n\\.', max_size=16),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_it_takes_what_is_strict_whatever_the_pieces(text: str, cuts: list[int]) -> None:
    body = f"x,y\n{text}".encode()
    found = read(body, cuts, Dialect())
    assert (found is not None) == is_strict(text, ",", '"')
    if found is not None:
        # Rows are the same; a line that is only \. stands in quotes.
        plain = found.decode().replace('"\\."', "\\.") if "\\." in text else found.decode()
        sent = text.replace('"\\."', "\\.") if "\\." in text else text
        assert _rows(plain) == _rows(sent.rstrip("\n"))


def _rows(text: str) -> list[list[str]]:
    rows = list(csv.reader(io.StringIO(text, newline="")))
    while rows and not rows[-1]:
        rows.pop()
    return rows


# Python's writer leaves a CR unquoted where lines end in LF; no reader can tell what it means.
SIGNS = st.characters(codec="utf-8", exclude_characters="\0\r")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.text(alphabet=SIGNS, max_size=8)] * 2),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(['"', "'"]),
    st.lists(st.integers(0, 200), max_size=5),
)
def test_it_takes_what_a_writer_of_csv_writes(
    rows: list[tuple[str, ...]], quoting: int, sep: str, quote: str, cuts: list[int]
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=sep, quotechar=quote, quoting=quoting, lineterminator="\n")  # type: ignore[arg-type]
    writer.writerow(("x", "y"))
    writer.writerows(rows)
    found = read(text.getvalue().encode(), cuts, Dialect(sep=sep, quote=quote))
    assert found is not None
    back = csv.reader(io.StringIO(found.decode(), newline=""), delimiter=sep, quotechar=quote)
    assert [row for row in back if row] == [list(row) for row in rows]


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.tuples(*[st.text(alphabet="'=\",a\n", max_size=4)] * 2), min_size=1, max_size=4),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(['"', "'"]),
    st.lists(st.integers(0, 60), max_size=4),
)
def test_no_value_that_may_be_escaped_is_overlooked(
    rows: list[tuple[str, ...]], quoting: int, quote: str, cuts: list[int]
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quotechar=quote, quoting=quoting, lineterminator="\n")  # type: ignore[arg-type]
    writer.writerow(("x", "y"))
    writer.writerows(rows)
    body, reader, start = text.getvalue().encode(), CsvReader(Dialect(quote=quote)), 0
    for cut in [*sorted(cuts), len(body)]:
        reader.feed(body[start:cut])
        start = max(start, cut)
    reader.finish()
    if any(value.startswith("'") for row in rows for value in row):
        assert reader.may_be_escaped


def test_a_file_without_the_sign_at_a_beginning_has_no_escapes() -> None:
    reader = CsvReader(Dialect())
    reader.feed(b"x,y\nO'Neil,\"it's\"\n5',a\n")
    reader.finish()
    assert not reader.may_be_escaped


def test_a_misplaced_quote_is_told_with_its_line() -> None:
    reader = CsvReader(Dialect())
    reader.feed(b'a,b\n1,"x\ny"\n2,3\n')
    with pytest.raises(Unreadable, match="line 5: a quote stands inside"):
        reader.feed(b'4,5" pipe\n')
        reader.finish()


@pytest.mark.parametrize("mark", range(1, 32))
def test_control_characters_are_values(mark: int) -> None:
    sign = chr(mark)
    if sign in "\t\n\r":
        return
    body = f'x,y\n{sign},"a""{sign}"\n"",""\n'.encode()
    assert read(body, [], Dialect()) == body.partition(b"\n")[2].rstrip(b"\n")


def test_dialects() -> None:
    assert dialect(sep=None, quote=None, charset=None) == Dialect()
    assert dialect(sep="TAB", quote="'", charset="latin1").encoding == "iso8859-1"
    for wrong in ("", "  ", "ab", "\n", "a", "7", "\\", ".", "é"):
        if wrong:
            with pytest.raises(InputError):
                dialect(sep=wrong, quote=None, charset=None)
    with pytest.raises(InputError):
        dialect(sep='"', quote=None, charset=None)
    with pytest.raises(LookupError):
        dialect(sep=None, quote=None, charset="utf-16")


# --- JSON -----------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet="abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(alphabet="xyz", max_size=3), VALUES, max_size=4), max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_rows_of_json_whatever_the_pieces(
    rows: list[dict[str, object]], indent: int | None, ascii_only: bool, cuts: list[int]
) -> None:
    import json

    body = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode()
    reader, found, start = JsonReader(), [], 0
    for cut in [*sorted(cuts), len(body)]:
        found += reader.feed(body[start:cut])
        start = max(start, cut)
    found += reader.finish()
    assert found == rows and reader.rows == len(rows)


def test_a_long_row_is_not_read_again_with_every_piece() -> None:
    """Twice as much text each time: the work grows with the size, not with its square."""
    body = b'[{"a": "' + b"x" * 4_000_000 + b'"}]'
    reader, rows = JsonReader(), []
    for start in range(0, len(body), 4_096):
        rows += reader.feed(body[start : start + 4_096])
    rows += reader.finish()
    assert len(rows[0]["a"]) == 4_000_000
