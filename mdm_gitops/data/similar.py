"""Rows like a given one, best first, with what each column says to it.

Candidates are rows that have a key in common with what is asked for (``match_keys``), found through the
index of keys; of an entity without ``similarity``, which has no such index, all visible rows are
compared while they are few. A key that too many visible rows have is left out, and that is told.

Everything answered depends on the rows that the caller may see and on the columns that are not masked
for them, and on nothing else: the limits count visible rows only, and a score is of two rows alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, readable_entity, row_filter
from mdm_gitops.data.failures import translated
from mdm_gitops.data.match_keys import match_keys
from mdm_gitops.data.match_sql import compared_for, given_sql, given_values, keys_sql, row_sql
from mdm_gitops.data.row_json import RowState
from mdm_gitops.data.rows import no_such_row
from mdm_gitops.data.selecting import (
    Placed,
    conditions_on,
    predicate_values,
    revision_table,
    rows_source,
    where_clause,
)
from mdm_gitops.errors import Conflict, InputError
from mdm_gitops.model import Entity
from mdm_gitops.model.similarity import Comparison, indexed_for_match, match_kinds
from mdm_gitops.warehouse.store import StoredEntity

if TYPE_CHECKING:
    from mdm_gitops.data.match_score import ColumnScore

DEFAULT_TOP: Final = 10
MAX_TOP: Final = 100
DEFAULT_MIN_SCORE: Final = 0.3
MAX_PER_KEY: Final = 100  # visible rows
MAX_WITHOUT_INDEX: Final = 20_000
Given = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarRequest:
    """Either a row, or values by the names of columns."""

    row_id: UUID | None = None
    values: Mapping[str, Any] | None = None
    top: int | None = None
    min_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    row_id: str
    score: float
    columns: tuple[ColumnScore, ...]
    row: bytes  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    found: tuple[Match, ...]
    skipped_keys: int  # that too many rows have
    is_derived: bool  # whether the entity has no rules of its own


async def similar_rows(
    conn: AsyncConnection[Any], *, asking: Asking, entity: str, request: SimilarRequest
) -> Matches:
    """Return the visible rows of *entity* that are most like what is asked for.

    Raises:
        NotFound: there is no such entity or row.
        InputError, AccessDenied: the request is wrong, or asks for what is masked.
        Conflict: nothing of the entity can be compared.
        StateMoved: ask again with a newer state.
    """
    stored = readable_entity(asking, entity)
    definition = stored.definition
    search = _Search(conn, asking, stored, compared_for(asking, definition))
    top, min_score = _limits(definition, request)
    given = await search.given(request)
    found, skipped = await search.candidates(given)
    if request.row_id is not None:
        found.pop(str(request.row_id), None)
    best = await asyncio.to_thread(_best, search.compared, given, found, top, min_score)
    rows = await search.rows([row_id for row_id, _, _ in best])
    return Matches(
        found=tuple(
            Match(row_id=row_id, score=score, columns=columns, row=rows[row_id])
            for row_id, score, columns in best
            if row_id in rows
        ),
        skipped_keys=skipped,
        is_derived=definition.similarity is None,
    )


def _limits(entity: Entity, request: SimilarRequest) -> tuple[int, float]:
    rules = entity.similarity
    top = request.top if request.top is not None else (rules.top_n if rules else DEFAULT_TOP)
    least = request.min_score
    if least is None:
        least = rules.min_score if rules else DEFAULT_MIN_SCORE
    if not 1 <= top <= MAX_TOP:
        raise InputError(f"top must be 1 to {MAX_TOP}", parameter="top")
    if not 0 <= least <= 1:
        raise InputError("minScore must be 0 to 1", parameter="minScore")
    return top, least


def _best(
    compared: Sequence[Comparison],
    given: Given,
    found: Mapping[str, Given],
    top: int,
    min_score: float,
) -> list[tuple[str, float, tuple[ColumnScore, ...]]]:
    from mdm_gitops.data.match_score import Scorer  # rapidfuzz takes 4 MB

    scorer = Scorer(compared)
    wanted = scorer.prepared(given)
    scored = []
    for row_id, values in found.items():
        there = scorer.prepared(values)
        score = scorer.score(wanted, there, at_least=min_score)
        if score >= min_score and score > 0:
            scored.append((-score, row_id, there))
    scored.sort(key=lambda each: each[:2])
    return [
        (row_id, -score, scorer.explain(wanted, there)[1]) for score, row_id, there in scored[:top]
    ]


# --- the statements -------------------------------------------------------------------------------

_HEAD: Final = "SELECT (SELECT value FROM {revision}), p.* FROM (SELECT 1) one LEFT JOIN ("
_GIVEN: Final = _HEAD + "SELECT {given} AS given FROM {source}{where}) p ON true"
# One row more than may be: then the key says too little.
_BY_KEY: Final = (
    _HEAD
    + """
