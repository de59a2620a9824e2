"""Which recorded entity or column a desired one *is*: the part of planning that must never guess.

An identity is kept, renamed (by ``renamedFrom``, or back when that directive is withdrawn),
restored from its archive when its name returns, or new. The rules, first match wins:

1. The whole definition was deployed before, to the letter: each name is what it was then (an
   entity only if no directive and no entity that keeps its name has the better claim).
2. A directive ``new renamedFrom old``: the identity that has made this rename already; else the one
   named *old* now, unless *new* stands there as something else (then the author must say which).
3. A withdrawn directive: what it had renamed goes back to its old name, if only that is asked for.
4. The identity that has the name now.
5. One that had the name before, and whose present name nobody asks for any more: renamed back.
6. The newest archive of that name and the same type.

Pure functions of recorded and desired values; types decide only whether an archive fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mdm_gitops.model import Entity, fold
from mdm_gitops.plan.physical import PhysicalColumn
from mdm_gitops.plan.plan import Refusal, RefusalCode
from mdm_gitops.plan.recorded import ColumnState, EntityState, RecordedColumn, RecordedEntity


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Desired column name -> recorded identity; names without one are new."""

    columns: Mapping[str, RecordedColumn]
    refusals: tuple[Refusal, ...] = ()


def resolve_columns(
    record: RecordedEntity, entity: Entity, desired: Mapping[str, PhysicalColumn]
) -> Resolution:
    """Find the identity of each column of *entity* among those of *record*.

    *desired* are the physical columns of the main table by name; system columns are ignored.
    """
    resolver = _Columns(record, entity, desired)
    return resolver.resolve()


class _Columns:
    def __init__(
        self, record: RecordedEntity, entity: Entity, desired: Mapping[str, PhysicalColumn]
    ) -> None:
        self.record = record
        self.entity = entity
        self.types = {name: column.type for name, column in desired.items()}
        self.active = record.active_columns
        self.directives = _column_directives(entity)
        self.withdrawn = {
            new: old
            for new, old in _column_directives(record.definition).items()
            if self.directives.get(new) != old
        }
        self.claimed: dict[str, RecordedColumn] = {}
        self.refusals: list[Refusal] = []

    def resolve(self) -> Resolution:
        names = [column.folded for column in self.entity.columns]
        self._revert_to_the_letter(names)
        steps = (
            self._by_directive,
            self._by_withdrawal,
            self._by_name,
            self._by_former_name,
            self._by_archive,
        )
        for step in steps:
            for name in names:
                if name not in self.claimed:
                    self._claim(name, step(name))
        return Resolution(columns=self.claimed, refusals=tuple(self.refusals))

    def _claim(self, name: str, column: RecordedColumn | None) -> None:
        if column is not None and all(c is not column for c in self.claimed.values()):
            self.claimed[name] = column

    def _revert_to_the_letter(self, names: list[str]) -> None:
        """A definition that was deployed before gets the very columns that it had then."""
        earlier = dict(self.record.earlier).get(self.entity.content_hash())
        if earlier is None:
            return
        keys = dict(earlier)
        for name in names:
            self._claim(name, self._of_key(keys.get(name, -1), self.types[name]))

    def _of_key(self, key: int, type_: str) -> RecordedColumn | None:
        """Return the column of the identity *key*: the active one, else its fitting archive."""
        active = [c for c in self.active.values() if c.key == key]
        archived = [
            c
            for c in self.record.columns
            if c.state is ColumnState.ARCHIVED and c.key == key and c.type == type_
        ]
        return max(active or archived, key=lambda c: c.archive_number, default=None)

    def _by_directive(self, name: str) -> RecordedColumn | None:
        old = self.directives.get(name)
        if old is None:
            return None
        here, source = self.active.get(name), self.active.get(old)
        if here is not None and old in here.former_names:
            return here
        if source is not None and (here is None or name in self.directives.values()):
            return source
        if here is not None and source is not None and old not in self.types:
            self._refuse(
                RefusalCode.RENAME_AMBIGUOUS,
                f"column {name} is declared as renamed from {old}, but both exist",
                f"Remove renamedFrom from {name}, or keep {old} in the definition",
            )
        if here is not None:
            return here
        archived = self._newest_archive(name, self.types[name])
        archived = archived or self._newest_archive(old, self.types[name])
        if archived is None:
            self._refuse(
                RefusalCode.RENAME_UNMATCHED,
                f"column {name} is declared as renamed from {old}, which does not exist",
                f"Correct or remove renamedFrom of {name}",
            )
        return archived

    def _by_withdrawal(self, name: str) -> RecordedColumn | None:
        for new, old in self.withdrawn.items():
            column = self.active.get(new)
            gone = new not in self.types
            if old == name and gone and column is not None and name in column.former_names:
                return column
        return None

    def _by_name(self, name: str) -> RecordedColumn | None:
        return self.active.get(name)

    def _by_former_name(self, name: str) -> RecordedColumn | None:
        """The same data as an archive of that name would bring, had the column been removed first."""
        free = [
            column
            for column in self.active.values()
            if name in column.former_names
            and column.name not in self.types
            and all(claimed is not column for claimed in self.claimed.values())
        ]
        return max(free, key=lambda c: (c.former_names.index(name), c.key), default=None)

    def _by_archive(self, name: str) -> RecordedColumn | None:
        return self._newest_archive(name, self.types[name])

    def _newest_archive(self, name: str, type_: str) -> RecordedColumn | None:
        fitting = [
            column
            for column in self.record.columns
            if column.state is ColumnState.ARCHIVED
            and column.type == type_
            and name in column.names
            and all(claimed is not column for claimed in self.claimed.values())
        ]
        # An archive that had the very name last goes before one that had it once.
        return max(fitting, key=lambda c: (c.name == name, c.archive_number), default=None)

    def _refuse(self, code: RefusalCode, message: str, hint: str) -> None:
        refusal = Refusal(
            code=code,
            entity=self.entity.folded,
            message=f"{self.entity.folded}: {message}",
            hint=hint,
        )
        self.refusals.append(refusal)


