"""What planning the moves of one entity collects: its changes, its record after them, the new names.

Numbers of archives come from ``Numbers``, so that equal inputs give equal plans. Where tables go is
decided in ``plan.table_moves``, where columns go in ``plan.column_moves``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mdm_gitops.plan.changes import Change
from mdm_gitops.plan.physical import PhysicalColumn
from mdm_gitops.plan.recorded import RecordedEntity


@dataclass(slots=True)
class Numbers:
    """Gives out entity ids and archive numbers, each once."""

    entity: int
    archive: int

    def next_entity(self) -> int:
        self.entity += 1
        return self.entity

    def next_archive(self) -> int:
        self.archive += 1
        return self.archive


@dataclass(slots=True)
class Moves:
    """Collects what one entity needs. Mutable while it is built, read-only to its users."""

    before: RecordedEntity
    after: RecordedEntity
    changes: list[Change] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)  # present name -> final name
    columns: dict[str, str] = field(default_factory=dict)  # the same in each of the tables
    arriving: dict[str, PhysicalColumn] = field(default_factory=dict)  # final name -> as it arrives
    widened: set[str] = field(default_factory=set)  # final names

    @property
    def restructures(self) -> bool:
        """Whether anything that a view names moves."""
        moved = any(old != new for old, new in self.tables.items())
        return moved or bool(self.columns) or bool(self.widened) or bool(self.arriving)
