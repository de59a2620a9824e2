"""Each change as SQL, word for word: what a reviewer reads is what runs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlglot import exp

from mdm_gitops.plan import changes as c
from mdm_gitops.plan.changes import Change, ObjectKind, Phase, Rename, Step
from mdm_gitops.plan.physical import (
    RuleKind,
)
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import statements, trees
from mdm_gitops.warehouse.ddl.casts import castable
from mdm_gitops.warehouse.ddl.rules import condition
from mdm_gitops.warehouse.names import Schemas
from tests.unit import ddl_rule_samples, ddl_samples
from tests.unit.ddl_samples import FILLING, FLIP, SCHEMAS, UNIQUE, retype

CASES = (*ddl_samples.CASES, *ddl_rule_samples.CASES)


@pytest.mark.parametrize(("change", "expected"), CASES, ids=lambda v: getattr(v, "kind", None))
def test_a_change_becomes_these_statements(
    change: Change, expected: list[tuple[Phase, Step | None, str]]
) -> None:
    written = statements(change, schemas=SCHEMAS)
    assert [(each.phase, each.step, each.sql) for each in written] == expected


def test_every_kind_of_change_has_its_statements_shown_here() -> None:
    assert {type(change) for change, _ in CASES} == set(c.ALL)


def test_a_filling_is_guarded_before_it_begins() -> None:
    written = statements(retype(FILLING), schemas=SCHEMAS)
    prepared = [each for each in written if each.phase is Phase.PREPARE]
    assert [(each.group, each.lock, each.scans) for each in prepared] == [
        ("begin", Lock.ACCESS_EXCLUSIVE, False),
        ("guard t", Lock.ACCESS_EXCLUSIVE, False),
        ("guard t", Lock.ACCESS_EXCLUSIVE, False),
        ("guard t", Lock.ACCESS_EXCLUSIVE, False),
        ("guard t", Lock.ACCESS_EXCLUSIVE, False),
        ("", Lock.ROW_EXCLUSIVE, True),
        ("", Lock.SHARE_UPDATE_EXCLUSIVE, True),
    ]
    begin, function, trigger, *_, fill, _ = (each.sql for each in prepared)
    assert begin == 'ALTER TABLE "d"."t" ADD COLUMN IF NOT EXISTS "_new_a" BIGINT'
    assert 'NEW."_new_a" := CAST(NEW."a" AS BIGINT);' in function
    assert trigger == (
        'CREATE OR REPLACE TRIGGER "t__fill_new_a" BEFORE INSERT OR UPDATE OF "a" ON "d"."t"'
        ' FOR EACH ROW EXECUTE FUNCTION "d"."t__fill_new_a"()'
    )
    assert fill == (
        'UPDATE "d"."t" SET "_new_a" = CAST("a" AS BIGINT)'
        ' WHERE "_new_a" IS DISTINCT FROM CAST("a" AS BIGINT)'
    )


def test_a_filling_is_cut_into_ranges_of_rows() -> None:
    fill = next(s for s in statements(retype(FILLING), schemas=SCHEMAS) if s.batch)
    assert fill.batch is not None
    first, last = UUID(int=1), UUID(int=2)
    assert fill.batch.next_bound_sql(None, 100) == (
        'SELECT "_sys_id" FROM "d"."t" ORDER BY "_sys_id" LIMIT 1 OFFSET 99'
    )
    assert fill.batch.next_bound_sql(first, 100) == (
        f'SELECT "_sys_id" FROM "d"."t" WHERE "_sys_id" > CAST(\'{first}\' AS UUID)'
        ' ORDER BY "_sys_id" LIMIT 1 OFFSET 99'
    )
    assert fill.batch.update_sql(first, last) == (
        'UPDATE "d"."t" SET "_new_a" = CAST("a" AS BIGINT)'
        f" WHERE \"_sys_id\" > CAST('{first}' AS UUID) AND \"_sys_id\" <= CAST('{last}' AS UUID)"
        ' AND "_new_a" IS DISTINCT FROM CAST("a" AS BIGINT)'
    )
    assert fill.batch.update_sql(None, None) == fill.sql


def test_the_flip_stops_the_filling_before_anything_moves() -> None:
    written = statements(retype(FILLING), schemas=SCHEMAS)
    flipped = sorted((s for s in written if s.phase is FLIP), key=lambda s: s.step or 0)
    assert [each.sql.split('"')[0].strip() for each in flipped[:3]] == [
        "DROP TRIGGER IF EXISTS",
        "DROP FUNCTION IF EXISTS",
        "ALTER TABLE",
    ]
    assert [each.sql for each in flipped[5:]] == [
        'ALTER TABLE "d"."t" RENAME COLUMN "_new_a" TO "a"',
        'ALTER TABLE "d"."t__history" RENAME COLUMN "_new_a" TO "a"',
    ]


def test_what_runs_concurrently_can_clear_up_after_itself() -> None:
    drop, create = statements(
        c.AddIndex(table="t", index=UNIQUE, online=True, rebuild=True), schemas=SCHEMAS
    )
    assert not drop.transactional and not create.transactional
    assert create.leftover is not None
    assert create.leftover.drop_sql == drop.sql
    assert "NOT x.indisvalid" in create.leftover.exists_sql


@pytest.mark.parametrize(
    ("type_", "value", "sql"),
    [
        ("text", "a\\b'c", "'a\\b''c'"),
        ("integer", -5, "-5"),
        ("bigint", -(2**63), "-9223372036854775808"),
        ("numeric", Decimal("1E+3"), "1000"),
        ("numeric", Decimal("-0.000000000000000000000000000000000001"), "-0." + "0" * 35 + "1"),
        ("boolean", True, "TRUE"),
        ("date", date(12, 1, 2), "CAST('0012-01-02' AS DATE)"),
        (
            "timestamp with time zone",
            datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
            "CAST('2024-01-02T03:04:05Z' AS TIMESTAMPTZ)",
        ),
        ("uuid", UUID(int=1), "CAST('00000000-0000-0000-0000-000000000001' AS UUID)"),
        ("jsonb", "it's", "CAST('\"it''s\"' AS JSONB)"),
        ("jsonb", {"a": [Decimal("1.10"), None]}, "CAST('{\"a\":[1.10,null]}' AS JSONB)"),
    ],
)
def test_a_value_becomes_a_constant_of_its_type(type_: str, value: Any, sql: str) -> None:
    assert trees.render(exp.select(trees.literal(value, type_))) == f"SELECT {sql}"


def test_a_pattern_goes_through_its_translation() -> None:
    rule = condition(trees.column("a"), type_="text", rule=RuleKind.PATTERN, argument="[A-Z]{2}")
    sql = trees.render(exp.select(rule))
    assert sql.startswith('SELECT "a" ~ \'') and "{2}" in sql


def test_a_name_cannot_leave_its_quotes() -> None:
    name = 'a"; DROP TABLE x; --'
    quoted = '"a""; DROP TABLE x; --"'
    change = c.RenameObject(
        table=name, object_kind=ObjectKind.CONSTRAINT, rename=Rename(old=name, new=name)
    )
    [renamed] = statements(change, schemas=Schemas(data=name))
    assert renamed.sql == (f"ALTER TABLE {quoted}.{quoted} RENAME CONSTRAINT {quoted} TO {quoted}")
    [dropped] = statements(c.DropCheck(table=name, check=name), schemas=Schemas(data=name))
    assert dropped.sql == f"ALTER TABLE {quoted}.{quoted} DROP CONSTRAINT {quoted}"


def test_what_sqlglot_would_mangle_is_refused() -> None:
    lost = exp.Alter(
        this=trees.table("d", "t"),
        kind="TABLE",
        actions=[exp.Drop(this=trees.column("a"), kind="COLUMN")],
    )
    with pytest.raises(RuntimeError, match="lost part of the statement"):
        trees.render(lost)


def test_an_operand_keeps_its_own_operators() -> None:
    both = exp.And(this=trees.column("a"), expression=trees.column("b"))
    assert trees.template("NOT :x", x=both).sql(dialect="postgres") == 'NOT ("a" AND "b")'


def test_a_condition_is_a_tree_of_its_own() -> None:
    value = trees.column("a")
    twice = exp.and_(castable(value, "text", "date"), castable(value, "text", "uuid"))
    assert trees.render(exp.select(twice)).count('"a"') == 10
