"""SQL that is ready to run, with all that its runner must know about it.

The text is complete: no parameters, every identifier quoted. What is printed for a reader is what
is sent to the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from mdm_gitops.plan.changes import Phase, Step
from mdm_gitops.plan.plan import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillBatch:
    """A long update in pieces: ranges of ``_sys_id``, each its own transaction.

    Start with *after* ``None``; ask for the next bound; update up to it; go on from there. A bound
    of ``None`` means that less than a full piece is left: update without a bound and stop. Running
    a piece again writes nothing.
    """

    schema: str
    table: str
    bound_sql: Callable[[UUID | None, int], str] = field(repr=False, compare=False)
    piece_sql: Callable[[UUID | None, UUID | None], str] = field(repr=False, compare=False)

    def next_bound_sql(self, after: UUID | None, rows: int) -> str:
        """Return a query for the last ``_sys_id`` of the next *rows* rows (one row, or none)."""
        return self.bound_sql(after, rows)

    def update_sql(self, after: UUID | None, bound: UUID | None) -> str:
        return self.piece_sql(after, bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What a failed CREATE INDEX CONCURRENTLY may leave: ask *exists_sql*, then run *drop_sql*.

    Only an index that PostgreSQL marked invalid counts, so nobody else's is ever dropped.
    """

    exists_sql: str
    drop_sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement. *group*: neighbours of one change with the same word share a transaction."""

    phase: Phase
    sql: str
    title: str
    lock: Lock
    step: Step | None = None  # of the flip
    scans: bool = False  # reads or writes each row
    transactional: bool = True  # False: refuses to run inside a transaction
    group: str = ""
    batch: BackfillBatch | None = None
    leftover: Leftover | None = None
    remembers: tuple[tuple[str, str], ...] = ()  # (schema, relation) whose look it changes
    change: int = 0  # number of the planned change; 0 for the plan's own bookkeeping
