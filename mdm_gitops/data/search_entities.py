"""Search among the definitions of deployed entities: what is there, and what is it called?

From the state in memory, without a query. Only entities whose rows the caller may read; a word may
stand in any of their names, aliases and descriptions, or in those of their columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.search_rank import WORTH, Part, parts_of
from mdm_gitops.data.search_words import best_fit, plain_text, typed_words
from mdm_gitops.errors import InputError
from mdm_gitops.model import Entity

MAX_TEXT_LENGTH: Final = 200
MAX_WORDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A text of a definition; *column* is the column it belongs to, "" for the entity itself."""

    field: str
    text: str
    column: str = ""

    @property
    def weight(self) -> int:
        return (_OF_COLUMN if self.column else _OF_ENTITY)[self.field]


_OF_ENTITY: Final = {"name": 9, "displayName": 8, "aliases": 7, "description": 3}
_OF_COLUMN: Final = {"name": 5, "displayName": 4, "description": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEntity:
    entity: Entity
    score: int
    highlights: tuple[tuple[Place, tuple[Part, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityAnswer:
    found: tuple[FoundEntity, ...]
    total: int


def search_entities(asking: Asking, *, q: str, skip: int, take: int) -> EntityAnswer:
    """Return the entities that hold all words of *q*, the best fitting first.

    Raises:
        InputError: the text is too long or has too many words.
    """
    if len(q) > MAX_TEXT_LENGTH:
        raise InputError(f"q is longer than {MAX_TEXT_LENGTH} characters", parameter="q")
    typed = typed_words(q)
    if len(typed) > MAX_WORDS:
        raise InputError(f"q has more than {MAX_WORDS} words", parameter="q")
    readable = (s.definition for s in asking.state.entities.values())
    scored = [
        (score, entity)
        for entity in readable
        if asking.rights(entity).may_read and (score := _score(entity, typed))
    ]
    scored.sort(key=lambda each: (-each[0], each[1].folded))
    page = scored[skip : skip + take]
    found = tuple(
        FoundEntity(entity=entity, score=score, highlights=tuple(_highlights(entity, typed)))
        for score, entity in page
    )
    return EntityAnswer(found=found, total=len(scored))


def _score(entity: Entity, typed: tuple[str, ...]) -> int:
    """Return how well *entity* fits, 0 where a word is missing."""
    places = [(plain_text(place.text), place.weight) for place in _places(entity)]
    best = [max(WORTH[best_fit(word, text)] * weight for text, weight in places) for word in typed]
    return sum(best) if all(best) else 0


def _highlights(entity: Entity, typed: tuple[str, ...]) -> Iterator[tuple[Place, tuple[Part, ...]]]:
    for place in _places(entity):
        if parts := parts_of(place.text, typed):
            yield place, parts


def _places(entity: Entity) -> Iterator[Place]:
    yield Place(field="name", text=entity.name)
    if entity.display_name:
        yield Place(field="displayName", text=entity.display_name)
    for alias in entity.aliases:
        yield Place(field="aliases", text=alias)
    if entity.description:
        yield Place(field="description", text=entity.description)
    for column in entity.columns:
        yield Place(field="name", text=column.name, column=column.name)
        if column.display_name:
            yield Place(field="displayName", text=column.display_name, column=column.name)
        if column.description:
            yield Place(field="description", text=column.description, column=column.name)
