"""How an entity and its tables move: created, renamed, archived, brought back.

Takes one entity's record and its desired form and gives ``Moves``: the changes, the record as the
flip will leave it, and the maps from present to final names, through which ``plan.diff`` looks at
the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from mdm_gitops.model import Entity
from mdm_gitops.plan.changes import (
    AddIndex,
    AddSatellite,
    Change,
    RemoveEntity,
    RemoveSatellite,
    Rename,
    RenameEntity,
    RestoreEntity,
    RestoreSatellite,
)
from mdm_gitops.plan.column_moves import move_columns
from mdm_gitops.plan.desired import DesiredEntity
from mdm_gitops.plan.identity import Resolution
from mdm_gitops.plan.moves import Moves, Numbers
from mdm_gitops.plan.physical import (
    PhysicalColumn,
    Role,
    Table,
    archive_table_name,
    table_name,
)
from mdm_gitops.plan.recorded import (
    ColumnState,
    EntityState,
    RecordedColumn,
    RecordedEntity,
    RecordedSatellite,
)


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
    move_columns(moves, desired, resolution, live[before.main], has_rows, numbers)
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
            moves.changes += [
                AddIndex(entity=name, table=table.name, index=index, online=False)
                for index in table.indexes
            ]
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
