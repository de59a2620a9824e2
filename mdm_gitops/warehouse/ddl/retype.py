"""A retype as statements: a second column is filled beside the first, then they change places.

Before anything is filled, each table gets a check that its values can be cast, NOT VALID, and a
trigger that keeps the new column right on each write; both are there before the first batch reads,
so no write is missed. The check, once proven, says that no row stood in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from sqlglot import exp

from mdm_gitops.plan.changes import AbandonFilling, Filling, Phase, RetypeColumn, Step
from mdm_gitops.plan.physical import Check, Role, RuleKind, check_name, filling_object_name
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import nodes, parts, trees
from mdm_gitops.warehouse.ddl.casts import cast_through, cast_value
from mdm_gitops.warehouse.ddl.metadata import BEGIN
from mdm_gitops.warehouse.ddl.parts import alter, drop_constraint, flip
from mdm_gitops.warehouse.ddl.statement import BackfillBatch, Statement
from mdm_gitops.warehouse.ddl.tables import added, renamed, stripped
from mdm_gitops.warehouse.ddl.trees import Tree, both, column, identifier, render, template
from mdm_gitops.warehouse.names import Schemas


def castable_check(source: str, new_type: str) -> Check:
    name = check_name(source, RuleKind.CASTABLE)
    return Check(name=name, column=source, rule=RuleKind.CASTABLE, argument=new_type)


def retype_column(change: RetypeColumn, schemas: Schemas) -> Iterator[Statement]:
    filling = change.filling
    if filling is not None:
        yield from _prepare(change, filling, schemas)
        for table in filling.tables:
            yield from _stop_filling(table, filling, schemas)
    yield from stripped(
        change.main_table,
        change.source,
        schemas,
        not_null=change.had_not_null,
        default=change.had_default,
    )
    for table in change.tables:
        yield renamed(Step.COLUMN_ARCHIVE, table, change.source, change.archived_as, schemas)
    arriving = filling.target if filling else change.restored_from
    for table in change.tables:
        if arriving is not None:
            yield renamed(Step.COLUMN_RESTORE, table, arriving, change.column, schemas)
        else:
            role = Role.MAIN if table == change.main_table else Role.EDIT
            yield added(change.new, table, schemas, role=role)


# --- prepare --------------------------------------------------------------------------------------


def _prepare(change: RetypeColumn, filling: Filling, schemas: Schemas) -> Iterator[Statement]:
    if not filling.exists:
        for table in filling.tables:
            yield _begin(change, filling, table, schemas)
    for table in filling.tables:
        yield from _guard(change, filling, table, schemas)
    for table in filling.tables:
        yield _backfill(change, filling, table, schemas)
        check = castable_check(filling.source, change.new.type)
        yield Statement(
            phase=Phase.PREPARE,
            sql=nodes.validate_constraint(schemas.data, table, check.name),
            title=f"prove that {table}.{filling.source} is cast",
            lock=Lock.SHARE_UPDATE_EXCLUSIVE,
            scans=True,
            remembers=((schemas.data, table),),
        )


def _begin(change: RetypeColumn, filling: Filling, table: str, schemas: Schemas) -> Statement:
    tree: Tree
    if filling.taken_from is not None:
        tree = parts.rename_column(schemas.data, table, filling.taken_from, filling.target)
    else:
        kind = trees.data_type(change.new.type)
        wanted = exp.ColumnDef(this=identifier(filling.target), kind=kind, exists=True)
        tree = alter(schemas.data, table, wanted)
    return _prepared(
        render(tree), f"begin to fill {table}.{filling.target}", table, schemas, group=BEGIN
    )


def _prepared(
    sql: str,
    title: str,
    table: str,
    schemas: Schemas,
    *,
    group: str,
    lock: Lock = Lock.ACCESS_EXCLUSIVE,
) -> Statement:
    return Statement(
        phase=Phase.PREPARE,
        sql=sql,
        title=title,
        lock=lock,
        group=group,
        remembers=((schemas.data, table),),
    )


def _guard(
    change: RetypeColumn, filling: Filling, table: str, schemas: Schemas
) -> Iterator[Statement]:
    check = castable_check(filling.source, change.new.type)
    name = filling_object_name(table, filling.target)
    value = cast_value(column(filling.source, of="NEW"), change.old_type, change.new.type)
    function = nodes.filling_function(
        schemas.data,
        name,
        source=filling.source,
        target=filling.target,
        value=_rendered(value),
    )
    added_check = parts.add_check(schemas.data, table, check, change.old_type, not_valid=True)
    steps: tuple[tuple[str, str], ...] = (
        (function, "make the function"),
        (render(_trigger(table, name, filling, schemas)), "make the trigger"),
        (
            render(drop_constraint(schemas.data, table, check.name, if_exists=True)),
            "make room for the check",
        ),
        (render(added_check), "add the check"),
    )
    for sql, words in steps:
        title = f"{words} that fills {table}.{filling.target}"
        yield _prepared(sql, title, table, schemas, group=f"guard {table}")


def _rendered(expression: Tree) -> str:
    return render(exp.select(expression)).removeprefix("SELECT ")


def _trigger(table: str, name: str, filling: Filling, schemas: Schemas) -> exp.Create:
    events = [
        exp.TriggerEvent(this="INSERT"),
        exp.TriggerEvent(this="UPDATE", columns=[column(filling.source)]),
    ]
    call = exp.Dot(this=identifier(schemas.data), expression=exp.Anonymous(this=identifier(name)))
    described = exp.TriggerProperties(
        table=trees.table(schemas.data, table),
        timing="BEFORE",
        events=events,
        execute=exp.TriggerExecute(this=call),
        for_each="ROW",
    )
    return exp.Create(
        this=identifier(name),
        kind="TRIGGER",
        replace=True,
        properties=exp.Properties(expressions=[described]),
    )


def filled_value(change: RetypeColumn, filling: Filling) -> Tree:
    """Return what a row's new column shall hold; it may hold an archived value already.

    An archived value whose way through all types since leads to the present value was not edited.
    """
    source, target = column(filling.source), column(filling.target)
    value = cast_value(source, change.old_type, change.new.type)
    if change.chain:
        return template(
            "CASE WHEN :present = :source THEN :target ELSE :value END",
            present=cast_through(target, change.chain),
            source=source,
            target=target,
            value=value,
        )
    if change.keep_archived_where_null:
        return template("COALESCE(:value, :target)", value=value, target=target)
    return value


def _backfill(change: RetypeColumn, filling: Filling, table: str, schemas: Schemas) -> Statement:
    value = filled_value(change, filling)

    def piece(after: UUID | None, bound: UUID | None) -> str:
        differs = template(":target IS DISTINCT FROM :value", target=target, value=value)
        update = exp.Update(
            this=trees.table(schemas.data, table),
            expressions=[exp.EQ(this=target.copy(), expression=value.copy())],
            where=exp.Where(this=both([*_range(after, bound), differs])),
        )
        return render(update)

    def bound(after: UUID | None, rows: int) -> str:
        query = exp.select(column("_sys_id")).from_(trees.table(schemas.data, table))
        if after is not None:
            query = query.where(*_range(after, None))
        query = query.order_by(trees.ascending(column("_sys_id")))
        return render(query.limit(1).offset(rows - 1))

    target = column(filling.target)
    return Statement(
        phase=Phase.PREPARE,
        sql=piece(None, None),
        title=f"fill {table}.{filling.target} from {filling.source}",
        lock=Lock.ROW_EXCLUSIVE,
        scans=True,
        batch=BackfillBatch(schema=schemas.data, table=table, bound_sql=bound, piece_sql=piece),
    )


def _range(after: UUID | None, bound: UUID | None) -> Iterator[Tree]:
    row = column("_sys_id")
    if after is not None:
        yield exp.GT(this=row.copy(), expression=trees.literal(after, "uuid"))
    if bound is not None:
        yield exp.LTE(this=row.copy(), expression=trees.literal(bound, "uuid"))


# --- flip -----------------------------------------------------------------------------------------


def _stop_filling(table: str, filling: Filling, schemas: Schemas) -> Iterator[Statement]:
    """The names are those before the flip, so this comes before anything moves."""
    step = Step.DROP_RULE
    title = f"stop filling {table}.{filling.target}"
    for sql in _stopping(table, filling.target, filling.source, schemas):
        yield flip(step, sql, title)


def _stopping(table: str, target: str, source: str, schemas: Schemas) -> Iterator[str]:
    name = filling_object_name(table, target)
    drop = exp.Drop(
        tables=[exp.Table(this=identifier(name))],
        kind="TRIGGER",
        exists=True,
        cluster=exp.OnProperty(this=trees.table(schemas.data, table)),
    )
    yield render(drop)
    yield nodes.drop_function(schemas.data, name)
    if source:
        check = check_name(source, RuleKind.CASTABLE)
        yield render(drop_constraint(schemas.data, table, check, if_exists=True))


def abandon_filling(change: AbandonFilling, schemas: Schemas) -> Iterator[Statement]:
    for table in change.tables:
        title = f"give up filling {table}.{change.target}"
        for sql in _stopping(table, change.target, change.source, schemas):
            yield _prepared(sql, title, table, schemas, group=BEGIN)
        rename = parts.rename_column(schemas.data, table, change.target, change.archived_as)
        yield _prepared(render(rename), title, table, schemas, group=BEGIN)
