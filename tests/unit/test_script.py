"""How the statements of a plan become numbered steps, and how those read for ``psql``."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from mdm_gitops.model import Action, ChangeClass, Entity, PermissionGrant, Seed, SeedMode
from mdm_gitops.plan import changes as c
from mdm_gitops.plan.changes import Change, Phase, Rename, SeedCounts
from mdm_gitops.plan.physical import Check, ForeignKey, Index, PhysicalColumn, RuleKind
from mdm_gitops.plan.plan import Assessment, Lock, Plan, PlannedChange
from mdm_gitops.plan.recorded import Counters, EntityState, RecordedColumn, RecordedEntity
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.psql import to_psql
from mdm_gitops.warehouse.script import Script, ScriptStep, build_script

SCHEMAS = Schemas(config="mdm", data="d")
INDEX = Index(name="t__uq_a", columns=("a",), unique=True)
CHECK = Check(name="ck_a_length", column="a", rule=RuleKind.LENGTH, argument=5)
KEY = ForeignKey(name="fk_a", column="a", target_table="u", target_column="a")
GRANT = PermissionGrant(
    principal="ann", domain="*", entity="", actions=(Action.READ,), row_filter=""
)


def record(name: str, number: int, state: EntityState = EntityState.DEPLOYING) -> RecordedEntity:
    definition = {
        "name": name,
        "domain": "x",
        "columns": [{"name": "a", "dataType": "string"}],
        "lifecycle": {"preventRemove": number == 2},
    }
    return RecordedEntity(
        entity_id=number,
        name=name,
        state=state,
        definition=Entity.model_validate(definition),
        desired_hash="h",
        targets=MappingProxyType({}),
        columns=(RecordedColumn(key=1, name="a", physical="a", type="text"),),
        main=name,
    )


def seed(entity: str, group: int) -> c.ApplySeed:
    return c.ApplySeed(
        entity=entity,
        seed=Seed.of(entity, ({"a": "x"},)),
        mode=SeedMode.UPSERT,
        table=entity,
        history_table=None,
        user_columns=(c.UserColumn(name="a", shown="a"),),
        key_columns=("a",),
        columns=(PhysicalColumn(name="a", type="text"),),
        counts=SeedCounts(),
        group=group,
    )


def retype(entity: str = "t") -> c.RetypeColumn:
    return c.RetypeColumn(
        entity=entity,
        column="a",
        source="a",
        archived_as="_arch_1_a",
        old_type="text",
        new=PhysicalColumn(name="a", type="integer"),
        main_table=entity,
        tables=(entity,),
        filling=c.Filling(
            entity=entity,
            source="a",
            target="_new_a",
            taken_from=None,
            exists=False,
            tables=(entity,),
        ),
    )


def script(*changes: Change, **more: Any) -> Script:
    cost = Assessment(change_class=ChangeClass.SAFE)
    planned = tuple(
        PlannedChange(number=n, change=change, assessment=cost)
        for n, change in enumerate(changes, start=1)
    )
    plan = Plan(
        project="p",
        base_commit="c0ffee",
        desired_hash="",
        live_fingerprint="",
        changes=planned,
        plan_id="id",
        **more,
    )
    return build_script(plan, schemas=SCHEMAS, actor="ann")


def outline(steps: tuple[ScriptStep, ...]) -> list[tuple[int, str, bool, tuple[int, ...]]]:
    return [(s.number, s.phase.value, s.transactional, s.changes) for s in steps]


def test_an_empty_plan_has_no_steps() -> None:
    assert script().steps == ()
    assert to_psql(script()).splitlines()[-1] == "-- nothing to do"


def test_steps_go_by_phase_and_each_is_one_unit() -> None:
    made = script(
        c.AddIndex(entity="t", table="t", index=INDEX, online=True, rebuild=True),
        c.AddForeignKey(entity="t", table="t", foreign_key=KEY, online=True),
        seed("t", 1),
        c.SetRequired(entity="t", table="t", column="a", online=True),
        c.GrantPermission(grant=GRANT),
        records=(record("t", 1),),
    )
    assert outline(made.steps) == [
        (1, "flip", True, (4, 5)),
        (2, "enforce", False, (1,)),  # drop what is left over
        (3, "enforce", False, (1,)),  # build
        (4, "enforce", True, (4,)),  # prove
        (5, "enforce", True, (4,)),  # set not null, drop the helper
        (6, "seed", True, (3,)),
        (7, "link", True, (2,)),
        (8, "link", True, (2,)),
        (9, "finish", True, ()),
    ]
    assert [step.lock for step in made.steps] == [
        Lock.ACCESS_EXCLUSIVE,
        Lock.SHARE_UPDATE_EXCLUSIVE,
        Lock.SHARE_UPDATE_EXCLUSIVE,
        Lock.SHARE_UPDATE_EXCLUSIVE,
        Lock.ACCESS_EXCLUSIVE,
        Lock.ROW_EXCLUSIVE,
        Lock.SHARE_ROW_EXCLUSIVE,
        Lock.SHARE_UPDATE_EXCLUSIVE,
        Lock.ROW_EXCLUSIVE,
    ]
    assert [step.scans for step in made.steps] == [
        False,
        False,
        True,
        True,
        *[False] * 3,
        True,
        False,
    ]
    assert made.of(Phase.LINK) == made.steps[6:8]


def test_an_online_step_notes_what_it_changed_in_its_own_transaction() -> None:
    made = script(c.AddForeignKey(entity="t", table="t", foreign_key=KEY, online=True))
    [add, prove] = made.of(Phase.LINK)
    assert add.statements[-1].sql == (
        "SELECT \"mdm\".\"remember_relation\"(CAST(ARRAY['d', 'd'] AS TEXT[]),"
        " CAST(ARRAY['t', 'u'] AS TEXT[]))"
    )
    assert "ARRAY['t']" in prove.statements[-1].sql


def test_the_flip_goes_by_step_and_then_by_change() -> None:
    made = script(
        c.AddCheck(entity="t", table="t", check=CHECK, column_type="text", online=False),
        c.RenameColumn(entity="t", column=Rename(old="b", new="a"), tables=("t",)),
        c.RenameEntity(entity="t", old_entity="s", tables=(Rename(old="s", new="t"),)),
        c.DropIndex(entity="t", table="s", index=INDEX),
        c.DropView(entity="t", schema="v", name="w"),
        c.RemoveColumn(
            entity="t", column="a", archived_as="_arch_1_a", main_table="t", tables=("t",)
        ),
    )
    [flip] = made.of(Phase.FLIP)
    assert [s.sql for s in flip.statements][:6] == [
        'DROP VIEW "v"."w"',
        'DROP INDEX "d"."t__uq_a"',
        'ALTER TABLE "d"."s" RENAME TO "t"',
        'ALTER TABLE "d"."t" RENAME COLUMN "a" TO "_arch_1_a"',
        'ALTER TABLE "d"."t" RENAME COLUMN "b" TO "a"',
        'ALTER TABLE "d"."t" ADD CONSTRAINT "ck_a_length" CHECK (LENGTH("a") <= 5)',
    ]


def test_the_flip_ends_with_the_records_and_the_looks() -> None:
    made = script(
        c.ChangeDefinition(entity="t", fields=()),
        records=(record("t", 1), record("u", 2, EntityState.REMOVED)),
        counters=Counters(entity=2, archive=7),
        remembered=(("d", "t"),),
        forgotten=(("d", "old"),),
    )
    [flip] = made.steps
    sql = [statement.sql for statement in flip.statements]
    assert sql[0] == (
        'UPDATE "mdm"."entity" SET "name" = \'#\' || "entity_id" WHERE "entity_id" IN (1, 2)'
    )
    assert "'t', 'deployed', 'h', FALSE" in sql[1] and '"state":"deployed"' in sql[1]
    assert "'u', 'removed', 'h', TRUE" in sql[2]
    assert "'c0ffee', CURRENT_TIMESTAMP)" in sql[1]
    assert sql[3:] == [
        'UPDATE "mdm"."counter" SET "value" = GREATEST("value", 2) WHERE "name" = \'entity\'',
        'UPDATE "mdm"."counter" SET "value" = GREATEST("value", 7) WHERE "name" = \'archive\'',
        'UPDATE "mdm"."project" SET "commit_id" = \'c0ffee\'',
        (
            'DELETE FROM "mdm"."deployed_relation"'
            " WHERE (\"schema_name\", \"relation_name\") IN (('d', 'old'))"
        ),
        "SELECT \"mdm\".\"remember_relation\"(CAST(ARRAY['d'] AS TEXT[]), CAST(ARRAY['t'] AS TEXT[]))",
    ]


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (c.ChangeDefinition(entity="t", fields=()), "deployed"),
        (c.ValidateCheck(entity="t", table="t", check="ck"), "deploying"),
        (c.ValidateForeignKey(entity="t", table="t", foreign_key="fk"), "deploying"),
        (seed("t", 1), "deploying"),
        (c.ValidateCheck(entity="other", table="o", check="ck"), "deployed"),
    ],
)
def test_an_entity_is_deployed_at_once_unless_steps_of_it_follow(
    change: Change, state: str
) -> None:
    made = script(change, records=(record("t", 1),))
    [flip] = made.of(Phase.FLIP)
    assert f"'t', '{state}', 'h'" in flip.statements[1].sql
    finish = [s.sql for step in made.of(Phase.FINISH) for s in step.statements]
    assert len(finish) == (state == "deploying")
    assert all('WHERE "entity_id" IN (1) AND "state" = \'deploying\'' in sql for sql in finish)


def test_a_column_under_way_is_recorded_with_its_coming_into_being() -> None:
    begun = replace(record("t", 1), state=EntityState.DEPLOYED, desired_hash="before")
    made = script(
        retype(),
        records=(record("t", 1),),
        preparing=((1, begun),),
        counters=Counters(entity=1, archive=1),
    )
    prepare = made.of(Phase.PREPARE)
    assert [[s.title for s in step.statements] for step in prepare] == [
        [
            "begin to fill t._new_a",
            "record t",
            "count up to entity 1",
            "count up to archive 1",
            "note how t look now",
        ],
        [
            "make the function that fills t._new_a",
            "make the trigger that fills t._new_a",
            "make room for the check that fills t._new_a",
            "add the check that fills t._new_a",
            "note how t look now",
        ],
        ["fill t._new_a from a"],
        ["prove that t.a is cast", "note how t look now"],
    ]
    noted = prepare[0].statements[1].sql
    assert "'before'" in noted and "commit_id" not in noted and "deployed_at" not in noted


def test_what_is_given_up_makes_room_first() -> None:
    abandon = c.AbandonFilling(
        entity="t", column="a", target="_new_a", archived_as="_arch_1_a", tables=("t",)
    )
    made = script(retype(), abandon)
    assert [step.changes for step in made.of(Phase.PREPARE)] == [(2,), (1,), (1,), (1,), (1,)]


def test_seeds_of_a_circle_share_a_transaction_and_groups_ascend() -> None:
    made = script(seed("late", 10), seed("a", 2), seed("b", 2))
    seeds = made.of(Phase.SEED)
    assert [(step.title, step.changes) for step in seeds] == [
        ("seed a, b", (2, 3)),
        ("seed late", (1,)),
    ]
    assert seeds[0].statements[0].sql == "SET CONSTRAINTS ALL DEFERRED"


# --- psql -----------------------------------------------------------------------------------------


def test_the_text_for_psql_says_what_each_step_holds_and_what_a_failure_means() -> None:
    text = to_psql(
        script(
            c.AddIndex(entity="t", table="t", index=INDEX, online=True),
            records=(record("t", 1),),
        )
    )
    lines = text.splitlines()
    assert lines[:10] == [
        "-- plan id of project p",
        "-- commit c0ffee, asked for by ann",
        "-- 3 steps; run with: psql -v ON_ERROR_STOP=1 -f THIS_FILE",
        "\\set ON_ERROR_STOP on",
        "SET search_path = '';",
        "SET timezone = 'UTC';",
        "SET datestyle = 'ISO';",
        "SET standard_conforming_strings = on;",
        "SET statement_timeout = 0;",
        "SET client_min_messages = warning;",
    ]
    assert lines[10:16] == [
        "",
        "-- step 1 of 3, flip: change tables, rules and records in one transaction (0 statements)",
        "-- lock: ROW EXCLUSIVE, brief",
        (
            "-- if it fails: all of this transaction is taken back; the steps before it stay"
            " and do no harm"
        ),
        "BEGIN;",
        "SET LOCAL lock_timeout = '3s';",
    ]
    at = lines.index("-- step 2 of 3, enforce: build unique index t__uq_a on t")
    assert lines[at : at + 9] == [
        "-- step 2 of 3, enforce: build unique index t__uq_a on t",
        "-- lock: SHARE UPDATE EXCLUSIVE, held while each row is read",
        "-- if it fails: the rule does not hold for all rows yet; a new plan tries again",
        "SET lock_timeout = '600s';",
        "-- build unique index t__uq_a on t",
        'CREATE UNIQUE INDEX CONCURRENTLY "t__uq_a" ON "d"."t"("a");',
        "-- note how t look now",
        (
            'SELECT "mdm"."remember_relation"(CAST(ARRAY[\'d\'] AS TEXT[]),'
            " CAST(ARRAY['t'] AS TEXT[]));"
        ),
        "RESET lock_timeout;",
    ]
    assert text.count("BEGIN;") == text.count("COMMIT;") == 2
    assert '"plan_id"' in lines[-1] and "'id', 'c0ffee', 'ann', 'succeeded'" in lines[-1]


def test_words_cannot_leave_their_comment() -> None:
    made = script(c.RemoveWebhook(name="x\n\\! rm -rf\r\nDROP"))
    lines = to_psql(replace(made, project="p\nDROP TABLE x", actor="a\rb")).splitlines()
    assert lines[0] == "-- plan id of project p DROP TABLE x"
    assert lines[1] == "-- commit c0ffee, asked for by a b"
    assert "-- remove webhook x \\! rm -rf DROP" in lines
