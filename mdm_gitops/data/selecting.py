"""Which rows an answer is made of, and in which order: the parts that lists, single rows and
exports share.

Text of SQL over the row ``t``; the values go along as named parameters. It decides nothing about
how a row looks (``row_json``) and runs nothing. Whoever runs a statement of these parts also reads
the store's revision in the same snapshot, and throws the answer away when it moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from mdm_gitops.data.asking import (
    Asking,
    combined,
    refuse_restricted,
    requested_filter,
    row_filter,
)
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.sorting import SortKey, default_sort, parse_sort
from mdm_gitops.data.time_travel import RELATION_PREFIX, relation, require_history
from mdm_gitops.errors import InputError
from mdm_gitops.filter import TypedFilter, columns_used, compile_predicate
from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import Role, table_name
from mdm_gitops.warehouse.names import Schemas
from mdm_gitops.warehouse.store import StoredEntity

# A filter with its place in the statement: prefix of its parameters, alias of its rows.
Placed: TypeAlias = tuple[str, str, TypedFilter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows that a caller asks for and may see: what stands after FROM, and their conditions.

    A read of the past has *entities* (folded names), whose relations its WITH clause must make
    (``time_travel.relations``), and the parameter ``as_of``.
    """

    name: str  # of the entity, folded
    source: str
    conditions: tuple[str, ...]
    predicates: tuple[Placed, ...]
    entities: frozenset[str] = frozenset()


def selection(
    asking: Asking, stored: StoredEntity, *, filter: str, state: RowState, past: bool = False
) -> Selection:
    """Return the rows of *stored* that pass *filter* and the caller's row filter.

    Raises:
        FilterError, AccessDenied: *filter* is none for this entity, or asks too much.
        Conflict, InputError: *past* is asked for, and is not kept.
    """
    own = row_filter(asking, stored.definition)
    asked = requested_filter(asking, stored.definition, filter)
    if past:
        return _past_selection(asking, stored, own, asked, state)
    typed = combined(own, asked)
    return Selection(
        name=stored.name,
        source=rows_source(asking, stored, state),
        conditions=tuple(conditions_on(asking, typed, state)),
        predicates=(
            *((("f", "t", typed),) if typed is not None else ()),
            *source_filters(asking, stored, state),
        ),
    )


def _past_selection(
    asking: Asking,
    stored: StoredEntity,
    own: TypedFilter | None,
    asked: TypedFilter | None,
    state: RowState,
) -> Selection:
    """The row filter follows references to the rows of now, the caller's own to those of then."""
    require_history(stored)
    if state is RowState.PENDING:
        raise InputError("proposals have no past", hint="leave asOfUtc out", parameter="state")
    conditions = conditions_on(asking, own, state)
    entities, predicates = {stored.name}, [("f", "t", own)] if own is not None else []
    if asked is not None:
        then = predicate_sql(asking, asked, prefix="q", alias="t", relation_prefix=RELATION_PREFIX)
        conditions.append(f"({then})")
        predicates.append(("q", "t", asked))
        entities |= {entity for entity, _ in columns_used(asked)}
    return Selection(
        name=stored.name,
        source=f"{relation(stored.name)} t",
        conditions=tuple(conditions),
        predicates=tuple(predicates),
        entities=frozenset(entities),
    )


def conditions_on(asking: Asking, typed: TypedFilter | None, state: RowState) -> list[str]:
    """Return what each row must pass; the parameters of *typed* start with ``f``."""
    found = []
    if state is RowState.ACTIVE:
        found.append('NOT t."_sys_is_deleted"')
    elif state is RowState.DELETED:
        found.append('t."_sys_is_deleted"')
    if typed is not None:
        found.append(f"({predicate_sql(asking, typed, prefix='f', alias='t')})")
    return found


def predicate_sql(
    asking: Asking,
    typed: TypedFilter | None,
    *,
    prefix: str,
    alias: str,
    relation_prefix: str = "",
) -> str:
    if typed is None:
        return ""
    predicate = compile_predicate(
        typed,
        context=asking.filter_context,
        schema=asking.schemas.data,
        alias=alias,
        parameter_prefix=prefix,
        relation_prefix=relation_prefix,
    )
    return predicate.sql


def predicate_values(asking: Asking, placed: Iterable[Placed]) -> dict[str, Any]:
    """Return the values of the parameters of these filters, for this principal and moment."""
    context, values = asking.filter_context, {}
    for prefix, alias, typed in placed:
        predicate = compile_predicate(
            typed,
            context=context,
            schema=asking.schemas.data,
            alias=alias,
            parameter_prefix=prefix,
        )
        values.update(predicate.parameters)
    return values


