"""Changes of rules, keys, views and records with the SQL they become, as in ``ddl_samples``."""

from __future__ import annotations

from mdm_gitops.plan import changes as c
from mdm_gitops.plan.changes import Change, ObjectKind, Phase, Rename, Step
from mdm_gitops.plan.physical import (
    IndexKind,
    RuleKind,
    View,
    computed_index,
)
from tests.unit.ddl_samples import FLIP, GRANT, KEY, PROJECT, SEED, UNIQUE, WEBHOOK, check

CASES: tuple[tuple[Change, list[tuple[Phase, Step | None, str]]], ...] = (
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
                    " ON CONFLICT DO NOTHING"
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
                    ' AS r("a" TEXT)), inserted AS (INSERT INTO "d"."t" ("_sys_id", "a", "_sys_version",'
                    ' "_sys_created_at", "_sys_created_by", "_sys_last_modified_at",'
                    ' "_sys_last_modified_by", "_sys_is_deleted") SELECT "mdm"."uuid_v7"(), given."a",'
                    " 1, CURRENT_TIMESTAMP, 'system:seed', CURRENT_TIMESTAMP, 'system:seed', FALSE"
                    ' FROM given ON CONFLICT("a") DO NOTHING RETURNING *),'
                    " done AS (SELECT 'data_created' AS action, inserted.\"_sys_id\","
                    ' inserted."_sys_version", CAST(NULL AS JSON) AS old, (SELECT ROW_TO_JSON(x) FROM'
                    ' (SELECT inserted."a" AS "a") AS x) AS new FROM inserted),'
                    ' key AS (SELECT NEXTVAL(CAST(\'"mdm"."change_set_key"\' AS REGCLASS)) AS key'
                    " WHERE EXISTS(SELECT 1 FROM done)),"
                    ' events AS (INSERT INTO "mdm"."event" ("change_set", "ordinal", "entity_id",'
                    ' "record_id", "version", "action", "old", "new") SELECT key."key",'
                    ' ROW_NUMBER() OVER () - 1, (SELECT "entity_id" FROM "mdm"."entity" WHERE'
                    ' "name" = \'t\' AND "state" <> \'removed\'), done."_sys_id",'
                    ' done."_sys_version", done."action", done."old", done."new" FROM done'
                    " CROSS JOIN key RETURNING 1)"
                    ' INSERT INTO "mdm"."change_set" ("key", "events", "occurred_at", "actor",'
                    ' "commit_id") SELECT key."key", told."n", STATEMENT_TIMESTAMP(),'
                    ' \'system:seed\', (SELECT "commit_id" FROM "mdm"."project") FROM key'
                    " CROSS JOIN (SELECT CAST(COUNT(*) AS INT) AS n FROM events) AS told"
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
