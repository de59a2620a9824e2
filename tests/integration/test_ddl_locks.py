"""What our statements really lock, read and rewrite on a table with rows, measured on the server.

After each statement, in its transaction, the strongest lock comes from ``pg_locks``, a rewrite from
``pg_relation_filenode``, and a scan from what PostgreSQL says at DEBUG1. The harness must catch the
naive form of each change too (``NAIVE``), else its silence about ours would mean nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from psycopg import AsyncConnection, errors

from mdm_gitops.model import ChangeClass
from mdm_gitops.plan.changes import (
    AddCheck,
    AddColumn,
    AddForeignKey,
    AddIndex,
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
    Phase,
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
from mdm_gitops.plan.plan import Assessment, Lock, Plan, PlannedChange
from mdm_gitops.warehouse.connect import connect
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.script import ScriptStep, build_script

pytestmark = pytest.mark.anyio

SCHEMAS = Schemas()
MODES = {
    "RowExclusiveLock": Lock.ROW_EXCLUSIVE,
    "ShareUpdateExclusiveLock": Lock.SHARE_UPDATE_EXCLUSIVE,
    "ShareLock": Lock.SHARE,
    "ShareRowExclusiveLock": Lock.SHARE_ROW_EXCLUSIVE,
    "ExclusiveLock": Lock.ACCESS_EXCLUSIVE,
    "AccessExclusiveLock": Lock.ACCESS_EXCLUSIVE,
}
STRENGTH = list(Lock)
WITH_ROWS = {"child", "parent", "kid"}
BLOCKS_WRITERS = (Lock.SHARE, Lock.SHARE_ROW_EXCLUSIVE, Lock.ACCESS_EXCLUSIVE)

TABLES = """
    CREATE TABLE mdm_data.parent (
        _sys_id uuid CONSTRAINT parent__pk PRIMARY KEY DEFAULT gen_random_uuid(),
        code text NOT NULL
    );
    CREATE UNIQUE INDEX parent__uq_code ON mdm_data.parent (code);
    CREATE TABLE mdm_data.child (
        _sys_id uuid CONSTRAINT child__pk PRIMARY KEY DEFAULT gen_random_uuid(),
        code text DEFAULT 'x', amount integer, price numeric(10,2), parent text,
        checked integer CONSTRAINT ck_checked_range CHECK (checked >= 0),
        _sys_is_deleted boolean NOT NULL DEFAULT false
    );
    CREATE UNIQUE INDEX child__uq_amount ON mdm_data.child (amount);
    INSERT INTO mdm_data.parent (code) SELECT 'p' || n FROM generate_series(1, 200) n;
    INSERT INTO mdm_data.child (code, amount, price, parent, checked)
        SELECT n::text, n, n, 'p' || n % 200 + 1, n FROM generate_series(1, 2000) n;
    CREATE TABLE mdm_data.fresh (_sys_id uuid CONSTRAINT fresh__pk PRIMARY KEY, parent text);
