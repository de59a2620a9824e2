"""Two states of the store side by side: as it is, and as permissions would be after a plan.

The rows are those of now in both. So the state after holds the grants, domains, modes and
classifications that are asked for, over the columns that are there; what needs columns or rows that
only the apply brings is named (``why_not_yet``) and judged by the next plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from psycopg import errors

from mdm_gitops.access import Principal, Tier
from mdm_gitops.access.testing import by_principal
from mdm_gitops.data.asking import Asking
from mdm_gitops.model import Column, Definitions, Entity, fold
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.planning import Drafted
from mdm_gitops.warehouse.store import StoredEntity, StoreState, packed

# What a statement meets when somebody changed a table by hand; the plan tells it as drift.
DRIFTED: Final = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.DatatypeMismatch,
)
DRIFTED_WORDS: Final = "its table is not as it was deployed"


@dataclass(frozen=True, kw_only=True)
class Prospect:
    before: StoreState
    after: StoreState
    drafted: Drafted
    schemas: Schemas
    now: datetime
    tier: Tier
    admin_role: str

    @property
    def definitions(self) -> Definitions:
        return self.drafted.definitions

    def asking(self, principal: Principal, state: StoreState) -> Asking:
        return Asking(
            principal=principal, state=state, schemas=self.schemas, now=self.now, tier=self.tier
        )

    def definition(self, name: str) -> Entity:
        """Return the definition of the folded *name* that holds after the plan."""
        stored = self.after.entities.get(name)
        if stored is not None and not self.drafted.is_meant(name):
            return stored.definition
        return self.definitions.entities[name]

    def why_not_yet(self, name: str, used: Iterable[tuple[str, str]]) -> str:
        """Say why rows of the folded entity *name* cannot be judged before the apply; "" if they can.

        *used* are the (entity, column) pairs that decide.
        """
        if name not in self.after.entities:
            return f"{name} is not deployed yet"
        pairs = sorted(used)
        for owner in sorted({name, *(owner for owner, _ in pairs)} & self.drafted.seeded):
            return f"this plan writes rows of {owner}"
        for owner, column in pairs:
            if self.drafted.is_meant(owner) and self._moves(owner, column):
                return f"this plan changes column {column} of {owner}"
        return ""

    def _moves(self, owner: str, column: str) -> bool:
        if column.startswith("_sys_"):
            return False
        old = self.after.entities[owner].definition
        new = self.definitions.entities.get(owner)
        was, becomes = old.column(column), new.column(column) if new else None
        if new is None or was is None or becomes is None:
            return True
        # A new column may take the name of one that goes to another name in the same plan.
        taken = (fold(each.renamed_from or "") == column for each in new.columns)
        return _kind(was) != _kind(becomes) or (any(taken) and not _has_all(old, new))


def _kind(column: Column) -> tuple[object, ...]:
    return (column.data_type, column.reference)


def _has_all(old: Entity, new: Entity) -> bool:
    return all(old.column(each.name) is not None for each in new.columns)


def prospect(
    before: StoreState,
    drafted: Drafted,
    *,
    schemas: Schemas,
    now: datetime,
    tier: Tier,
    admin_role: str,
) -> Prospect:
    """Return *before* beside what the plan makes of it."""
    grants = before.grants
    if drafted.changes_access:
        grants = by_principal(drafted.definitions.grants)
    entities: Mapping[str, StoredEntity] = {
        name: _after(stored, drafted.definitions.entities.get(name))
        if drafted.is_meant(name) and name not in drafted.draft.facts.unchanged
        else stored
        for name, stored in before.entities.items()
    }
    return Prospect(
        before=before,
        after=StoreState(
            revision=before.revision,
            entities=MappingProxyType(dict(entities)),
            removed=before.removed,
            grants=grants,
            keys=before.keys,
            project=before.project,
        ),
        drafted=drafted,
        schemas=schemas,
        now=now,
        tier=tier,
        admin_role=admin_role,
    )


def _after(stored: StoredEntity, wanted: Entity | None) -> StoredEntity:
    """Return *stored* with what decides rights as *wanted* has it, and with the columns of now."""
    if wanted is None:
        return stored
    document = stored.definition.to_document()
    mixed = stored.definition.model_copy(
        update={
            "domain": wanted.domain,
            "access": wanted.access,
            "columns": tuple(_classified(column, wanted) for column in stored.definition.columns),
        }
    ).to_document()
    if mixed == document:
        return stored
    return replace(stored, packed=packed(json.dumps({"definition": mixed})))


def _classified(column: Column, wanted: Entity) -> Column:
    found = wanted.column(column.name)
    if found is None:
        return column
    return column.model_copy(update={"classification": found.classification})
