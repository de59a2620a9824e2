"""Changes of tables and columns with the SQL they become, and what they are made of."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from mdm_gitops.model import Action, PermissionGrant, Project, Seed, SeedMode, Webhook
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.changes import Change, Filling, Phase, Rename, SeedCounts, Step
from mdm_gitops.plan.physical import (
    Check,
    ForeignKey,
    Index,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
)
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
    user_columns=(c.UserColumn(name="a", shown="a"),),
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
)
