"""Seed files in a plan: which must be looked at, in which order they go, what they would do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mdm_gitops.model import Column, DataType, Definitions, Seed, SeedMode, fold
from mdm_gitops.plan.changes import ApplySeed, RetypeColumn, SeedCounts, UserColumn
from mdm_gitops.plan.desired import DesiredEntity
from mdm_gitops.plan.facts import Facts
from mdm_gitops.plan.moves import Moves
from mdm_gitops.plan.order import groups_in_order
from mdm_gitops.plan.physical import PhysicalColumn, Role


@dataclass(frozen=True, kw_only=True)
class SeedQuestion:
    """How do the rows of *change* compare with the live table (None: there is none yet)?

    *present* maps final column names to the live ones; a column without one is new.
    """

    change: ApplySeed = field(repr=False)
    live_table: str | None
    present: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    is_new_file: bool = True  # its content is not the one applied last

    def is_needed(self, counts: SeedCounts) -> bool:
        """An enforced file that was applied already is needed only if somebody changed rows."""
        return self.is_new_file or bool(counts.inserted or counts.updated)


def plan_seeds(
    definitions: Definitions,
    facts: Facts,
    desired: Mapping[str, DesiredEntity],
    moves: Mapping[str, Moves],
    target: frozenset[str],
    *,
    created: Collection[str],
) -> Iterator[tuple[ApplySeed, SeedQuestion]]:
    edges = {
        name: [entity for entity, _ in desired[name].targets.values()] for name in definitions.seeds
    }
    for number, group in enumerate(groups_in_order(edges), start=1):
        for name in group:
            seed, entity = definitions.seeds[name], desired[name]
            is_new = name in created or facts.seeds.get(name) != seed.content_hash
            enforced = entity.entity.seed.mode is SeedMode.ENFORCE
            if (target and name not in target) or not (is_new or enforced):
                continue
            change = _change(seed, entity, number)
            yield change, _question(change, facts, moves.get(name), is_new)


def _change(seed: Seed, desired: DesiredEntity, group: int) -> ApplySeed:
    tables = desired.physical.tables
    given = dict.fromkeys(fold(key) for row in seed.rows for key in row)
    columns: tuple[PhysicalColumn, ...] = tuple(
        column for name, column in tables[Role.MAIN].columns.items() if name in given
    )
    history = tables.get(Role.HISTORY)
    return ApplySeed(
        entity=desired.name,
        seed=seed,
        mode=desired.entity.seed.mode,
        table=tables[Role.MAIN].name,
        history_table=history.name if history else None,
        user_columns=tuple(_user_column(column) for column in desired.entity.columns),
        key_columns=tuple(fold(name) for name in desired.entity.key_columns),
        columns=columns,
        counts=SeedCounts(),
        group=group,
    )


def _user_column(column: Column) -> UserColumn:
    is_moment = column.data_type is DataType.DATETIME
    return UserColumn(name=column.folded, shown=column.name, is_moment=is_moment)


def _question(change: ApplySeed, facts: Facts, moves: Moves | None, is_new: bool) -> SeedQuestion:
    if moves is not None:
        live_table: str | None = moves.before.main
        back = {new: old for old, new in moves.columns.items()} | _retyped(moves)
    else:
        live_table = change.table if change.entity in facts.unchanged else None
        back = {}
    relation = facts.table(live_table) if live_table else None
    columns = [column.name for column in change.columns]
    if relation is not None:
        live = relation.part("columns")
        present = {name: back.get(name, name) for name in columns if back.get(name, name) in live}
    else:
        present = {name: name for name in columns}  # unchanged: exactly as the definition says
    return SeedQuestion(
        change=change,
        live_table=live_table,
        present=MappingProxyType(present),
        is_new_file=is_new,
    )


def _retyped(moves: Moves) -> dict[str, str]:
    """A retyped column still has its values in the old one: the new one is not there or half full."""
    retypes = (change for change in moves.changes if isinstance(change, RetypeColumn))
    return {change.column: change.source for change in retypes}
