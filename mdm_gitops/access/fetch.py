"""One bounded question to the identity provider: so long, so many bytes, no redirects, JSON or nothing.

Addresses come from the settings and from the provider's own description, never from a token or a
request. A proxy of the environment is used as other programs do.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import httpx2

from mdm_gitops.errors import ProviderUnavailable

MAX_BYTES: Final = 1_048_576
_CONNECTIONS: Final = 8
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # what is packed could grow without end
    "User-Agent": "mdm-gitops",
}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    document: Any


class Fetcher:
    """Asks; one per server process, to be closed at its end."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    @cached_property
    def _client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers=_HEADERS,
            timeout=self._timeout_s,
            follow_redirects=False,
            verify=_tls(),
            limits=httpx2.Limits(max_connections=_CONNECTIONS),
        )

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        """Return the answer of *url*.

        Raises:
            ProviderUnavailable: there is none in time, or it is no JSON of reasonable size.
        """
        return await self._ask("GET", url, headers=headers)

    async def post_form(
        self, url: str, form: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """As ``get``, with *form* as the body."""
        return await self._ask("POST", url, headers=headers, form=form)

    async def aclose(self) -> None:
        if "_client" in vars(self):
            await self._client.aclose()

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None,
        form: Mapping[str, str] | None = None,
    ) -> Reply:
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream(method, url, headers=headers, data=form) as response,
            ):
                body = await _read(response)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError) as error:
            raise ProviderUnavailable(f"{url} did not answer: {type(error).__name__}") from None
        try:
            return Reply(response.status_code, json.loads(body))
        except (ValueError, RecursionError):
            raise ProviderUnavailable(
                f"{url} answered {response.status_code} with something that is no JSON"
            ) from None


async def _read(response: httpx2.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ProviderUnavailable("the identity provider packs its answers unasked")
    parts, size = [], 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BYTES:
            raise ProviderUnavailable(f"an answer has more than {MAX_BYTES:,} bytes")
        parts.append(chunk)
    return b"".join(parts)


@cache
def _tls() -> ssl.SSLContext:
    """Read the certificates of this machine once: that takes 30 ms."""
    return httpx2.create_ssl_context()
