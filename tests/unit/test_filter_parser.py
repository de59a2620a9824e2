"""Text of a filter to a tree and back, and what is said about text that is no filter."""

from __future__ import annotations

import time

import pytest

from mdm_gitops.errors import FilterError
from mdm_gitops.filter import parse, unparse
from mdm_gitops.filter.ast import And, Comparison, Membership, Not, NullTest, Or, TextMatch

CANONICAL = [
    ("[a]=1", "[a] = 1"),
    ("  [a]\t=\r\n1 ", "[a] = 1"),
    ("[a]!=1", "[a] <> 1"),
    ("[a]<=-1.5e3", "[a] <= -1.5e3"),
    ("[a]>=+.5", "[a] >= +.5"),
    ("5 < [a]", "5 < [a]"),
    ("[a] = 'it''s'", "[a] = 'it''s'"),
    ("[a] = ''", "[a] = ''"),
    ("[a]]b] = 1", "[a]]b] = 1"),
    ("[a b] = 1", "[a b] = 1"),
    ("[a]=TRUE", "[a] = true"),
    ("[a]=Null", "[a] = null"),
    ("[a] = [b]", "[a] = [b]"),
    ("[a].[b] = 1", "[a].[b] = 1"),
    ("[a] . [b] = 1", "[a].[b] = 1"),
    ("[a] is null", "[a] IS NULL"),
    ("[a] Is Not Null", "[a] IS NOT NULL"),
    ("[a] in (1,2 , 3)", "[a] IN (1, 2, 3)"),
    ("[a] not in ('x')", "[a] NOT IN ('x')"),
    ("[a] in groups()", "[a] IN (groups())"),
    ("[a] IN (GROUPS(), me())", "[a] IN (groups(), me())"),
    ("[a] between 1 and 2 and [b]=3", "[a] BETWEEN 1 AND 2 AND [b] = 3"),
    ("[a] not between today() and now()", "[a] NOT BETWEEN today() AND now()"),
    ("[a] like 'x%'", "[a] LIKE 'x%'"),
    ("[a] not ilike 'x\\%'", "[a] NOT ILIKE 'x\\%'"),
    ("[a] contains 'x'", "[a] CONTAINS 'x'"),
    ("[a] not startswith me()", "[a] NOT STARTSWITH me()"),
    ("[a] endswith 'x'", "[a] ENDSWITH 'x'"),
    ("not [a]=1", "NOT [a] = 1"),
    ("not not [a]=1", "NOT NOT [a] = 1"),
    ("not([a]=1)", "NOT [a] = 1"),
    ("not([a]=1 and [b]=2)", "NOT ([a] = 1 AND [b] = 2)"),
    ("not [a]=1 and [b]=2", "NOT [a] = 1 AND [b] = 2"),
    ("((([a]=1)))", "[a] = 1"),
    ("[a]=1 and [b]=2 or [c]=3", "[a] = 1 AND [b] = 2 OR [c] = 3"),
    ("[a]=1 and ([b]=2 or [c]=3)", "[a] = 1 AND ([b] = 2 OR [c] = 3)"),
    ("[a]=1 and ([b]=2 and [c]=3)", "[a] = 1 AND ([b] = 2 AND [c] = 3)"),
    ("[a]=1 or ([b]=2 or [c]=3)", "[a] = 1 OR ([b] = 2 OR [c] = 3)"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_a_filter_has_one_canonical_form(text: str, canonical: str) -> None:
    assert unparse(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_not_binds_closer_than_and_and_and_closer_than_or() -> None:
    tree = parse("not [a]=1 and [b]=2 or [c] is null and [d] in (1)")
    assert isinstance(tree, Or)
    left, right = tree.items
    assert isinstance(left, And) and isinstance(right, And)
    assert [type(item) for item in left.items] == [Not, Comparison]
    assert [type(item) for item in right.items] == [NullTest, Membership]


def test_a_tree_knows_where_in_the_text_it_stands() -> None:
    tree = parse("[a]=1 and [b] like 'x'")
    assert isinstance(tree, And)
    second = tree.items[1]
    assert isinstance(second, TextMatch)
    assert (second.position, second.pattern.position) == (10, 19)
    assert parse(" [a]=1") == parse("[a]=1"), "the place is no part of the meaning"


WRONG = [
    # text, position, part of the message, expected, part of the hint
    ("", 0, "found the end of the filter", "a [column] or a value", ""),
    ("   ", 3, "found the end of the filter", "a [column] or a value", ""),
    ("[a", 0, "a column name is not closed", "]", ""),
    ("[a]]", 0, "a column name is not closed", "]", ""),
    ("[]=1", 0, "found '[]'", "a column name between [ and ]", ""),
    ("[a]='x", 4, "a text is not closed", "'", ""),
    ("[a]='x''", 4, "a text is not closed", "'", ""),
    ("[a]", 3, "found the end of the filter", "an operator", ""),
    ("[a] [b]", 4, "found '[b]'", "an operator", ""),
    ("[a] =", 5, "found the end of the filter", "a value or a [column]", ""),
    ("[a]==1", 4, "found '='", "a value or a [column]", "equal is written with one ="),
    ("[a]=1 2", 6, "found '2'", "AND, OR or the end", ""),
    ("[a]=1)", 5, "found ')'", "AND, OR or the end", ""),
    ("([a]=1", 6, "found the end of the filter", "AND, OR or )", ""),
    ("[a]=1 adn [b]=2", 6, "found 'adn'", "AND, OR", "did you mean AND?"),
    ("[a] = 1 AND", 11, "found the end", "a [column] or a value", ""),
    ("[a] = AND", 6, "found 'AND'", "a value or a [column]", ""),
    ("a = 1", 0, "found 'a'", "a [column] or a value", "a column is written [a]"),
    ("[a] = x", 6, "found 'x'", "a value or a [column]", "a text 'x'"),
    ("[a] = toady()", 6, "found 'toady'", "a value", "did you mean today()?"),
    ("[a] = today", 11, "found the end", "() after today", ""),
    ("[a] = today(1)", 12, "found '1'", ") because today takes no values", ""),
    ("[a] contain 'x'", 4, "found 'contain'", "an operator", "did you mean CONTAINS?"),
    ("[a] xyzzy 'x'", 4, "found 'xyzzy'", "an operator", ""),
    ("[a] NOT 5", 8, "found '5'", "IN, LIKE", ""),
    ("[a] IS 5", 7, "found '5'", "NULL or NOT NULL", ""),
    ("[a] IS NOT 5", 11, "found '5'", "NULL or NOT NULL", ""),
    ("[a] IN 5", 7, "found '5'", "( or groups()", ""),
    ("[a] IN ()", 8, "found ')'", "a value", ""),
    ("[a] IN (1", 9, "found the end", ", or )", ""),
    ("[a] IN (1,)", 10, "found ')'", "a value", ""),
    ("[a] IN (1 2)", 10, "found '2'", ", or )", ""),
    ("[a] BETWEEN 1 OR 2", 14, "found 'OR'", "AND", ""),
    ("[a] LIKE", 8, "found the end", "a text in quotes", ""),
    ("[a].b = 1", 4, "found 'b'", "a [column] of the entity that the reference points at", ""),
    ("[a].[b].[c] = 1", 7, "found '.'", "an operator", "follows one reference, not two"),
    ("5", 1, "found the end", "an operator", "compares a [column] with a value"),
    ("[a]=12abc", 4, "'12abc' is not a number", "a number", ""),
    ("[a]=1.2.3", 4, "'1.2.3' is not a number", "a number", ""),
    ("[a]=1e9999", 4, "'1e9999' is not a number", "a number", ""),
    ("[a]=- 1", 4, "'-' is not a number", "a number", ""),
    ("[a]=0x1F", 4, "'0x1F' is not a number", "a number", ""),
    ('[a]="x"', 4, "cannot stand here", "", "text stands in single quotes"),
    ("[a]=“x”", 4, "cannot stand here", "", "text stands in single quotes"),
    ("[a]=1 && [b]=2", 6, "cannot stand here", "", "write AND"),
    ("[a]=1 || [b]=2", 6, "cannot stand here", "", "write OR"),
    ("! [a]=1", 0, "cannot stand here", "", "write NOT"),
    ("[a]=1; DROP TABLE a", 5, "cannot stand here", "", "without an end mark"),
    ("[a]=1 -- x", 6, "'--' is not a number", "a number", ""),
    ("[a]=1 /* x */", 6, "'/' cannot stand here", "", ""),
    ("[a]=\x00", 4, r"'\x00' cannot stand here", "", ""),
    ("[a]\u00a0= 1", 3, r"'\xa0' cannot stand here", "", ""),
    ("[a] = größe", 8, "'ö' cannot stand here", "", ""),
    ("[a]=$1", 4, "'$' cannot stand here", "", ""),
]


@pytest.mark.parametrize(("text", "position", "message", "expected", "hint"), WRONG)
def test_an_error_says_where_and_what_fits_there(
    text: str, position: int, message: str, expected: str, hint: str
) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    error = caught.value
    assert message in str(error)
    assert error.position == position
    assert error.expected.startswith(expected) and hint in error.hint
    assert error.kind.status == 400
    assert not str(error).endswith(".")


LIMITS = [
    ("[a]='" + "x" * 8_186 + "'", ""),
    ("[a]='" + "x" * 8_187 + "'", "the filter has 8193 characters, at most 8192 are allowed"),
    ("(" * 32 + "[a]=1" + ")" * 32, ""),
    ("(" * 33 + "[a]=1" + ")" * 33, "the filter is nested deeper than 32"),
    ("NOT " * 32 + "[a]=1", ""),
    ("NOT " * 33 + "[a]=1", "the filter is nested deeper than 32"),
    ("NOT (" * 16 + "[a]=1" + ")" * 16, ""),
    ("NOT (" * 17 + "[a]=1" + ")" * 17, "the filter is nested deeper than 32"),
    (" OR ".join(["[a]=1"] * 200), ""),
    (" OR ".join(["[a]=1"] * 201), "the filter has more than 200 conditions"),
    (f"[a] IN ({','.join(['1'] * 1_000)})", ""),
    (f"[a] IN ({','.join(['1'] * 1_001)})", "IN has more than 1000 values"),
]


@pytest.mark.parametrize(("text", "message"), LIMITS, ids=range(len(LIMITS)))
def test_limits(text: str, message: str) -> None:
    if not message:
        assert parse(text)
        return
    with pytest.raises(FilterError, match=message):
        parse(text)


HOSTILE = [
    "(" * 8_192,
    ")" * 8_192,
    "[" * 8_192,
    "]" * 8_192,
    "[a]" * 2_730,
    "'" * 8_191,
    "NOT " * 2_048,
    "not(" * 2_048,
    "[a]=1 AND " * 800,
    "[a]=1 OR (" * 800,
    "[a] IN (" + "1," * 4_000,
    "[a]=" + "9" * 8_000,
    "[a]=" + "1." * 4_000,
    "[a]=1" + " " * 8_000 + "x",
    "[" + "]]" * 4_095,
    "[a]='" + "''" * 4_000,
    "-" * 8_192,
    "." * 8_192,
    "[a]." * 2_048,
    "x" * 8_192,
    "\x00" * 8_192,
    "\ud800" * 8_192,
    "𝟙" * 8_192,
    "[a]=1e" + "9" * 8_000,
    "[" * 10_000,
    "(" * 1_000_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_quickly(text: str) -> None:
    start = time.process_time()
    try:
        parse(text)
    except FilterError as error:
        assert len(str(error)) < 300
    assert time.process_time() - start < 0.5
