"""Changes of tables, columns and views as statements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sqlglot import exp

from mdm_gitops.plan.changes import (
    AddColumn,
    AddSatellite,
    CreateEntity,
    CreateView,
    DropView,
    RemoveColumn,
    RemoveEntity,
    RemoveSatellite,
    Rename,
    RenameColumn,
    RenameEntity,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    Step,
    WidenColumn,
)
from mdm_gitops.plan.physical import Check, PhysicalColumn, Role, Table, View
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import nodes, parts, trees
from mdm_gitops.warehouse.ddl.parts import alter, check_constraint, flip, table_element
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.ddl.trees import Tree, column, identifier
from mdm_gitops.warehouse.names import Schemas

# --- entities -------------------------------------------------------------------------------------


def create_entity(change: CreateEntity, schemas: Schemas) -> Iterator[Statement]:
    for table in change.tables:
        yield _create_table(table, schemas)


def add_satellite(change: AddSatellite, schemas: Schemas) -> Iterator[Statement]:
    yield _create_table(change.table, schemas)


def _create_table(table: Table, schemas: Schemas) -> Statement:
    key = exp.PrimaryKey(
        expressions=[identifier(name) for name in table.primary_key],
        include=exp.IndexParameters(with_storage=False),  # as the parser reads it
    )
    elements = [_column(each) for each in table.columns.values()]
    named = exp.Constraint(this=identifier(table.primary_key_name), expressions=[key])
    elements.append(table_element(named))
    elements += [_check(each, table.columns[each.column].type) for each in table.checks]
    create = nodes.create_table(schemas.data, table.name, elements)
    return flip(Step.CREATE, create, f"create table {table.name}", lock=Lock.NONE)


# Each table has the system columns, and names repeat. Only that is remembered whose equals print the
# same: 1, True and 1.00 are equal.


def _column(wanted: PhysicalColumn) -> str:
    if wanted.default is None:
        return _remembered_column(wanted)
    return table_element(column_definition(wanted))


def _check(check: Check, type_: str) -> str:
    if type(check.argument) in (int, str):
        return _remembered_check(check, type_)
    return table_element(check_constraint(check, type_))


@lru_cache(maxsize=4_096)
def _remembered_column(wanted: PhysicalColumn) -> str:
    return table_element(column_definition(wanted))


@lru_cache(maxsize=4_096)
def _remembered_check(check: Check, type_: str) -> str:
    return table_element(check_constraint(check, type_))


def column_definition(wanted: PhysicalColumn, *, role: Role = Role.MAIN) -> exp.ColumnDef:
    """Return the column as it is created; outside the main table it has no rules."""
    constraints: list[Tree] = []
    if wanted.default is not None and role is Role.MAIN:
        value = trees.literal(wanted.default, wanted.type)
        constraints.append(exp.DefaultColumnConstraint(this=value))
    if wanted.not_null and role is Role.MAIN:
        constraints.append(exp.NotNullColumnConstraint())
    return exp.ColumnDef(
        this=identifier(wanted.name),
        kind=trees.data_type(wanted.type),
        constraints=[exp.ColumnConstraint(kind=kind) for kind in constraints],
    )


def rename_entity(change: RenameEntity, schemas: Schemas) -> Iterator[Statement]:
    for rename in change.tables:
        yield from _rename_table(rename, schemas, first=Step.RENAME, then=Step.ARRIVE)


def remove_tables(change: RemoveEntity | RemoveSatellite, schemas: Schemas) -> Iterator[Statement]:
    for rename in change.tables if isinstance(change, RemoveEntity) else (change.table,):
        yield from _rename_table(rename, schemas, first=Step.ARCHIVE, then=Step.ARCHIVE)


def restore_tables(
    change: RestoreEntity | RestoreSatellite, schemas: Schemas
) -> Iterator[Statement]:
    for rename in change.tables if isinstance(change, RestoreEntity) else (change.table,):
        yield from _rename_table(rename, schemas, first=Step.RESTORE, then=Step.RESTORE)


def _rename_table(
    rename: Rename, schemas: Schemas, *, first: Step, then: Step
) -> Iterator[Statement]:
    for step, old, new in legs(rename, first=first, then=then):
        action = exp.AlterRename(this=exp.Table(this=identifier(new)))
        title = f"rename table {old} to {new}"
        yield flip(step, alter(schemas.data, old, action), title)


def legs(rename: Rename, *, first: Step, then: Step) -> Iterator[tuple[Step, str, str]]:
    """Yield the one or two renames of which *rename* consists, each with its step."""
    if rename.aside is None:
        yield first, rename.old, rename.new
    else:
        yield first, rename.old, rename.aside
        yield then, rename.aside, rename.new


# --- columns --------------------------------------------------------------------------------------


def add_column(change: AddColumn, schemas: Schemas) -> Iterator[Statement]:
    if change.main_table is not None:
        yield added(change.column, change.main_table, schemas, role=Role.MAIN)
    for table in change.satellite_tables:
        yield added(change.column, table, schemas, role=Role.EDIT)


def added(wanted: PhysicalColumn, table: str, schemas: Schemas, *, role: Role) -> Statement:
    action = column_definition(wanted, role=role)
    title = f"add column {wanted.name} to {table}"
    return flip(Step.ALTER, alter(schemas.data, table, action), title)


def rename_column(change: RenameColumn, schemas: Schemas) -> Iterator[Statement]:
    for table in change.tables:
        for step, old, new in legs(
            change.column, first=Step.COLUMN_RENAME, then=Step.COLUMN_ARRIVE
        ):
            yield renamed(step, table, old, new, schemas)


def renamed(step: Step, table: str, old: str, new: str, schemas: Schemas) -> Statement:
    title = f"rename column {old} of {table} to {new}"
    return flip(step, parts.rename_column(schemas.data, table, old, new), title)


def remove_column(change: RemoveColumn, schemas: Schemas) -> Iterator[Statement]:
    yield from stripped(
        change.main_table,
        change.column,
        schemas,
        not_null=change.had_not_null,
        default=change.had_default,
    )
    for table in change.tables:
        yield renamed(Step.COLUMN_ARCHIVE, table, change.column, change.archived_as, schemas)


def stripped(
    table: str, name: str, schemas: Schemas, *, not_null: bool, default: bool
) -> Iterator[Statement]:
    """Take NOT NULL and default from a column that becomes an archive."""
    step = Step.COLUMN_ARCHIVE
    if not_null:
        yield flip(step, drop_not_null(schemas.data, table, name), f"allow null in {table}.{name}")
    if default:
        title = f"drop the default of {table}.{name}"
        yield flip(step, drop_default(schemas.data, table, name), title)


def drop_not_null(schema: str, table: str, name: str) -> Tree:
    action = exp.AlterColumn(this=identifier(name), allow_null=True, drop=True)
    return alter(schema, table, action)


def drop_default(schema: str, table: str, name: str) -> Tree:
    return alter(schema, table, exp.AlterColumn(this=identifier(name), drop=True))


def restore_column(change: RestoreColumn, schemas: Schemas) -> Iterator[Statement]:
    for table in change.tables:
        yield renamed(Step.COLUMN_RESTORE, table, change.archived_as, change.column, schemas)


def widen_column(change: WidenColumn, schemas: Schemas) -> Iterator[Statement]:
    for table in change.tables:
        dtype = trees.data_type(change.new_type)
        action = exp.AlterColumn(this=identifier(change.column), dtype=dtype)
        title = f"widen {table}.{change.column} to {change.new_type}"
        yield flip(Step.ALTER, alter(schemas.data, table, action), title)


# --- views ----------------------------------------------------------------------------------------


def create_view(change: CreateView, schemas: Schemas) -> Iterator[Statement]:
    view = change.view
    create = exp.Create(this=exp.Table(db=identifier(view.schema)), kind="SCHEMA", exists=True)
    yield flip(Step.CREATE_VIEW, create, f"create schema {view.schema}", lock=Lock.NONE)
    create = exp.Create(
        this=trees.table(view.schema, view.name), kind="VIEW", expression=_view_query(view, schemas)
    )
    title = f"create view {view.schema}.{view.name}"
    yield flip(Step.CREATE_VIEW, create, title, lock=Lock.NONE)


def _view_query(view: View, schemas: Schemas) -> exp.Select:
    query = exp.select(
        *(
            exp.Alias(this=column(source), alias=identifier(output))
            for output, source in view.columns
        )
    ).from_(trees.table(schemas.data, view.table))
    if view.include_deleted:
        return query
    return query.where(exp.Not(this=column("_sys_is_deleted")))


def drop_view(change: DropView, schemas: Schemas) -> Iterator[Statement]:
    drop = exp.Drop(tables=[trees.table(change.schema, change.name)], kind="VIEW")
    yield flip(Step.DROP_VIEW, drop, f"drop view {change.schema}.{change.name}")
