"""Reading single rows together: those that are asked for at the same moment share a statement.

One reader per server process. An idle reader adds no time; under load one round trip serves many
callers (``warehouse.coalesce``). Only callers with the same rights and the same question share one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.rows import Row, RowShape, get_rows
from mdm_gitops.warehouse.coalesce import Coalescer
from mdm_gitops.warehouse.connect import Connection

T = TypeVar("T")


class WithConnection(Protocol):
    async def __call__(self, work: Callable[[Connection], Awaitable[T]], /) -> T:
        """Run *work*, which only reads, on a connection; once more if that was found dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    asking: Asking
    entity: str
    row_id: UUID
    shape: RowShape

    @property
    def kind(self) -> Hashable:
        state = self.asking.state
        return (state.revision, id(state), self.asking.cache_key, self.entity, self.shape)


class RowReader:
    """Reads present rows through *with_connection*."""

    def __init__(self, with_connection: WithConnection) -> None:
        self._with_connection = with_connection
        self._coalescer: Coalescer[_Wanted, Row | None] = Coalescer(
            self._flush, subject=lambda wanted: None
        )

    async def get(
        self, asking: Asking, *, entity: str, row_id: UUID, shape: RowShape
    ) -> Row | None:
        """Return the row as ``rows.get_row`` does, None where that finds none; errors as there."""
        wanted = _Wanted(asking=asking, entity=entity, row_id=row_id, shape=shape)
        return await self._coalescer.submit(wanted.kind, wanted)

    async def _flush(self, kind: Hashable, batch: Sequence[_Wanted]) -> Sequence[Row | None]:
        first = batch[0]
        row_ids = {wanted.row_id for wanted in batch}

        async def read(conn: Connection) -> Sequence[Row | None]:
            found = await get_rows(
                conn, asking=first.asking, entity=first.entity, row_ids=row_ids, shape=first.shape
            )
            return [found.get(wanted.row_id) for wanted in batch]

        return await self._with_connection(read)
