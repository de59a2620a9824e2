from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.model.values import DataType, NotOfType, canonical_json, coerce, to_json_value

GUID = UUID("0192f8a0-0000-7000-8000-00000000abcd")


@pytest.mark.parametrize(
    ("data_type", "raw", "value"),
    [
        ("string", "", ""),
        ("text", "a\nb", "a\nb"),
        ("int", "+7", 7),
        ("int", 2147483647, 2147483647),
        ("int", 3.0, 3),
        ("int", Decimal("3.00"), 3),
        ("int", "007", 7),
        ("long", "-9223372036854775808", -(2**63)),
        ("decimal", "1.50", Decimal("1.50")),
        ("decimal", 0.1, Decimal("0.1")),
        ("decimal", "1e30", Decimal(10**30)),
        ("decimal", "2.5E-3", Decimal("0.0025")),
        ("decimal", 10**40, Decimal(10**40)),
        ("decimal", ".5", Decimal("0.5")),
        ("bool", "TRUE", True),
        ("bool", False, False),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("datetime", "2024-02-29", datetime(2024, 2, 29, tzinfo=UTC)),
        ("datetime", "2024-02-29t12:30z", datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
        ("datetime", "2024-01-01 00:00:00+01:00", datetime(2023, 12, 31, 23, tzinfo=UTC)),
        ("datetime", "2024-01-01T00:00:00.5", datetime(2024, 1, 1, 0, 0, 0, 500000, UTC)),
        ("guid", str(GUID).upper(), GUID),
        ("guid", "{" + str(GUID) + "}", GUID),
        ("guid", GUID.hex, GUID),
        ("json", {"a": [1, None, "x"]}, {"a": [1, None, "x"]}),
    ],
)
def test_a_written_value_becomes_a_typed_one(data_type: str, raw: Any, value: Any) -> None:
    got = coerce(DataType(data_type), raw)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("data_type", list(DataType))
def test_null_is_a_value_of_each_type(data_type: DataType) -> None:
    assert coerce(data_type, None) is None


@pytest.mark.parametrize(
    ("data_type", "raw", "says"),
    [
        ("string", 1, "is a number, not text"),
        ("string", "a\x00", "NUL"),
        ("string", "\ud800", "surrogate"),
        ("int", True, "is a truth value, not an int"),
        ("int", 2147483648, "outside the range"),
        ("int", 1.5, "is not an int"),
        ("int", "1.0", "is not an int"),
        ("int", "1_000", "is not an int"),
        ("int", "٣", "is not an int"),
        ("int", 1e300, "is not an int"),
        ("int", float("nan"), "is not an int"),
        ("int", Decimal("1e999999999"), "is not an int"),
        ("long", "9223372036854775808", "outside the range"),
        ("decimal", float("inf"), "is not a decimal"),
        ("decimal", "NaN", "is not a decimal"),
        ("decimal", "", "is not a decimal"),
        ("decimal", False, "is not a decimal"),
        ("decimal", Decimal("1e999999999"), "has more than 1000 digits"),
        ("decimal", Decimal("1e-999999999"), "has more than 1000 digits"),
        ("decimal", 10**4000, "has more than 1000 digits"),
        ("bool", "yes", "is neither true nor false"),
        ("bool", 1, "is neither true nor false"),
        ("date", "2023-02-29", "is no day of the calendar"),
        ("date", "20230228", "is not a date"),
        ("datetime", "2024-01-01T24:00:00Z", "is not a date and time"),
        ("datetime", "2024-01-01T10:60:00Z", "is no moment"),
        ("datetime", "0001-01-01T00:00:00+01:00", "outside the years"),
        ("datetime", 5, "is not a date and time"),
        ("guid", "+1234567812345678123456781234567", "is not a GUID"),
        ("guid", "1_34567812345678123456781234567_", "is not a GUID"),
        ("guid", "urn:uuid:" + str(GUID), "is not a GUID"),
        ("json", float("nan"), "number that JSON does not know"),
        ("json", {"a": "\x00"}, "NUL"),
        ("json", {1: 2}, "not text"),
        ("json", {1, 2}, "is no JSON"),
        ("json", Decimal("1e999999999"), "has more than 1000 digits"),
    ],
)
def test_what_is_no_value_of_the_type_is_refused(data_type: str, raw: Any, says: str) -> None:
    with pytest.raises(NotOfType, match=says):
        coerce(DataType(data_type), raw)


def test_json_may_be_nested_32_deep_and_not_deeper() -> None:
    deep: Any = 1
    for _ in range(32):
        deep = [deep]
    assert coerce(DataType.JSON, deep) == deep
    with pytest.raises(NotOfType, match="deeper than 32"):
        coerce(DataType.JSON, [deep])


TYPED = st.one_of(
    st.tuples(
        st.just(DataType.TEXT),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    ),
    st.tuples(st.just(DataType.INT), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(DataType.LONG), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(
        st.just(DataType.DECIMAL), st.decimals(allow_nan=False, allow_infinity=False, places=9)
    ),
    st.tuples(st.just(DataType.BOOL), st.booleans()),
    st.tuples(st.just(DataType.DATE), st.dates()),
    st.tuples(st.just(DataType.DATETIME), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just(DataType.GUID), st.uuids()),
)


@given(TYPED)
def test_to_json_value_is_the_inverse_of_coerce(case: tuple[DataType, Any]) -> None:
    data_type, value = case
    assert coerce(data_type, json.loads(json.dumps(to_json_value(value)))) == value
    assert coerce(data_type, value) == value


@given(st.sampled_from(list(DataType)), st.one_of(st.text(), st.floats(), st.integers()))
def test_any_scalar_is_a_value_or_refused(data_type: DataType, raw: Any) -> None:
    try:
        value = coerce(data_type, raw)
    except NotOfType as exc:
        assert str(exc)
    else:
        assert coerce(data_type, to_json_value(value)) == value


def test_canonical_json_is_the_same_whatever_the_order() -> None:
    assert canonical_json({"b": Decimal("1.50"), "a": GUID}) == canonical_json(
        {"a": str(GUID), "b": "1.50"}
    )
