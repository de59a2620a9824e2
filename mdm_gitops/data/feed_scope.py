"""Which changes a caller may read: the entities, and of some of them only certain rows.

A change is shown if the row that it changed passes the caller's row filter: as the row is now, or,
where there is none (it was deleted, or its creation waits for approval), as its last change left it.
So all changes of a row are shown or none is, whatever values the row had in between. A proposal
must pass too, as it does where proposals are listed. What cannot be decided is hidden: an image
that lacks a column of the filter, or holds a value that the column of today cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mdm_gitops.data.asking import Asking, no_such_entity, row_filter
from mdm_gitops.data.selecting import Placed, predicate_sql
from mdm_gitops.data.target import target_of
from mdm_gitops.filter import TypedFilter, columns_used
from mdm_gitops.model import DataType, fold
from mdm_gitops.warehouse.ddl.conditions import cast_sql, castable_sql
from mdm_gitops.warehouse.store import StoredEntity

_PROPOSALS: Final = "('data_edited', 'data_rejected')"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityName:
    """An entity there is or was, as it was called last."""

    entity_id: int
    name: str
    display_name: str = ""

    def is_called(self, name: str) -> bool:
        return fold(name) == fold(self.name)

    def is_displayed_as(self, name: str) -> bool:
        return bool(self.display_name) and fold(name) == fold(self.display_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """*open_ids* are entities all of whose changes are shown; *everything* has no limits at all."""

    everything: bool = False
    open_ids: tuple[int, ...] = ()
    limited: tuple[tuple[StoredEntity, TypedFilter], ...] = ()

    @property
    def limited_ids(self) -> tuple[int, ...]:
        return tuple(stored.entity_id for stored, _ in self.limited)


def scope_of(asking: Asking, entity: str, names: Sequence[EntityName]) -> Scope:
    """Return what the caller may read; with *entity*, a name or display name, only of that one.

    *names* are all entities there are and were, which a Global Admin may ask for. Others see only
    those in use that they may read.

    Raises:
        NotFound: *entity* is none that the caller may know of.
        AccessDenied: a row filter of the caller's cannot be applied.
    """
    if asking.principal.is_global_admin:
        if not entity:
            return Scope(everything=True)
        return Scope(open_ids=tuple(each.entity_id for each in named(entity, names)))
    readable = [s for s in asking.state.entities.values() if asking.rights(s.definition).may_read]
    if entity:
        called = [
            EntityName(
                entity_id=stored.entity_id,
                name=stored.definition.name,
                display_name=stored.definition.display_name or "",
            )
            for stored in readable
        ]
        wanted = {each.entity_id for each in named(entity, called)}
        readable = [stored for stored in readable if stored.entity_id in wanted]
    return _scope(asking, readable)


def named(text: str, names: Sequence[EntityName]) -> list[EntityName]:
    """Return those called *text*, else those displayed so; or raise NotFound."""
    found = [each for each in names if each.is_called(text)]
    found = found or [each for each in names if each.is_displayed_as(text)]
    if not found:
        raise no_such_entity(text, [each.name for each in names])
    return found


def _scope(asking: Asking, readable: Sequence[StoredEntity]) -> Scope:
    filters = [(stored, row_filter(asking, stored.definition)) for stored in readable]
    return Scope(
        open_ids=tuple(stored.entity_id for stored, typed in filters if typed is None),
        limited=tuple((stored, typed) for stored, typed in filters if typed is not None),
    )


def visible_sql(asking: Asking, scope: Scope, config: str) -> tuple[str, tuple[Placed, ...]]:
    """Return the condition on the event ``e`` that it is one of *limited* and may be shown."""
    parts, placed = [], []
    for number, (stored, typed) in enumerate(scope.limited):
        place = (f"v{number}_", "t", typed)
        placed.append(place)
        parts.append(_visible(asking, stored, place, config))
    return "(" + " OR ".join(parts or ["false"]) + ")", tuple(placed)


def _visible(asking: Asking, stored: StoredEntity, place: Placed, config: str) -> str:
    prefix, alias, typed = place
    passes = f"({predicate_sql(asking, typed, prefix=prefix, alias=alias)}) IS TRUE"
    table = f'"{asking.schemas.data}"."{stored.name}"'
    now = f'(SELECT {passes} FROM {table} t WHERE t."_sys_id" = e.record_id)'
    last = f"""(SELECT coalesce(d.new, d.old) FROM {config}.event d
      JOIN {config}.change_set s ON s.key = d.change_set
     WHERE d.record_id = e.record_id AND d.entity_id = e.entity_id
     ORDER BY s.seq DESC, d.ordinal DESC LIMIT 1)"""
    columns = _image_columns(asking, stored, typed)
    if columns is None:
        return f"(e.entity_id = {stored.entity_id} AND e.action NOT IN {_PROPOSALS} AND {now})"
    gone = _image_passes(last, columns, passes)
    proposed = _image_passes("coalesce(e.new, e.old)", columns, passes)
    return (
        f"(e.entity_id = {stored.entity_id} AND coalesce({now}, {gone})"
        f" AND CASE WHEN e.action IN {_PROPOSALS} THEN {proposed} ELSE true END)"
    )


def _image_columns(
    asking: Asking, stored: StoredEntity, typed: TypedFilter
) -> dict[str, tuple[str, str]] | None:
    """Return the columns that *typed* asks of an image: folded name -> spelling and type.

    None if an image cannot tell: it has no system columns, and of JSON not what null meant.
    """
    found = {}
    target = target_of(asking, stored)
    for owner, name in sorted(columns_used(typed)):
        if owner != stored.name:
            continue
        column = stored.definition.column(name)
        if column is None or column.data_type is DataType.JSON:
            return None
        found[name] = (column.name, target.type_of(name))
    return found


def _image_passes(image: str, columns: dict[str, tuple[str, str]], passes: str) -> str:
    """Return whether the JSON *image* of a row passes; false where that is not certain."""
    texts = ", ".join(
        f"i.image ->> '{spelt}' AS \"{name}\"" for name, (spelt, _) in columns.items()
    )
    typed = ", ".join(
        f'{cast_sql("g", name, type_)} AS "{name}"' for name, (_, type_) in columns.items()
    )
    certain = [f"(i.image -> '{spelt}') IS NOT NULL" for spelt, _ in columns.values()]
    certain += [f"({castable_sql('g', name, type_)})" for name, (_, type_) in columns.items()]
    condition = " AND ".join(certain) or "i.image IS NOT NULL"
    return f"""coalesce((SELECT CASE WHEN {condition} THEN {passes} ELSE false END
      FROM (SELECT {image} AS image OFFSET 0) i
      CROSS JOIN LATERAL (SELECT {texts or "NULL"}) g
      CROSS JOIN LATERAL (SELECT {typed or "NULL"}) t), false)"""
