"""The only statements that destroy: archives, on a person's explicit word, never from a plan."""

from __future__ import annotations

from sqlglot import exp

from mdm_gitops.warehouse.ddl import trees
from mdm_gitops.warehouse.ddl.parts import alter
from mdm_gitops.warehouse.ddl.trees import column, render
from mdm_gitops.warehouse.names import Schemas


def drop_table(table: str, schemas: Schemas) -> str:
    """It may have been dropped by hand, as a main table whose history then went to the archive."""
    return render(exp.Drop(tables=[trees.table(schemas.data, table)], kind="TABLE", exists=True))


def drop_column(table: str, name: str, schemas: Schemas) -> str:
    action = exp.Drop(tables=[column(name)], kind="COLUMN")
    return render(alter(schemas.data, table, action))
