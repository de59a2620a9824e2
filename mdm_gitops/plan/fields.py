"""Which properties of a definition changed that no table shows: names, descriptions, access ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mdm_gitops.model import AccessMode, Entity, Webhook
from mdm_gitops.model.base import Definition
from mdm_gitops.plan.changes import FieldChange

# Shown as changes of tables, rules, views and names already.
_PHYSICAL: Final = frozenset(
    {"name", "columns", "uniqueConstraints", "consumption", "renamedFrom"}
    | {"historyEnabled", "approvalRequired"}
)
_PHYSICAL_OF_COLUMN: Final = frozenset(
    {"name", "dataType", "nullable", "unique", "default", "maxLength", "precision", "scale"}
    | {"pattern", "minValue", "maxValue", "allowedValues", "reference", "renamedFrom"}
)


def entity_fields(
    old: Entity, new: Entity, *, identities: Mapping[str, str]
) -> Iterator[FieldChange]:
    """Yield the changed properties; *identities* maps new column names to their old ones."""
    yield from document_fields(old, new, leave_out=_PHYSICAL)
    before = old.column_by_name
    for column in new.columns:
        was = before.get(identities.get(column.folded, column.folded))
        if was is not None:
            prefix = f"columns.{column.name}."
            yield from document_fields(was, column, leave_out=_PHYSICAL_OF_COLUMN, prefix=prefix)


def document_fields(
    old: Definition, new: Definition, *, leave_out: frozenset[str] = frozenset(), prefix: str = ""
) -> Iterator[FieldChange]:
    before, after = _full(old), _full(new)
    for key in after:
        if key not in leave_out and before.get(key) != after[key]:
            yield FieldChange(path=f"{prefix}{key}", old=before.get(key), new=after[key])


def _full(value: Definition) -> dict[str, Any]:
    return value.model_dump(mode="json", by_alias=True)


def widens_access(old: Entity, new: Entity, *, identities: Mapping[str, str]) -> bool:
    """Whether somebody may see more than before: a column unmasked, a restricted entity opened."""
    if old.access.mode is AccessMode.RESTRICTED and new.access.mode is AccessMode.OPEN:
        return True
    before = old.column_by_name
    for column in new.columns:
        was = before.get(identities.get(column.folded, column.folded))
        if was is not None and was.restricted and not column.restricted:
            return True
    return False


def webhook_fields(old: Webhook, new: Webhook) -> tuple[FieldChange, ...]:
    return tuple(document_fields(old, new))
