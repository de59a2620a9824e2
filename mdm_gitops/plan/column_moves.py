"""How the columns of one entity move: kept, renamed, retyped, archived, brought back.

A column that changes its type is filled beside the old one; the record of such a filling is written
before the flip (``begin_filling``, ``give_up_filling``), so that an interrupted run can be resumed.
"""

from __future__ import annotations

from dataclasses import replace

from mdm_gitops.plan.changes import (
    AbandonFilling,
    Filling,
    RemoveColumn,
    Rename,
    RenameColumn,
    RestoreColumn,
    RetypeColumn,
    WidenColumn,
)
from mdm_gitops.plan.desired import DesiredEntity
from mdm_gitops.plan.identity import Resolution
from mdm_gitops.plan.moves import Moves, Numbers
from mdm_gitops.plan.physical import (
    PhysicalColumn,
    RuleKind,
    Table,
    archive_column_name,
    filling_column_name,
)
from mdm_gitops.plan.recorded import (
    ArchiveReason,
    ColumnState,
    RecordedColumn,
    RecordedEntity,
)
from mdm_gitops.plan.types import widens


def move_columns(
    moves: Moves,
    desired: DesiredEntity,
    resolution: Resolution,
    live_main: Table,
    has_rows: bool,
    numbers: Numbers,
) -> None:
    """Add to *moves* what happens to the columns; its tables have been placed before.

    *live_main* is the main table as it stands; *has_rows* is whether any table holds a row.
    """
    mover = _Columns(moves, desired, live_main, has_rows, numbers)
    for column in desired.entity.columns:
        mover.move(desired.physical.main.columns[column.folded], resolution)
    mover.leave(resolution)
    order = {column.folded: n for n, column in enumerate(desired.entity.columns)}
    mover.kept.sort(key=lambda c: (c.state is not ColumnState.ACTIVE, order.get(c.name, 0), c.key))
    moves.after = replace(moves.after, columns=tuple(mover.kept))


