"""Which rows of a whole entity are compared at all: those that have keys in common.

Two rows are candidates when they share two keys, or one that is rare, or one where a row has few. A key
that many rows have tells nothing about two of them (50,000 companies "Ltd") and is skipped: what is
compared grows with the rows, not with their square. How many keys and rows that concerns is told.

Memory: for each row 8 bytes a key, and an entry for each key. Keys are remembered by their hash.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

MAX_BLOCK: Final = 30
_MANY_KEYS: Final = 6
_PORTION: Final = 100_000
_RARE: Final = 4  # rows; a key so rare counts twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Keys that too many rows have, the rows of the largest, and rows that have no other key."""

    keys: int
    largest: int
    rows: int


class Blocks:
    """Rows by number, from 0 in the order in which they are added, and their keys."""

    def __init__(self, *, max_block: int = MAX_BLOCK) -> None:
        self._max_block = max_block
        self._keys: list[array[int]] = []
        self._counts: Counter[int] = Counter()
        self._uncounted = array("q")
        self._changed = 0
        self._wanted: set[int] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: Iterable[str]) -> None:
        hashes = array("q", set(map(hash, keys)))
        self._keys.append(hashes)
        self._uncounted += hashes
        if len(self._uncounted) > _PORTION:
            self._count()

    def only_changed(self) -> None:
        """The rows so far have changed; later ones are compared with these, and not with each other."""
        self._count()
        self._changed = len(self._keys)
        self._wanted = set(self._counts)

    def add_if_near(self, keys: Iterable[str]) -> bool:
        """Add a row that has not changed, if it shares a key with one that has."""
        assert self._wanted is not None, "only_changed comes first"
        found = self._wanted.intersection(map(hash, keys))
        if not found:
            return False
        self._keys.append(array("q", found))
        self._uncounted += self._keys[-1]
        return True

    def _count(self) -> None:
        # Many at once: each call costs more than counting the keys of a row.
        self._counts.update(self._uncounted)
        self._uncounted = array("q")

    def skipped(self) -> Skipped:
        self._count()
        large = {key: count for key, count in self._counts.items() if count > self._max_block}
        lost = sum(1 for keys in self._keys if keys and all(key in large for key in keys))
        return Skipped(keys=len(large), largest=max(large.values(), default=0), rows=lost)

    def candidates(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each row with the earlier rows it is to be compared with."""
        self._count()
        blocks: dict[int, list[int]] = {}
        counts, most = self._counts, self._max_block
        for number, keys in enumerate(self._keys):
            shared: list[int] = []
            appears = self._wanted is None or number < self._changed
            for key in keys:
                if not 1 < counts[key] <= most:
                    continue
                block = blocks.get(key)
                if block is not None:
                    shared += block
                    if counts[key] <= _RARE:
                        shared += block
                    if appears:
                        block.append(number)
                elif appears:
                    blocks[key] = [number]
            yield number, self._near(number, Counter(shared)) if shared else []

    def _near(self, number: int, shared: Counter[int]) -> list[int]:
        # Of a row that has not changed not all keys are known, so it counts as the other one does.
        if len(self._keys[number]) < _MANY_KEYS and (
            self._wanted is None or number < self._changed
        ):
            return list(shared)
        return [
            other
            for other, count in shared.items()
            if count > 1 or len(self._keys[other]) < _MANY_KEYS
        ]
