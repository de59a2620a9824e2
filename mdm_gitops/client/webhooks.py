"""Subscriptions, and what became of their deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import Committed, Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Webhooks:
    """Subscriptions by their id; creating and changing them are commits."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _path(self, webhook_id: str, rest: str = "", **names: Any) -> str:
        return path("/webhooks/{id}" + rest, id=webhook_id, **names)

    async def list(self) -> list[Json]:
        return list((await self._client.request("GET", path("/webhooks")))["items"])

    async def get(self, webhook_id: str) -> Json:
        return dict(await self._client.request("GET", self._path(webhook_id)))

    async def create(self, subscription: Mapping[str, Any]) -> Json:
        """Subscribe; the answer's ``secret`` is told once."""
        return dict(await self._client.request("POST", path("/webhooks"), json=dict(subscription)))

    async def update(self, webhook_id: str, subscription: Mapping[str, Any]) -> Json:
        where = self._path(webhook_id)
        return dict(await self._client.request("PUT", where, json=dict(subscription)))

    async def delete(self, webhook_id: str) -> Committed:
        return Committed.of(await self._client.request("DELETE", self._path(webhook_id)))

    async def test(self, webhook_id: str) -> Json:
        """Send one test delivery; return how it went."""
        return dict(await self._client.request("POST", self._path(webhook_id, "/test")))

    async def deliveries(
        self, webhook_id: str, *, state: str | None = None, after: int = 0, take: int = 100
    ) -> Json:
        """Return one page of what was not delivered."""
        query = {"state": state, "after": after, "take": take}
        where = self._path(webhook_id, "/deliveries")
        return dict(await self._client.request("GET", where, query=query))

    async def replay_delivery(self, webhook_id: str, change_id: int) -> None:
        where = self._path(webhook_id, "/deliveries/{n}/replay", n=change_id)
        await self._client.request("POST", where)

    async def replay(self, webhook_id: str, *, after_id: int) -> Json:
        """Deliver all changes after *after_id* again."""
        where = self._path(webhook_id, "/replay")
        return dict(await self._client.request("POST", where, json={"afterId": after_id}))

    async def rotate_secret(self, webhook_id: str) -> Json:
        return dict(await self._client.request("POST", self._path(webhook_id, "/secret")))

    async def export_yaml(self) -> str:
        async with self._client.opened("GET", path("/webhooks/yaml")) as answer:
            return (await answer.read()).decode()

    async def import_yaml(self, yaml: str) -> Committed:
        """Replace all subscriptions."""
        where = path("/webhooks/yaml")
        return Committed.of(await self._client.request("POST", where, json={"yaml": yaml}))
