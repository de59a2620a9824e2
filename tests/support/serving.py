"""The API in this process, without a socket, and keys for those who ask it."""

from __future__ import annotations

from typing import Any

import httpx2
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_gitops.access.api_keys import digest, generate_key

KEY = "a bootstrap key, 30 characters"
Client = httpx2.AsyncClient


class served:
    """``async with served(app) as client``: the app with its lifespan, without a socket."""

    def __init__(self, app: Starlette) -> None:
        self._lifespan = app.router.lifespan_context(app)
        self._client = client_of(app)

    async def __aenter__(self) -> Client:
        await self._lifespan.__aenter__()
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()
        await self._lifespan.__aexit__(None, None, None)


def client_of(app: Starlette) -> Client:
    """Return one more client of an *app* that is served already, with headers of its own."""
    return Client(transport=httpx2.ASGITransport(app=app), base_url="http://mdm.example")


async def add_key(conn: AsyncConnection[Any], name: str, **values: Any) -> str:
    key = generate_key()
    await conn.execute(
        "INSERT INTO mdm.api_key (name, key_sha256, is_global_admin, created_by, expires_at)"
        " VALUES (%s, %s, false, 'test', %s)",
        [name, digest(key), values.get("expires_at")],
    )
    return key


def problem(response: httpx2.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["type"] == "/problems/" + document["code"].lower().replace("_", "-")
    assert set(document) >= {"type", "title", "status", "detail", "code", "traceId"}
    return response.status_code, document["code"]