SELECT k.n, m.* FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS k (key, n) CROSS JOIN LATERAL (
  SELECT t."_sys_id"::text, {given} FROM {source}{where} LIMIT %(limit)s) m
) p ON true"""
)
_ALL: Final = (
    _HEAD
    + """
SELECT 1, t."_sys_id"::text, {given} FROM {source}{where} LIMIT %(limit)s) p ON true"""
)
_ROWS: Final = _HEAD + 'SELECT t."_sys_id"::text, {row}::text FROM {source}{where}) p ON true'


class _Search:
    """The statements of one request; each reads the revision and the caller's rows only."""

    def __init__(
        self,
        conn: AsyncConnection[Any],
        asking: Asking,
        stored: StoredEntity,
        compared: tuple[Comparison, ...],
    ) -> None:
        self._conn, self._asking, self._stored = conn, asking, stored
        self.compared = compared
        self._typed = row_filter(asking, stored.definition)
        self._placed: tuple[Placed, ...] = (
            (("f", "t", self._typed),) if self._typed is not None else ()
        )

    async def given(self, request: SimilarRequest) -> Given:
        if request.row_id is None:
            values = given_values(self._asking, self._stored.definition, request.values or {})
            return tuple(values.get(each.column) for each in self.compared)
        sql = self._sql(_GIVEN, 't."_sys_id" = %(row_id)s::uuid')
        [(given,)] = await self._run(sql, {"row_id": request.row_id})
        if given is None:
            raise no_such_row(self._stored.definition, request.row_id)
        return tuple(given)

    async def candidates(self, given: Given) -> tuple[dict[str, Given], int]:
        """Return rows by identifier with their values, and how many keys were left out."""
        indexed = indexed_for_match(self._stored.definition)
        if not indexed:
            return await self._all(), 0
        by_column = dict(zip((each.column for each in self.compared), given, strict=True))
        kinds = match_kinds(indexed)
        keys = match_keys(kinds, [by_column[each.column] for each in indexed])
        if not keys:
            return {}, 0
        expression = keys_sql(self._asking.schemas, indexed)
        sql = self._sql(_BY_KEY, f"{expression} @> ARRAY[k.key]")
        values = {"keys": sorted(set(keys)), "limit": MAX_PER_KEY + 1}
        by_key: dict[int, list[tuple[str, Given]]] = {}
        for number, row_id, row in await self._run(sql, values):
            if number is not None:
                by_key.setdefault(number, []).append((row_id, tuple(row)))
        few = [rows for rows in by_key.values() if len(rows) <= MAX_PER_KEY]
        return {row_id: row for rows in few for row_id, row in rows}, len(by_key) - len(few)

    async def _all(self) -> dict[str, Given]:
        sql = self._sql(_ALL)
        records = await self._run(sql, {"limit": MAX_WITHOUT_INDEX + 1})
        if len(records) > MAX_WITHOUT_INDEX:
            raise Conflict(
                f"{self._stored.definition.name} has too many rows to compare all of them",
                hint="give it similarity in its definition: then its rows are indexed for that",
                code="SIMILARITY_OFF",
            )
        return {row_id: tuple(row) for _, row_id, row in records if row_id is not None}

    async def rows(self, ids: Sequence[str]) -> dict[str, bytes]:
        sql = self._sql(_ROWS, 't."_sys_id" = ANY(%(ids)s::uuid[])')
        found = await self._run(sql, {"ids": list(ids)})
        return {row_id: row.encode() for row_id, row in found if row_id is not None}

    def _sql(self, form: str, *conditions: str) -> bytes:
        asking = self._asking
        visible = conditions_on(asking, self._typed, RowState.ACTIVE)
        return form.format(
            revision=revision_table(asking),
            given=given_sql(asking.schemas, self.compared),
            source=rows_source(asking, self._stored, RowState.ACTIVE),
            where=where_clause([*conditions, *visible]),
            row=row_sql(asking, self._stored.definition),
        ).encode()

    async def _run(self, sql: bytes, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        asking = self._asking
        with translated():
            cursor = await self._conn.execute(
                sql, {**values, **predicate_values(asking, self._placed)}
            )
            records = await cursor.fetchall()
        if records[0][0] != asking.state.revision:
            raise StateMoved
        return [record[1:] for record in records]
