"""What a write must know of the entity it writes to: its tables, its columns, and who refers to it.

Worked out once per state of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mdm_gitops.data.asking import Asking
from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import Role, Table, physical_entity, reference_targets, table_name
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoredEntity, StoreState


@dataclass(frozen=True, slots=True, kw_only=True)
class Referrer:
    """A column of another entity, or of the same one, that holds values of *key*. Names are folded."""

    entity: str
    column: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Target:
    stored: StoredEntity
    main: Table
    references: Mapping[str, tuple[str, str]]  # own column -> (entity, column)
    referrers: tuple[Referrer, ...]
    schemas: Schemas

    @property
    def entity(self) -> Entity:
        return self.stored.definition

    @property
    def name(self) -> str:
        return self.stored.name

    @cached_property
    def main_sql(self) -> str:
        return self.table_sql(Role.MAIN)

    def table_sql(self, role: Role) -> str:
        return f'"{self.schemas.data}"."{table_name(self.name, role)}"'

    def config_sql(self, name: str) -> str:
        return f'"{self.schemas.config}".{name}'

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The physical names of the row's own columns, in the order of the definition."""
        return tuple(column.folded for column in self.entity.columns)

    def type_of(self, column: str) -> str:
        return self.main.columns[column].type

    @cached_property
    def unique_sets(self) -> tuple[tuple[str, ...], ...]:
        return tuple(index.columns for index in self.main.indexes if index.unique)

    @cached_property
    def referred_columns(self) -> tuple[str, ...]:
        """The own columns whose values other rows may hold."""
        return tuple(dict.fromkeys(referrer.key for referrer in self.referrers))


def target_of(asking: Asking, stored: StoredEntity) -> Target:
    """Return the target for *stored*; who may write to it is not asked here."""
    state = asking.state
    return state.remember(("target", stored.name), lambda: _build(state, asking.schemas, stored))


def _build(state: StoreState, schemas: Schemas, stored: StoredEntity) -> Target:
    references = reference_targets(stored.definition, state.definitions)
    return Target(
        stored=stored,
        main=physical_entity(stored.definition, references).main,
        references=references,
        referrers=state.remember("referrers", lambda: _all_referrers(state)).get(stored.name, ()),
        schemas=schemas,
    )


def _all_referrers(state: StoreState) -> Mapping[str, tuple[Referrer, ...]]:
    found: dict[str, list[Referrer]] = {}
    for name, entity in state.definitions.entities.items():
        for column, (target, key) in reference_targets(entity, state.definitions).items():
            referrer = Referrer(entity=name, column=column, key=key)
            found.setdefault(target, []).append(referrer)
    return {target: tuple(each) for target, each in found.items()}
