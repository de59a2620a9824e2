"""Entities and rows found by words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Search:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def entities(self, q: str, *, skip: int = 0, take: int = 20) -> Json:
        """Return ``items`` and ``total`` of the entities that have all words of *q*."""
        query = {"q": q, "skip": skip, "take": take}
        return dict(await self._client.request("GET", path("/search/entities"), query=query))

    async def data(
        self, q: str, *, entity: str | None = None, skip: int = 0, take: int = 20
    ) -> Json:
        """Return ``items`` and ``total`` of the rows that have all words of *q*."""
        query = {"q": q, "entity": entity, "skip": skip, "take": take}
        return dict(await self._client.request("GET", path("/search/data"), query=query))
