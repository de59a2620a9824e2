"""How many rows a principal reaches for an action: the row filter, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.failures import translated
from mdm_gitops.filter import compile_predicate
from mdm_gitops.model import Action
from mdm_gitops.warehouse.store import StoredEntity


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    rows: int  # that the principal reaches
    total: int


async def count_reach(
    conn: AsyncConnection[Any], *, asking: Asking, stored: StoredEntity, action: Action
) -> Reach:
    """Count all rows of the entity, soft-deleted ones too, and those within the caller's *action*."""
    table = f'"{asking.schemas.data}"."{stored.name}"'
    condition, values = "true", dict[str, Any]()
    if not asking.rights(stored.definition).may(action):
        condition = "false"
    elif (typed := row_filter(asking, stored.definition, action)) is not None:
        predicate = compile_predicate(
            typed,
            context=asking.filter_context,
            schema=asking.schemas.data,
            alias="t",
            parameter_prefix="f",
        )
        condition, values = predicate.sql, dict(predicate.parameters)
    query = f"SELECT count(*) FILTER (WHERE {condition}), count(*) FROM {table} t"
    with translated():
        row = await (await conn.execute(query.encode(), values)).fetchone()
    assert row is not None, "an aggregate has one row"
    return Reach(rows=row[0], total=row[1])
