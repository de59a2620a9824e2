"""Every kind of change by hand is shown; what is ours is set right, what is strange is left alone.

Afterwards the plan is empty, the catalog is what was deployed (strange things apart), and no row is
lost. ``mdm-gitops drift`` shows the same from the records alone, without the definitions.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from mdm_gitops.errors import PlanRefused
from mdm_gitops.model import Definitions
from mdm_gitops.plan.changes import Phase
from mdm_gitops.plan.plan import DriftKind
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.script import build_script
from tests.conftest import Prepare
from tests.support import warehouses as on
from tests.support.scenario import column, definitions, entity

pytestmark = pytest.mark.anyio

MISSING, ALTERED, STRANGE = DriftKind.MISSING, DriftKind.ALTERED, DriftKind.STRANGE


def deployed(**fields: Any) -> Definitions:
    item = entity(
        "item",
        column("name", maxLength=10, default="x", nullable=False),
        column("email", unique=True),
        column("size", "int", minValue=0),
        column("country", reference={"entity": "country"}),
        column("note"),
        historyEnabled=True,
        approvalRequired=True,
        consumption={"views": [{"schema": "lab_views", "name": "item_v"}]},
        **fields,
    )
    return definitions(item, entity("country"))


_ROWS = """
INSERT INTO mdm_data.country (_sys_id, code, _sys_created_at, _sys_created_by,
    _sys_last_modified_at, _sys_last_modified_by)
VALUES (mdm.uuid_v7(), 'CH', now(), 'user:a', now(), 'user:a');
INSERT INTO mdm_data.item (_sys_id, code, name, email, size, country, note, _sys_created_at,
    _sys_created_by, _sys_last_modified_at, _sys_last_modified_by)
SELECT mdm.uuid_v7(), 'i' || n, 'n' || n, 'e' || n, n, 'CH', 'note', now(), 'user:a', now(), 'user:a'
  FROM generate_series(1, 3) AS n
