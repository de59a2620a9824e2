"""What a form offers to choose from: rows to refer to, and values that other rows have.

Everything offered, its number and its order depend on nothing but the rows that the caller may see;
a restricted column is offered to nobody from whom it is masked. Texts are found wherever the typed
one stands in them, without regard to case and accents.

Cost: one statement. Without a typed text, options are read in key order from the index. Else the
visible rows are read once; a text of ASCII is compared by LIKE, any other by a regular expression,
which takes about eight times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.asking import (
    Asking,
    StateMoved,
    readable_entity,
    refuse_restricted,
    row_filter,
)
from mdm_gitops.data.failures import translated
from mdm_gitops.data.likeness import like_pattern, likeness
from mdm_gitops.data.row_json import RowState, column_sql
from mdm_gitops.data.selecting import (
    Placed,
    conditions_on,
    predicate_values,
    revision_table,
    rows_source,
    where_clause,
)
from mdm_gitops.errors import AccessDenied, InputError
from mdm_gitops.model import Column, DataType, Entity
from mdm_gitops.model.suggest import did_you_mean

DEFAULT_TAKE: Final = 20
MAX_TAKE: Final = 100
MAX_TEXT_LENGTH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRequest:
    column: str
    q: str = ""
    take: int = DEFAULT_TAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    sql: bytes
    predicates: tuple[Placed, ...]


async def reference_options(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: ChoiceRequest
) -> bytes:
    """Return the rows that the reference column may refer to: ``[{"value": .., "label": ..}]``.

    Raises:
        NotFound, InputError: there is no such entity or reference column.
        AccessDenied: the caller may not read the rows referred to, or not their key.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    column = _column(stored.definition, request)
    if column.reference is None:
        known = [each.name for each in stored.definition.columns if each.reference]
        raise InputError(
            f"column {column.name!r} of {stored.definition.name} refers to nothing",
            hint=f"reference columns: {', '.join(known)}" if known else "",
            parameter="column",
        )
    target, key = asking.state.definitions.reference_target(column)
    if not asking.rights(target).may_read:
        raise AccessDenied(f"the column refers to {target.name}, which you may not read")
    refuse_restricted(asking, target, key.folded, purpose="offered")
    return await _run(conn, asking, request, (target, key), _options)