def where_clause(conditions: Sequence[str]) -> str:
    return "\n WHERE " + " AND ".join(conditions) if conditions else ""


def rows_source(asking: Asking, stored: StoredEntity, state: RowState) -> str:
    """Return what stands after FROM: the approved rows, or proposals that look like them.

    Of the proposals only those whose approved row the caller may see, too; the parameters of that
    filter start with ``a`` (``source_filters``).
    """
    if state is not RowState.PENDING:
        return f'"{asking.schemas.data}"."{stored.name}" t'
    if not stored.definition.approval_required:
        main = f'"{asking.schemas.data}"."{stored.name}"'
        return f"({_NO_PROPOSALS.format(main=main)}) t"
    typed = row_filter(asking, stored.definition)
    approved = predicate_sql(asking, typed, prefix="a", alias="m")
    return f"({proposals_sql(asking.schemas, stored.name, approved=approved)}) t"


def source_filters(asking: Asking, stored: StoredEntity, state: RowState) -> list[Placed]:
    """Return the filters that ``rows_source`` holds."""
    if state is not RowState.PENDING or not stored.definition.approval_required:
        return []
    typed = row_filter(asking, stored.definition)
    return [("a", "m", typed)] if typed is not None else []


PENDING_STATE: Final = "'pending'"


def proposals_sql(
    schemas: Schemas, entity: str, *, states: str = PENDING_STATE, approved: str = ""
) -> str:
    """Return the proposals of *entity* in *states* (literals) as a relation that has all columns of
    a row; what has been approved already stands for what a proposal does not say.

    *approved* is a condition on the approved row ``m``, where there is one; "" for none.
    """
    only = f' AND (m."_sys_id" IS NULL OR ({approved}))' if approved else ""
    return _PROPOSALS.format(
        main=f'"{schemas.data}"."{entity}"',
        edit=f'"{schemas.data}"."{table_name(entity, Role.EDIT)}"',
        states=states,
        only=only,
    )


_PROPOSALS: Final = """SELECT e.*, coalesce(e."_sys_base_version", 0) AS "_sys_version",
       coalesce(m."_sys_created_at", e."_sys_submitted_at") AS "_sys_created_at",
       coalesce(m."_sys_created_by", e."_sys_submitted_by") AS "_sys_created_by",
       e."_sys_submitted_at" AS "_sys_last_modified_at",
       e."_sys_submitted_by" AS "_sys_last_modified_by",
       coalesce(m."_sys_is_deleted", false) AS "_sys_is_deleted",
       m."_sys_deleted_at" AS "_sys_deleted_at"
  FROM {edit} e LEFT JOIN {main} m ON m."_sys_id" = e."_sys_id"
 WHERE e."_sys_state" IN ({states}){only}"""
# An entity that needs no approval has no proposals; the question is answered all the same.
_NO_PROPOSALS: Final = """SELECT m.*, 'pending'::text AS "_sys_state", ''::text AS "_sys_operation",
       NULL::text AS "_sys_batch_name", NULL::text AS "_sys_comment",
       NULL::timestamptz AS "_sys_submitted_at", NULL::text AS "_sys_submitted_by"
  FROM {main} m WHERE false"""


def revision_table(asking: Asking) -> str:
    return f'"{asking.schemas.config}".revision'


def sort_keys(
    asking: Asking, entity: Entity, *, sort: str, state: RowState, past: bool = False
) -> tuple[SortKey, ...]:
    """Return the total order that *sort* asks for, without it that of the definition.

    Raises:
        InputError: *sort* names what cannot be sorted by.
        AccessDenied: it names a column that is masked for the caller.
    """
    free = past or state is RowState.PENDING
    key = ("sort", asking.cache_key, entity.folded, sort, free)
    return asking.state.remember(key, lambda: _parsed_sort(asking, entity, sort, free))


def _parsed_sort(asking: Asking, entity: Entity, sort: str, free: bool) -> tuple[SortKey, ...]:
    sees_restricted = asking.rights(entity).sees_restricted

    def refuse(column: str) -> None:
        refuse_restricted(asking, entity, column, purpose="sorted by")

    def is_masked(column: str) -> bool:
        found = entity.column(column)
        return found is not None and found.restricted and not sees_restricted

    if sort.strip(" ,"):
        keys = parse_sort(sort, entity, refuse=refuse)
    else:
        keys = default_sort(entity, is_masked=is_masked)
    return tuple(_freed(key) for key in keys) if free else keys


def _freed(key: SortKey) -> SortKey:
    """A proposal, and a version of the past, may lack what an approved row must have."""
    return replace(key, nullable=key.nullable or not key.column.startswith("_sys_"))
