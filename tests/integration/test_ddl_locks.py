"""What our statements really lock, read and rewrite on a table with rows, measured on the server.

The harness (``support.lock_observer``) must catch the naive form of each change too (``NAIVE``), else
its silence about ours would mean nothing. What cannot be in a transaction is in
``test_index_builds``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

from mdm_gitops.plan.changes import (
    AddCheck,
    AddColumn,
    AddForeignKey,
    AddSatellite,
    Change,
    CreateView,
    DropCheck,
    DropDefault,
    DropForeignKey,
    DropIndex,
    DropRequired,
    DropView,
    Filling,
    ObjectKind,
    RemoveColumn,
    Rename,
    RenameColumn,
    RenameEntity,
    RenameObject,
    RetypeColumn,
    SetDefault,
    SetRequired,
    ValidateCheck,
    WidenColumn,
)
from mdm_gitops.plan.physical import (
    Check,
    ForeignKey,
    Index,
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    View,
    satellite,
)
from mdm_gitops.plan.plan import Lock
from tests.support.lock_observer import (
    WITH_ROWS,
    Observed,
    Observer,
    observing,
    steps_of,
    strongest_of,
)

pytestmark = pytest.mark.anyio

BLOCKS_WRITERS = (Lock.SHARE, Lock.SHARE_ROW_EXCLUSIVE, Lock.ACCESS_EXCLUSIVE)


@pytest.fixture
async def observer(database_url: str) -> AsyncIterator[Observer]:
    async with observing(database_url) as observer:
        yield observer


CODE_CHECK = Check(name="ck_code_length", column="code", rule=RuleKind.LENGTH, argument=10)
ALLOWED = Check(name="ck_code_allowed", column="code", rule=RuleKind.RANGE, argument=("0", None))
AMOUNT_IX = Index(name="child__ix_parent", columns=("parent",), unique=False)
PARENT_KEY = ForeignKey(
    name="fk_parent", column="parent", target_table="parent", target_column="code"
)


def _column(
    name: str, type_: str, *, not_null: bool = False, default: Any = None
) -> PhysicalColumn:
    return PhysicalColumn(name=name, type=type_, not_null=not_null, default=default)


CHILD = Table(
    name="child",
    role=Role.MAIN,
    columns=MappingProxyType(
        {c.name: c for c in (_column("_sys_id", "uuid", not_null=True), _column("code", "text"))}
    ),
    primary_key=("_sys_id",),
    primary_key_name="child__pk",
)
VIEW = View(
    schema="reports",
    name="children",
    table="child",
    columns=(("code", "code"),),
    include_deleted=False,
)
RETYPE = RetypeColumn(
    entity="child",
    column="amount",
    source="amount",
    archived_as="_arch_1_amount",
    old_type="integer",
    new=_column("amount", "bigint"),
    main_table="child",
    tables=("child",),
    filling=Filling(
        entity="child",
        source="amount",
        target="_new_amount",
        taken_from=None,
        exists=False,
        tables=("child",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """*changes* are run; *lock* is the strongest lock that any of their statements needs."""

    name: str
    changes: tuple[Change, ...]
    lock: Lock
    scans_online: bool = False
    before: str = ""
    tables: frozenset[str] = field(default=frozenset({"child"}))  # those that must be locked


AEL, SRE, SUE = Lock.ACCESS_EXCLUSIVE, Lock.SHARE_ROW_EXCLUSIVE, Lock.SHARE_UPDATE_EXCLUSIVE
CASES = (
    Case(
        name="check",
        changes=(AddCheck(table="child", check=CODE_CHECK, column_type="text", online=True),),
        lock=AEL,
        scans_online=True,
    ),
    Case(
        name="required",
        changes=(SetRequired(table="child", column="code", online=True),),
        lock=AEL,
        scans_online=True,
    ),
    Case(
        name="required, helper left over",
        changes=(SetRequired(table="child", column="code", online=True, helper_exists=True),),
        before="ALTER TABLE mdm_data.child ADD CONSTRAINT ck_code_required"
        " CHECK (code IS NOT NULL) NOT VALID",
        lock=AEL,
        scans_online=True,
    ),
    Case(
        name="foreign key",
        changes=(AddForeignKey(table="child", foreign_key=PARENT_KEY, online=True),),
        lock=SRE,
        scans_online=True,
        tables=frozenset({"child", "parent"}),
    ),
    Case(
        name="foreign key of a table without rows",
        changes=(AddForeignKey(table="fresh", foreign_key=PARENT_KEY, online=False),),
        lock=SRE,
        tables=frozenset({"parent"}),
    ),
    Case(
        name="dropped foreign key locks the parent",
        changes=(DropForeignKey(table="child", foreign_key=PARENT_KEY),),
        before="ALTER TABLE mdm_data.child ADD CONSTRAINT fk_parent"
        " FOREIGN KEY (parent) REFERENCES mdm_data.parent (code)",
        lock=AEL,
        tables=frozenset({"child", "parent"}),
    ),
    Case(
        name="nullable column",
        changes=(AddColumn(column=_column("note", "text"), main_table="child"),),
        lock=AEL,
    ),
    Case(
        name="required column with a constant default",
        changes=(
            AddColumn(
                column=_column("note", "numeric(5,2)", not_null=True, default=-1),
                main_table="child",
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="required jsonb column with a constant default",
        changes=(
            AddColumn(
                column=_column("note", "jsonb", not_null=True, default="it's"), main_table="child"
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="numeric with more digits",
        changes=(
            WidenColumn(
                column="price",
                old_type="numeric(10,2)",
                new_type="numeric(12,2)",
                tables=("child",),
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="numeric with any digits",
        changes=(
            WidenColumn(
                column="price", old_type="numeric(10,2)", new_type="numeric", tables=("child",)
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="default",
        changes=(SetDefault(table="child", column=_column("code", "text", default="y")),),
        lock=AEL,
    ),
    Case(name="no default", changes=(DropDefault(table="child", column="code"),), lock=AEL),
    Case(
        name="not required",
        changes=(DropRequired(table="child", column="_sys_is_deleted"),),
        lock=AEL,
    ),
    Case(
        name="dropped check",
        changes=(DropCheck(table="child", check="ck_checked_range"),),
        lock=AEL,
    ),
    Case(
        name="proven check",
        changes=(ValidateCheck(table="child", check="ck_left"),),
        before="ALTER TABLE mdm_data.child ADD CONSTRAINT ck_left CHECK (amount > 0) NOT VALID",
        lock=SUE,
        scans_online=True,
        tables=frozenset(),
    ),
    Case(
        name="dropped index",
        changes=(
            DropIndex(
                table="child",
                index=Index(name="child__uq_amount", columns=("amount",), unique=True),
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="renamed column",
        changes=(RenameColumn(column=Rename(old="code", new="key"), tables=("child",)),),
        lock=AEL,
    ),
    Case(
        name="removed column",
        changes=(
            RemoveColumn(
                column="code",
                archived_as="_arch_1_code",
                main_table="child",
                tables=("child",),
                had_default=True,
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="renamed entity with its key and index",
        changes=(
            RenameEntity(old_entity="child", tables=(Rename(old="child", new="kid"),)),
            RenameObject(
                table="kid",
                object_kind=ObjectKind.CONSTRAINT,
                rename=Rename(old="child__pk", new="kid__pk"),
            ),
            RenameObject(
                table="kid",
                object_kind=ObjectKind.INDEX,
                rename=Rename(old="child__uq_amount", new="kid__uq_amount"),
            ),
        ),
        lock=AEL,
    ),
    Case(
        name="history beside a table with rows",
        changes=(AddSatellite(role=Role.HISTORY, table=satellite(CHILD, Role.HISTORY)),),
        lock=Lock.NONE,
        tables=frozenset(),
    ),
    Case(
        name="view made again around a wider column",
        changes=(
            DropView(schema="reports", name="children"),
            WidenColumn(
                column="price",
                old_type="numeric(10,2)",
                new_type="numeric(12,2)",
                tables=("child",),
            ),
            CreateView(view=VIEW, again=True),
        ),
        before="CREATE SCHEMA reports;"
        " CREATE VIEW reports.children AS SELECT code, price FROM mdm_data.child",
        lock=AEL,
    ),
    Case(name="retype", changes=(RETYPE,), lock=AEL, scans_online=True),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_no_statement_reads_a_table_that_it_keeps_from_others(
    observer: Observer, case: Case
) -> None:
    if case.before:
        await observer.conn.execute(case.before)

    strongest, scanned, locked = Lock.NONE, False, set[str]()
    for step in steps_of(*case.changes):
        assert step.transactional, "what cannot be in a transaction is measured elsewhere"
        observed = await observer.run([statement.sql for statement in step.statements])
        _check_unharmful(observed)
        announced = Lock.NONE
        for statement, seen in zip(step.statements, observed, strict=True):
            announced = strongest_of((announced, statement.lock))
            assert strongest_of((announced, seen.lock)) is announced, seen.sql
            assert statement.scans or not seen.read, seen.sql
            strongest = strongest_of((strongest, seen.lock))
            scanned = scanned or bool(seen.read)
            locked |= {name for name, lock in seen.locks.items() if lock in BLOCKS_WRITERS}

    assert strongest is case.lock
    assert scanned is case.scans_online
    assert locked & WITH_ROWS == case.tables


def _check_unharmful(observed: Sequence[Observed]) -> None:
    """No rows are read or rewritten in a transaction that keeps writers out of a table."""
    held: dict[str, Lock] = {}
    for seen in observed:
        held |= seen.locks
        assert not seen.rewritten, f"{seen.sql} rewrites {seen.rewritten}"
        kept_out = {name for name, lock in held.items() if lock in BLOCKS_WRITERS}
        assert not (seen.read and kept_out), f"{seen.sql} reads {seen.read} under {held}"


NAIVE = {
    "required": "ALTER TABLE mdm_data.child ALTER COLUMN code SET NOT NULL",
    "required and helper in one statement": (
        "ALTER TABLE mdm_data.child ALTER COLUMN code SET NOT NULL, DROP CONSTRAINT ck_helper"
    ),
    "check": "ALTER TABLE mdm_data.child ADD CONSTRAINT ck CHECK (code <> '')",
    "foreign key": (
        "ALTER TABLE mdm_data.child ADD FOREIGN KEY (parent) REFERENCES mdm_data.parent (code)"
    ),
    "retype": "ALTER TABLE mdm_data.child ALTER COLUMN amount TYPE bigint",
    "other scale": "ALTER TABLE mdm_data.child ALTER COLUMN price TYPE numeric(10,3)",
    "fewer digits": "ALTER TABLE mdm_data.child ALTER COLUMN price TYPE numeric(8,2)",
    "index": "CREATE INDEX i ON mdm_data.child (code)",
    "unique constraint": "ALTER TABLE mdm_data.child ADD UNIQUE (code)",
    "volatile default": (
        "ALTER TABLE mdm_data.child ADD COLUMN u uuid NOT NULL DEFAULT gen_random_uuid()"
    ),
    "identity": "ALTER TABLE mdm_data.child ADD COLUMN n int GENERATED ALWAYS AS IDENTITY",
    "column with a check": "ALTER TABLE mdm_data.child ADD COLUMN n int CHECK (n > 0)",
    "wider type under a check": (
        "ALTER TABLE mdm_data.child ALTER COLUMN priced TYPE numeric(12,2)"
    ),
    "validation in the same transaction": (
        "ALTER TABLE mdm_data.child ADD CONSTRAINT ck CHECK (code <> '') NOT VALID;"
        " ALTER TABLE mdm_data.child VALIDATE CONSTRAINT ck"
    ),
}


@pytest.mark.parametrize("sql", NAIVE.values(), ids=NAIVE)
async def test_the_naive_form_is_caught(observer: Observer, sql: str) -> None:
    priced = "ADD COLUMN priced numeric(10,2) CONSTRAINT ck_priced CHECK (priced > 0)"
    await observer.conn.execute(f"ALTER TABLE mdm_data.child {priced}")
    if "ck_helper" in sql:
        helper = "ADD CONSTRAINT ck_helper CHECK (code IS NOT NULL)"
        await observer.conn.execute(f"ALTER TABLE mdm_data.child {helper}")
    observed = await observer.run(sql.split("; "))

    with pytest.raises(AssertionError, match=r"reads|rewrites"):
        _check_unharmful(observed)
