"""Each data check counts exactly the rows that the new rule would stop, and shows some of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection, errors

from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.plan.plan import CheckResult, DataCheck, Violation
from mdm_gitops.warehouse.checks import run_checks
from mdm_gitops.warehouse.names import Schemas

pytestmark = pytest.mark.anyio

SCHEMAS = Schemas()
TABLES = """
    CREATE TABLE mdm_data.country (_sys_id uuid PRIMARY KEY, code text, number text);
    CREATE TABLE mdm_data.city (
        _sys_id uuid PRIMARY KEY, name text, country text, size text, rank integer,
        founded date, _sys_is_deleted boolean NOT NULL DEFAULT false
    );
    INSERT INTO mdm_data.country
        SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, code, n::text
          FROM unnest(ARRAY['DE', 'FR', NULL]) WITH ORDINALITY AS u(code, n);
    INSERT INTO mdm_data.city (_sys_id, name, country, size, rank, founded, _sys_is_deleted)
        SELECT format('00000000-0000-0000-0000-%s', lpad(n::text, 12, '0'))::uuid,
               name, country, size, rank, founded::date, deleted
          FROM (VALUES
            (1, 'Berlin', 'DE', '3.5', 1, '1237-01-01', false),
            (2, 'Lyon', 'FR', '0.5', 3, '0100-01-01', false),
            (3, 'lyon', 'XX', 'big', 2, NULL, true),
            (4, NULL, NULL, NULL, 2, 'infinity', false),
            (5, 'Bonn', 'YY', '03.50', NULL, '2000-02-29', false),
            (6, 'Lyon', 'FR', 'huge', 2, '2000-02-29', false)
          ) AS v(n, name, country, size, rank, founded, deleted);