async def column_suggestions(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: ChoiceRequest
) -> bytes:
    """Return the values that visible rows have in the column, the most frequent first.

    Raises:
        NotFound, InputError: there is no such entity, or no such column marked ``autocomplete``.
        AccessDenied: the column is masked for the caller.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    column = _column(stored.definition, request)
    if not column.autocomplete:
        raise InputError(
            f"column {column.name!r} of {stored.definition.name} offers no suggestions",
            hint=f"set autocomplete: true on {column.name!r} in the definition",
            parameter="column",
        )
    refuse_restricted(asking, stored.definition, column.folded, purpose="suggested")
    return await _run(conn, asking, request, (stored.definition, column), _suggestions)


def _column(entity: Entity, request: ChoiceRequest) -> Column:
    if len(request.q) > MAX_TEXT_LENGTH:
        raise InputError(f"q is longer than {MAX_TEXT_LENGTH} characters", parameter="q")
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    column = entity.column(request.column)
    if column is None:
        raise InputError(
            f"column names {request.column[:60]!r}, which {entity.name} does not have",
            hint=did_you_mean(request.column, (each.name for each in entity.columns)),
            parameter="column",
        )
    return column


# --- the statements -------------------------------------------------------------------------------

_OPTIONS: Final = """\
SELECT (SELECT value FROM {revision}),
       (SELECT '[' || string_agg(
                   row_to_json(o)::text, ',' ORDER BY c.rank, c.label {c}, c.text {c}) || ']'
          FROM (SELECT c.*, {rank} AS rank
                  FROM (SELECT {value} AS value, coalesce({label}, {text}) AS label, {text} AS text
                          FROM {source}{where}) c
                 WHERE {matches}
                 ORDER BY rank, c.label {c}, c.text {c} LIMIT %(take)s) c
         CROSS JOIN LATERAL (SELECT c.value, c.label) o)"""
_FIRST_OPTIONS: Final = """\
SELECT (SELECT value FROM {revision}),
       (SELECT '[' || string_agg(row_to_json(o)::text, ',' ORDER BY {key}) || ']'
          FROM (SELECT t.* FROM {source}{where} ORDER BY {key} LIMIT %(take)s) t
         CROSS JOIN LATERAL (SELECT {value} AS value, coalesce({label}, {text}) AS label) o)"""
_SUGGESTIONS: Final = """\
SELECT (SELECT value FROM {revision}),
       (SELECT '[' || string_agg(row_to_json(o)::text, ',' ORDER BY t.n DESC, {order}) || ']'
          FROM (SELECT {key}, {count} AS n FROM {source}{where}{group}
                 ORDER BY n DESC, {order} LIMIT %(take)s) t
         CROSS JOIN LATERAL (SELECT {value} AS value, {text} AS label) o)"""
_BY_CODE_POINT: Final = 'COLLATE "C"'
_RANK: Final = "CASE WHEN {whole} THEN 0 WHEN {head} THEN 1 ELSE 2 END"


def _options(asking: Asking, target: Entity, key: Column, has_text: bool) -> _Statement:
    shown = target.column(target.display_ref_column or "") or key
    if shown.restricted and not asking.rights(target).sees_restricted:
        shown = key
    parts = _parts(asking, target, key)
    if not has_text:
        sql = _FIRST_OPTIONS.format(**parts, label=_text(shown))
    else:
        sql = _OPTIONS.format(
            **parts,
            c=_BY_CODE_POINT,
            label=_text(shown),
            rank=_RANK.format(whole=_either("whole"), head=_either("head")),
            matches=_either("part"),
        )
    return _Statement(sql=sql.encode(), predicates=_placed(asking, target))


def _suggestions(asking: Asking, entity: Entity, column: Column, has_text: bool) -> _Statement:
    matches = [_matches(_text(column), "part")] if has_text else []
    parts = _parts(asking, entity, column, *matches)
    as_text = column.data_type.is_text or column.data_type is DataType.JSON
    order = f"({parts['text']}) {_BY_CODE_POINT}" if as_text else parts["key"]
    # Where each value is there once, there is nothing to group.
    once = column.unique or entity.key_columns in ((column.name,), (column.folded,))
    group = "" if once else f"\n GROUP BY {parts['key']}"
    count = "1" if once else "count(*)"
    sql = _SUGGESTIONS.format(**parts, order=order, group=group, count=count)
    return _Statement(sql=sql.encode(), predicates=_placed(asking, entity))


def _parts(asking: Asking, entity: Entity, column: Column, *conditions: str) -> dict[str, str]:
    stored = asking.state.entities[entity.folded]
    key = f't."{column.folded}"'
    where = [
        f"{key} IS NOT NULL",
        *conditions_on(asking, row_filter(asking, entity), RowState.ACTIVE),
        *conditions,
    ]
    return {
        "revision": revision_table(asking),
        "source": rows_source(asking, stored, RowState.ACTIVE),
        "where": where_clause(where),
        "key": key,
        "value": column_sql(column, "t"),
        "text": _text(column),
    }


def _placed(asking: Asking, entity: Entity) -> tuple[Placed, ...]:
    typed = row_filter(asking, entity)
    return (("f", "t", typed),) if typed is not None else ()


def _text(column: Column) -> str:
    sql = column_sql(column, "t")
    return sql if column.data_type.is_text else f"({sql})::text"


def _either(place: str) -> str:
    return f"{_matches('c.text', place)} OR {_matches('c.label', place)}"


def _matches(text: str, place: str) -> str:
    """Return the condition that *text* holds the typed one at *place*: quick for ASCII, which most
    is."""
    return (
        f"(CASE WHEN octet_length({text}) = length({text})"
        f" THEN lower({text} {_BY_CODE_POINT}) LIKE %({place}_like)s ELSE {text} ~ %({place})s END)"
    )


# --- around the statements ------------------------------------------------------------------------

Build = Callable[[Asking, Entity, Column, bool], _Statement]


async def _run(
    conn: AsyncConnection[Any],
    asking: Asking,
    request: ChoiceRequest,
    of: tuple[Entity, Column],
    build: Build,
) -> bytes:
    entity, column = of
    has_text = bool(request.q.strip())
    key = ("choices", build.__name__, asking.cache_key, entity.folded, column.folded, has_text)
    statement = asking.state.remember(key, lambda: build(asking, entity, column, has_text))
    values = {
        "take": request.take,
        **predicate_values(asking, statement.predicates),
        **(_texts(request.q.strip()) if has_text else {}),
    }
    with translated():
        cursor = await conn.execute(statement.sql, values)
    result = cursor.pgresult
    assert result is not None
    if int(result.get_value(0, 0) or 0) != asking.state.revision:
        raise StateMoved
    return result.get_value(0, 1) or b"[]"


def _texts(q: str) -> Mapping[str, str]:
    """Return the patterns for each place: anywhere, at the beginning, from beginning to end."""
    regular, like = likeness(q), like_pattern(q)
    return {
        "part": regular,
        "part_like": f"%{like}%",
        "head": f"^(?:{regular})",
        "head_like": f"{like}%",
        "whole": f"^(?:{regular})$",
        "whole_like": like,
    }
