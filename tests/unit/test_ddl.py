"""Each change as SQL, word for word: what a reviewer reads is what runs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from sqlglot import exp

from mdm_gitops.model import Action, PermissionGrant, Project, Seed, SeedMode, Webhook
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.changes import Change, Filling, ObjectKind, Phase, Rename, SeedCounts, Step
from mdm_gitops.plan.physical import (
    Check,
    ForeignKey,
    Index,
    IndexKind,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    View,
    computed_index,
)
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import statements, trees
from mdm_gitops.warehouse.ddl.casts import castable
from mdm_gitops.warehouse.ddl.rules import condition
from mdm_gitops.warehouse.names import Schemas

SCHEMAS = Schemas(config="mdm", data="d")


def column(name: str, type_: str, *, not_null: bool = False, default: Any = None) -> PhysicalColumn:
    return PhysicalColumn(name=name, type=type_, not_null=not_null, default=default)


def check(rule: RuleKind, argument: Any, name: str = "ck_a") -> Check:
    return Check(name=name, column="a", rule=rule, argument=argument)


TABLE = Table(
    name="t",
    role=Role.MAIN,
    columns=MappingProxyType(
        {
            each.name: each
            for each in (
                column("_sys_id", "uuid", not_null=True),
                column("a", "text", not_null=True, default="it's"),
                column("n", "numeric(10,2)", default=Decimal("-1.50")),
            )
        }
    ),
    primary_key=("_sys_id",),
    primary_key_name="t__pk",
    checks=(check(RuleKind.LENGTH, 5),),
)
HISTORY = Table(
    name="t__history",
    role=Role.HISTORY,
    columns=MappingProxyType({"a": column("a", "text", not_null=True)}),
    primary_key=("_sys_id", "_sys_version"),
    primary_key_name="t__history__pk",
)
KEY = ForeignKey(name="fk_a", column="a", target_table="u", target_column="code")
UNIQUE = Index(name="t__uq_a", columns=("a", "b"), unique=True)
GRANT = PermissionGrant(
    principal="user:ann",
    domain="sales",
    entity="t",
    actions=(Action.READ, Action.WRITE),
    row_filter="[a] = 'it''s'",
)
WEBHOOK = Webhook(name="hook", url="https://example.org/x")
PROJECT = Project(name="p", api_version="mdm-gitops/v1")
SEED = c.ApplySeed(
    entity="t",
    seed=Seed.of("t", ({"a": "x"},)),
    mode=SeedMode.CREATE,
    table="t",
    history_table=None,
    user_columns=("a",),
    key_columns=("a",),
    columns=(column("a", "text"),),
    counts=SeedCounts(),
    group=1,
)
FILLING = Filling(
    entity="t", source="a", target="_new_a", taken_from=None, exists=False, tables=("t",)
)


def retype(filling: Filling | None = None, **more: Any) -> c.RetypeColumn:
    return c.RetypeColumn(
        column="a",
        source="a",
        archived_as="_arch_1_a",
        old_type="integer",
        new=column("a", "bigint", not_null=True, default=0),
        main_table="t",
        tables=("t", "t__history"),
        filling=filling,
        **more,
    )


FLIP = Phase.FLIP
# (change, [(phase, step, SQL)]); online statements have no step.
CASES: tuple[tuple[Change, list[tuple[Phase, Step | None, str]]], ...] = (
    (
        c.CreateEntity(tables=(TABLE,)),
        [
            (
                FLIP,
                Step.CREATE,
                (
                    'CREATE TABLE "d"."t" ("_sys_id" UUID NOT NULL, "a" TEXT DEFAULT \'it\'\'s\' NOT NULL,'
                    ' "n" DECIMAL(10, 2) DEFAULT -1.50, CONSTRAINT "t__pk" PRIMARY KEY ("_sys_id"),'
                    ' CONSTRAINT "ck_a" CHECK (LENGTH("a") <= 5))'
                ),
            )
        ],
    ),
    (
        c.RenameEntity(
            old_entity="t",
            tables=(Rename(old="t", new="u"), Rename(old="x", new="t", aside="_aside_x")),
        ),
        [
            (FLIP, Step.RENAME, 'ALTER TABLE "d"."t" RENAME TO "u"'),
            (FLIP, Step.RENAME, 'ALTER TABLE "d"."x" RENAME TO "_aside_x"'),
            (FLIP, Step.ARRIVE, 'ALTER TABLE "d"."_aside_x" RENAME TO "t"'),
        ],
    ),
    (
        c.RemoveEntity(archive_number=3, tables=(Rename(old="t", new="t__archive_3"),)),
        [(FLIP, Step.ARCHIVE, 'ALTER TABLE "d"."t" RENAME TO "t__archive_3"')],
    ),
    (
        c.RestoreEntity(archive_number=3, tables=(Rename(old="t__archive_3", new="t"),)),
        [(FLIP, Step.RESTORE, 'ALTER TABLE "d"."t__archive_3" RENAME TO "t"')],
    ),
    (
        c.AddSatellite(role=Role.HISTORY, table=HISTORY),
        [
            (
                FLIP,
                Step.CREATE,
                (
                    'CREATE TABLE "d"."t__history" ("a" TEXT NOT NULL,'
                    ' CONSTRAINT "t__history__pk" PRIMARY KEY ("_sys_id", "_sys_version"))'
                ),
            )
        ],
    ),
    (
        c.RemoveSatellite(role=Role.EDIT, table=Rename(old="t__edit", new="t__archive_1_e")),
        [(FLIP, Step.ARCHIVE, 'ALTER TABLE "d"."t__edit" RENAME TO "t__archive_1_e"')],
    ),
    (
        c.RestoreSatellite(role=Role.EDIT, table=Rename(old="t__archive_1_e", new="t__edit")),
        [(FLIP, Step.RESTORE, 'ALTER TABLE "d"."t__archive_1_e" RENAME TO "t__edit"')],
    ),
    (
        c.AddColumn(
            column=column("a", "timestamp with time zone", not_null=True, default=datetime.max),
            main_table=None,
            satellite_tables=("t__edit",),
        ),
        [(FLIP, Step.ALTER, 'ALTER TABLE "d"."t__edit" ADD COLUMN "a" TIMESTAMPTZ')],
    ),
    (
        c.AddColumn(column=column("a", "boolean", not_null=True, default=False), main_table="t"),
        [
            (
                FLIP,
                Step.ALTER,
                'ALTER TABLE "d"."t" ADD COLUMN "a" BOOLEAN DEFAULT FALSE NOT NULL',
            )
        ],
    ),
    (
        c.RenameColumn(column=Rename(old="a", new="b", aside="_aside_a"), tables=("t",)),
        [
            (FLIP, Step.COLUMN_RENAME, 'ALTER TABLE "d"."t" RENAME COLUMN "a" TO "_aside_a"'),
            (FLIP, Step.COLUMN_ARRIVE, 'ALTER TABLE "d"."t" RENAME COLUMN "_aside_a" TO "b"'),
        ],
    ),
    (
        c.RemoveColumn(
            column="a",
            archived_as="_arch_1_a",
            main_table="t",
            tables=("t", "t__edit"),
            had_not_null=True,
            had_default=True,
        ),
        [
            (FLIP, Step.COLUMN_ARCHIVE, 'ALTER TABLE "d"."t" ALTER COLUMN "a" DROP NOT NULL'),
            (FLIP, Step.COLUMN_ARCHIVE, 'ALTER TABLE "d"."t" ALTER COLUMN "a" DROP DEFAULT'),
            (FLIP, Step.COLUMN_ARCHIVE, 'ALTER TABLE "d"."t" RENAME COLUMN "a" TO "_arch_1_a"'),
            (
                FLIP,
                Step.COLUMN_ARCHIVE,
                'ALTER TABLE "d"."t__edit" RENAME COLUMN "a" TO "_arch_1_a"',
            ),
        ],
    ),
    (
        c.RestoreColumn(column="a", archived_as="_arch_1_a", type="text", tables=("t",)),
        [(FLIP, Step.COLUMN_RESTORE, 'ALTER TABLE "d"."t" RENAME COLUMN "_arch_1_a" TO "a"')],
    ),
    (
        c.WidenColumn(column="a", old_type="numeric(5,2)", new_type="numeric(7,2)", tables=("t",)),
        [
            (
                FLIP,
                Step.ALTER,
                'ALTER TABLE "d"."t" ALTER COLUMN "a" SET DATA TYPE DECIMAL(7, 2)',
            )
        ],
    ),
    (
        retype(),
        [
            (FLIP, Step.COLUMN_ARCHIVE, 'ALTER TABLE "d"."t" RENAME COLUMN "a" TO "_arch_1_a"'),
            (
                FLIP,
                Step.COLUMN_ARCHIVE,
                'ALTER TABLE "d"."t__history" RENAME COLUMN "a" TO "_arch_1_a"',
            ),
            (
                FLIP,
                Step.ALTER,
                'ALTER TABLE "d"."t" ADD COLUMN "a" BIGINT DEFAULT 0 NOT NULL',
            ),
            (FLIP, Step.ALTER, 'ALTER TABLE "d"."t__history" ADD COLUMN "a" BIGINT'),
        ],
    ),
    (
        c.AbandonFilling(
            column="a", target="_new_a", archived_as="_arch_2_a", tables=("t",), source="a"
        ),
        [
            (Phase.PREPARE, None, 'DROP TRIGGER IF EXISTS "t__fill_new_a" ON "d"."t"'),
            (Phase.PREPARE, None, 'DROP FUNCTION IF EXISTS "d"."t__fill_new_a"()'),
            (
                Phase.PREPARE,
                None,
                'ALTER TABLE "d"."t" DROP CONSTRAINT IF EXISTS "ck_a_castable"',
            ),
            (Phase.PREPARE, None, 'ALTER TABLE "d"."t" RENAME COLUMN "_new_a" TO "_arch_2_a"'),
        ],
    ),
    (
        c.SetRequired(table="t", column="a", online=False),
        [(FLIP, Step.ADD_RULE, 'ALTER TABLE "d"."t" ALTER COLUMN "a" SET NOT NULL')],
    ),
    (
        c.SetRequired(table="t", column="a", online=True),
        [
            (
                FLIP,
                Step.ADD_RULE,
                (
                    'ALTER TABLE "d"."t" ADD CONSTRAINT "ck_a_required"'
                    ' CHECK (NOT "a" IS NULL) NOT VALID'
                ),
            ),
            (Phase.ENFORCE, None, 'ALTER TABLE "d"."t" VALIDATE CONSTRAINT "ck_a_required"'),
            (Phase.ENFORCE, None, 'ALTER TABLE "d"."t" ALTER COLUMN "a" SET NOT NULL'),
            (Phase.ENFORCE, None, 'ALTER TABLE "d"."t" DROP CONSTRAINT "ck_a_required"'),
        ],
    ),
    (
        c.DropRequired(table="t", column="a"),
        [(FLIP, Step.DROP_RULE, 'ALTER TABLE "d"."t" ALTER COLUMN "a" DROP NOT NULL')],
    ),
    (
        c.SetDefault(table="t", column=column("a", "date", default=date(2024, 1, 2))),
        [
            (
                FLIP,
                Step.ALTER,
                'ALTER TABLE "d"."t" ALTER COLUMN "a" SET DEFAULT CAST(\'2024-01-02\' AS DATE)',
            )
        ],
    ),
    (
        c.DropDefault(table="t", column="a"),
        [(FLIP, Step.DROP_RULE, 'ALTER TABLE "d"."t" ALTER COLUMN "a" DROP DEFAULT')],
    ),
    (
        c.AddCheck(
            table="t",
            check=check(RuleKind.ALLOWED, ("x", "it's")),
            column_type="text",
            online=True,
        ),
        [
            (
                FLIP,
                Step.ADD_RULE,
                (
                    'ALTER TABLE "d"."t" ADD CONSTRAINT "ck_a"'
                    " CHECK (\"a\" IN ('x', 'it''s')) NOT VALID"
                ),
            ),
            (Phase.ENFORCE, None, 'ALTER TABLE "d"."t" VALIDATE CONSTRAINT "ck_a"'),
        ],
    ),
    (
        c.AddCheck(
            table="t",
            check=check(RuleKind.RANGE, (-5, None)),
            column_type="integer",
            online=False,
        ),
        [
            (
                FLIP,
                Step.ADD_RULE,
                'ALTER TABLE "d"."t" ADD CONSTRAINT "ck_a" CHECK ("a" >= -5)',
            )
        ],
    ),
    (
        c.DropCheck(table="t", check="ck_a"),
        [(FLIP, Step.DROP_RULE, 'ALTER TABLE "d"."t" DROP CONSTRAINT "ck_a"')],
    ),
    (
        c.ValidateCheck(table="t", check="ck_a"),
        [(Phase.ENFORCE, None, 'ALTER TABLE "d"."t" VALIDATE CONSTRAINT "ck_a"')],
    ),
    (
        c.AddIndex(table="t", index=UNIQUE, online=False),
        [(FLIP, Step.ADD_RULE, 'CREATE UNIQUE INDEX "t__uq_a" ON "d"."t"("a", "b")')],
    ),
    (
        c.AddIndex(table="t", index=UNIQUE, online=True, rebuild=True),
        [
            (Phase.ENFORCE, None, 'DROP INDEX CONCURRENTLY IF EXISTS "d"."t__uq_a"'),
            (
                Phase.ENFORCE,
                None,
                'CREATE UNIQUE INDEX CONCURRENTLY "t__uq_a" ON "d"."t"("a", "b")',
            ),
        ],
    ),
    (
        c.AddIndex(
            table="t", index=computed_index("t", IndexKind.SEARCH, ("a", 'b"')), online=True
        ),
        [
            (
                Phase.ENFORCE,
                None,
                (
                    'CREATE INDEX CONCURRENTLY "t__search" ON "d"."t"'
                    ' USING gin("mdm".search_vector(ARRAY["a", "b"""]))'
                ),
            )
        ],
    ),
    (
        c.AddIndex(
            table="t", index=computed_index("t", IndexKind.MATCH, ("a",), "'x"), online=False
        ),
        [
            (
                FLIP,
                Step.ADD_RULE,
                (
                    'CREATE INDEX "t__match" ON "d"."t"'
                    ' USING gin("mdm".match_keys(\'\'\'x\', ARRAY["mdm".index_text("a")]))'
                ),
            )
        ],
    ),
    (
        c.DropIndex(table="t", index=UNIQUE),
        [(FLIP, Step.DROP_RULE, 'DROP INDEX "d"."t__uq_a"')],
    ),
    (
        c.AddForeignKey(table="t", foreign_key=KEY, online=True),
        [
            (
                Phase.LINK,
                None,
                (
                    'ALTER TABLE "d"."t" ADD CONSTRAINT "fk_a" FOREIGN KEY ("a") REFERENCES "d"."u"'
                    ' ("code") DEFERRABLE INITIALLY IMMEDIATE NOT VALID'
                ),
            ),
            (Phase.LINK, None, 'ALTER TABLE "d"."t" VALIDATE CONSTRAINT "fk_a"'),
        ],
    ),
    (
        c.AddForeignKey(table="t", foreign_key=KEY, online=False),
        [
            (
                FLIP,
                Step.ADD_FOREIGN_KEY,
                (
                    'ALTER TABLE "d"."t" ADD CONSTRAINT "fk_a" FOREIGN KEY ("a") REFERENCES "d"."u"'
                    ' ("code") DEFERRABLE INITIALLY IMMEDIATE'
                ),
            )
        ],
    ),
    (
        c.DropForeignKey(table="t", foreign_key=KEY),
        [(FLIP, Step.DROP_FOREIGN_KEY, 'ALTER TABLE "d"."t" DROP CONSTRAINT "fk_a"')],
    ),
    (
        c.ValidateForeignKey(table="t", foreign_key="fk_a"),
        [(Phase.LINK, None, 'ALTER TABLE "d"."t" VALIDATE CONSTRAINT "fk_a"')],
    ),
    (
        c.RenameObject(
            table="t", object_kind=ObjectKind.CONSTRAINT, rename=Rename(old="ck_a", new="ck_b")
        ),
        [(FLIP, Step.RULE_RENAME, 'ALTER TABLE "d"."t" RENAME CONSTRAINT "ck_a" TO "ck_b"')],
    ),
    (
        c.RenameObject(
            table="t", object_kind=ObjectKind.INDEX, rename=Rename(old="i", new="j", aside="_i")
        ),
        [
            (FLIP, Step.RULE_RENAME, 'ALTER INDEX "d"."i" RENAME TO "_i"'),
            (FLIP, Step.RULE_ARRIVE, 'ALTER INDEX "d"."_i" RENAME TO "j"'),
        ],
    ),
    (
        c.CreateView(
            view=View(
                schema="out",
                name="v",
                table="t",
                columns=(("_sys_id", "_sys_id"), ("b", "a")),
                include_deleted=False,
            )
        ),
        [
            (FLIP, Step.CREATE_VIEW, 'CREATE SCHEMA IF NOT EXISTS "out"'),
            (
                FLIP,
                Step.CREATE_VIEW,
                (
                    'CREATE VIEW "out"."v" AS SELECT "_sys_id" AS "_sys_id", "a" AS "b"'
                    ' FROM "d"."t" WHERE NOT "_sys_is_deleted"'
                ),
            ),
        ],
    ),
    (
        c.DropView(schema="out", name="v"),
        [(FLIP, Step.DROP_VIEW, 'DROP VIEW "out"."v"')],
    ),
    (c.ChangeDefinition(fields=()), []),
    (
        c.FinishEntity(entity="t"),
        [
            (
                FLIP,
                Step.METADATA,
                (
                    'UPDATE "mdm"."entity" SET "state" = \'deployed\', "record" = JSONB_SET("record",'
                    " CAST('{state}' AS TEXT[]), CAST('\"deployed\"' AS JSONB)),"
                    ' "deployed_at" = CURRENT_TIMESTAMP'
                    " WHERE \"name\" = 't' AND \"state\" = 'deploying'"
                ),
            )
        ],
    ),
    (
        c.ChangeProject(project=PROJECT),
        [
            (
                FLIP,
                Step.METADATA,
                (
                    'INSERT INTO "mdm"."project" ("singleton", "definition") VALUES (TRUE,'
                    ' CAST(\'{"name":"p","apiVersion":"mdm-gitops/v1"}\' AS JSONB))'
                    ' ON CONFLICT("singleton") DO UPDATE SET "definition" = EXCLUDED."definition"'
                ),
            )
        ],
    ),
    (
        c.GrantPermission(grant=GRANT),
        [
            (
                FLIP,
                Step.METADATA,
                (
                    'INSERT INTO "mdm"."permission"'
                    ' ("principal", "domain", "entity", "actions", "row_filter") VALUES'
                    " ('user:ann', 'sales', 't', CAST(ARRAY['read', 'write'] AS TEXT[]),"
                    " '[a] = ''it''''s''')"
                    ' ON CONFLICT("principal", "domain", "entity", "actions", "row_filter") DO NOTHING'
                ),
            )
        ],
    ),
    (
        c.RevokePermission(grant=GRANT),
        [
            (
                FLIP,
                Step.METADATA,
                (
                    'DELETE FROM "mdm"."permission" WHERE "principal" = \'user:ann\''
                    " AND \"domain\" = 'sales' AND \"entity\" = 't'"
                    " AND \"actions\" = CAST(ARRAY['read', 'write'] AS TEXT[])"
                    " AND \"row_filter\" = '[a] = ''it''''s'''"
                ),
            )
        ],
    ),
    (
        c.AddWebhook(webhook=WEBHOOK),
        [
            (
                FLIP,
                Step.METADATA,
                (
                    'INSERT INTO "mdm"."webhook" ("name", "definition") VALUES (\'hook\','
                    ' CAST(\'{"name":"hook","url":"https://example.org/x"}\' AS JSONB))'
                    ' ON CONFLICT("name") DO UPDATE SET "definition" = EXCLUDED."definition"'
                ),
            )
        ],
    ),
    (
        c.ChangeWebhook(webhook=WEBHOOK, fields=()),
        [
            (
                FLIP,
                Step.METADATA,
                (
                    'INSERT INTO "mdm"."webhook" ("name", "definition") VALUES (\'hook\','
                    ' CAST(\'{"name":"hook","url":"https://example.org/x"}\' AS JSONB))'
                    ' ON CONFLICT("name") DO UPDATE SET "definition" = EXCLUDED."definition"'
                ),
            )
        ],
    ),
    (
        c.RemoveWebhook(name="hook"),
        [(FLIP, Step.METADATA, 'DELETE FROM "mdm"."webhook" WHERE "name" = \'hook\'')],
    ),
    (
        SEED,
        [
            (Phase.SEED, None, "SET CONSTRAINTS ALL DEFERRED"),
            (
                Phase.SEED,
                None,
                (
                    'WITH given AS (SELECT * FROM JSONB_TO_RECORDSET(CAST(\'[{"a":"x"}]\' AS JSONB))'
                    ' AS r("a" TEXT)) INSERT INTO "d"."t" ("_sys_id", "a", "_sys_version",'
                    ' "_sys_created_at", "_sys_created_by", "_sys_last_modified_at",'
                    ' "_sys_last_modified_by", "_sys_is_deleted") SELECT "mdm"."uuid_v7"(), given."a",'
                    " 1, CURRENT_TIMESTAMP, 'system:seed', CURRENT_TIMESTAMP, 'system:seed', FALSE"
                    ' FROM given ON CONFLICT("a") DO NOTHING'
                ),
            ),
            (
                Phase.SEED,
                None,
                (
                    'INSERT INTO "mdm"."seed" ("entity_id", "content_hash", "applied_at") SELECT'
                    f" \"entity_id\", '{SEED.seed.content_hash}', CURRENT_TIMESTAMP"
                    ' FROM "mdm"."entity" WHERE "name" = \'t\' AND "state" <> \'removed\''
                    ' ON CONFLICT("entity_id") DO UPDATE SET'
                    ' "content_hash" = EXCLUDED."content_hash", "applied_at" = EXCLUDED."applied_at"'
                ),
            ),
        ],
    ),
)


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
