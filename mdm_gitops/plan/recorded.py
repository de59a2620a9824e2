"""What the store remembers of each entity: its last definition and the identity of its columns.

An identity lives through renames and archiving: it is what makes a reverted rename the reverse
rename, and a column that comes back the column that went. Records are written in the transaction
that changes the tables they describe, so the two never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import Role, Targets

MAX_EARLIER = 50  # definitions whose column identities are kept for exact reverts


class ColumnState(StrEnum):
    ACTIVE = "active"
    ARCHIVED = "archived"
    FILLING = "filling"  # a retype in progress: the new column beside the old one


class ArchiveReason(StrEnum):
    REMOVED = "removed"
    RETYPED = "retyped"


class EntityState(StrEnum):
    DEPLOYING = "deploying"  # flipped, some rules are still being enforced
    DEPLOYED = "deployed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedColumn:
    """One identity. *key* is its number within the entity; *name* its last name, folded."""

    key: int
    name: str
    physical: str
    type: str
    state: ColumnState = ColumnState.ACTIVE
    reason: ArchiveReason | None = None  # of an archived column
    archive_number: int = 0  # of an archived column; later archives have higher numbers
    former_names: tuple[str, ...] = ()  # oldest first

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *reversed(self.former_names))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSatellite:
    """An edit or history table: active under its proper name, or archived under *physical*."""

    physical: str
    archived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEntity:
    entity_id: int
    name: str
    state: EntityState
    definition: Entity
    desired_hash: str  # definition and resolved references, see desired.DesiredEntity
    targets: Targets
    columns: tuple[RecordedColumn, ...]
    main: str  # the physical name of the main table
    satellites: Mapping[Role, RecordedSatellite] = field(
        default_factory=lambda: MappingProxyType({})
    )
    archive_number: int = 0  # of a removed entity
    former_names: tuple[str, ...] = ()
    earlier: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    """Column identities of definitions deployed before, oldest first: hash -> (name, key)s."""

    @property
    def active_columns(self) -> dict[str, RecordedColumn]:
        return {c.name: c for c in self.columns if c.state is ColumnState.ACTIVE}

    @property
    def filling_columns(self) -> dict[str, RecordedColumn]:
        return {c.name: c for c in self.columns if c.state is ColumnState.FILLING}

    @property
    def table_names(self) -> tuple[str, ...]:
        return (self.main, *(satellite.physical for satellite in self.satellites.values()))

    @property
    def active_table_names(self) -> tuple[str, ...]:
        active = (s.physical for s in self.satellites.values() if not s.archived)
        return (self.main, *active)

    def remembering(self, definition_hash: str, identities: Iterable[RecordedColumn]) -> Earlier:
        """Return ``earlier`` with the identities of *definition_hash* as the newest entry."""
        keys = tuple(sorted((column.name, column.key) for column in identities))
        others = tuple(entry for entry in self.earlier if entry[0] != definition_hash)
        return (*others, (definition_hash, keys))[-MAX_EARLIER:]


Earlier = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The last numbers given out; a plan takes the next ones and writes them back."""

    entity: int = 0
    archive: int = 0


def to_document(record: RecordedEntity) -> dict[str, Any]:
    """Return *record* as the JSON document of the store's column ``record``."""
    return {
        "entityId": record.entity_id,
        "name": record.name,
        "state": record.state.value,
        "definition": record.definition.to_document(),
        "desiredHash": record.desired_hash,
        "targets": {column: list(target) for column, target in record.targets.items()},
        "columns": [_column_document(column) for column in record.columns],
        "main": record.main,
        "satellites": {
            role.value: {"physical": satellite.physical, "archived": satellite.archived}
            for role, satellite in record.satellites.items()
        },
        "archiveNumber": record.archive_number,
        "formerNames": list(record.former_names),
        "earlier": [[digest, [list(pair) for pair in pairs]] for digest, pairs in record.earlier],
    }


def _column_document(column: RecordedColumn) -> dict[str, Any]:
    return {
        "key": column.key,
        "name": column.name,
        "physical": column.physical,
        "type": column.type,
        "state": column.state.value,
        "reason": column.reason.value if column.reason else None,
        "archiveNumber": column.archive_number,
        "formerNames": list(column.former_names),
    }


def from_document(
    document: Mapping[str, Any], *, definition: Entity | None = None
) -> RecordedEntity:
    """Read back what ``to_document`` wrote; a *definition* that is given need not be in it."""
    return RecordedEntity(
        entity_id=document["entityId"],
        name=document["name"],
        state=EntityState(document["state"]),
        definition=definition or Entity.model_validate(document["definition"]),
        desired_hash=document["desiredHash"],
        targets=MappingProxyType({c: (t[0], t[1]) for c, t in document["targets"].items()}),
        columns=tuple(_column(column) for column in document["columns"]),
        main=document["main"],
        satellites=MappingProxyType(
            {
                Role(role): RecordedSatellite(physical=s["physical"], archived=s["archived"])
                for role, s in document["satellites"].items()
            }
        ),
        archive_number=document["archiveNumber"],
        former_names=tuple(document["formerNames"]),
        earlier=tuple((e[0], tuple((p[0], p[1]) for p in e[1])) for e in document["earlier"]),
    )


def _column(document: Mapping[str, Any]) -> RecordedColumn:
    return RecordedColumn(
        key=document["key"],
        name=document["name"],
        physical=document["physical"],
        type=document["type"],
        state=ColumnState(document["state"]),
        reason=ArchiveReason(document["reason"]) if document["reason"] else None,
        archive_number=document["archiveNumber"],
        former_names=tuple(document["formerNames"]),
    )