class _Columns:
    def __init__(
        self,
        moves: Moves,
        desired: DesiredEntity,
        live_main: Table,
        has_rows: bool,
        numbers: Numbers,
    ) -> None:
        self.moves = moves
        self.entity = desired.name
        self.main = moves.after.main
        self.live = live_main.columns
        self.guarded = [c.column for c in live_main.checks if c.rule is RuleKind.CASTABLE]
        self.has_rows = has_rows
        self.numbers = numbers
        self.tables = tuple(moves.tables.values())
        self.old_tables = tuple(moves.tables)
        self.kept: list[RecordedColumn] = []
        self.used: set[str] = set()  # physical names of identities that have been placed
        self.next_key = max((c.key for c in moves.before.columns), default=0) + 1

    def move(self, new: PhysicalColumn, resolution: Resolution) -> None:
        identity = resolution.columns.get(new.name)
        if identity is None or identity.physical not in self.live:
            self._add(new, identity)
            return
        self.used.add(identity.physical)
        present = self.live[identity.physical].type
        if identity.state is ColumnState.ARCHIVED:
            self._restore(new, identity)
        elif present == new.type:
            self._keep(new, identity)
        elif widens(present, new.type) and self._retype_source(new, identity) is None:
            # An archive of that type holds the values as they were written, 12 and not 12.00.
            self._widen(new, identity, present)
        else:
            self._retype(new, identity, present)

    def _add(self, new: PhysicalColumn, identity: RecordedColumn | None) -> None:
        """A new column, or one that somebody dropped by hand; ``plan.diff`` finds it missing."""
        if identity is not None:
            self.used.add(identity.physical)
        key = identity.key if identity else self.next_key
        self.next_key += identity is None
        self.kept.append(RecordedColumn(key=key, name=new.name, physical=new.name, type=new.type))

    def _placed(self, new: PhysicalColumn, identity: RecordedColumn) -> RecordedColumn:
        return replace(
            identity,
            name=new.name,
            physical=new.name,
            type=new.type,
            state=ColumnState.ACTIVE,
            reason=None,
            archive_number=0,
            former_names=_with_former(identity, new.name),
        )

    def _keep(self, new: PhysicalColumn, identity: RecordedColumn) -> None:
        self.kept.append(self._placed(new, identity))
        if identity.physical != new.name:
            self.moves.columns[identity.physical] = new.name
            rename = Rename(old=identity.physical, new=new.name)
            reverted = new.name in identity.former_names
            self.moves.changes.append(
                RenameColumn(
                    entity=self.entity, column=rename, tables=self.tables, reverted=reverted
                )
            )

    def _widen(self, new: PhysicalColumn, identity: RecordedColumn, present: str) -> None:
        self._keep(new, identity)
        self.moves.widened.add(new.name)
        self.moves.changes.append(
            WidenColumn(
                entity=self.entity,
                column=new.name,
                old_type=present,
                new_type=new.type,
                tables=self.tables,
            )
        )

    def _restore(self, new: PhysicalColumn, identity: RecordedColumn) -> None:
        self.kept.append(self._placed(new, identity))
        self.moves.columns[identity.physical] = new.name
        self.moves.changes.append(
            RestoreColumn(
                entity=self.entity,
                column=new.name,
                archived_as=identity.physical,
                type=new.type,
                tables=self.tables,
            )
        )

    def _retype(self, new: PhysicalColumn, identity: RecordedColumn, present: str) -> None:
        number = self.numbers.next_archive()
        archived_as = archive_column_name(new.name, number)
        source = self._retype_source(new, identity)
        begun = self._begun(new)
        # An interrupted run may have taken the archive already; its record says from where.
        filling = self._filling(new, identity, source, begun) if self.has_rows else None
        live = self.live[identity.physical]
        self.kept.append(self._placed(new, identity))
        self.kept.append(self._archived(identity, present, archived_as, number))
        self.moves.columns[identity.physical] = archived_as
        if filling:
            self.moves.columns[filling.target] = new.name
        elif source:
            self.moves.columns[source.physical] = new.name
        else:
            self.moves.arriving[new.name] = new
        for taken in (source, begun):
            if taken is not None:
                self.used.add(taken.physical)
        self.moves.changes.append(
            RetypeColumn(
                entity=self.entity,
                column=new.name,
                source=identity.physical,
                archived_as=archived_as,
                old_type=present,
                new=new,
                main_table=self.main,
                tables=self.tables,
                had_not_null=live.not_null,
                had_default=live.default is not None,
                restored_from=source.physical if source else None,
                chain=self._chain(source, identity, present),
                keep_archived_where_null=bool(source and source.key != identity.key),
                filling=filling,
            )
        )

    def _archived(
        self, identity: RecordedColumn, present: str, archived_as: str, number: int
    ) -> RecordedColumn:
        return replace(
            identity,
            physical=archived_as,
            type=present,
            state=ColumnState.ARCHIVED,
            reason=ArchiveReason.RETYPED,
            archive_number=number,
        )

    def _begun(self, new: PhysicalColumn) -> RecordedColumn | None:
        begun = self.moves.before.filling_columns.get(new.name)
        if begun and begun.type == new.type and begun.physical in self.live:
            return begun
        return None

    def _retype_source(
        self, new: PhysicalColumn, identity: RecordedColumn
    ) -> RecordedColumn | None:
        """Return the archive whose values come back, or the interrupted filling that took it."""
        begun = self._begun(new)
        if begun is not None:
            return begun if begun.archive_number else None
        fitting = [
            column
            for column in self.moves.before.columns
            if column.state is ColumnState.ARCHIVED
            and column.type == new.type
            and column.physical in self.live
            and column.physical not in self.used
            and (column.key == identity.key or new.name in column.names)
        ]
        return max(fitting, key=lambda c: (c.key == identity.key, c.archive_number), default=None)

    def _chain(
        self, source: RecordedColumn | None, identity: RecordedColumn, present: str
    ) -> tuple[str, ...]:
        if source is None or source.key != identity.key:
            return ()
        between = sorted(
            (c.archive_number, c.type)
            for c in self.moves.before.columns
            if c.state is ColumnState.ARCHIVED
            and c.key == identity.key
            and c.archive_number > source.archive_number
        )
        return (source.type, *(type_ for _, type_ in between), present)

    def _filling(
        self,
        new: PhysicalColumn,
        identity: RecordedColumn,
        source: RecordedColumn | None,
        begun: RecordedColumn | None,
    ) -> Filling:
        return Filling(
            entity=self.moves.before.name,
            source=identity.physical,
            target=begun.physical if begun else filling_column_name(new.name),
            taken_from=source.physical if source and not begun else None,
            exists=begun is not None,
            tables=self.old_tables,
        )

    def leave(self, resolution: Resolution) -> None:
        """Archive what nobody asks for and keep the archives there are."""
        for column in self.moves.before.columns:
            if column.physical in self.used:
                continue
            if column.physical not in self.live:
                continue  # dropped by hand: there is nothing to bring back
            if column.state is ColumnState.ACTIVE:
                self._remove(column)
            elif column.state is ColumnState.FILLING:
                self._abandon(column)
            else:
                self.kept.append(column)

    def _remove(self, column: RecordedColumn) -> None:
        number = self.numbers.next_archive()
        archived_as = archive_column_name(column.name, number)
        live = self.live[column.physical]
        self.kept.append(
            replace(
                column,
                physical=archived_as,
                type=live.type,
                state=ColumnState.ARCHIVED,
                reason=ArchiveReason.REMOVED,
                archive_number=number,
            )
        )
        self.moves.columns[column.physical] = archived_as
        self.moves.changes.append(
            RemoveColumn(
                entity=self.entity,
                column=column.name,
                archived_as=archived_as,
                main_table=self.main,
                tables=self.tables,
                had_not_null=live.not_null,
                had_default=live.default is not None,
            )
        )

    def _abandon(self, column: RecordedColumn) -> None:
        number = self.numbers.next_archive()
        archived_as = archive_column_name(column.name, number)
        self.kept.append(
            replace(
                column,
                physical=archived_as,
                state=ColumnState.ARCHIVED,
                reason=ArchiveReason.RETYPED,
                archive_number=number,
            )
        )
        self.moves.changes.append(
            AbandonFilling(
                entity=self.entity,
                column=column.name,
                target=column.physical,
                archived_as=archived_as,
                tables=self.old_tables,
                source=self._guarded_for_nothing(),
            )
        )

    def _guarded_for_nothing(self) -> str:
        """Return the column whose castable check no filling of this plan needs, if there is one."""
        needed = {
            change.filling.source
            for change in self.moves.changes
            if isinstance(change, RetypeColumn) and change.filling
        }
        needed |= {c.source for c in self.moves.changes if isinstance(c, AbandonFilling)}
        return next((column for column in self.guarded if column not in needed), "")


