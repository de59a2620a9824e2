"""Search in rows: words, beginnings of words and what stands inside them, of one entity or of all that
the caller may read.

Of each entity a bounded number of rows is fetched, the best fitting kind first (``search_sql``), and ranked
here; the answer says when there were more. Only columns that hold text and are not restricted are
ever looked into, whoever asks, and only approved rows that are not deleted and that pass the caller's
row filter: neither what is found nor how much tells of anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from mdm_gitops.data.asking import Asking, StateMoved, readable_entity, row_filter
from mdm_gitops.data.failures import translated
from mdm_gitops.data.search_rank import Candidate, Found, rank
from mdm_gitops.data.search_sql import (
    Bounds,
    SearchStatement,
    indexed_statement,
    indexed_values,
    scanning_statement,
    scanning_values,
)
from mdm_gitops.data.search_words import may_stand_inside, typed_words
from mdm_gitops.data.selecting import predicate_values
from mdm_gitops.errors import AccessDenied, InputError
from mdm_gitops.warehouse.store import StoredEntity

DEFAULT_TAKE: Final = 20
MAX_TAKE: Final = 100
MAX_SKIP: Final = 1_000
MAX_TEXT_LENGTH: Final = 200
MAX_WORDS: Final = 10
OF_ONE: Final = Bounds(candidates=200, scanned=20_000)
OF_MANY: Final = Bounds(candidates=50, scanned=2_000)
_TOGETHER: Final = 10  # entities that one statement asks
_MAX_INDEXED: Final = 300
_MAX_SCANNED: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    q: str
    entity: str = ""
    skip: int = 0
    take: int = DEFAULT_TAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    """*total* rows were found, of which *found* is one page; at least, where it is *incomplete*."""

    found: tuple[Found, ...]
    total: int
    incomplete: bool = False
    not_indexed: tuple[str, ...] = ()  # looked through without an index
    not_searched: tuple[str, ...] = ()
    hint: str = ""


async def search_rows(
    conn: AsyncConnection[Any], *, asking: Asking, request: SearchRequest
) -> SearchAnswer:
    """Return the rows that hold all words of ``request.q``, the best fitting first.

    Raises:
        NotFound: there is no such entity, or none that the caller may know of.
        InputError: the text is too long or has too many words.
        AccessDenied: the caller's row filter on the one entity cannot be applied.
        StateMoved: ask again with a newer state.
    """
    typed = _typed(request)
    chosen = [readable_entity(asking, request.entity)] if request.entity else _readable(asking)
    if not typed:
        return SearchAnswer(found=(), total=0, hint="q holds no letters or digits to look for")
    async with conn.transaction():
        await conn.execute(_STEADY)
        return await _searched(conn, asking, request, chosen, typed)


# One snapshot for all statements; and of many rows the same ones each time, in the order in which they
# are stored, which scans that several processes or requests share do not keep.
_STEADY: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
    " SET LOCAL enable_seqscan = off; SET LOCAL max_parallel_workers_per_gather = 0"
)


async def _searched(
    conn: AsyncConnection[Any],
    asking: Asking,
    request: SearchRequest,
    chosen: Sequence[StoredEntity],
    typed: tuple[str, ...],
) -> SearchAnswer:
    search = _Search(asking, typed, OF_ONE if request.entity else OF_MANY)
    indexed = [stored for stored in chosen if stored.definition.search.enabled]
    others = [stored for stored in chosen if not stored.definition.search.enabled]
    others += await search.indexed(conn, search.visible(indexed[:_MAX_INDEXED]))
    others = search.visible(others)
    await search.scan(conn, others[:_MAX_SCANNED])
    search.left_out += [*indexed[_MAX_INDEXED:], *others[_MAX_SCANNED:]]
    return search.answer(request)


def _typed(request: SearchRequest) -> tuple[str, ...]:
    if len(request.q) > MAX_TEXT_LENGTH:
        raise InputError(f"q is longer than {MAX_TEXT_LENGTH} characters", parameter="q")
    if not 1 <= request.take <= MAX_TAKE:
        raise InputError(f"take must be 1 to {MAX_TAKE}", parameter="take")
    if not 0 <= request.skip <= MAX_SKIP:
        raise InputError(f"skip must be 0 to {MAX_SKIP}", parameter="skip")
    typed = typed_words(request.q)
    if len(typed) > MAX_WORDS:
        raise InputError(f"q has more than {MAX_WORDS} words", parameter="q")
    return typed


def _readable(asking: Asking) -> list[StoredEntity]:
    entities = sorted(asking.state.entities.items())
    return [stored for _, stored in entities if asking.rights(stored.definition).may_read]


class _Search:
    """One search under way."""

    def __init__(self, asking: Asking, typed: tuple[str, ...], bounds: Bounds) -> None:
        self._asking, self._typed, self._bounds = asking, typed, bounds
        self._candidates: list[Candidate] = []
        self._cut: list[str] = []  # names of entities that had more
        self._scanned: list[str] = []
        self.left_out: list[StoredEntity] = []

    def visible(self, entities: Sequence[StoredEntity]) -> list[StoredEntity]:
        """Return those that can be searched; of several, one whose filter does not hold is left out."""
        found = []
        for stored in entities:
            try:
                row_filter(self._asking, stored.definition)
            except AccessDenied:
                if self._bounds is OF_ONE:
                    raise
                self.left_out.append(stored)
                continue
            if stored.definition.searched_columns:
                found.append(stored)
        return found

    async def indexed(
        self, conn: AsyncConnection[Any], entities: Sequence[StoredEntity]
    ) -> list[StoredEntity]:
        """Ask the indexes; return the entities whose index is not there (yet)."""
        inside = any(map(may_stand_inside, self._typed))
        values = indexed_values(self._typed)
        missing = []
        for some in _chunks(entities):
            statement = self._kept(
                ("indexed", inside, *(each.name for each in some)),
                lambda some=some: indexed_statement(
                    self._asking, some, self._bounds, inside=inside
                ),
            )
            ready = await self._run(conn, statement, values, some)
            missing += [
                stored for stored, is_ready in zip(some, ready, strict=True) if not is_ready
            ]
        return missing

    async def scan(self, conn: AsyncConnection[Any], entities: Sequence[StoredEntity]) -> None:
        values = scanning_values(self._typed)
        for some in _chunks(entities):
            statement = self._kept(
                ("scanned", *(each.name for each in some)),
                lambda some=some: scanning_statement(self._asking, some, self._bounds),
            )
            await self._run(conn, statement, values, some)
            self._scanned += [stored.definition.name for stored in some]

    def _kept(self, shape: tuple[Any, ...], build: Any) -> SearchStatement:
        key = ("search", self._asking.cache_key, self._bounds, *shape)
        statement: SearchStatement = self._asking.state.remember(key, build)
        return statement

    async def _run(
        self,
        conn: AsyncConnection[Any],
        statement: SearchStatement,
        values: dict[str, Any],
        entities: Sequence[StoredEntity],
    ) -> Sequence[bool]:
        given = {**values, **predicate_values(self._asking, statement.predicates)}
        with translated():
            records = await (await conn.execute(statement.sql, given)).fetchall()
        revision, ready = records[0][:2]
        if revision != self._asking.state.revision:
            raise StateMoved
        for _, _, part, more, row_id, texts, label, key in records:
            if part is None:
                continue
            definition = entities[part].definition
            if more and definition.name not in self._cut:
                self._cut.append(definition.name)
            self._candidates.append(
                Candidate(entity=definition, row_id=row_id, texts=texts, label=label, key=key)
            )
        return ready or ()

    def answer(self, request: SearchRequest) -> SearchAnswer:
        ranked = rank(self._candidates, self._typed)
        page = ranked[request.skip : request.skip + request.take]
        return SearchAnswer(
            found=tuple(each.shown(self._typed) for each in page),
            total=len(ranked),
            incomplete=bool(self._cut or self.left_out),
            not_indexed=tuple(self._scanned),
            not_searched=tuple(stored.definition.name for stored in self.left_out),
            hint="; ".join(self._hints()),
        )

    def _hints(self) -> Iterator[str]:
        scanned = [name for name in self._cut if name in self._scanned]
        if len(self._cut) > len(scanned):
            yield "more rows hold these words than were ranked: add a word, or name one entity"
        if scanned:
            yield (
                f"without an index only the first {self._bounds.scanned:,} rows of"
                f" {', '.join(scanned[:5])} were looked through: set search.enabled in the definition"
            )
        if self.left_out:
            yield "some entities were not searched: name one of them as entity"


def _chunks(entities: Sequence[StoredEntity]) -> Iterator[tuple[StoredEntity, ...]]:
    for start in range(0, len(entities), _TOGETHER):
        yield tuple(entities[start : start + _TOGETHER])
