"""How data checks and costs read, and how a reader finds the rows that are in the way."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from mdm_gitops.model import ChangeClass
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.physical import RuleKind
from mdm_gitops.plan.plan import Assessment, CheckResult, DataCheck, DriftKind, Lock, Violation
from mdm_gitops.plan.verdicts import (
    AFTER_FAILURE,
    CLASS_MEANING,
    DRIFT_WORDS,
    cost_words,
    how_to_find,
    lock_words,
    sample_words,
    violation_words,
)


def _check(violation: Violation, **more: Any) -> DataCheck:
    facts: dict[str, Any] = {
        "entity": "customer",
        "column": "code",
        "table": "client",
        "columns": ("old_code",),
    }
    return DataCheck(violation=violation, **(facts | more))


def _rule(kind: RuleKind, argument: Any, **more: Any) -> DataCheck:
    return _check(Violation.BREAKS_RULE, rule=kind, argument=argument, **more)


CAST = {"old_code": ("text", "integer")}
TARGET = {"target_table": "sales_region", "target_column": "code"}
CHECKS = [
    (
        _check(Violation.IS_NULL),
        "41,207 rows are null",
        "1 row is null",
        "filter [old_code] IS NULL",
    ),
    (
        _check(Violation.IS_NULL, casts=CAST),
        "41,207 rows are null",
        "1 row is null",
        'SQL SELECT * FROM "client" WHERE "old_code" IS NULL',
    ),
    (
        _rule(RuleKind.PATTERN, "[A-Z]'{2}"),
        "41,207 rows do not match [A-Z]'{2}",
        "1 row does not match [A-Z]'{2}",
        """SQL SELECT * FROM "client" WHERE "old_code"::text !~ '^(?:[A-Z]''{2})$'""",
    ),
    (
        _rule(RuleKind.ALLOWED, ("a", "it's")),
        "41,207 rows hold none of the allowed values",
        "1 row holds none of the allowed values",
        "filter [old_code] NOT IN ('a', 'it''s')",
    ),
    (
        _rule(RuleKind.ALLOWED, (True, False)),
        "41,207 rows hold none of the allowed values",
        "1 row holds none of the allowed values",
        "filter [old_code] NOT IN (true, false)",
    ),
    (
        _rule(RuleKind.ALLOWED, tuple(range(21))),
        "41,207 rows hold none of the allowed values",
        "1 row holds none of the allowed values",
        "",
    ),
    (
        _rule(RuleKind.RANGE, (1, 5)),
        "41,207 rows are outside 1 to 5",
        "1 row is outside 1 to 5",
        "filter [old_code] < 1 OR [old_code] > 5",
    ),
    (
        _rule(RuleKind.RANGE, (date(1990, 1, 1), None)),
        "41,207 rows are not at least 1990-01-01",
        "1 row is not at least 1990-01-01",
        "filter [old_code] < '1990-01-01'",
    ),
    (
        _rule(RuleKind.RANGE, (None, 5), casts=CAST),
        "41,207 rows are not at most 5",
        "1 row is not at most 5",
        "",
    ),
    (
        _rule(RuleKind.LENGTH, 40),
        "41,207 rows are longer than 40 characters",
        "1 row is longer than 40 characters",
        'SQL SELECT * FROM "client" WHERE char_length("old_code"::text) > 40',
    ),
    (
        _check(Violation.IS_DUPLICATE),
        "41,207 rows share a value with another",
        "1 row shares a value with another",
        (
            'SQL SELECT "old_code", count(*) FROM "client" WHERE "old_code" IS NOT NULL'
            ' GROUP BY "old_code" HAVING count(*) > 1'
        ),
    ),
    (
        _check(Violation.IS_DUPLICATE, column="a, b", columns=("a", "b")),
        "41,207 rows share the same values with another",
        "1 row shares the same values with another",
        (
            'SQL SELECT "a", "b", count(*) FROM "client" WHERE "a" IS NOT NULL AND'
            ' "b" IS NOT NULL GROUP BY "a", "b" HAVING count(*) > 1'
        ),
    ),
    (
        _check(Violation.IS_DUPLICATE, columns=()),
        "41,207 rows share a value with another",
        "1 row shares a value with another",
        "",
    ),
    (
        _check(Violation.REFERS_TO_NOTHING, **TARGET),
        "41,207 rows refer to nothing: no such sales_region.code",
        "1 row refers to nothing: no such sales_region.code",
        (
            'SQL SELECT * FROM "client" s WHERE s."old_code" IS NOT NULL AND NOT EXISTS'
            ' (SELECT FROM "sales_region" t WHERE t."code"::text = s."old_code"::text)'
        ),
    ),
    (
        _check(Violation.REFERS_TO_NOTHING),
        "41,207 rows refer to nothing, because the target is new and its seed does not bring the value",
        "1 row refers to nothing, because the target is new and its seed does not bring the value",
        "",
    ),
    (
        _check(Violation.CANNOT_BE_CAST, casts=CAST),
        "41,207 values cannot become int",
        "1 value cannot become int",
        """SQL SELECT * FROM "client" WHERE NOT pg_input_is_valid("old_code"::text, 'integer')""",
    ),
    (
        _check(Violation.CANNOT_BE_CAST, casts=CAST, table="client__history"),
        "41,207 values of the history cannot become int",
        "1 value of the history cannot become int",
        (
            'SQL SELECT * FROM "client__history" WHERE NOT'
            """ pg_input_is_valid("old_code"::text, 'integer')"""
        ),
    ),
    (
        _check(Violation.NEEDS_DEFAULT, columns=()),
        "41,207 rows would have no value",
        "1 row would have no value",
        "",
    ),
]


@pytest.mark.parametrize(("check", "many", "one", "find"), CHECKS)
def test_a_failed_check(check: DataCheck, many: str, one: str, find: str) -> None:
    assert violation_words(CheckResult(check=check, violations=41_207)) == many
    assert violation_words(CheckResult(check=check, violations=1)) == one
    assert how_to_find(check) == find


def test_every_violation_and_rule_has_words() -> None:
    assert {check.violation for check, *_ in CHECKS} == set(Violation)
    of_rules = {check.rule for check, *_ in CHECKS if check.rule}
    assert of_rules == set(RuleKind) - {RuleKind.REQUIRED, RuleKind.CASTABLE}


SAMPLES = [
    ({"_sys_id": "0193", "email": None}, "email null (row 0193)"),
    ({"_sys_id": "0193", "a": 1, "b": "x"}, "a 1, b 'x' (row 0193)"),
    ({"_sys_id": "0193"}, "row 0193"),
    ({"code": "x" * 80}, f"code '{'x' * 59}…'"),
    ({"code": "a\x1b[2Jb"}, r"code 'a\x1b[2Jb'"),
]


@pytest.mark.parametrize(("sample", "words"), SAMPLES)
def test_a_sample(sample: dict[str, Any], words: str) -> None:
    assert sample_words(sample) == words


def _cost(**more: Any) -> Assessment:
    return Assessment(change_class=ChangeClass.SAFE, **more)


COSTS = [
    ([_cost(rows=9)], ""),
    ([_cost(scans=True, rows=0)], ""),
    ([_cost(scans=True, rows=2_000), _cost(scans=True, rows=12)], "online, scans 2,000 rows"),
    (
        [
            _cost(scans=True, rows=9),
            _cost(rewrites=True, rows=12_400_000, size_bytes=9_800_000_000),
        ],
        "online, rewrites 12.4M rows (9.1 GB)",
    ),
    ([_cost(rewrites=True, rows=150_000)], "online, rewrites 150k rows"),
]


@pytest.mark.parametrize(("costs", "words"), COSTS)
def test_what_a_change_costs(costs: list[Assessment], words: str) -> None:
    assert cost_words(costs) == words


LOCKS = [
    ([], ""),
    ([Lock.ROW_EXCLUSIVE, Lock.SHARE_UPDATE_EXCLUSIVE], ""),
    ([Lock.SHARE], "writers wait briefly"),
    ([Lock.ACCESS_EXCLUSIVE, Lock.SHARE_ROW_EXCLUSIVE], "brief lock"),
]


@pytest.mark.parametrize(("locks", "words"), LOCKS)
def test_how_a_lock_is_felt(locks: list[Lock], words: str) -> None:
    assert lock_words(locks) == words


def test_no_word_is_missing_in_a_table() -> None:
    assert set(AFTER_FAILURE) == set(Phase)
    assert set(CLASS_MEANING) == set(ChangeClass)
    assert set(DRIFT_WORDS) == set(DriftKind)
