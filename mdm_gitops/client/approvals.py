"""Changes that wait for a second person: looked at, approved, rejected, taken back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import BatchOutcome, Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Approvals:
    """Proposals for the rows of *entity*."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, rest: str, row_id: str | None = None) -> str:
        if row_id is None:
            return path("/entities/{entity}" + rest, entity=self._entity)
        return path("/entities/{entity}" + rest + "/{id}", entity=self._entity, id=row_id)

    def list(
        self,
        *,
        state: str | None = None,
        batch_name: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
    ) -> AsyncIterator[Json]:
        """Yield proposals with what they would change."""
        return self._client.pages(
            self._path("/pending"), state=state, batchName=batch_name, filter=filter, sort=sort
        )

    def batches(self) -> AsyncIterator[Json]:
        return self._client.pages(self._path("/pending/batches"))

    async def approve(
        self, row_id: str, *, comment: str | None = None, submitted_at: str | None = None
    ) -> Json:
        """Approve a proposal; with *submitted_at* only if it is still the one submitted then."""
        given = {"comment": comment, "submittedAt": submitted_at}
        where = self._path("/approve", row_id)
        return dict(await self._client.request("POST", where, json=_given(given)))

    async def reject(self, row_id: str, *, comment: str | None = None) -> Json:
        where = self._path("/reject", row_id)
        return dict(await self._client.request("POST", where, json=_given({"comment": comment})))

    async def withdraw(self, row_id: str) -> None:
        """Take a proposal back."""
        await self._client.request("DELETE", self._path("/pending", row_id))

    async def approve_batch(
        self, batch_name: str | None = None, *, ids: Sequence[str] = (), comment: str | None = None
    ) -> BatchOutcome:
        return await self._decide("/approve-batch", batch_name, ids, comment)

    async def reject_batch(
        self, batch_name: str | None = None, *, ids: Sequence[str] = (), comment: str | None = None
    ) -> BatchOutcome:
        return await self._decide("/reject-batch", batch_name, ids, comment)

    async def _decide(
        self, rest: str, batch_name: str | None, ids: Sequence[str], comment: str | None
    ) -> BatchOutcome:
        given = {"batchName": batch_name, "ids": [*ids] or None, "comment": comment}
        answer = await self._client.request(
            "POST", self._path(rest), json=_given(given), is_long=True
        )
        return BatchOutcome.of(answer)


def _given(document: Json) -> Json:
    return {name: value for name, value in document.items() if value is not None}
