"""Reading together: what is asked for at the same moment shares a statement.

One reader per server process. An idle reader adds no time; under load one round trip serves many callers
(``warehouse.coalesce``): of single rows all that were asked for meanwhile, and of lists all callers of the same
one. Only callers with the same rights and the same question share, and only a statement that begins after they
asked: nobody is answered from before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Protocol, TypeVar

from mdm_gitops.data.asking import Asking
from mdm_gitops.data.rows import ListRequest, Page, Row, RowShape, get_rows, list_rows
from mdm_gitops.warehouse.coalesce import Coalescer
from mdm_gitops.warehouse.connect import Connection

T = TypeVar("T")


class WithConnection(Protocol):
    async def __call__(self, work: Callable[[Connection], Awaitable[T]], /) -> T:
        """Run *work*, which only reads, on a connection; once more if that was found dead."""


class _Question:
    """What callers who share have in common. One value per state of the store, so it is its own key."""

    __slots__ = ("asked", "entity")

    def __init__(self, entity: str, asked: RowShape | ListRequest) -> None:
        self.entity = entity
        self.asked = asked


class RowReader:
    """Reads present rows, and lists, through *with_connection*."""

    def __init__(self, with_connection: WithConnection) -> None:
        self._with_connection = with_connection
        self._rows: Coalescer[tuple[Asking, str], Row | None] = Coalescer(
            self._read_rows, subject=None
        )
        self._lists: Coalescer[Asking, Page] = Coalescer(self._read_list, subject=None)

    def get(
        self, asking: Asking, *, entity: str, row_id: str, shape: RowShape
    ) -> asyncio.Future[Row | None]:
        """Return the row as ``rows.get_row`` does, None where that finds none; errors as there.

        *row_id* is in the spelling of ``str(UUID)``.
        """
        return self._rows.submit(_question(asking, entity, shape), (asking, row_id))

    def list(self, asking: Asking, *, entity: str, request: ListRequest) -> asyncio.Future[Page]:
        """Return the page as ``rows.list_rows`` does."""
        return self._lists.submit(_question(asking, entity, request), asking)

    async def _read_rows(
        self, question: Hashable, batch: Sequence[tuple[Asking, str]]
    ) -> Sequence[Row | None]:
        assert isinstance(question, _Question) and isinstance(question.asked, RowShape)
        entity, shape, (asking, _) = question.entity, question.asked, batch[0]
        row_ids = {row_id for _, row_id in batch}

        async def read(conn: Connection) -> Sequence[Row | None]:
            found = await get_rows(conn, asking=asking, entity=entity, row_ids=row_ids, shape=shape)
            return [found.get(row_id) for _, row_id in batch]

        return await self._with_connection(read)

    async def _read_list(self, question: Hashable, batch: Sequence[Asking]) -> Sequence[Page]:
        assert isinstance(question, _Question) and isinstance(question.asked, ListRequest)
        entity, request, asking = question.entity, question.asked, batch[0]

        async def read(conn: Connection) -> Page:
            return await list_rows(conn, asking=asking, entity=entity, request=request)

        return [await self._with_connection(read)] * len(batch)


def _question(asking: Asking, entity: str, asked: RowShape | ListRequest) -> _Question:
    key = ("question", asking.cache_key, entity, asked)
    return asking.state.remember(key, lambda: _Question(entity, asked))
