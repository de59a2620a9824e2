"""Changes as SQL: the one place where a plan becomes PostgreSQL statements.

``statements`` knows every class of ``plan.changes`` (``writing``). Trees come from sqlglot and are
read back before they leave (``trees``); what it does not know is in ``nodes``. Only this package
names sqlglot, and it is loaded with the first change that is written. Nothing here talks to a server.
"""

from __future__ import annotations

from mdm_gitops.plan.changes import Change
from mdm_gitops.warehouse.ddl.statement import BackfillBatch, Leftover, Statement
from mdm_gitops.warehouse.names import Schemas

__all__ = ["BackfillBatch", "Leftover", "Schemas", "Statement", "statements"]


def statements(change: Change, *, schemas: Schemas) -> tuple[Statement, ...]:
    """Return what carries *change* out, in the order of phases and, in the flip, of steps.

    Names of tables and columns are those that stand when the statement runs: before the flip's
    moves for what the prepare phase does and what is dropped first, final ones for the rest.
    A change of the definition alone needs nothing: the flip writes the record of its entity anyway.
    """
    from mdm_gitops.warehouse.ddl.writing import write  # imports sqlglot, which takes 0.1 s

    return tuple(write(change, schemas))
