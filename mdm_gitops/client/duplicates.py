"""Rows that may mean the same: looked for as a job, listed, dismissed; and rows like a given one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Duplicates:
    """Candidate pairs of *entity*."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, rest: str = "", **names: Any) -> str:
        return path("/entities/{entity}/duplicates" + rest, entity=self._entity, **names)

    async def scan(self, *, full: bool = False, min_score: float | None = None) -> Json:
        """Begin to look for pairs; ``waited`` tells when it has ended."""
        asked: Json = {"full": full}
        if min_score is not None:
            asked["minScore"] = min_score
        return dict(await self._client.request("POST", self._path("/scan"), json=asked))

    async def get_scan(self, scan_id: str) -> Json:
        return dict(await self._client.request("GET", self._path("/scans/{id}", id=scan_id)))

    async def cancel_scan(self, scan_id: str) -> Json:
        where = self._path("/scans/{id}/cancel", id=scan_id)
        return dict(await self._client.request("POST", where))

    async def waited(
        self,
        scan_id: str,
        *,
        pause_s: float = 0.5,
        progress: Callable[[Json], None] | None = None,
    ) -> Json:
        """Return the scan when it has ended; *progress* is told of each look at it."""
        while True:
            scan = await self.get_scan(scan_id)
            if progress is not None:
                progress(scan)
            if scan["state"] != "running":
                return scan
            await asyncio.sleep(pause_s)

    def list(
        self, *, min_score: float | None = None, dismissed: bool = False
    ) -> AsyncIterator[Json]:
        """Yield pairs, the most alike first."""
        return self._client.pages(
            self._path(), take=100, minScore=min_score, dismissed=dismissed or None
        )

    async def dismiss(self, first_id: str, second_id: str) -> None:
        """Say that two rows are not the same; no list shows them as a pair again."""
        asked = {"ids": [first_id, second_id]}
        await self._client.request("POST", self._path("/dismiss"), json=asked)

    async def reopen(self, first_id: str, second_id: str) -> None:
        asked = {"ids": [first_id, second_id]}
        await self._client.request("POST", self._path("/reopen"), json=asked)

    async def similar(
        self,
        row_id: str | None = None,
        *,
        values: Mapping[str, Any] | None = None,
        top: int | None = None,
        min_score: float | None = None,
    ) -> Json:
        """Return rows like the one of *row_id*, or like one with *values*."""
        given = {"id": row_id, "values": values, "top": top, "minScore": min_score}
        asked = {name: value for name, value in given.items() if value is not None}
        where = path("/entities/{entity}/similar", entity=self._entity)
        return dict(await self._client.request("POST", where, json=asked))
