"""How the tables and columns of one entity move: what is added, renamed, archived, brought back.

Takes one entity's record and its desired form and gives three things: the changes, the record as
the flip will leave it, and the maps from present to final names, through which ``plan.diff`` looks
at the rules. Numbers of archives come from ``Numbers``, so that equal inputs give equal plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mdm_gitops.model import Entity
from mdm_gitops.plan.changes import (
    AbandonFilling,
    AddSatellite,
    Change,
    Filling,
    RemoveColumn,
    RemoveEntity,
    RemoveSatellite,
    Rename,
    RenameColumn,
    RenameEntity,
    RestoreColumn,
    RestoreEntity,
    RestoreSatellite,
    RetypeColumn,
    WidenColumn,
)
from mdm_gitops.plan.desired import DesiredEntity
from mdm_gitops.plan.identity import Resolution
from mdm_gitops.plan.physical import (
    PhysicalColumn,
    Role,
    RuleKind,
    Table,
    archive_column_name,
    archive_table_name,
    filling_column_name,
    table_name,
)
from mdm_gitops.plan.recorded import (
    ArchiveReason,
    ColumnState,
    EntityState,
    RecordedColumn,
    RecordedEntity,
    RecordedSatellite,
)
from mdm_gitops.plan.types import widens


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


def move_entity(
    before: RecordedEntity,
    desired: DesiredEntity,
    resolution: Resolution,
    *,
    live: Mapping[str, Table],
    has_rows: bool,
    numbers: Numbers,
) -> Moves:
    """Return the moves that lead from *before* to *desired*.

    *live* holds the entity's tables that really exist, by their present names; *has_rows* is
    whether any of them holds a row.
    """
    moves = Moves(before=before, after=before)
    _move_tables(moves, desired, live, numbers)
    _move_columns(moves, desired, resolution, live[before.main], has_rows, numbers)
    moves.changes = [_with_archives(change, moves.after) for change in moves.changes]
    moves.after = replace(
        moves.after,
        name=desired.name,
        state=EntityState.DEPLOYING,
        definition=desired.entity,
        desired_hash=desired.desired_hash,
        targets=desired.targets,
        former_names=_former(before, desired.name),
        archive_number=0,
    )
    active = moves.after.active_columns.values()
    earlier = moves.after.remembering(desired.entity.content_hash(), active)
    moves.after = replace(moves.after, earlier=earlier)
    return moves


def _with_archives(change: Change, after: RecordedEntity) -> Change:
    """All tables of an entity have the same columns, archives included: so a new one has them too.

    Then a column can come back in every table by the same rename.
    """
    if not isinstance(change, AddSatellite):
        return change
    archived = {
        column.physical: PhysicalColumn(name=column.physical, type=column.type)
        for column in after.columns
        if column.state is ColumnState.ARCHIVED
    }
    columns = MappingProxyType({**change.table.columns, **archived})
    return replace(change, table=replace(change.table, columns=columns))


def _former(before: RecordedEntity, name: str) -> tuple[str, ...]:
    if before.name == name:
        return before.former_names
    return (*(old for old in before.former_names if old != name), before.name)


# --- tables ---------------------------------------------------------------------------------------


def _move_tables(
    moves: Moves, desired: DesiredEntity, live: Mapping[str, Table], numbers: Numbers
) -> None:
    before, name = moves.before, desired.name
    renames: list[Rename] = []
    satellites: dict[Role, RecordedSatellite] = {}
    _rename(moves, renames, before.main, table_name(name, Role.MAIN))
    for role, satellite in before.satellites.items():
        if satellite.physical not in live:
            continue  # dropped by hand; what is missing is created again
        wanted = role in desired.physical.tables
        satellites[role] = _move_satellite(moves, renames, role, satellite, name, wanted, numbers)
    for role, table in desired.physical.tables.items():
        if role is not Role.MAIN and role not in satellites:
            satellites[role] = RecordedSatellite(physical=table.name)
            moves.changes.append(AddSatellite(entity=name, role=role, table=table))
    _name_the_move(moves, name, tuple(renames))
    main = table_name(name, Role.MAIN)
    moves.after = replace(before, main=main, satellites=MappingProxyType(satellites))


def _rename(moves: Moves, renames: list[Rename], old: str, new: str) -> None:
    moves.tables[old] = new
    if old != new:
        renames.append(Rename(old=old, new=new))


def _move_satellite(
    moves: Moves,
    renames: list[Rename],
    role: Role,
    satellite: RecordedSatellite,
    entity: str,
    wanted: bool,
    numbers: Numbers,
) -> RecordedSatellite:
    proper = table_name(entity, role)
    if wanted and not satellite.archived:
        _rename(moves, renames, satellite.physical, proper)
        return RecordedSatellite(physical=proper)
    if wanted:
        rename = Rename(old=satellite.physical, new=proper)
        moves.tables[rename.old] = rename.new
        moves.changes.append(RestoreSatellite(entity=entity, role=role, table=rename))
        return RecordedSatellite(physical=proper)
    if satellite.archived:
        moves.tables[satellite.physical] = satellite.physical
        return satellite
    archived = archive_table_name(entity, role, numbers.next_archive())
    rename = Rename(old=satellite.physical, new=archived)
    moves.tables[rename.old] = rename.new
    moves.changes.append(RemoveSatellite(entity=entity, role=role, table=rename))
    return RecordedSatellite(physical=archived, archived=True)


def _name_the_move(moves: Moves, name: str, renames: tuple[Rename, ...]) -> None:
    before = moves.before
    if before.state is EntityState.REMOVED:
        moves.changes.append(
            RestoreEntity(entity=name, archive_number=before.archive_number, tables=renames)
        )
    elif renames:
        reverted = name in before.former_names
        moves.changes.append(
            RenameEntity(entity=name, old_entity=before.name, tables=renames, reverted=reverted)
        )


def archive_entity(before: RecordedEntity, *, live: Mapping[str, Table], numbers: Numbers) -> Moves:
    """Return the moves that take an entity out of sight; its rows stay in the renamed tables."""
    moves = Moves(before=before, after=before)
    number = numbers.next_archive()
    renames: list[Rename] = []
    satellites = dict(before.satellites)
    main = archive_table_name(before.name, Role.MAIN, number)
    if before.main in live:
        _rename(moves, renames, before.main, main)
    for role, satellite in before.satellites.items():
        if not satellite.archived and satellite.physical in live:
            archived = archive_table_name(before.name, role, number)
            _rename(moves, renames, satellite.physical, archived)
            satellites[role] = RecordedSatellite(physical=archived)
    moves.changes.append(
        RemoveEntity(entity=before.name, archive_number=number, tables=tuple(renames))
    )
    moves.after = replace(
        before,
        state=EntityState.REMOVED,
        main=main,
        satellites=MappingProxyType(satellites),
        archive_number=number,
    )
    return moves


# --- columns --------------------------------------------------------------------------------------


def _move_columns(
    moves: Moves,
    desired: DesiredEntity,
    resolution: Resolution,
    live_main: Table,
    has_rows: bool,
    numbers: Numbers,
) -> None:
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


def created(entity: DesiredEntity, *, entity_id: int) -> RecordedEntity:
    """Return the record of an entity that is deployed for the first time."""
    physical = entity.physical
    columns = tuple(_first_columns(entity.entity, physical.main))
    record = RecordedEntity(
        entity_id=entity_id,
        name=entity.name,
        state=EntityState.DEPLOYING,
        definition=entity.entity,
        desired_hash=entity.desired_hash,
        targets=entity.targets,
        columns=columns,
        main=physical.main.name,
        satellites=MappingProxyType(
            {
                role: RecordedSatellite(physical=table.name)
                for role, table in physical.tables.items()
                if role is not Role.MAIN
            }
        ),
    )
    return replace(record, earlier=record.remembering(entity.entity.content_hash(), columns))


def _first_columns(entity: Entity, main: Table) -> Iterator[RecordedColumn]:
    for key, column in enumerate(entity.columns, start=1):
        name = column.folded
        yield RecordedColumn(key=key, name=name, physical=name, type=main.columns[name].type)
