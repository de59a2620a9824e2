"""Two rows that are one: merged, looked at, and taken apart again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Merges:
    """Merges of rows of *entity*."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, rest: str = "", **names: Any) -> str:
        where = "/entities/{entity}/data/deduplicate" + rest
        return path(where, entity=self._entity, **names)

    async def merge(
        self, survivor_id: str, duplicate_id: str, *, values: Mapping[str, Any] | None = None
    ) -> Json:
        """Merge the duplicate into the survivor; *values* win over the rules of survivorship.

        The answer's ``mergeId`` is what ``undo`` takes.
        """
        asked = _asked(survivor_id, duplicate_id, values)
        return dict(await self._client.request("POST", self._path(), json=asked, is_long=True))

    async def preview(
        self, survivor_id: str, duplicate_id: str, *, values: Mapping[str, Any] | None = None
    ) -> Json:
        """Return the survivor as it would be, and where each value would come from."""
        asked = _asked(survivor_id, duplicate_id, values)
        return dict(await self._client.request("POST", self._path("/preview"), json=asked))

    def list(self, *, state: str | None = None) -> AsyncIterator[Json]:
        """Yield merges, the newest first."""
        return self._client.pages(self._path(), state=state)

    async def get(self, merge_id: str) -> Json:
        return dict(await self._client.request("GET", self._path("/{id}", id=merge_id)))

    async def undo(self, merge_id: str, *, keep_later_edits: bool = False) -> Json:
        """Give both rows and all links back."""
        asked = {"keepLaterEdits": keep_later_edits}
        return await self._do(merge_id, "/undo", asked)

    async def approve(self, merge_id: str, *, comment: str | None = None) -> Json:
        return await self._do(merge_id, "/approve", {"comment": comment})

    async def reject(self, merge_id: str, *, comment: str | None = None) -> Json:
        return await self._do(merge_id, "/reject", {"comment": comment})

    async def _do(self, merge_id: str, rest: str, asked: Json) -> Json:
        where = self._path("/{id}" + rest, id=merge_id)
        return dict(await self._client.request("POST", where, json=asked, is_long=True))


def _asked(survivor_id: str, duplicate_id: str, values: Mapping[str, Any] | None) -> Json:
    given: Json = {"survivorId": survivor_id, "duplicateId": duplicate_id}
    return given if values is None else {**given, "values": dict(values)}
