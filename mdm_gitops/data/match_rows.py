"""Rows of a whole entity as a scan keeps them: what of their values is compared, and their keys.

A scan reads a million rows, in whose columns most values occur often: what follows from a value alone is
made once and remembered. The keys are those of ``match_keys``, as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from mdm_gitops.data.match_keys import LETTERS, neighbours, plain, value_keys
from mdm_gitops.model.similarity import Comparison

_REMEMBERED: Final = 20_000  # values of a column
_Made = tuple[str, tuple[int, ...], str | None]  # what is compared, own keys, what it begins with


class RowMaker:
    """Makes rows of the values of *comparisons*, whose keys come of the columns *matched*."""

    def __init__(self, comparisons: Sequence[Comparison], matched: Sequence[Comparison]) -> None:
        letters = {each.column: LETTERS[n] for n, each in enumerate(matched)}
        columns = [each.column for each in comparisons]
        self._makers = [_maker(each.kind, letters.get(each.column)) for each in comparisons]
        at = [columns.index(each.column) for each in matched]
        self._neighbours = [(at[a], at[b], letters) for a, b, letters in neighbours(len(at))]

    def row(self, values: Sequence[str | None]) -> tuple[list[str], list[int]]:
        """Return what of *values*, as ``index_text`` gives them, is compared; and the keys."""
        words: list[str] = []
        keys: list[int] = []
        atoms: list[str | None] = []
        for maker, value in zip(self._makers, values, strict=True):
            word, own, atom = maker(value)
            words.append(word)
            keys += own
            atoms.append(atom)
        for first, second, letters in self._neighbours:
            one, other = atoms[first], atoms[second]
            if one is not None and other is not None:
                keys.append(hash((letters, one, other)))
        return words, keys


def _maker(kind: str, letter: str | None) -> Callable[[str | None], _Made]:
    @lru_cache(maxsize=_REMEMBERED)
    def made(value: str | None) -> _Made:
        if letter is None:
            return plain(kind, value), (), None
        words, own, atom = value_keys(kind, value)
        return words, tuple({hash(letter + each) for each in own}), atom

    return made
