"""What the statements of tables, rules and retypes are made of."""

from __future__ import annotations

from sqlglot import exp

from mdm_gitops.plan.changes import Phase, Step
from mdm_gitops.plan.physical import Check
from mdm_gitops.plan.plan import Lock
from mdm_gitops.warehouse.ddl import trees
from mdm_gitops.warehouse.ddl.rules import condition
from mdm_gitops.warehouse.ddl.statement import Statement
from mdm_gitops.warehouse.ddl.trees import Tree, column, identifier, render


def flip(
    step: Step, tree: Tree | str, title: str, *, lock: Lock = Lock.ACCESS_EXCLUSIVE
) -> Statement:
    sql = tree if isinstance(tree, str) else render(tree)
    return Statement(phase=Phase.FLIP, step=step, sql=sql, title=title, lock=lock)


def alter(schema: str, table: str, *actions: Tree, not_valid: bool = False) -> exp.Alter:
    return exp.Alter(
        this=trees.table(schema, table), kind="TABLE", actions=list(actions), not_valid=not_valid
    )


_HEAD = 'CREATE TABLE "s"."t" ('


def table_element(tree: Tree) -> str:
    """Return a column or rule as it stands in CREATE TABLE, read back in a table of its own.

    No two tables have the same columns, but most columns are like others, so each is proven alone;
    a table is no more than the list of its elements.
    """
    table = exp.Schema(this=trees.table("s", "t"), expressions=[tree])
    sql = render(exp.Create(this=table, kind="TABLE"))
    assert sql.startswith(_HEAD) and sql.endswith(")"), sql
    return sql[len(_HEAD) : -1]


def rename_column(schema: str, table: str, old: str, new: str) -> exp.Alter:
    return alter(schema, table, exp.RenameColumn(this=column(old), to=column(new)))


def check_constraint(check: Check, type_: str) -> exp.Constraint:
    rule = condition(column(check.column), type_=type_, rule=check.rule, argument=check.argument)
    kind = exp.CheckColumnConstraint(this=rule)
    return exp.Constraint(this=identifier(check.name), expressions=[kind])


def add_check(schema: str, table: str, check: Check, type_: str, *, not_valid: bool) -> exp.Alter:
    added = exp.AddConstraint(expressions=[check_constraint(check, type_)])
    return alter(schema, table, added, not_valid=not_valid)


def drop_constraint(schema: str, table: str, name: str, *, if_exists: bool = False) -> exp.Alter:
    dropped = exp.Drop(
        tables=[exp.Table(this=identifier(name))], kind="CONSTRAINT", exists=if_exists
    )
    return alter(schema, table, dropped)
