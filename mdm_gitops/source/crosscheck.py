"""Checks that need more than the model: stored filters, held against the language that runs them."""

from __future__ import annotations

from collections.abc import Iterator

from mdm_gitops.errors import FilterError
from mdm_gitops.model.names import fold
from mdm_gitops.model.problem import Problem
from mdm_gitops.model.repository import Definitions


def check_row_filters(definitions: Definitions) -> Iterator[Problem]:
    """Yield row filters that do not compile against an entity they are for."""
    items = definitions.permissions.permissions
    for index, item in enumerate(items):
        if not (item.row_filter_dsl or "").strip():
            continue
        for name in item.entities:
            problem = _check_row_filter(item.row_filter_dsl or "", name, definitions, index)
            if problem is not None:
                yield problem
                break


def _check_row_filter(
    text: str, entity_name: str, definitions: Definitions, index: int
) -> Problem | None:
    # Here because a repository without row filters need not load the filter language.
    from mdm_gitops.filter import check_filter

    entity = definitions.entities.get(fold(entity_name))
    if entity is None:
        return None
    try:
        check_filter(text, entity, definitions)
    except FilterError as exc:
        return Problem(
            rule="bad-filter",
            message=f"row filter is wrong for entity {entity.name!r}, character"
            f" {exc.position + 1}: {exc}",
            pointer=("permissions", index, "rowFilterDsl"),
            hint=exc.hint or (f"expected {exc.expected}" if exc.expected else ""),
        )
    return None
