"""The change feed: what happened after a place of it, and what happens from now on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from mdm_gitops.client.values import Change, Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client

_PATH: Final = "/api/v1/changes"


class Changes:
    """Changes of the entities that the caller may see, in order, each once."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def page(
        self,
        *,
        after_id: int | None = None,
        entity: str | None = None,
        from_utc: str | None = None,
        to_utc: str | None = None,
        take: int = 100,
    ) -> Json:
        """Return one page as it is; its ``nextAfterId`` goes on from its end."""
        query: dict[str, Any] = {
            "afterId": after_id,
            "entity": entity,
            "fromUtc": from_utc,
            "toUtc": to_utc,
            "take": take,
        }
        return dict(await self._client.request("GET", _PATH, query=query))

    async def since(
        self, after_id: int, *, entity: str | None = None, page_size: int = 500
    ) -> AsyncIterator[Change]:
        """Yield all changes after *after_id* that there are now."""
        has_more = True
        while has_more:
            page = await self.page(after_id=after_id, entity=entity, take=page_size)
            for entry in page["entries"]:
                yield Change.of(entry)
            after_id, has_more = page["nextAfterId"], page["hasMore"]

    async def follow(
        self,
        after_id: int,
        *,
        entity: str | None = None,
        page_size: int = 500,
        pause_s: float = 1.0,
    ) -> AsyncIterator[Change]:
        """Yield all changes after *after_id*, for ever: when there are no more, new ones.

        Whoever keeps the ``id`` of the last change that was dealt with goes on from there later.

        Raises:
            ApiError: ``CHANGES_EXPIRED``, changes after *after_id* are no longer kept.
        """
        while True:
            page = await self.page(after_id=after_id, entity=entity, take=page_size)
            for entry in page["entries"]:
                yield Change.of(entry)
            after_id = page["nextAfterId"]
            if not page["hasMore"]:
                await asyncio.sleep(pause_s)
