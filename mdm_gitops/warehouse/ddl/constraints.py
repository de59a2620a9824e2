"""Changes of rules as statements: NOT NULL, defaults, checks, indexes, foreign keys.

On a table that holds rows, what scans runs alone under SHARE UPDATE EXCLUSIVE, in a transaction of
its own; what needs ACCESS EXCLUSIVE finds nothing left to scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlglot import exp

from mdm_gitops.plan.changes import (
    AddCheck,
    AddForeignKey,
    AddIndex,
    DropCheck,
    DropDefault,
    DropForeignKey,
    DropIndex,
    DropRequired,
    ObjectKind,
    Phase,
    RenameObject,
    SetDefault,
    SetRequired,
    Step,
    ValidateCheck,
    ValidateForeignKey,
)
from mdm_gitops.plan.physical import (
    Check,
    ForeignKey,
    Index,
    IndexKind,
    RuleKind,
    check_name,
)
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import nodes, trees
from mdm_gitops.warehouse.ddl.parts import add_check as check_added
from mdm_gitops.warehouse.ddl.parts import alter, drop_constraint, flip
from mdm_gitops.warehouse.ddl.statement import Leftover, Statement
from mdm_gitops.warehouse.ddl.tables import drop_default as default_dropped
from mdm_gitops.warehouse.ddl.tables import drop_not_null, legs
from mdm_gitops.warehouse.ddl.trees import column, identifier, render, template, text
from mdm_gitops.warehouse.names import Schemas

# --- required, default ----------------------------------------------------------------------------


def set_required(change: SetRequired, schemas: Schemas) -> Iterator[Statement]:
    title = f"require {change.table}.{change.column}"
    action = exp.AlterColumn(this=identifier(change.column), allow_null=False)
    set_not_null = alter(schemas.data, change.table, action)
    if not change.online:
        yield flip(Step.ADD_RULE, set_not_null, title)
        return
    helper = required_helper(change.column)
    if not change.helper_exists:
        added = check_added(schemas.data, change.table, helper, "", not_valid=True)
        yield flip(Step.ADD_RULE, added, f"{title} of new rows")
    yield _validated(Phase.ENFORCE, change.table, helper.name, schemas)
    # Two statements: in one ALTER the check would go first, and its proof with it.
    finish = (
        (render(set_not_null), title),
        (
            render(drop_constraint(schemas.data, change.table, helper.name)),
            f"drop the helper check {helper.name} of {change.table}",
        ),
    )
    for sql, words in finish:
        yield Statement(
            phase=Phase.ENFORCE,
            sql=sql,
            title=words,
            lock=Lock.ACCESS_EXCLUSIVE,
            group="set-not-null",
            remembers=((schemas.data, change.table),),
        )


def required_helper(column_name: str) -> Check:
    """Return the check that proves a column free of null before SET NOT NULL."""
    name = check_name(column_name, RuleKind.REQUIRED)
    return Check(name=name, column=column_name, rule=RuleKind.REQUIRED)


def drop_required(change: DropRequired, schemas: Schemas) -> Iterator[Statement]:
    tree = drop_not_null(schemas.data, change.table, change.column)
    yield flip(Step.DROP_RULE, tree, f"allow null in {change.table}.{change.column}")


def set_default(change: SetDefault, schemas: Schemas) -> Iterator[Statement]:
    value = trees.literal(change.column.default, change.column.type)
    action = exp.AlterColumn(this=identifier(change.column.name), default=value)
    title = f"set the default of {change.table}.{change.column.name}"
    yield flip(Step.ALTER, alter(schemas.data, change.table, action), title)


def drop_default(change: DropDefault, schemas: Schemas) -> Iterator[Statement]:
    tree = default_dropped(schemas.data, change.table, change.column)
    yield flip(Step.DROP_RULE, tree, f"drop the default of {change.table}.{change.column}")


# --- checks ---------------------------------------------------------------------------------------


def add_check(change: AddCheck, schemas: Schemas) -> Iterator[Statement]:
    added = check_added(
        schemas.data, change.table, change.check, change.column_type, not_valid=change.online
    )
    yield flip(Step.ADD_RULE, added, f"add check {change.check.name} to {change.table}")
    if change.online:
        yield _validated(Phase.ENFORCE, change.table, change.check.name, schemas)


def drop_check(change: DropCheck, schemas: Schemas) -> Iterator[Statement]:
    tree = drop_constraint(schemas.data, change.table, change.check)
    yield flip(Step.DROP_RULE, tree, f"drop check {change.check} of {change.table}")


def validate_check(change: ValidateCheck, schemas: Schemas) -> Iterator[Statement]:
    yield _validated(Phase.ENFORCE, change.table, change.check, schemas)


def _validated(phase: Phase, table: str, constraint: str, schemas: Schemas) -> Statement:
    return Statement(
        phase=phase,
        sql=nodes.validate_constraint(schemas.data, table, constraint),
        title=f"prove {constraint} on {table}",
        lock=Lock.SHARE_UPDATE_EXCLUSIVE,
        scans=True,
        remembers=((schemas.data, table),),
    )


# --- indexes --------------------------------------------------------------------------------------


def add_index(change: AddIndex, schemas: Schemas) -> Iterator[Statement]:
    index = change.index
    title = f"build {'unique ' if index.unique else ''}index {index.name} on {change.table}"
    create = _create_index(change.table, index, schemas, concurrently=change.online)
    if not change.online:
        yield flip(Step.ADD_RULE, create, title, lock=Lock.SHARE)
        return
    leftover = _leftover(index.name, schemas)
    if change.rebuild:
        yield Statement(
            phase=Phase.ENFORCE,
            sql=leftover.drop_sql,
            title=f"drop the unfinished index {index.name} of {change.table}",
            lock=Lock.SHARE_UPDATE_EXCLUSIVE,
            transactional=False,
        )
    yield Statement(
        phase=Phase.ENFORCE,
        sql=render(create),
        title=title,
        lock=Lock.SHARE_UPDATE_EXCLUSIVE,
        scans=True,
        transactional=False,
        leftover=leftover,
        remembers=((schemas.data, change.table),),
    )


def _create_index(table: str, index: Index, schemas: Schemas, *, concurrently: bool) -> exp.Create:
    parameters = (
        exp.IndexParameters(
            using=exp.Var(this="gin"),
            columns=[trees.ascending(_computed(index, schemas))],
            with_storage=False,  # as the parser reads it
        )
        if index.computed
        else exp.IndexParameters(columns=[trees.ascending(column(n)) for n in index.columns])
    )
    described = exp.Index(
        this=identifier(index.name),
        table=trees.table(schemas.data, table),
        params=parameters,
    )
    # No IF NOT EXISTS: it would be content with the invalid leftover of a failed build.
    return exp.Create(this=described, kind="INDEX", unique=index.unique, concurrently=concurrently)


_FUNCTIONS: Final = {IndexKind.SEARCH: "search_vector", IndexKind.MATCH: "match_keys"}


def _computed(index: Index, schemas: Schemas) -> trees.Tree:
    """Return the call of the store's immutable function; queries must ask for the same expression."""
    columns: list[trees.Tree] = [column(name) for name in index.columns]
    if index.kind is IndexKind.MATCH:
        columns = [trees.call(schemas.config, "index_text", each) for each in columns]
    argument = [] if index.argument is None else [text(index.argument)]
    array = exp.Array(expressions=columns)
    return trees.call(schemas.config, _FUNCTIONS[index.kind], *argument, array)


