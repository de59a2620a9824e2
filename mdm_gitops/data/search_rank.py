"""Which found row comes first, and what is shown of it. Pure.

A word that is there whole is better than one that begins so, and that is better than one that has it
inside, whatever the column; among equals the key and the shown column count twice. What is left equal
goes by label, entity and identifier, so that the order is total.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from mdm_gitops.data.search_words import Fit, best_fit, plain_text, ranges
from mdm_gitops.model import Column, Entity, fold

WORTH: Final[Mapping[Fit, int]] = {
    Fit.NOT: 0,
    Fit.INSIDE: 1,
    Fit.BEGINNING: 100,
    Fit.WHOLE: 10_000,
}
_SAME: Final = 5_000  # the value is what was typed and nothing else
_SHOWN: Final = 160  # letters of a long value
_BEFORE: Final = 40  # of them before the first place


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that may hold the words; *texts* are those of the entity's searched columns."""

    entity: Entity
    row_id: UUID
    texts: Sequence[str | None]
    label: str | None
    key: str  # JSON as PostgreSQL writes it, with all digits


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a value, and whether it is what was looked for."""

    text: str
    match: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    candidate: Candidate
    label: str
    score: int
    highlights: tuple[tuple[str, tuple[Part, ...]], ...]  # column, its value in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    candidate: Candidate
    label: str
    score: int

    @property
    def place(self) -> tuple[Any, ...]:
        name, row_id = self.candidate.entity.folded, self.candidate.row_id
        return (-self.score, plain_text(self.label), self.label, name, row_id)

    def shown(self, typed: Sequence[str]) -> Found:
        columns = zip(self.candidate.entity.searched_columns, self.candidate.texts, strict=True)
        found = ((column.name, parts_of(text, typed)) for column, text in columns if text)
        highlights = tuple((name, parts) for name, parts in found if parts)
        return Found(
            candidate=self.candidate, label=self.label, score=self.score, highlights=highlights
        )


def rank(candidates: Sequence[Candidate], typed: Sequence[str]) -> list[Ranked]:
    """Return the candidates that hold all *typed* words, the best first."""
    found = (_ranked(candidate, typed) for candidate in candidates)
    return sorted((each for each in found if each is not None), key=lambda each: each.place)


def _ranked(candidate: Candidate, typed: Sequence[str]) -> Ranked | None:
    entity = candidate.entity
    plain = [plain_text(text) if text else "" for text in candidate.texts]
    weights = [_weight(entity, column) for column in entity.searched_columns]
    score = 0
    for word in typed:
        best = max(
            WORTH[best_fit(word, text)] * weight
            for text, weight in zip(plain, weights, strict=True)
        )
        if not best:
            return None
        score += best
    whole = " ".join(typed)
    score += max(_SAME * w if text == whole else 0 for text, w in zip(plain, weights, strict=True))
    return Ranked(candidate=candidate, label=_label(candidate), score=score)


def _weight(entity: Entity, column: Column) -> int:
    telling = {fold(name) for name in (*entity.key_columns, entity.display_ref_column or "")}
    return 2 if column.folded in telling else 1


def _label(candidate: Candidate) -> str:
    if candidate.label is not None:
        return candidate.label
    values = [str(v) for v in json.loads(candidate.key, parse_float=str).values()]
    return " ".join(values) or str(candidate.row_id)


def parts_of(text: str, typed: Sequence[str]) -> tuple[Part, ...]:
    """Return *text* cut where the words stand in it; of a long one what is around the first place.

    Nothing is there where no word stands.
    """
    found = ranges(text, typed)
    if not found:
        return ()
    start = max(0, found[0][0] - _BEFORE) if len(text) > _SHOWN else 0
    end = min(len(text), start + _SHOWN)
    return tuple(_cut(text, [r for r in found if r[0] < end], start, end))


def _cut(text: str, found: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[Part]:
    at = start
    before = "…" if start > 0 else ""
    for first, last in found:
        if before or first > at:
            yield Part(before + text[at:first], False)
            before = ""
        last = min(last, max(end, found[0][1]))
        yield Part(text[first:last], True)
        at = last
    end = max(end, at)
    rest = text[at:end] + ("…" if end < len(text) else "")
    if rest:
        yield Part(rest, False)
