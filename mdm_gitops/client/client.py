"""``Client``: one server, and what can be asked of it, by subject."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from mdm_gitops.client.access import ApiKeys, Audit, Permissions
from mdm_gitops.client.approvals import Approvals
from mdm_gitops.client.bulk_actions import BulkActions
from mdm_gitops.client.changes import Changes
from mdm_gitops.client.connection import ApiKey, BearerToken, Connection, Credential, NoCredential
from mdm_gitops.client.definitions import CommonEntities, Definitions, Deployment
from mdm_gitops.client.duplicates import Duplicates
from mdm_gitops.client.merges import Merges
from mdm_gitops.client.operator import Operator, Plans
from mdm_gitops.client.packages import Packages
from mdm_gitops.client.retries import Retries
from mdm_gitops.client.rows import Filters, Rows
from mdm_gitops.client.search import Search
from mdm_gitops.client.transport import Answer, Body, Limits, Request, Transport, json_body
from mdm_gitops.client.values import Json
from mdm_gitops.client.webhooks import Webhooks
from mdm_gitops.errors import InputError

if TYPE_CHECKING:
    import httpx2


class Client:
    """A server over one pool of connections; an async context manager.

    Args:
        url: Where the server is.
        api_key: An API key, or
        token: an access token of the identity provider, or
        credential: anything that can sign requests, such as ``SignedIn``.
        limits: How long is waited for connections and answers.
        retries: How often, and how long in all, a request is made again that may be.
        transport: How requests travel; the network if not given.
        on_wait: Told the seconds before each wait for another attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        token: str | None = None,
        credential: Credential | None = None,
        limits: Limits | None = None,
        retries: Retries | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        connection = Connection(url=url, credential=_one_of(api_key, token, credential))
        self._transport = Transport(
            connection,
            limits=limits or Limits(),
            retries=retries or Retries(),
            transport=transport,
            on_wait=on_wait or _silently,
        )

    @property
    def connection(self) -> Connection:
        return self._transport.connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    def __repr__(self) -> str:
        return f"Client({self.connection.url!r})"

    # --- anything ---------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        json: Any = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        is_long: bool = False,
    ) -> Any:
        """Return the JSON value of the answer, None for an empty one.

        Parameters of *query* that are None are left out, lists are joined with commas.

        Raises:
            ApiError: the server refused.
            MdmError: the server cannot be reached, or is none of this program.
        """
        opened = self.opened(
            method, path, query=query, json=json, body=body, headers=headers, is_long=is_long
        )
        async with opened as answer:
            return await answer.json()

    def opened(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        json: Any = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        is_long: bool = False,
    ) -> AbstractAsyncContextManager[Answer]:
        """Return a context with a good answer whose body is read as it arrives."""
        sent, told = (body, {}) if json is None else json_body(json)
        return self._transport.opened(
            Request(
                method=method,
                path=path,
                query=query or {},
                headers={**told, **(headers or {})},
                body=sent,
                is_long=is_long,
            )
        )

    async def pages(
        self, path: str, *, items: str = "items", take: int = 500, **query: Any
    ) -> AsyncIterator[Json]:
        """Yield what a list holds, page by page: by keyset where it has one, else by count."""
        given: dict[str, Any] = {**query, "take": take}
        while True:
            answer = await self.request("GET", path, query=given)
            for each in answer[items]:
                yield each
            if answer.get("nextAfter") is not None:
                given["after"] = answer["nextAfter"]
                given.pop("skip", None)
            else:
                given["skip"] = int(given.get("skip") or 0) + len(answer[items])
            if not _goes_on(answer, items, given):
                return

    # --- by subject -------------------------------------------------------------------------------

    def rows(self, entity: str) -> Rows:
        """The rows of *entity*."""
        return Rows(self, entity)

    def approvals(self, entity: str) -> Approvals:
        """Changes of *entity* that wait for a second person."""
        return Approvals(self, entity)

    def bulk_actions(self, entity: str) -> BulkActions:
        """Changing or deleting many rows of *entity* at once."""
        return BulkActions(self, entity)

    def merges(self, entity: str) -> Merges:
        """Merging rows of *entity*."""
        return Merges(self, entity)

    def duplicates(self, entity: str) -> Duplicates:
        """Rows of *entity* that may mean the same, and rows like a given one."""
        return Duplicates(self, entity)

    def filters(self, entity: str) -> Filters:
        """The caller's saved filters of *entity*."""
        return Filters(self, entity)

    def deployment(self, entity: str) -> Deployment:
        """What is deployed of *entity*, and deploying it."""
        return Deployment(self, entity)

    @cached_property
    def definitions(self) -> Definitions:
        return Definitions(self)

    @cached_property
    def common_entities(self) -> CommonEntities:
        return CommonEntities(self)

    @cached_property
    def search(self) -> Search:
        return Search(self)

    @cached_property
    def changes(self) -> Changes:
        return Changes(self)

    @cached_property
    def audit(self) -> Audit:
        return Audit(self)

    @cached_property
    def permissions(self) -> Permissions:
        return Permissions(self)

    @cached_property
    def api_keys(self) -> ApiKeys:
        return ApiKeys(self)

    @cached_property
    def webhooks(self) -> Webhooks:
        return Webhooks(self)

    @cached_property
    def packages(self) -> Packages:
        return Packages(self)

    @cached_property
    def operator(self) -> Operator:
        return Operator(self)

    @cached_property
    def plans(self) -> Plans:
        return Plans(self)

    async def me(self) -> Json:
        """Return who the caller is and what it may do."""
        return dict(await self.request("GET", "/api/v1/me"))

    async def roles(self) -> Json:
        return dict(await self.request("GET", "/api/v1/roles"))


def _one_of(api_key: str | None, token: str | None, credential: Credential | None) -> Credential:
    if sum(each is not None for each in (api_key, token, credential)) > 1:
        raise InputError("a client has one of api_key, token and credential")
    if api_key is not None:
        return ApiKey(api_key)
    if token is not None:
        return BearerToken(token)
    return credential or NoCredential()


def _goes_on(answer: Mapping[str, Any], items: str, given: Mapping[str, Any]) -> bool:
    """Say whether there are more: what the answer says, else while it is short of its total."""
    if "hasMore" in answer:
        return bool(answer["hasMore"])
    total = answer.get("totalCount", answer.get("total"))
    return bool(answer[items]) and total is not None and int(given.get("skip") or 0) < total


def _silently(_: float) -> None:
    """Nobody is told."""