"""


async def _prepare(conn: AsyncConnection[Any]) -> None:
    await on.apply(conn, deployed())
    for statement in _ROWS.split(";"):
        await conn.execute(statement)


@pytest.fixture
async def warehouse(copy_of: Callable[[Prepare], str]) -> AsyncIterator[AsyncConnection[Any]]:
    async with await connect(copy_of(_prepare), application_name="test") as conn:
        yield conn


@dataclass(frozen=True, kw_only=True)
class Case:
    by_hand: str
    shown: tuple[tuple[DriftKind, str, str], ...]
    kinds: tuple[str, ...]  # of the changes that set it right
    stays: bool = False  # something strange is left standing


DROPPED, BY_HAND = "was dropped by hand", "was changed by hand"
ADDED = "was added by hand"

OURS = {
    "index": Case(
        by_hand="DROP INDEX mdm_data.item__uq_email",
        shown=((MISSING, "index item__uq_email", DROPPED),),
        kinds=("add-index",),
    ),
    "reference index": Case(
        by_hand="DROP INDEX mdm_data.item__ix_country",
        shown=((MISSING, "index item__ix_country", DROPPED),),
        kinds=("add-index",),
    ),
    "check": Case(
        by_hand="ALTER TABLE mdm_data.item DROP CONSTRAINT ck_name_length",
        shown=((MISSING, "check ck_name_length", DROPPED),),
        kinds=("add-check",),
    ),
    "check altered": Case(
        by_hand="ALTER TABLE mdm_data.item DROP CONSTRAINT ck_size_range,"
        " ADD CONSTRAINT ck_size_range CHECK (size >= -5)",
        shown=((ALTERED, "check ck_size_range", BY_HAND),),
        kinds=("add-check", "drop-check"),
    ),
    "check renamed": Case(
        by_hand="ALTER TABLE mdm_data.item RENAME CONSTRAINT ck_size_range TO mine",
        shown=(
            (MISSING, "check ck_size_range", DROPPED),
            (STRANGE, "check mine on item", ADDED),
        ),
        kinds=("add-check",),
        stays=True,
    ),
    "check not validated": Case(
        by_hand="DO $$ BEGIN EXECUTE (SELECT 'ALTER TABLE mdm_data.item DROP CONSTRAINT"
        " ck_size_range, ADD CONSTRAINT ck_size_range ' || pg_get_constraintdef(oid) || ' NOT VALID'"
        " FROM pg_constraint WHERE conname = 'ck_size_range') ; END $$",
        shown=((ALTERED, "check ck_size_range", "has not been validated"),),
        kinds=("validate-check",),
    ),
    "foreign key": Case(
        by_hand="ALTER TABLE mdm_data.item DROP CONSTRAINT fk_country",
        shown=((MISSING, "foreign key fk_country", DROPPED),),
        kinds=("add-foreign-key",),
    ),
    "foreign key not validated": Case(
        by_hand="ALTER TABLE mdm_data.item DROP CONSTRAINT fk_country,"
        " ADD CONSTRAINT fk_country FOREIGN KEY (country) REFERENCES mdm_data.country (code)"
        " DEFERRABLE NOT VALID",
        shown=((ALTERED, "foreign key fk_country", "has not been validated"),),
        kinds=("validate-foreign-key",),
    ),
    "foreign key with an action": Case(
        by_hand="ALTER TABLE mdm_data.item DROP CONSTRAINT fk_country,"
        " ADD CONSTRAINT fk_country FOREIGN KEY (country) REFERENCES mdm_data.country (code)"
        " ON DELETE CASCADE",
        shown=((ALTERED, "foreign key fk_country", BY_HAND),),
        kinds=("add-foreign-key", "drop-foreign-key"),
    ),
    "not null": Case(
        by_hand="ALTER TABLE mdm_data.item ALTER name DROP NOT NULL",
        shown=((ALTERED, "column item.name", "accepts null"),),
        kinds=("set-required",),
    ),
    "null": Case(
        by_hand="ALTER TABLE mdm_data.item ALTER note SET NOT NULL",
        shown=((ALTERED, "column item.note", "refuses null"),),
        kinds=("drop-required",),
    ),
    "default": Case(
        by_hand="ALTER TABLE mdm_data.item ALTER name DROP DEFAULT",
        shown=((ALTERED, "column item.name", "has lost its default"),),
        kinds=("set-default",),
    ),
    "default altered": Case(
        by_hand="ALTER TABLE mdm_data.item ALTER name SET DEFAULT 'y'",
        shown=((ALTERED, "column item.name", "has the default 'y'::text"),),
        kinds=("set-default",),
    ),
    "default added": Case(
        by_hand="ALTER TABLE mdm_data.item ALTER note SET DEFAULT 'y'",
        shown=((ALTERED, "column item.note", "has the default 'y'::text"),),
        kinds=("drop-default",),
    ),
    "column": Case(
        by_hand="DROP VIEW lab_views.item_v; ALTER TABLE mdm_data.item DROP COLUMN note",
        shown=(
            (MISSING, "column item.note", DROPPED),
            (MISSING, "view lab_views.item_v", DROPPED),
        ),
        kinds=("add-column", "create-view"),
    ),
    "column of the history": Case(
        by_hand="ALTER TABLE mdm_data.item__history DROP COLUMN note",
        shown=((MISSING, "column item__history.note", DROPPED),),
        kinds=("add-column",),
    ),
    "column renamed": Case(
        by_hand="ALTER TABLE mdm_data.item RENAME note TO remark",
        shown=(
            (MISSING, "column item.note", DROPPED),
            (STRANGE, "column item.remark", ADDED),
            (ALTERED, "view lab_views.item_v", BY_HAND),
        ),
        kinds=("add-column", "create-view", "drop-view"),
        stays=True,
    ),
    "column of another type": Case(
        by_hand="DROP VIEW lab_views.item_v; ALTER TABLE mdm_data.item ALTER size TYPE bigint",
        shown=(
            (ALTERED, "column item.size", "has type bigint instead of integer"),
            (MISSING, "view lab_views.item_v", DROPPED),
        ),
        kinds=("add-check", "create-view", "drop-check", "retype-column"),
    ),
    "history table": Case(
        by_hand="DROP TABLE mdm_data.item__history",
        shown=((MISSING, "table item__history", DROPPED),),
        kinds=("add-index", "add-satellite"),
    ),
    "edit table": Case(
        by_hand="DROP TABLE mdm_data.item__edit",
        shown=((MISSING, "table item__edit", DROPPED),),
        kinds=("add-index", "add-satellite"),
    ),
    "view": Case(
        by_hand="DROP VIEW lab_views.item_v",
        shown=((MISSING, "view lab_views.item_v", DROPPED),),
        kinds=("create-view",),
    ),
    "view altered": Case(
        by_hand="CREATE OR REPLACE VIEW lab_views.item_v AS"
        " SELECT code, name, email, size, country, note FROM mdm_data.item",
        shown=((ALTERED, "view lab_views.item_v", BY_HAND),),
        kinds=("create-view", "drop-view"),
    ),
    "index invalid": Case(
        by_hand="DROP INDEX mdm_data.item__uq_email; UPDATE mdm_data.item SET email = 'same';"
        " CREATE UNIQUE INDEX CONCURRENTLY item__uq_email ON mdm_data.item (email);"
        " UPDATE mdm_data.item SET email = code",
        shown=((ALTERED, "index item__uq_email", "is marked invalid by PostgreSQL"),),
        kinds=("add-index",),
    ),
    "primary key renamed": Case(
        by_hand="ALTER TABLE mdm_data.item RENAME CONSTRAINT item__pk TO mine",
        shown=((ALTERED, "primary key item__pk", "is called mine"),),
        kinds=("rename-object",),
    ),
    "index renamed": Case(
        by_hand="ALTER INDEX mdm_data.item__uq_email RENAME TO mine",
        shown=(
            (MISSING, "index item__uq_email", DROPPED),
            (STRANGE, "index mine on item", ADDED),
        ),
        kinds=("add-index",),
        stays=True,
    ),
    "index altered": Case(
        by_hand="DROP INDEX mdm_data.item__uq_email;"
        " CREATE INDEX item__uq_email ON mdm_data.item (email)",
        shown=((ALTERED, "index item__uq_email", BY_HAND),),
        kinds=("add-index", "drop-index"),
    ),
    "index partial": Case(
        by_hand="DROP INDEX mdm_data.item__uq_email;"
        " CREATE UNIQUE INDEX item__uq_email ON mdm_data.item (email) WHERE size > 1",
        shown=((ALTERED, "index item__uq_email", BY_HAND),),
        kinds=("add-index", "drop-index"),
    ),
}
_FOREIGN_KEY = """
ALTER TABLE mdm_data.item ADD CONSTRAINT mine
    FOREIGN KEY (country) REFERENCES mdm_data.country (code) DEFERRABLE
