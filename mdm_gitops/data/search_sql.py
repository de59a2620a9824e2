"""The statements of search: rows of one or more entities that hold all words, a bounded number of each.

Of an entity with an index first the rows that have each word whole, then those with words that begin so,
then those that have them inside; the next kind is only asked for while there are few. Each kind is a
part of the next, so that what is left out of many is the least fitting. Without an index the first
rows by identifier are looked through. All conditions of the caller's row filter stand before each
bound: what is hidden neither takes a place nor moves one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mdm_gitops.data.asking import Asking, row_filter
from mdm_gitops.data.likeness import like_pattern, likeness
from mdm_gitops.data.row_json import RowState, outputs, select_list
from mdm_gitops.data.search_words import (
    LETTERS_INSIDE,
    LETTERS_OF_VALUE,
    LETTERS_OF_WORD,
    may_stand_inside,
)
from mdm_gitops.data.selecting import Placed, predicate_sql, revision_table, rows_source
from mdm_gitops.model import Entity
from mdm_gitops.plan.physical import IndexKind, Role, computed_index, table_name
from mdm_gitops.warehouse.store import StoredEntity


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many rows of one entity are ranked, and how many are looked through without an index."""

    candidates: int
    scanned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchStatement:
    sql: bytes
    predicates: tuple[Placed, ...]


def indexed_statement(
    asking: Asking, entities: Sequence[StoredEntity], bounds: Bounds, *, inside: bool
) -> SearchStatement:
    """Return what asks the indexes of *entities*; *inside*: whether a word may stand inside another."""
    template = _INDEXED if inside else _INDEXED_HEADS
    ready = ", ".join(_ready(asking, stored) for stored in entities)
    return _statement(asking, entities, bounds, template, ready=f"ARRAY[{ready}]")


def scanning_statement(
    asking: Asking, entities: Sequence[StoredEntity], bounds: Bounds
) -> SearchStatement:
    return _statement(asking, entities, bounds, _SCANNED, ready="NULL::boolean[]")


def indexed_values(typed: Sequence[str]) -> dict[str, str]:
    """Return the parameters of ``indexed_statement``; no word holds a sign that means something.

    How a word of one letter begins others is dear to ask and keeps few rows away, so the index is asked
    for it only where it stands alone; the ranking looks at all words.
    """
    longer = [word for word in typed if len(word) > 1 or not word.isascii()]
    words = [word[:LETTERS_OF_WORD] for word in longer or typed]
    heads = [f"'{word}':*" for word in words]
    return {
        "whole": " & ".join(f"'{word}'" for word in words),
        "head": " & ".join(heads),
        "any": " & ".join(
            f"({head} | {_inside(word)})" if may_stand_inside(word) else head
            for head, word in zip(heads, words, strict=True)
        ),
    }


def _inside(word: str) -> str:
    """Ask for pieces that cover the word: of those kept from each place on, no more are needed.

    What has the pieces but not the word is sorted out by the ranking.
    """
    last = len(word) - LETTERS_INSIDE
    if last <= 0:
        return f"'+{word}':*"
    places = [*range(0, last, LETTERS_INSIDE), last]
    return " & ".join(f"'+{word[at : at + LETTERS_INSIDE]}'" for at in places)


def scanning_values(typed: Sequence[str]) -> dict[str, list[str]]:
    return {
        "likes": [f"%{like_pattern(word)}%" for word in typed],
        "patterns": [likeness(word) for word in typed],
    }


# --- the text -------------------------------------------------------------------------------------

# The left join answers revision and readiness also when there is no row.
_ENVELOPE: Final = """\
SELECT h.*, p.* FROM (SELECT (SELECT value FROM {revision}) AS revision, {ready} AS ready) h
  LEFT JOIN (
{parts}
) p ON true"""
_PART: Final = """\
SELECT {number} AS part, found.more, t."_sys_id" AS id, ARRAY[{texts}] AS texts, {label} AS label,
       (SELECT row_to_json(k)::text FROM (SELECT {key}) k) AS key
  FROM ({found}) found JOIN {source} ON t."_sys_id" = found.id"""
_KIND: Final = (
    'SELECT t."_sys_id" AS id FROM {source} WHERE {vector} @@ %({kind})s::tsquery{conditions}'
)
_INDEXED_HEADS: Final = """\
WITH whole AS MATERIALIZED ({whole} AND {ready} LIMIT {candidates} + 1),
     head AS MATERIALIZED ({head} AND {ready}
       AND (SELECT count(*) FROM whole) <= {candidates} LIMIT {candidates} + 1)
SELECT id, (SELECT count(*) FROM whole) > {candidates} OR (SELECT count(*) FROM head) > {candidates} AS more
  FROM (SELECT id FROM whole UNION SELECT id FROM head) each"""
_INDEXED: Final = """\
WITH whole AS MATERIALIZED ({whole} AND {ready} LIMIT {candidates} + 1),
     head AS MATERIALIZED ({head} AND {ready}
       AND (SELECT count(*) FROM whole) <= {candidates} LIMIT {candidates} + 1),
     inside AS MATERIALIZED ({any} AND {ready}
       AND (SELECT count(*) FROM whole) <= {candidates}
       AND (SELECT count(*) FROM head) <= {candidates} LIMIT {candidates} + 1)
SELECT id, (SELECT count(*) FROM whole) > {candidates} OR (SELECT count(*) FROM head) > {candidates}
           OR (SELECT count(*) FROM inside) > {candidates} AS more
  FROM (SELECT id FROM whole UNION SELECT id FROM head UNION SELECT id FROM inside) each"""