def _leftover(index: str, schemas: Schemas) -> Leftover:
    drop = exp.Drop(
        tables=[trees.table(schemas.data, index)], kind="INDEX", exists=True, concurrently=True
    )
    exists = template(
        "SELECT EXISTS(SELECT 1 FROM pg_catalog.pg_index AS x"
        " JOIN pg_catalog.pg_class AS c ON c.oid = x.indexrelid"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = :schema AND c.relname = :index AND NOT x.indisvalid)",
        schema=text(schemas.data),
        index=text(index),
    )
    return Leftover(exists_sql=render(exists), drop_sql=render(drop))


def drop_index(change: DropIndex, schemas: Schemas) -> Iterator[Statement]:
    drop = exp.Drop(tables=[trees.table(schemas.data, change.index.name)], kind="INDEX")
    yield flip(Step.DROP_RULE, drop, f"drop index {change.index.name} of {change.table}")


# --- foreign keys ---------------------------------------------------------------------------------


def add_foreign_key(change: AddForeignKey, schemas: Schemas) -> Iterator[Statement]:
    key = change.foreign_key
    title = f"let {change.table}.{key.column} refer to {key.target_table}.{key.target_column}"
    lock = Lock.SHARE_ROW_EXCLUSIVE
    added = _foreign_key(change.table, key, schemas, not_valid=change.online)
    if not change.online:
        yield flip(Step.ADD_FOREIGN_KEY, added, title, lock=lock)
        return
    touched = ((schemas.data, change.table), (schemas.data, key.target_table))
    yield Statement(phase=Phase.LINK, sql=render(added), title=title, lock=lock, remembers=touched)
    yield _validated(Phase.LINK, change.table, key.name, schemas)


def _foreign_key(table: str, key: ForeignKey, schemas: Schemas, *, not_valid: bool) -> exp.Alter:
    target = exp.Schema(
        this=trees.table(schemas.data, key.target_table),
        expressions=[identifier(key.target_column)],
    )
    foreign_key = exp.ForeignKey(
        expressions=[identifier(key.column)],
        reference=exp.Reference(this=target, options=["DEFERRABLE", "INITIALLY IMMEDIATE"]),
    )
    constraint = exp.Constraint(this=identifier(key.name), expressions=[foreign_key])
    added = exp.AddConstraint(expressions=[constraint])
    return alter(schemas.data, table, added, not_valid=not_valid)


def drop_foreign_key(change: DropForeignKey, schemas: Schemas) -> Iterator[Statement]:
    tree = drop_constraint(schemas.data, change.table, change.foreign_key.name)
    title = f"drop foreign key {change.foreign_key.name} of {change.table}"
    yield flip(Step.DROP_FOREIGN_KEY, tree, title)


def validate_foreign_key(change: ValidateForeignKey, schemas: Schemas) -> Iterator[Statement]:
    yield _validated(Phase.LINK, change.table, change.foreign_key, schemas)


# --- names ----------------------------------------------------------------------------------------


def rename_object(change: RenameObject, schemas: Schemas) -> Iterator[Statement]:
    for step, old, new in legs(change.rename, first=Step.RULE_RENAME, then=Step.RULE_ARRIVE):
        title = f"rename {change.object_kind.value} {old} of {change.table} to {new}"
        if change.object_kind is ObjectKind.CONSTRAINT:
            sql = nodes.rename_constraint(schemas.data, change.table, old, new)
            yield flip(step, sql, title)
        else:
            action = exp.AlterRename(this=exp.Table(this=identifier(new)))
            index = trees.table(schemas.data, old)
            tree = exp.Alter(this=index, kind="INDEX", actions=[action])
            yield flip(step, tree, title, lock=Lock.SHARE_UPDATE_EXCLUSIVE)
