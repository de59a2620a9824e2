"""Parts of statements that similar and duplicates share: values as they are compared, keys, rows.

Text of SQL, and what becomes of values that did not come out of the warehouse. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from mdm_gitops.data.asking import Asking, refuse_restricted
from mdm_gitops.data.row_json import RowState, outputs, select_list
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model import Entity
from mdm_gitops.model.similarity import Comparison, comparisons, match_kinds
from mdm_gitops.model.suggest import did_you_mean
from mdm_gitops.model.values import NotOfType
from mdm_gitops.warehouse.names import Schemas


def compared(entity: Entity) -> tuple[Comparison, ...]:
    """Return what is compared of *entity*.

    Raises:
        Conflict: nothing is, or it is switched off.
    """
    if entity.similarity is not None and not entity.similarity.enabled:
        raise _off(f"similarity of {entity.name} is switched off", "set similarity.enabled: true")
    found = comparisons(entity)
    if not found:
        raise _off(f"{entity.name} has no column to compare", "name some in its similarity")
    return found


def _off(message: str, hint: str) -> Conflict:
    return Conflict(message, hint=hint, code="SIMILARITY_OFF")


def compared_for(asking: Asking, entity: Entity) -> tuple[Comparison, ...]:
    """Return what is compared for this caller: a score would tell of masked values.

    Raises:
        Conflict: nothing is, or it is switched off.
    """
    sees_restricted = asking.rights(entity).sees_restricted
    found = tuple(each for each in compared(entity) if sees_restricted or not each.restricted)
    if not found:
        raise _off(f"{entity.name} has no column to compare", "name some in its similarity")
    return found


def given_sql(schemas: Schemas, columns: Iterable[Comparison], alias: str = "t") -> str:
    """Return the array of values as they are compared, the one that the index of keys is over."""
    texts = (f'"{schemas.config}".index_text({alias}."{each.column}")' for each in columns)
    return f"ARRAY[{', '.join(texts)}]::text[]"


def keys_sql(schemas: Schemas, columns: Sequence[Comparison]) -> str:
    """Return the expression of the index of keys."""
    texts = (f'"{schemas.config}".index_text(t."{each.column}")' for each in columns)
    kinds = match_kinds(tuple(columns))
    return f"\"{schemas.config}\".match_keys('{kinds}', ARRAY[{', '.join(texts)}])"


def row_sql(asking: Asking, entity: Entity, alias: str = "t") -> str:
    """Return the row *alias* as JSON, masked for the caller."""
    sees_restricted = asking.rights(entity).sees_restricted
    members = outputs(entity, sees_restricted=sees_restricted, state=RowState.ACTIVE, alias=alias)
    return f"(SELECT row_to_json(r) FROM (SELECT {select_list(members)}) r)"


def given_values(
    asking: Asking, entity: Entity, values: Mapping[str, Any]
) -> dict[str, str | None]:
    """Return *values* of a caller by folded column, as the warehouse would give them.

    Raises:
        InputError: one is of no column of the entity, or not of its type.
        AccessDenied: one is of a column that is masked for the caller.
    """
    found: dict[str, str | None] = {}
    for name, raw in values.items():
        column = entity.column(name)
        if column is None:
            raise InputError(
                f"values names {name[:60]!r}, which {entity.name} does not have",
                hint=did_you_mean(name, (each.name for each in entity.columns)),
                parameter="values",
            )
        refuse_restricted(asking, entity, column.folded, purpose="compared")
        try:
            found[column.folded] = index_text(column.typed(raw))
        except NotOfType as error:
            raise InputError(f"{column.name} {error}", parameter="values") from None
    return found


def index_text(value: Any) -> str | None:
    """Return *value* as the store's function ``index_text`` writes it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
        case date():
            return value.isoformat()
        case Decimal():
            text = format(value, "f")
            return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
        case _:
            return str(value)