# Where a row filter may leave few of many rows, each kind reads them all to find these few: so first the kind
# that holds the others, and these only if it has more than are ranked.
_INDEXED_FILTERED: Final = """\
WITH inside AS MATERIALIZED ({any} AND {ready} LIMIT {candidates} + 1),
     whole AS MATERIALIZED ({whole} AND {ready}
       AND (SELECT count(*) FROM inside) > {candidates} LIMIT {candidates} + 1),
     head AS MATERIALIZED ({head} AND {ready}
       AND (SELECT count(*) FROM inside) > {candidates}
       AND (SELECT count(*) FROM whole) <= {candidates} LIMIT {candidates} + 1)
SELECT id, (SELECT count(*) FROM inside) > {candidates} AS more
  FROM (SELECT id FROM whole UNION SELECT id FROM head UNION SELECT id FROM inside) each"""
# Up to the border rows are looked through, in the order of their identifiers.
_SCANNED: Final = """\
WITH border AS MATERIALIZED (
       SELECT t."_sys_id" AS id FROM {source} WHERE true{conditions}
        ORDER BY t."_sys_id" OFFSET {scanned} LIMIT 1),
     matched AS MATERIALIZED (
       SELECT t."_sys_id" AS id FROM {source}
        WHERE (NOT EXISTS (SELECT FROM border) OR t."_sys_id" < (SELECT id FROM border))
          AND {matches}{conditions}
        ORDER BY t."_sys_id" LIMIT {candidates} + 1)
SELECT id, EXISTS (SELECT FROM border) OR (SELECT count(*) FROM matched) > {candidates} AS more
  FROM matched"""
# Most text is ASCII, for which LIKE is quick.
_MATCHES: Final = (
    "(CASE WHEN octet_length({text}) = length({text})"
    ' THEN lower({text} COLLATE "C") LIKE ALL (%(likes)s::text[])'
    " ELSE {text} ~ ALL (%(patterns)s::text[]) END)"
)


def _statement(
    asking: Asking,
    entities: Sequence[StoredEntity],
    bounds: Bounds,
    template: str,
    *,
    ready: str,
) -> SearchStatement:
    parts, predicates = [], []
    for number, stored in enumerate(entities):
        typed = row_filter(asking, stored.definition)
        prefix = f"s{number}_"
        if typed is not None:
            predicates.append((prefix, "t", typed))
        visible = predicate_sql(asking, typed, prefix=prefix, alias="t")
        parts.append(_part(asking, stored, number, bounds, template, visible))
    sql = _ENVELOPE.format(
        revision=revision_table(asking), ready=ready, parts="\nUNION ALL\n".join(parts)
    )
    return SearchStatement(sql=sql.encode(), predicates=tuple(predicates))


def _part(
    asking: Asking, stored: StoredEntity, number: int, bounds: Bounds, template: str, visible: str
) -> str:
    entity = stored.definition
    source = rows_source(asking, stored, RowState.ACTIVE)
    conditions = ' AND NOT t."_sys_is_deleted"' + (f" AND ({visible})" if visible else "")
    vector = _vector(asking, entity)
    kinds = {
        kind: _KIND.format(source=source, vector=vector, kind=kind, conditions=conditions)
        for kind in ("whole", "head", "any")
    }
    if visible and template is not _SCANNED:
        template = _INDEXED_FILTERED
    found = template.format(
        **kinds,
        ready=_ready(asking, stored),
        source=source,
        conditions=conditions,
        matches=_MATCHES.format(text=_whole_text(entity)),
        candidates=bounds.candidates,
        scanned=bounds.scanned,
    )
    return _PART.format(number=number, found=found, source=source, **_shown(asking, entity))


def _shown(asking: Asking, entity: Entity) -> Mapping[str, str]:
    sees_restricted = asking.rights(entity).sees_restricted
    members = outputs(entity, sees_restricted=sees_restricted, state=RowState.ACTIVE)
    by_name = {output.name: output for output in members}
    keys = [by_name[column.name] for column in map(entity.column, entity.key_columns) if column]
    display = entity.column(entity.display_ref_column or "")
    if display is not None and display.restricted and not sees_restricted:
        display = None
    return {
        "texts": ", ".join(_text(column.folded) for column in entity.searched_columns),
        "label": f"({by_name[display.name].sql})::text" if display else "NULL::text",
        "key": select_list(keys),
    }


def _text(column: str) -> str:
    return f'left(t."{column}", {LETTERS_OF_VALUE})'


def _whole_text(entity: Entity) -> str:
    texts = ", ".join(_text(column.folded) for column in entity.searched_columns)
    return f"concat_ws(' ', {texts})"


def _vector(asking: Asking, entity: Entity) -> str:
    """Return the expression of the index, to the letter of ``warehouse.ddl``."""
    columns = ", ".join(f't."{column.folded}"' for column in entity.searched_columns)
    return f'"{asking.schemas.config}".search_vector(ARRAY[{columns}])'


def _ready(asking: Asking, stored: StoredEntity) -> str:
    """Return whether the index is there and whole; without it nothing may be worked out row by row."""
    table = table_name(stored.name, Role.MAIN)
    index = computed_index(table, IndexKind.SEARCH, ()).name
    name = f'"{asking.schemas.data}"."{index}"'
    return (
        "coalesce((SELECT x.indisvalid FROM pg_catalog.pg_index x"
        f" WHERE x.indexrelid = to_regclass('{name}')), false)"
    )