"""


def _id(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


def _check(violation: Violation, *columns: str, table: str = "city", **more: Any) -> DataCheck:
    return DataCheck(
        violation=violation,
        entity=table,
        column=", ".join(columns),
        table=table,
        columns=columns,
        **more,
    )


def _casts(**casts: tuple[str, str]) -> Mapping[str, tuple[str, str]]:
    return MappingProxyType(casts)


def _reference(*columns: str, **more: Any) -> DataCheck:
    return _check(Violation.REFERS_TO_NOTHING, *columns, **more)


# (name, check, rows that break it; samples show the first five of them)
CASES: tuple[tuple[str, DataCheck, list[dict[str, str | int | None]]], ...] = (
    ("null", _check(Violation.IS_NULL, "name"), [{"n": 4, "name": None}]),
    (
        "pattern",
        _check(
            Violation.BREAKS_RULE,
            "name",
            rule=RuleKind.PATTERN,
            argument="[A-Z][a-z]+",
            column_type="text",
        ),
        [{"n": 3, "name": "lyon"}],
    ),
    (
        "allowed",
        _check(
            Violation.BREAKS_RULE,
            "country",
            rule=RuleKind.ALLOWED,
            argument=("DE", "FR"),
            column_type="text",
        ),
        [{"n": 3, "country": "XX"}, {"n": 5, "country": "YY"}],
    ),
    (
        "range",
        _check(
            Violation.BREAKS_RULE,
            "founded",
            rule=RuleKind.RANGE,
            argument=(date(1000, 1, 1), date(9999, 12, 31)),
            column_type="date",
        ),
        [{"n": 2, "founded": "0100-01-01"}, {"n": 4, "founded": "infinity"}],
    ),
    (
        "range of a cast value",
        _check(
            Violation.BREAKS_RULE,
            "size",
            rule=RuleKind.RANGE,
            argument=(Decimal("1.0"), None),
            column_type="numeric(5,2)",
            casts=_casts(size=("text", "numeric(5,2)")),
        ),
        [{"n": 2, "size": "0.5"}],
    ),
    (
        "length",
        _check(
            Violation.BREAKS_RULE,
            "name",
            rule=RuleKind.LENGTH,
            argument=5,
            column_type="text",
        ),
        [{"n": 1, "name": "Berlin"}],
    ),
    (
        "cannot be cast",
        _check(
            Violation.CANNOT_BE_CAST,
            "size",
            column_type="text",
            casts=_casts(size=("text", "numeric(5,2)")),
        ),
        [{"n": 3, "size": "big"}, {"n": 6, "size": "huge"}],
    ),
    (
        "no cast at all",
        _check(
            Violation.CANNOT_BE_CAST,
            "founded",
            column_type="date",
            casts=_casts(founded=("date", "uuid")),
        ),
        [
            {"n": 1, "founded": "1237-01-01"},
            {"n": 2, "founded": "0100-01-01"},
            {"n": 4, "founded": "infinity"},
            {"n": 5, "founded": "2000-02-29"},
            {"n": 6, "founded": "2000-02-29"},
        ],
    ),
    (
        "duplicate",
        _check(Violation.IS_DUPLICATE, "name"),
        [{"n": 2, "name": "Lyon"}, {"n": 6, "name": "Lyon"}],
    ),
    (
        "duplicate of two, null is equal to nothing",
        _check(Violation.IS_DUPLICATE, "rank", "founded"),
        [],
    ),
    (
        "duplicate pair",
        _check(Violation.IS_DUPLICATE, "country", "name"),
        [
            {"n": 2, "country": "FR", "name": "Lyon"},
            {"n": 6, "country": "FR", "name": "Lyon"},
        ],
    ),
    (
        "duplicate once cast",
        _check(Violation.IS_DUPLICATE, "size", casts=_casts(size=("text", "numeric(5,2)"))),
        [{"n": 1, "size": "3.5"}, {"n": 5, "size": "03.50"}],
    ),
    (
        "reference",
        _reference("country", target_table="country", target_column="code"),
        [{"n": 3, "country": "XX"}, {"n": 5, "country": "YY"}],
    ),
    (
        "reference that a seed will fill",
        _reference("country", target_table="country", target_column="code", target_values=("YY",)),
        [{"n": 3, "country": "XX"}],
    ),
    (
        "reference to a new table",
        _reference("country", target_values=("XX", "FR", "YY")),
        [{"n": 1, "country": "DE"}],
    ),
    (
        "reference to a table without anything",
        _reference("founded"),
        [
            {"n": 1, "founded": "1237-01-01"},
            {"n": 2, "founded": "0100-01-01"},
            {"n": 4, "founded": "infinity"},
            {"n": 5, "founded": "2000-02-29"},
            {"n": 6, "founded": "2000-02-29"},
        ],
    ),
    (
        "reference to values that are cast too",
        _reference(
            "rank",
            target_table="country",
            target_column="number",
            target_cast=("text", "integer"),
            target_values=(UUID(int=1),)[:0],
        ),
        [],
    ),
    (
        "rows without a default",
        _check(Violation.NEEDS_DEFAULT),
        [{"n": n} for n in (1, 2, 3, 4, 5)] + [{"n": 6}],
    ),
    (
        "unique over new columns alone",
        _check(Violation.IS_DUPLICATE),
        [{"n": n} for n in (1, 2, 3, 4, 5, 6)],
    ),
)


@pytest.fixture
async def rows(conn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    await conn.execute(TABLES)
    return conn


async def test_all_checks_together_count_and_show_what_breaks_them(
    rows: AsyncConnection[Any],
) -> None:
    results = await run_checks(rows, [check for _, check, _ in CASES], schemas=SCHEMAS)

    assert list(results) == [check for _, check, _ in CASES]
    for (name, check, expected), result in zip(CASES, results.values(), strict=True):
        shown = [{"_sys_id": _id(int(row["n"] or 0)), **_values(row)} for row in expected]
        assert (name, result.violations) == (name, len(expected))
        assert (name, list(result.samples)) == (name, shown[:5])
        assert result.check is check


def _values(row: dict[str, str | int | None]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "n"}


async def _results(
    conn: AsyncConnection[Any], checks: list[DataCheck], **more: Any
) -> list[CheckResult]:
    return list((await run_checks(conn, checks, **more)).values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
async def test_a_check_alone_gives_the_same(
    rows: AsyncConnection[Any], case: tuple[str, DataCheck, list[Any]]
) -> None:
    [result] = await _results(rows, [case[1]], schemas=SCHEMAS, statement_timeout_s=5)
    assert result.violations == len(case[2])


async def test_values_of_restricted_columns_are_not_shown(rows: AsyncConnection[Any]) -> None:
    check = _check(Violation.IS_DUPLICATE, "name", masked=True)
    [result] = await _results(rows, [check], schemas=SCHEMAS)
    assert result.violations == 2
    assert list(result.samples) == [{"_sys_id": _id(2)}, {"_sys_id": _id(6)}]


async def test_a_known_count_is_not_asked(rows: AsyncConnection[Any]) -> None:
    check = _check(Violation.NEEDS_DEFAULT, table="no_such_table", fixed_count=7)
    [result] = await _results(rows, [check], schemas=SCHEMAS)
    assert (result.violations, result.samples) == (7, ())


async def test_long_values_are_cut(rows: AsyncConnection[Any]) -> None:
    await rows.execute("UPDATE mdm_data.city SET name = repeat('x', 10000) WHERE rank = 1")
    length = _check(
        Violation.BREAKS_RULE, "name", rule=RuleKind.LENGTH, argument=50, column_type="text"
    )
    [result] = await _results(rows, [length], schemas=SCHEMAS)
    assert result.samples[0]["name"] == "x" * 200


async def test_questions_are_few_and_write_nothing(rows: AsyncConnection[Any]) -> None:
    many = [
        _check(
            Violation.BREAKS_RULE,
            "name",
            rule=RuleKind.LENGTH,
            argument=length,
            column_type="text",
        )
        for length in range(10, 60)
    ]
    async with rows.transaction():
        await rows.execute("SET TRANSACTION READ ONLY")
        before = await _scans(rows)
        await run_checks(rows, many, schemas=SCHEMAS)
        assert await _scans(rows) == before + 1


async def _scans(conn: AsyncConnection[Any]) -> int:
    query = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'city'"
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_question_ends_at_its_time_limit(rows: AsyncConnection[Any]) -> None:
    await rows.execute(
        "INSERT INTO mdm_data.city (_sys_id, name)"
        " SELECT gen_random_uuid(), 'x' || n FROM generate_series(1, 50000) n"
    )
    slow = _check(
        Violation.BREAKS_RULE,
        "name",
        rule=RuleKind.PATTERN,
        argument="([a-z]+[0-9]*)+",
        column_type="text",
    )
    with pytest.raises(errors.QueryCanceled):
        await run_checks(rows, [slow], schemas=SCHEMAS, statement_timeout_s=0.001)
    [result] = await _results(rows, [_check(Violation.IS_NULL, "name")], schemas=SCHEMAS)
    assert result.violations == 1