"""
_TRIGGER = """
CREATE TRIGGER mine BEFORE UPDATE ON mdm_data.item
    FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()
"""
STRANGERS = {
    "column": ("ALTER TABLE mdm_data.item ADD mine int", "column item.mine"),
    "column of the history": (
        "ALTER TABLE mdm_data.item__history ADD mine int",
        "column item__history.mine",
    ),
    "index": ("CREATE INDEX mine ON mdm_data.item (note)", "index mine on item"),
    "check": (
        "ALTER TABLE mdm_data.item ADD CONSTRAINT mine CHECK (size < 9)",
        "check mine on item",
    ),
    "unique": (
        "ALTER TABLE mdm_data.item ADD CONSTRAINT mine UNIQUE (note, code)",
        "constraint mine on item",
    ),
    "foreign key": (_FOREIGN_KEY, "foreign key mine on item"),
    "trigger": (_TRIGGER, "trigger mine on item"),
}


@pytest.mark.parametrize("case", OURS.values(), ids=OURS)
async def test_ours_is_shown_and_set_right(case: Case, warehouse: AsyncConnection[Any]) -> None:
    expected = await on.catalog(warehouse)
    rows = await _keys(warehouse)
    await _by_hand(warehouse, case.by_hand)
    plan = await on.plan(warehouse, deployed())
    assert tuple((d.kind, d.object, d.message) for d in plan.drift) == case.shown
    assert tuple(sorted({c.change.kind for c in plan.changes})) == case.kinds
    await on.apply(warehouse, deployed())
    after = await on.plan(warehouse, deployed())
    assert after.changes == ()
    assert {item.kind for item in after.drift} == ({STRANGE} if case.stays else set())
    if not case.stays:
        assert await on.catalog(warehouse) == expected
    assert await _keys(warehouse) == rows


@pytest.mark.parametrize("name", STRANGERS)
async def test_what_is_strange_is_shown_and_left_alone(
    name: str, warehouse: AsyncConnection[Any]
) -> None:
    """Also when the entity is deployed anew around it, and again after that."""
    statement, shown = STRANGERS[name]
    await warehouse.execute(statement)
    for wanted in (deployed(), deployed(displayName="Thing"), deployed(aliases=["x"])):
        plan = await on.plan(warehouse, wanted)
        assert [(d.kind, d.object, d.message) for d in plan.drift] == [(STRANGE, shown, ADDED)]
        assert {c.change.kind for c in plan.changes} <= {"change-definition"}
        await on.apply(warehouse, wanted)
        assert "mine" in str(await on.catalog(warehouse))


async def _by_hand(conn: AsyncConnection[Any], statements: str) -> None:
    whole = statements.startswith("DO ")
    for statement in [statements] if whole else statements.split(";"):
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            await conn.execute(statement)


async def _keys(conn: AsyncConnection[Any]) -> list[Any]:
    found = await conn.execute("SELECT code, name, size, country FROM mdm_data.item ORDER BY code")
    return await found.fetchall()


async def test_a_main_table_that_was_dropped_is_made_again(
    warehouse: AsyncConnection[Any],
) -> None:
    """Its rows are gone, those of its seed are back; history and pending changes are archived."""
    await _keep_a_version(warehouse)
    expected = await on.catalog(warehouse)
    await warehouse.execute("DROP TABLE mdm_data.item CASCADE")
    plan = await on.plan(warehouse, deployed())
    assert (MISSING, "table item", DROPPED) in [(d.kind, d.object, d.message) for d in plan.drift]
    await on.apply(warehouse, deployed())
    assert (await on.plan(warehouse, deployed())).changes == ()
    assert await on.catalog(warehouse) == expected
    found = await warehouse.execute("SELECT code FROM mdm_data.item__archive_1_h")
    assert await found.fetchall() == [("old",)]


async def test_a_seeded_table_that_was_dropped_is_seeded_again(conn: AsyncConnection[Any]) -> None:
    wanted = definitions(entity("country"), seeds={"country": [{"code": "CH"}]})
    await on.apply(conn, wanted)
    await conn.execute("DROP TABLE mdm_data.country")
    await on.apply(conn, wanted)
    found = await conn.execute("SELECT code FROM mdm_data.country")
    assert await found.fetchall() == [("CH",)]
    assert (await on.plan(conn, wanted)).is_empty


async def test_an_entity_whose_table_was_dropped_can_be_removed(
    warehouse: AsyncConnection[Any],
) -> None:
    await warehouse.execute("DROP TABLE mdm_data.item CASCADE")
    await on.apply(warehouse, definitions(entity("country")))
    assert (await on.plan(warehouse, definitions(entity("country")))).is_empty
    await on.apply(warehouse, deployed())
    assert (await on.plan(warehouse, deployed())).is_empty


async def test_a_main_table_that_was_renamed_by_hand_is_missing_and_kept(
    warehouse: AsyncConnection[Any],
) -> None:
    await warehouse.execute("ALTER TABLE mdm_data.item RENAME TO thing")
    plan = await on.plan(warehouse, deployed())
    assert (MISSING, "table item", DROPPED) in [(d.kind, d.object, d.message) for d in plan.drift]
    with pytest.raises(PlanRefused, match="already exists"):  # its indexes hold our names
        await on.apply(warehouse, deployed())
    assert (await on.plan(warehouse, deployed())).plan_id == plan.plan_id
    await warehouse.execute("ALTER TABLE mdm_data.thing RENAME TO item")
    assert (await on.plan(warehouse, deployed())).is_empty


async def _keep_a_version(conn: AsyncConnection[Any]) -> None:
    await conn.execute(
        "INSERT INTO mdm_data.item__history (_sys_id, code, _sys_version, _sys_created_at,"
        " _sys_created_by, _sys_last_modified_at, _sys_last_modified_by, _sys_is_deleted,"
        " _sys_valid_from, _sys_valid_to, _sys_action)"
        " VALUES (mdm.uuid_v7(), 'old', 1, now(), 'a', now(), 'a', false, now(), now(), 'x')"
    )


async def test_a_filling_whose_trigger_was_dropped_by_hand_misses_no_write(
    warehouse: AsyncConnection[Any],
) -> None:
    """Killed while a column is filled, then robbed of its trigger: the next run puts it back first."""
    retyped = definitions(
        entity("item", column("size", "long"), historyEnabled=True, approvalRequired=True),
        entity("country"),
    )
    plan = await on.plan(warehouse, retyped)
    for step in build_script(plan, schemas=on.SCHEMAS, actor="x").of(Phase.PREPARE)[:4]:
        async with warehouse.transaction():
            for statement in step.statements:
                await warehouse.execute(statement.sql.encode())
    triggers = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = %s::regclass"
    [(trigger,)] = await (await warehouse.execute(triggers, ["mdm_data.item"])).fetchall()
    await warehouse.execute(f'DROP TRIGGER "{trigger}" ON mdm_data.item')
    await warehouse.execute("UPDATE mdm_data.item SET size = 70 + size")
    await on.apply(warehouse, retyped)
    found = await warehouse.execute("SELECT size FROM mdm_data.item ORDER BY code")
    assert await found.fetchall() == [(71,), (72,), (73,)]
    after = await on.plan(warehouse, retyped)
    assert (after.changes, after.drift) == ((), ())