def _column_directives(entity: Entity) -> dict[str, str]:
    return {c.folded: fold(c.renamed_from) for c in entity.columns if c.renamed_from}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityResolution:
    """Desired entity name -> its record; *removed* are active records that nobody asks for."""

    records: Mapping[str, RecordedEntity]
    removed: tuple[RecordedEntity, ...]
    refusals: tuple[Refusal, ...] = ()


def resolve_entities(
    records: tuple[RecordedEntity, ...], entities: Mapping[str, Entity]
) -> EntityResolution:
    """Find the record of each desired entity, by the same rules as for columns.

    *records* are all records, removed ones included; *entities* all desired entities.
    """
    resolver = _Entities(records, entities)
    return resolver.resolve()


class _Entities:
    def __init__(self, records: tuple[RecordedEntity, ...], entities: Mapping[str, Entity]) -> None:
        self.entities = entities
        self.records = records
        self.active = {r.name: r for r in records if r.state is not EntityState.REMOVED}
        self.removed = [r for r in records if r.state is EntityState.REMOVED]
        self.directives = {
            name: fold(e.renamed_from) for name, e in entities.items() if e.renamed_from
        }
        self.withdrawn = {
            name: fold(r.definition.renamed_from)
            for name, r in self.active.items()
            if r.definition.renamed_from
            and self.directives.get(name) != fold(r.definition.renamed_from)
        }
        self.claimed: dict[str, RecordedEntity] = {}
        self.taken: set[int] = set()
        self.refusals: list[Refusal] = []

    def resolve(self) -> EntityResolution:
        self._revert_to_the_letter()
        steps = (
            self._by_directive,
            self._by_withdrawal,
            self.active.get,
            self._by_former_name,
            self._by_archive,
        )
        for step in steps:
            for name in self.entities:
                if name not in self.claimed:
                    self._claim(name, step(name))
        removed = tuple(r for r in self.active.values() if r.entity_id not in self.taken)
        return EntityResolution(
            records=self.claimed, removed=removed, refusals=tuple(self.refusals)
        )

    def _claim(self, name: str, record: RecordedEntity | None) -> None:
        if record is not None and record.entity_id not in self.taken:
            self.claimed[name] = record
            self.taken.add(record.entity_id)

    def _revert_to_the_letter(self) -> None:
        """A definition that was deployed before is the entity that it was then.

        Unless something else that is asked for has the better claim: a directive, or a name that
        stays with what has it now. So a copy of an entity that was renamed is a new entity.
        """
        found = self._deployed_before()
        while stays := {name for name, r in found.items() if self._stays(name, r, found)}:
            found = {name: record for name, record in found.items() if name not in stays}
        for name, record in found.items():
            self._claim(name, record)

    def _stays(
        self, name: str, record: RecordedEntity, found: Mapping[str, RecordedEntity]
    ) -> bool:
        """Whether the present name of *record* is another one that is asked for, and stays its."""
        if self.directives.get(name) and record is self._directed(name):
            return False
        if record.state is EntityState.REMOVED or record.name == name:
            return False
        return record.name in self.entities and found.get(record.name, record) is record

    def _deployed_before(self) -> dict[str, RecordedEntity]:
        """Return by name what each definition was; no record twice."""
        known = self._known()
        found: dict[str, RecordedEntity] = {}
        for name in self.directives:
            directed = self._directed(name)
            if directed is not None and (name not in known or directed in known[name]):
                found[name] = directed
        for name in sorted(known, key=lambda name: name not in self.active):
            free = [r for r in known[name] if all(r is not f for f in found.values())]
            if name not in found and free:
                found[name] = max(free, key=lambda r: self._likeness(r, name))
        return {name: record for name, record in found.items() if name in known}

    def _likeness(self, record: RecordedEntity, name: str) -> tuple[object, ...]:
        """Two identities can have had the same definition one after the other: what stands goes
        before what is archived, then what would else be archived, then what has the name now."""
        stands = record.state is not EntityState.REMOVED
        leaves = stands and record.name not in self.entities
        return (stands, leaves, record.name == name, record.archive_number, record.entity_id)

    def _known(self) -> dict[str, list[RecordedEntity]]:
        by_definition: dict[str, list[RecordedEntity]] = {}
        for record in self.records:
            for digest, _ in record.earlier:
                by_definition.setdefault(digest, []).append(record)
        known = {n: by_definition.get(e.content_hash(), []) for n, e in self.entities.items()}
        return {name: records for name, records in known.items() if records}

    def _directed(self, name: str) -> RecordedEntity | None:
        """Return what has followed the directive of *name*, or does so now."""
        old = self.directives[name]
        here, source = self.active.get(name), self.active.get(old)
        if here is not None and old in here.former_names:
            return here
        if source is not None and (here is None or name in self.directives.values()):
            return source
        return None

    def _by_directive(self, name: str) -> RecordedEntity | None:
        old = self.directives.get(name)
        if old is None:
            return None
        directed = self._directed(name)
        if directed is not None:
            return directed
        here, source = self.active.get(name), self.active.get(old)
        if here is not None and source is not None and old not in self.entities:
            self._refuse(
                RefusalCode.RENAME_AMBIGUOUS,
                name,
                f"entity {name} is declared as renamed from {old}, but both exist",
                f"Remove renamedFrom from {name}, or keep {old}",
            )
        if here is not None:
            return here
        archived = self._by_archive(name) or self._by_archive(old)
        if archived is None and (self.active or self.removed):
            self._refuse(
                RefusalCode.RENAME_UNMATCHED,
                name,
                f"entity {name} is declared as renamed from {old}, which was never deployed",
                f"Correct or remove renamedFrom of {name}",
            )
        return archived

    def _by_withdrawal(self, name: str) -> RecordedEntity | None:
        for new, old in self.withdrawn.items():
            record = self.active[new]
            if old == name and new not in self.entities and name in record.former_names:
                return record
        return None

    def _by_former_name(self, name: str) -> RecordedEntity | None:
        taken = {record.entity_id for record in self.claimed.values()}
        free = [
            record
            for record in self.active.values()
            if name in record.former_names
            and record.name not in self.entities
            and record.entity_id not in taken
        ]
        return max(free, key=lambda r: (r.former_names.index(name), r.entity_id), default=None)

    def _by_archive(self, name: str) -> RecordedEntity | None:
        fitting = [
            r
            for r in self.removed
            if name in (r.name, *r.former_names)
            and all(claimed is not r for claimed in self.claimed.values())
        ]
        return max(fitting, key=lambda r: (r.name == name, r.archive_number), default=None)

    def _refuse(self, code: RefusalCode, entity: str, message: str, hint: str) -> None:
        self.refusals.append(Refusal(code=code, entity=entity, message=message, hint=hint))
