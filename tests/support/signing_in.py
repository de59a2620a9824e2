"""People who sign in, and what their sign-ins leave: what tests with a browser share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from tests.support.providers import SITE, Browser, Provider, running_provider
from tests.support.serving import problem, served

ROWS = "/api/v1/entities/country/data"
CALLBACK = f"{SITE}/login/callback"
COOKIE = "__Host-mdm_session"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def people(provider: Provider) -> None:
    """Clients and users as each test expects them, whatever the one before did."""
    provider.add_web_client()
    provider.tell_in_id_tokens()
    provider.add_user("anna", groups=["stewards"], roles=["mdm-user"])
    provider.add_user("root", roles=["mdm-user", "mdm-admin"])
    provider.add_user("guest")


@pytest.fixture
def app(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> Starlette:
    return provider.app(database_url)


@pytest.fixture
async def browser(app: Starlette) -> AsyncIterator[Browser]:
    async with served(app), Browser(app) as browser:
        yield browser


async def grant(conn: AsyncConnection[Any], principal: str, *actions: str) -> None:
    statement = "INSERT INTO mdm.permission VALUES (%s, 'ref', '', %s, '')"
    await conn.execute(statement, [principal, list(actions or ["read"])])


async def sessions(conn: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
    return await (await conn.execute("SELECT * FROM mdm.session ORDER BY created_at")).fetchall()


async def audited(conn: AsyncConnection[Any]) -> list[tuple[str, str]]:
    query = (
        "SELECT action, actor FROM mdm.audit WHERE action LIKE 'log%' OR action LIKE 'cred%'"
        " ORDER BY audit_id"
    )
    return await (await conn.execute(query)).fetchall()


def changed(url: str, **values: str | None) -> str:
    """Return *url* with other query parameters; None leaves one out."""
    parts = urlsplit(url)
    query = {name: each[0] for name, each in parse_qs(parts.query).items()} | values
    kept = {name: value for name, value in query.items() if value is not None}
    return urlunsplit(parts._replace(query=urlencode(kept)))


async def failed(browser: Browser, answer: httpx2.Response, words: str) -> None:
    """*answer* tells why nobody has signed in, and nobody has."""
    assert problem(answer) == (400, "SIGN_IN_FAILED")
    assert words in answer.json()["detail"], answer.text
    assert COOKIE not in answer.headers.get("set-cookie", "")
    assert problem(await browser.http.get("/api/v1/me")) == (401, "AUTH_REQUIRED")
