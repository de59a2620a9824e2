"""Definitions on a server, read and changed by commits, and what is deployed of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mdm_gitops.client.paths import path
from mdm_gitops.client.transport import json_body
from mdm_gitops.client.values import Committed, Json

if TYPE_CHECKING:
    from mdm_gitops.client.client import Client

_ENTITY: Final = "/entities/{entity}"
_YAML: Final = {"Content-Type": "application/yaml"}
Definition: TypeAlias = str | Mapping[str, Any]
"""An entity: as YAML text, or as the object that the API has of it."""


class Definitions:
    """The definitions of the repository that a server has."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, *, domain: str | None = None, state: str | None = None) -> list[Json]:
        query = {"domain": domain, "state": state}
        return list((await self._client.request("GET", path("/entities"), query=query))["items"])

    async def summary(self, *, domain: str | None = None, state: str | None = None) -> Json:
        query = {"domain": domain, "state": state}
        return dict(await self._client.request("GET", path("/entities/summary"), query=query))

    async def get(self, name: str) -> Json:
        return dict(await self._client.request("GET", path(_ENTITY, entity=name)))

    async def yaml(self, name: str) -> str:
        async with self._client.opened("GET", path(_ENTITY + "/yaml", entity=name)) as answer:
            return (await answer.read()).decode()

    async def parse(self, yaml: str) -> Json:
        """Return the definition that *yaml* writes, with defaults spelt out."""
        return dict(await self._send("POST", path("/entities/parse-yaml"), yaml))

    async def validate(self, definition: Definition) -> Json:
        """Check *definition* among the others of the server.

        Raises:
            ApiError: ``DEFINITION_INVALID`` with all that is wrong in ``errors``.
        """
        return dict(await self._send("POST", path("/entities/validate"), definition))

    async def create(self, definition: Definition) -> Committed:
        return Committed.of(await self._send("POST", path("/entity-create"), definition))

    async def save(self, name: str, definition: Definition) -> Committed:
        """Create or change *name*."""
        return Committed.of(await self._send("POST", path(_ENTITY, entity=name), definition))

    async def update(
        self, name: str, definition: Definition, *, if_match: str | None = None
    ) -> Committed:
        where = path(_ENTITY, entity=name)
        return Committed.of(await self._send("PUT", where, definition, if_match=if_match))

    async def delete(self, name: str) -> Committed:
        """Remove the definition; what is deployed of it stays until it is removed, too."""
        return Committed.of(await self._client.request("DELETE", path(_ENTITY, entity=name)))

    async def _send(
        self, method: str, where: str, definition: Definition, *, if_match: str | None = None
    ) -> Any:
        if isinstance(definition, str):
            body, told = definition.encode(), dict(_YAML)
        else:
            body, told = json_body(definition)
        headers = {**told, **({"If-Match": if_match} if if_match else {})}
        return await self._client.request(method, where, body=body, headers=headers)


class Deployment:
    """What is deployed of *entity*. Each call that changes something is a plan, and its apply."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def _path(self, rest: str) -> str:
        return path(_ENTITY + rest, entity=self._entity)

    async def preview(self) -> Json:
        """Return the plan of deploying the entity."""
        return dict(await self._client.request("GET", self._path("/deploy/preview"), is_long=True))

    async def deploy(self, *, allow: Sequence[str] = (), plan_id: str | None = None) -> Json:
        """Apply the definition; with *plan_id* only if the plan is still that one."""
        return await self._do("/deploy", _asked(allow, plan_id))

    async def redeploy(self, *, allow: Sequence[str] = (), plan_id: str | None = None) -> Json:
        return await self._do("/redeploy", _asked(allow, plan_id))

    async def remove(self, *, allow: Sequence[str] = ()) -> Json:
        """Take the entity out of the warehouse, into its archive."""
        return await self._do("/deploy/remove", {"allow": [*allow]})

    async def drop_archives(self, *, confirm: str) -> Json:
        """Destroy the archives for good; *confirm* is the entity's name once more."""
        return await self._do("/deploy/drop-archive-tables", {"confirm": confirm})

    def history(self) -> AsyncIterator[Json]:
        return self._client.pages(self._path("/deploy/history"))

    async def _do(self, rest: str, asked: Json) -> Json:
        answer = await self._client.request("POST", self._path(rest), json=asked, is_long=True)
        return dict(answer)


class CommonEntities:
    """Predefined entities with their rows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[Json]:
        return list((await self._client.request("GET", path("/common-entities")))["items"])

    async def install(self, entity_id: str, *, domain: str | None = None) -> Committed:
        where = path("/common-entities/{id}/install", id=entity_id)
        given = {} if domain is None else {"domain": domain}
        return Committed.of(await self._client.request("POST", where, json=given))


def _asked(allow: Sequence[str], plan_id: str | None) -> Json:
    return {"allow": [*allow], **({"planId": plan_id} if plan_id else {})}
