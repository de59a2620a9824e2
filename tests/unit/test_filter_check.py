"""What a filter means on an entity: names, types, values, and the trees that come out."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from uuid import UUID

import pytest

from mdm_gitops.errors import FilterError
from mdm_gitops.filter import (
    TypedFilter,
    check_filter,
    columns_used,
    conjunction,
    disjunction,
    parse,
    see_through,
    type_check,
    unparse,
)
from mdm_gitops.filter.ast import Operator
from mdm_gitops.filter.typed import All, AnyOf, Compare, IsNull, Some, TypedExpr, Value
from mdm_gitops.model import DataType, Definitions, Entity
from tests.unit.filter_samples import DEFINITIONS, ITEM


def typed(text: str) -> TypedFilter:
    return type_check(parse(text), ITEM, DEFINITIONS)


ACCEPTED = [
    "[CODE] = 'x'",
    "[title] < 'x' OR [Title] BETWEEN 'a' AND 'b'",
    "[qty] = 5.0 AND [qty] = '5'",
    "[big] = 9223372036854775807",
    "[amount] = 1e3 AND [amount] > -0.5",
    "[active] = true AND [active] <> 'false' AND [active] IN (true, false)",
    "[born] < '2024-02-29' AND [born] >= today()",
    "[seen] = '2024-02-29T10:00:00+02:00' OR [seen] > '2024-02-29' OR [seen] < now()",
    "[seen] >= today()",
    "[token] = '00000000-0000-0000-0000-000000000001' AND [token] IS NOT NULL",
    "[doc] IS NULL OR [doc] IS NOT NULL",
    "[owner] = me() OR [owner] IN (groups()) OR me() = [owner]",
    "[owner] CONTAINS me() OR [owner] LIKE 'a\\\\'",
    "[qty] < [big] AND [big] <> [amount]",
    "[code] = [title]",
    "[country].[name] = 'x' AND [country].[population] > [qty]",
    "[country].[facts] IS NULL",
    "[parent].[country] = 'CH'",
    "[country].[_sys_is_deleted] = false",
    "[_sys_id] = '00000000-0000-0000-0000-000000000001'",
    "[_sys_version] > 1 AND [_sys_created_at] < now() AND [_sys_created_by] = me()",
    "[_sys_last_modified_at] < now() AND [_sys_last_modified_by] = me()",
    "[_sys_is_deleted] = false AND [_sys_deleted_at] IS NULL",
    "[qty] = null AND [qty] IN (1, null) AND [title] LIKE null AND [active] = null",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_filter_that_fits_the_entity_is_accepted(text: str) -> None:
    check_filter(text, ITEM, DEFINITIONS)


REFUSED = [
    # text, position, part of the message, expected, part of the hint
    ("[qti] = 1", 0, "entity 'item' has no column 'qti'", "a column of item", "[qty]?"),
    ("[titel] = 'x'", 0, "no column 'titel'", "a column of item", "did you mean [Title]?"),
    ("[_sys_idd] = 'x'", 0, "no column '_sys_idd'", "a column", "did you mean [_sys_id]?"),
    ("[xyzzy] = 1", 0, "no column 'xyzzy'", "a column of item", ""),
    ("[_sys_state] = 'x'", 0, "no column '_sys_state'", "a column of item", ""),
    ("[country].[nam] = 'x'", 0, "entity 'Country' has no column 'nam'", "", "[Name]?"),
    ("[code].[name] = 'x'", 0, "[code] is not a reference", "", "[country], [parent]"),
    ("[_sys_id].[name] = 'x'", 0, "[_sys_id] is not a reference", "", ""),
    ("[nix].[name] = 'x'", 0, "no column 'nix'", "a column of item", ""),
    ("[qty] = 'x'", 8, "'x' is not an int", "a value of type int", ""),
    ("[qty] = 1.5", 8, "1.5 is not an int", "a value of type int", ""),
    ("[qty] = 2147483648", 8, "2147483648 is outside the range of an int", "", ""),
    ("[qty] = true", 8, "true is a truth value, not an int", "", ""),
    ("[big] = 9223372036854775808", 8, "is outside the range of a long", "", ""),
    ("[amount] = 'NaN'", 11, "'NaN' is not a decimal number", "a value of type decimal", ""),
    ("[amount] = " + "9" * 1_001, 11, "has more than 1000 digits", "", ""),
    ("[title] = 5", 10, "5 is a number, not text; put it in quotes", "", ""),
    ("[title] = 'a\x00'", 10, "holds a NUL character", "", ""),
    ("[title] = '\ud800'", 10, "half of a surrogate pair", "", ""),
    ("[title] LIKE '\ud800'", 13, "half of a surrogate pair", "", ""),
    ("[active] = 1", 11, "1 is neither true nor false", "", ""),
    ("[active] > true", 0, "[active] is a bool, which has no order for >", "=, <>, IN", ""),
    ("[active] BETWEEN false AND true", 0, "which has no order for >=", "", ""),
    ("[token] < 'x'", 0, "[token] is a guid, which has no order for <", "", ""),
    ("[token] = 'x'", 10, "'x' is not a GUID", "a value of type guid", ""),
    ("[born] = '2024-02-30'", 9, "is no day of the calendar", "", ""),
    ("[born] = '29.02.2024'", 9, "is not a date; write YYYY-MM-DD", "", ""),
    ("[born] = now()", 9, "now() gives no value of type date", "a value of type date", ""),
    ("[born] = me()", 9, "me() gives no value of type date", "", ""),
    ("[qty] = today()", 8, "today() gives no value of type int", "", ""),
    ("[seen] = 'today'", 9, "is not a date and time", "", ""),
    ("[owner] = groups()", 10, "groups() is a list", "IN before groups()", ""),
    ("[qty] IN (groups())", 10, "groups() gives no value of type int", "", ""),
    ("[qty] IN (1, [big])", 13, "[big] is a column, and here stands a value", "a value", ""),
    ("[title] LIKE [code]", 13, "[code] is a column, and here stands a value", "a value", ""),
    ("[doc] = 'x'", 0, "[doc] is json and can only be tested with IS NULL", "IS NULL", ""),
    ("[doc] IN ('x')", 0, "[doc] is json", "IS NULL or IS NOT NULL", ""),
    ("[doc] LIKE 'x'", 0, "LIKE compares text, and [doc] is a json", "a text column", ""),
    ("[title] = [doc]", 10, "[doc] is a json and cannot be compared with a text", "", ""),
    ("[qty] CONTAINS '1'", 0, "CONTAINS compares text, and [qty] is an int", "a text", ""),
    ("[title] LIKE 5", 13, "5 is a number, not text", "", ""),
    ("[title] LIKE 'a\\'", 13, "the pattern ends with \\", "\\\\ for a backslash", ""),
    ("[title] ILIKE 'a\\\\\\'", 14, "the pattern ends with \\", "", ""),
    ("[title] LIKE me()", 13, "me() is not a pattern", "a text in quotes", "CONTAINS"),
    ("[title] = [qty]", 10, "[qty] is an int and cannot be compared with a text", "", ""),
    ("[born] = [seen]", 9, "[seen] is a datetime and cannot be compared with a date", "", ""),
    ("1 = 1", 0, "1 is compared with a value, one side must be a column", "a [column]", ""),
    ("'x' IS NULL", 0, "'x' is compared with a value", "a [column]", ""),
    ("me() IN ('x')", 0, "me() is compared with a value", "a [column]", ""),
    ("today() = today()", 0, "today() is compared with a value", "a [column]", ""),
    ("NOT ([qty] = 1 OR [qty] = 'x')", 26, "'x' is not an int", "", ""),
]


@pytest.mark.parametrize(("text", "position", "message", "expected", "hint"), REFUSED)
def test_a_filter_that_does_not_fit_is_refused(
    text: str, position: int, message: str, expected: str, hint: str
) -> None:
    with pytest.raises(FilterError) as caught:
        check_filter(text, ITEM, DEFINITIONS)
    error = caught.value
    assert message in str(error)
    assert error.position == position
    assert error.expected.startswith(expected) and hint in error.hint
    assert len(str(error)) < 200


BROKEN_REFERENCES = [
    {"entity": "nowhere"},
    {"entity": "country", "column": "nothing"},
    {"entity": "pair"},
]


@pytest.mark.parametrize("reference", BROKEN_REFERENCES)
def test_a_reference_that_is_wrong_itself_is_told_apart(reference: dict[str, str]) -> None:
    """Filters are checked together with the definitions, which may have mistakes of their own."""
    pair = Entity.model_validate(
        {
            "name": "pair",
            "domain": "geo",
            "keyColumns": ["a", "b"],
            "columns": [{"name": "a", "dataType": "int"}, {"name": "b", "dataType": "int"}],
        }
    )
    broken = Entity.model_validate(
        {
            "name": "broken",
            "domain": "geo",
            "columns": [{"name": "ref", "dataType": "string", "reference": reference}],
        }
    )
    entities = {**DEFINITIONS.entities, "pair": pair, "broken": broken}
    definitions = Definitions(project=DEFINITIONS.project, entities=MappingProxyType(entities))
    with pytest.raises(FilterError, match=r"\[ref\] refers to .* where no such row can be found"):
        check_filter("[ref].[a] = 1", broken, definitions)


def test_an_entity_without_references_has_none_to_suggest() -> None:
    plain = Entity.model_validate(
        {"name": "plain", "domain": "geo", "columns": [{"name": "a", "dataType": "int"}]}
    )
    with pytest.raises(FilterError, match=r"\[a\] is not a reference") as caught:
        check_filter("[a].[b] = 1", plain, DEFINITIONS)
    assert caught.value.hint == ""


VALUES = [
    ("[qty] = 5.0", DataType.INT, 5),
    ("[qty] = '5'", DataType.INT, 5),
    ("[amount] = 1e3", DataType.DECIMAL, Decimal(1000)),
    ("[active] = 'TRUE'", DataType.BOOL, True),
    ("[born] = '2024-02-29'", DataType.DATE, date(2024, 2, 29)),
    ("[seen] = '2024-02-29'", DataType.DATETIME, datetime(2024, 2, 29, tzinfo=UTC)),
    ("[seen] = '2024-02-29T01:00+02:00'", DataType.DATETIME, datetime(2024, 2, 28, 23, tzinfo=UTC)),
    ("[token] = '{00000000000000000000000000000001}'", DataType.GUID, UUID(int=1)),
    ("[title] = '5'", DataType.TEXT, "5"),
    ("[title] = null", DataType.TEXT, None),
]


@pytest.mark.parametrize(("text", "data_type", "value"), VALUES)
def test_values_have_the_type_of_their_column(
    text: str, data_type: DataType, value: object
) -> None:
    root = typed(text).root
    assert isinstance(root, Compare)
    assert root.right == Value(data_type=data_type, value=value)


def test_a_value_on_the_left_is_turned_round() -> None:
    assert typed("5 < [qty]") == typed("[qty] > 5")
    assert typed("5 <= [qty]") == typed("[qty] >= 5")
    assert typed("5 > [qty]") == typed("[qty] < 5")
    assert typed("5 >= [qty]") == typed("[qty] <= 5")
    assert typed("5 = [qty]") == typed("[qty] = 5")
    assert typed("5 <> [qty]") == typed("[qty] <> 5")


NEGATIONS = [
    ("NOT [qty] = 1", "[qty] <> 1"),
    ("NOT [qty] <> 1", "[qty] = 1"),
    ("NOT [qty] < 1", "[qty] >= 1"),
    ("NOT [qty] <= 1", "[qty] > 1"),
    ("NOT [qty] > 1", "[qty] <= 1"),
    ("NOT [qty] >= 1", "[qty] < 1"),
    ("NOT NOT [qty] = 1", "[qty] = 1"),
    ("NOT [qty] IS NULL", "[qty] IS NOT NULL"),
    ("NOT [qty] IS NOT NULL", "[qty] IS NULL"),
    ("NOT [qty] IN (1)", "[qty] NOT IN (1)"),
    ("NOT [title] NOT LIKE 'x'", "[title] LIKE 'x'"),
    ("[qty] BETWEEN 1 AND 2", "[qty] >= 1 AND [qty] <= 2"),
    ("[qty] NOT BETWEEN 1 AND 2", "[qty] < 1 OR [qty] > 2"),
    ("NOT [qty] NOT BETWEEN 1 AND 2", "[qty] BETWEEN 1 AND 2"),
    ("NOT ([qty] = 1 AND [big] = 2)", "[qty] <> 1 OR [big] <> 2"),
    ("NOT ([qty] = 1 OR NOT [big] = 2)", "[qty] <> 1 AND [big] = 2"),
]


@pytest.mark.parametrize(("text", "same"), NEGATIONS)
def test_not_is_pushed_down_to_the_conditions(text: str, same: str) -> None:
    assert typed(text) == typed(same)


USED = [
    ("[qty] = 1", {("item", "qty")}),
    ("[qty] = [big] OR [TITLE] LIKE 'x'", {("item", "qty"), ("item", "big"), ("item", "title")}),
    ("[country].[NAME] IS NULL", {("country", "name"), ("item", "country")}),
    ("[parent].[qty] IN (1)", {("item", "qty"), ("item", "parent")}),
    (
        "[qty] > [country].[population]",
        {("item", "qty"), ("country", "population"), ("item", "country")},
    ),
    ("NOT ([_sys_version] = 1 AND [owner] = me())", {("item", "_sys_version"), ("item", "owner")}),
]


@pytest.mark.parametrize(("text", "used"), USED)
def test_columns_that_decide_are_known(text: str, used: set[tuple[str, str]]) -> None:
    assert columns_used(typed(text)) == used


def test_filters_are_joined_as_trees() -> None:
    one, two = parse("[qty] = 1 OR [qty] = 2"), parse("[big] = 3")
    assert unparse(conjunction(one, two)) == "([qty] = 1 OR [qty] = 2) AND [big] = 3"
    assert unparse(disjunction(two, one)) == "[big] = 3 OR ([qty] = 1 OR [qty] = 2)"
    first, second = typed("[qty] = 1"), typed("[big] = 3")
    assert conjunction(first, second).root == All(items=(first.root, second.root))
    assert disjunction(first, second).root == Some(items=(first.root, second.root))


def test_only_filters_that_belong_together_can_be_joined() -> None:
    country = type_check(parse("[name] = 'x'"), DEFINITIONS.entities["country"], DEFINITIONS)
    with pytest.raises(TypeError, match="of one entity"):
        conjunction(typed("[qty] = 1"), country)
    with pytest.raises(TypeError, match="typed and untyped"):
        disjunction(parse("[qty] = 1"), typed("[qty] = 1"))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="of one entity"):
        disjunction(typed("[qty] = 1"), parse("[qty] = 1"))  # type: ignore[call-overload]


def test_references_are_followed_only_to_visible_rows() -> None:
    rule = type_check(parse("[code] = 'CH'"), DEFINITIONS.entities["country"], DEFINITIONS)
    text = (
        "[country].[name] = 'x' AND [qty] = 1 AND [qty] < [country].[population] "
        "AND ([country].[name] LIKE 'x' OR [country].[name] IN ('x') OR [parent].[qty] IS NULL)"
    )
    seen = see_through(typed(text), {"country": rule})

    def vias(expr: TypedExpr) -> list[object]:
        match expr:
            case All(items=items) | Some(items=items):
                return [via for item in items for via in vias(item)]
            case Compare(left=left, right=right):
                return [left.via, getattr(right, "via", None)]
            case AnyOf(column=column) | IsNull(column=column):
                return [column.via]
            case _:
                return [expr.column.via]

    visible = {via.target: via.visible for via in vias(seen.root) if via is not None}  # type: ignore[attr-defined]
    assert visible == {"country": rule.root, "item": None}
    assert see_through(typed(text), {}) == typed(text)


def test_operators_of_the_tree_are_the_ones_of_the_language() -> None:
    assert [operator.value for operator in Operator] == ["=", "<>", "<", "<=", ">", ">="]


def test_checking_a_filter_does_not_load_the_sql_printer() -> None:
    program = (
        "import sys; from mdm_gitops.filter import check_filter, parse; parse('[a] = 1');"
        "print(sorted(m for m in ('sqlglot', 'psycopg', 're2') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