"""


@dataclass(frozen=True, kw_only=True)
class Observed:
    sql: str
    locks: dict[str, Lock]  # held after the statement, so those of earlier ones count too
    read: frozenset[str]  # tables with rows that PostgreSQL went through
    rewritten: frozenset[str]

    @property
    def lock(self) -> Lock:
        return _strongest(self.locks.values())


def _strongest(locks: Iterable[Lock]) -> Lock:
    return max(locks, key=STRENGTH.index, default=Lock.NONE)


class Observer:
    """Runs statements and measures each one before its transaction ends."""

    def __init__(self, conn: AsyncConnection[Any]) -> None:
        self.conn = conn
        self.said: list[str] = []
        conn.add_notice_handler(lambda notice: self.said.append(notice.message_primary or ""))

    async def run(self, statements: Sequence[str]) -> list[Observed]:
        """Run *statements* in one transaction."""
        async with self.conn.transaction():
            # What the transaction itself creates is locked for nobody.
            names = {oid: name for oid, (name, _) in (await self._files()).items()}
            return [await self._observe(sql, names) for sql in statements]

    async def _observe(self, sql: str, names: dict[int, str]) -> Observed:
        before = await self._files()
        self.said.clear()
        await self.conn.execute("SET LOCAL client_min_messages = debug1")
        await self.conn.execute(sql)
        await self.conn.execute("SET LOCAL client_min_messages = notice")
        said = list(self.said)
        after = await self._files()
        return Observed(
            sql=sql,
            locks=await self._locks(names),
            read=await self._tables_read(said),
            rewritten=frozenset(
                name
                for oid, (name, file) in before.items()
                if after.get(oid, ("", file))[1] != file
            ),
        )

    async def _tables_read(self, said: Sequence[str]) -> frozenset[str]:
        found = {name for message in said for name in _named(message)}
        rows = await self.conn.execute(
            "SELECT conname, conrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
        )
        referring = {name: table.removeprefix("mdm_data.") async for name, table in rows}
        return frozenset({referring.get(name, name) for name in found} & WITH_ROWS)

    async def _files(self) -> dict[int, tuple[str, int]]:
        rows = await self.conn.execute(
            "SELECT oid, relname, pg_relation_filenode(oid) FROM pg_class"
            " WHERE relnamespace = 'mdm_data'::regnamespace AND relkind IN ('r', 'i')"
        )
        return {oid: (name, file) async for oid, name, file in rows}

    async def _locks(self, names: dict[int, str]) -> dict[str, Lock]:
        rows = await self.conn.execute(
            "SELECT relation, mode FROM pg_locks WHERE pid = pg_backend_pid()"
            " AND relation = ANY (%s) AND mode = ANY (%s)",
            [list(names), list(MODES)],
        )
        locks: dict[str, Lock] = {}
        async for oid, mode in rows:
            held = locks.get(names[oid], Lock.NONE)
            locks[names[oid]] = max(held, MODES[mode], key=STRENGTH.index)
        return locks


def _named(message: str) -> Iterator[str]:
    """Yield the table, or the foreign key, that the server said it goes through."""
    found = re.match(
        r'(?:verifying table|rewriting table|validating foreign key constraint) "(\w+)"'
        r'|building index "\w+" on table "(\w+)"',
        message,
    )
    if found:
        yield found[1] or found[2]


@pytest.fixture
async def observer(database_url: str) -> AsyncIterator[Observer]:
    async with await connect(database_url, application_name="observed") as conn:
        await conn.execute(TABLES)
        yield Observer(conn)


def steps_of(*changes: Change) -> tuple[ScriptStep, ...]:
    assessment = Assessment(change_class=ChangeClass.SAFE)
    planned = tuple(
        PlannedChange(number=n, change=change, assessment=assessment)
        for n, change in enumerate(changes, start=1)
    )
    plan = Plan(
        project="p", base_commit=None, desired_hash="", live_fingerprint="", changes=planned
    )
    return build_script(plan, schemas=SCHEMAS, actor="test").steps


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
            announced = _strongest((announced, statement.lock))
            assert _strongest((announced, seen.lock)) is announced, seen.sql
            assert statement.scans or not seen.read, seen.sql
            strongest = _strongest((strongest, seen.lock))
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


# --- what cannot be in a transaction --------------------------------------------------------------


def _online_index(*, unique: bool = False, rebuild: bool = False) -> tuple[ScriptStep, ...]:
    index = Index(name="child__ix_code", columns=("code",), unique=unique)
    return steps_of(AddIndex(table="child", index=index, online=True, rebuild=rebuild))


async def test_an_index_is_built_while_others_write(observer: Observer, database_url: str) -> None:
    [step] = [s for s in _online_index() if s.phase is Phase.ENFORCE]
    create = step.statements[0]
    assert not step.transactional
    with pytest.raises(errors.ActiveSqlTransaction):
        async with observer.conn.transaction():
            await observer.conn.execute(create.sql)

    async with await connect(database_url, application_name="writer") as writer:
        async with writer.transaction():
            await writer.execute("INSERT INTO mdm_data.child (code) VALUES ('held')")
            building = asyncio.create_task(observer.conn.execute(create.sql))
            modes = await _modes_of_other(writer, observer.conn.info.backend_pid)
            assert modes == {"ShareUpdateExclusiveLock"}
            async with await connect(database_url, application_name="other") as other:
                await other.execute("INSERT INTO mdm_data.child (code) VALUES ('during')")
        await building
    for statement in step.statements[1:]:
        await observer.conn.execute(statement.sql)
    assert await _is_valid(observer.conn, "child__ix_code") is True


async def _modes_of_other(conn: AsyncConnection[Any], pid: int) -> set[str]:
    """Return the modes on the table once that process waits for us."""
    for _ in range(200):
        rows = await conn.execute(
            "SELECT mode FROM pg_locks WHERE pid = %s AND granted"
            " AND relation = 'mdm_data.child'::regclass",
            [pid],
        )
        if modes := {mode async for (mode,) in rows}:
            return modes
        await asyncio.sleep(0.02)
    raise AssertionError("the build never began")


async def _is_valid(conn: AsyncConnection[Any], index: str) -> bool | None:
    row = await (
        await conn.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('mdm_data.' || %s)",
            [index],
        )
    ).fetchone()
    return bool(row[0]) if row else None


async def test_a_build_that_failed_is_found_dropped_and_built_again(observer: Observer) -> None:
    conn = observer.conn
    await conn.execute("UPDATE mdm_data.child SET code = 'same' WHERE amount <= 2")
    [step] = [s for s in _online_index(unique=True) if s.phase is Phase.ENFORCE]
    create, leftover = step.statements[0], step.statements[0].leftover
    assert leftover is not None
    with pytest.raises(errors.UniqueViolation):
        await conn.execute(create.sql)
    assert await _is_valid(conn, "child__ix_code") is False
    with pytest.raises(errors.DuplicateTable):  # never content with what is invalid
        await conn.execute(create.sql)
    assert await _one(conn, leftover.exists_sql) is True

    await conn.execute("UPDATE mdm_data.child SET code = amount::text")
    for again in _online_index(unique=True, rebuild=True):
        if again.phase is Phase.ENFORCE:
            for statement in again.statements:
                await conn.execute(statement.sql)

    assert await _is_valid(conn, "child__ix_code") is True
    assert await _one(conn, leftover.exists_sql) is False


async def test_a_short_lock_timeout_leaves_an_invalid_index(
    observer: Observer, database_url: str
) -> None:
    """CONCURRENTLY waits for old snapshots on any table, so it needs a budget of its own."""
    create = next(s for s in _online_index() if s.phase is Phase.ENFORCE).statements[0]
    assert create.leftover is not None
    async with (
        await connect(database_url, application_name="reader") as reader,
        reader.transaction(),
    ):
        await reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await reader.execute("SELECT count(*) FROM mdm_data.parent")
        await observer.conn.execute("SET lock_timeout = '200ms'")
        with pytest.raises(errors.LockNotAvailable):
            await observer.conn.execute(create.sql)
    assert await _one(observer.conn, create.leftover.exists_sql) is True
    await observer.conn.execute(create.leftover.drop_sql)
    await observer.conn.execute(create.sql)
    assert await _is_valid(observer.conn, "child__ix_code") is True


async def _one(conn: AsyncConnection[Any], sql: str) -> Any:
    row = await (await conn.execute(sql)).fetchone()
    assert row is not None
    return row[0]