def _with_former(identity: RecordedColumn, name: str) -> tuple[str, ...]:
    if identity.name == name:
        return identity.former_names
    return (*(old for old in identity.former_names if old != name), identity.name)


def begin_filling(record: RecordedEntity, change: RetypeColumn) -> RecordedEntity:
    """Return *record* with the filling of *change* noted, as the prepare phase writes it.

    *record* is the one before the flip. An archive that is taken becomes the filling itself and
    keeps its archive number, by which the next run knows that archived values are in it.
    """
    filling = change.filling
    assert filling is not None, "only a retype with rows is filled"
    if filling.exists:
        return record
    source = next(c for c in record.columns if c.physical == filling.source)
    taken = next((c for c in record.columns if c.physical == filling.taken_from), source)
    begun = replace(
        taken,
        name=change.column,
        physical=filling.target,
        type=change.new.type,
        state=ColumnState.FILLING,
        reason=ArchiveReason.RETYPED,
        archive_number=taken.archive_number if filling.taken_from else 0,
    )
    others = tuple(c for c in record.columns if c.physical != filling.taken_from)
    return replace(record, columns=(*others, begun))


def give_up_filling(
    record: RecordedEntity, change: AbandonFilling, after: RecordedEntity
) -> RecordedEntity:
    """Return *record* with the working column as the archive that it is in *after*."""
    archive = next(c for c in after.columns if c.physical == change.archived_as)
    columns = (archive if c.physical == change.target else c for c in record.columns)
    return replace(record, columns=tuple(columns))
