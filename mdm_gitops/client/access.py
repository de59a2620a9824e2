"""Who may do what, and who did what: permissions, API keys, the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mdm_gitops.client.paths import path
from mdm_gitops.client.values import Committed, Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client


class Permissions:
    """Assignments; each change is a commit."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[Json]:
        return list((await self._client.request("GET", path("/permissions")))["items"])

    async def add(
        self,
        principal: str,
        domain: str,
        actions: Sequence[str],
        *,
        entity: str | None = None,
        row_filter: str | None = None,
    ) -> Committed:
        given = {
            "principal": principal,
            "domain": domain,
            "entity": entity,
            "actions": [*actions],
            "rowFilterDsl": row_filter,
        }
        return Committed.of(await self._client.request("POST", path("/permissions"), json=given))

    async def export_yaml(self) -> str:
        async with self._client.opened("GET", path("/permissions/yaml")) as answer:
            return (await answer.read()).decode()

    async def import_yaml(self, yaml: str) -> Committed:
        """Replace all assignments."""
        where = path("/permissions/yaml")
        return Committed.of(await self._client.request("POST", where, json={"yaml": yaml}))


class ApiKeys:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[Json]:
        return list((await self._client.request("GET", path("/api-keys")))["items"])

    async def create(
        self, name: str, *, is_global_admin: bool = False, expires_utc: str | None = None
    ) -> Json:
        """Return the new key; ``key`` is told here and never again."""
        given = {"name": name, "isGlobalAdmin": is_global_admin, "expiresUtc": expires_utc}
        return dict(await self._client.request("POST", path("/api-keys"), json=given))

    async def revoke(self, name: str) -> None:
        await self._client.request("DELETE", path("/api-keys/{name}", name=name))


class Audit:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def entries(
        self,
        *,
        entity: str | None = None,
        user: str | None = None,
        action: str | None = None,
        record_id: str | None = None,
        from_utc: str | None = None,
        to_utc: str | None = None,
        skip: int = 0,
        take: int = 100,
    ) -> Json:
        """Return one page: ``entries`` and ``totalCount``."""
        query: dict[str, Any] = {
            "entityName": entity,
            "user": user,
            "action": action,
            "recordId": record_id,
            "fromUtc": from_utc,
            "toUtc": to_utc,
            "skip": skip,
            "take": take,
        }
        return dict(await self._client.request("GET", path("/audit"), query=query))
