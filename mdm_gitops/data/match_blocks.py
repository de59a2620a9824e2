"""Which rows of a whole entity are compared at all: those that have keys in common.

Two rows are candidates when they share two keys, or one that is rare, or one where a row has few. A key
that many rows have tells nothing about two of them (50,000 companies "Ltd") and is skipped: what is
compared grows with the rows, not with their square. How many keys and rows that concerns is told.

Memory: an entry for each key, and for each row that has it 8 bytes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MAX_BLOCK: Final = 30
_MANY_KEYS: Final = 6
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
        self._rows: dict[Hashable, int | list[int]] = {}  # by key: the only row, or all
        self._keys = array("H")  # how many each row has
        self._changed: int | None = None
        self._skipped: Skipped | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: Iterable[Hashable]) -> None:
        """Add a row; *keys* are different ones."""
        number, count, rows = len(self._keys), 0, self._rows
        for count, key in enumerate(keys, start=1):  # noqa: B007
            known = rows.setdefault(key, number)
            if known is number:
                continue
            if isinstance(known, list):
                known.append(number)
            else:
                rows[key] = [known, number]
        self._keys.append(count)

    def only_changed(self) -> None:
        """The rows so far have changed; later ones are compared with these, and not with each other."""
        self._changed = len(self._keys)

    def add_if_near(self, keys: Iterable[Hashable]) -> bool:
        """Add a row that has not changed, if it shares a key with one that has."""
        assert self._changed is not None, "only_changed comes first"
        found = [key for key in keys if key in self._rows]
        if found:
            self.add(found)
        return bool(found)

    def _shared(self) -> Iterator[list[int]]:
        return (rows for rows in self._rows.values() if isinstance(rows, list))

    def skipped(self) -> Skipped:
        if self._skipped is None:
            large = [rows for rows in self._shared() if len(rows) > self._max_block]
            # Of a row that has not changed not all keys are known.
            known = len(self) if self._changed is None else self._changed
            of_row = Counter(number for rows in large for number in rows if number < known)
            self._skipped = Skipped(
                keys=len(large),
                largest=max(map(len, large), default=0),
                rows=sum(1 for number, count in of_row.items() if count == self._keys[number]),
            )
        return self._skipped

    def candidates(self) -> Iterator[tuple[int, set[int]]]:
        """Yield each row with the earlier rows it is to be compared with; once, then all is done."""
        self.skipped()
        certain, blocks = self._by_row([r for r in self._shared() if len(r) <= self._max_block])
        few = {number for number, count in enumerate(self._keys) if count < _MANY_KEYS}
        changed = len(self) if self._changed is None else self._changed
        # Of a row that has not changed not all keys are known, so it counts as the other one does.
        few.difference_update(range(changed, len(self)))
        for number in range(len(self)):
            found = certain.pop(number, set())
            shared: list[int] = []
            for block in blocks.pop(number, ()):
                shared += block
                if number < changed:
                    block.append(number)
            if number in few:
                found.update(shared)
            elif shared:
                shared.sort()
                found.update([one for one, next_one in pairwise(shared) if one == next_one])
                found.update(few.intersection(shared))
            yield number, found

    def _by_row(
        self, shared: list[list[int]]
    ) -> tuple[dict[int, set[int]], dict[int, list[list[int]]]]:
        """Return, for each row, earlier ones that share a rare key, and a list of each other key.

        The lists are empty, for the rows to be entered in their order.
        """
        self._rows.clear()  # most keys are of one row, and memory is better used for what follows
        certain: dict[int, set[int]] = {}
        blocks: dict[int, list[list[int]]] = {}
        changed = len(self) if self._changed is None else self._changed
        for rows in shared:
            if len(rows) <= _RARE:
                for at, number in enumerate(rows[1:], start=1):
                    found = [each for each in rows[:at] if each < changed]
                    certain.setdefault(number, set()).update(found)
            else:
                block: list[int] = []
                for number in rows:
                    blocks.setdefault(number, []).append(block)
        return certain, blocks
