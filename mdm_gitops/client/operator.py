"""The operator of a server: how it stands, what it is told, and plans that wait for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Operator:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def status(self) -> Json:
        return dict(await self._client.request("GET", path("/reconciliation")))

    async def reconcile(self) -> Json:
        """Ask for a run at once."""
        return dict(await self._client.request("POST", path("/reconcile")))

    async def suspend(self, *, entity: str | None = None, reason: str | None = None) -> Json:
        given = {"entity": entity, "reason": reason}
        where = path("/reconciliation/suspend")
        return dict(await self._client.request("POST", where, json=given))

    async def resume(self, *, entity: str | None = None) -> Json:
        where = path("/reconciliation/resume")
        return dict(await self._client.request("POST", where, json={"entity": entity}))


class Plans:
    """Plans of the operator that wait."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, *, state: str = "open") -> list[Json]:
        query = {"state": state}
        return list((await self._client.request("GET", path("/plans"), query=query))["items"])

    async def get(self, plan_id: str) -> Json:
        return dict(await self._client.request("GET", path("/plans/{id}", id=plan_id)))

    async def approve(self, plan_id: str, *, comment: str | None = None) -> Json:
        where = path("/plans/{id}/approve", id=plan_id)
        return dict(await self._client.request("POST", where, json={"comment": comment}))

    async def reject(self, plan_id: str, *, comment: str | None = None) -> Json:
        where = path("/plans/{id}/reject", id=plan_id)
        return dict(await self._client.request("POST", where, json={"comment": comment}))
