"""Every operation there is, with every credential that must not open it. A new one is in at once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection

from mdm_api.operations import Access, Operation
from mdm_api.table import OPERATIONS
from tests.support.providers import SITE, Browser, Provider, running_provider
from tests.support.serving import KEY, add_key, problem, served

pytestmark = pytest.mark.anyio

CLOSED = [each for each in OPERATIONS if each.access is not Access.PUBLIC]
FOR_ADMINS = [each for each in OPERATIONS if each.access is Access.GLOBAL_ADMIN]
COOKIE = "__Host-mdm_session"


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        provider.add_web_client()
        provider.add_user("anna")
        yield provider


@pytest.fixture
async def browser(
    provider: Provider, database_url: str, conn: AsyncConnection[Any]
) -> AsyncIterator[Browser]:
    app = provider.app(database_url)
    async with served(app), Browser(app) as browser:
        yield browser


async def call(browser: Browser, operation: Operation, headers: Any) -> httpx2.Response:
    path = operation.path
    for name in operation.path_parameters:
        path = path.replace(f"{{{name}}}", "country" if name == "name" else "1")
    return await browser.http.request(operation.method, path, headers=headers)


async def useless(provider: Provider, browser: Browser, conn: Any) -> dict[str, dict[str, str]]:
    """Return credentials that were never any, or are none any more."""
    now = int(time.time())
    revoked = await add_key(conn, "revoked")
    await conn.execute("UPDATE mdm.api_key SET revoked_at = now() WHERE name = 'revoked'")
    await browser.sign_in("anna")
    ended = browser.http.cookies[COOKIE]
    await browser.http.post("/logout", headers={"Origin": SITE})
    tokens = {
        "garbage": "garbage",
        "expired": provider.token(exp=now - 100, roles=["mdm-admin"]),
        "for another audience": provider.token(aud="x", roles=["mdm-admin"]),
        "of another issuer": provider.token(iss="https://x.example", roles=["mdm-admin"]),
        "ID token": provider.token(header={"typ": "JWT"}, nonce="n", roles=["mdm-admin"]),
    }
    return {
        "none": {},
        "revoked key": {"X-API-Key": revoked},
        "ended session": {"Cookie": f"{COOKIE}={ended}", "Origin": SITE},
        **{name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()},
    }


async def test_what_is_no_credential_opens_nothing(
    provider: Provider, browser: Browser, conn: AsyncConnection[Any]
) -> None:
    for name, headers in (await useless(provider, browser, conn)).items():
        for operation in CLOSED:
            answer = await call(browser, operation, headers)
            found = (operation.method, operation.path, name, answer.text)
            assert problem(answer) == (401, "AUTH_REQUIRED"), found
            assert answer.headers["www-authenticate"], found


async def test_two_credentials_open_nothing(provider: Provider, browser: Browser) -> None:
    token = provider.token(roles=["mdm-admin"])
    both = {"Authorization": f"Bearer {token}", "X-API-Key": KEY}
    for operation in CLOSED:
        assert problem(await call(browser, operation, both)) == (400, "REQUEST_INVALID")


async def test_a_session_writes_nothing_for_other_sites(browser: Browser) -> None:
    await browser.sign_in("anna")
    for operation in OPERATIONS:
        # A push webhook looks at no session: the signature of its body says who sends it.
        if operation.method not in ("GET", "HEAD") and "/hooks/" not in operation.path:
            answer = await call(browser, operation, {"Origin": "https://evil.example"})
            assert problem(answer)[0] == 403, (operation.method, operation.path)


async def test_what_is_for_a_global_admin_is_for_nobody_else(
    provider: Provider, browser: Browser, conn: AsyncConnection[Any]
) -> None:
    """Not even for whoever may do everything in every domain."""
    await conn.execute(
        "INSERT INTO mdm.permission VALUES ('anna', '*', '', ARRAY['admin', 'viewrestricted'], ''),"
        " ('service:etl', '*', '', ARRAY['admin'], ''), ('apikey:all', '*', '', ARRAY['admin'], '')"
    )
    await browser.sign_in("anna")
    cookie = browser.http.cookies[COOKIE]
    browser.http.cookies.clear()
    provider.add_service("etl")
    given = {
        "user": {"Authorization": f"Bearer {provider.token()}"},
        "service": {"Authorization": f"Bearer {provider.service_token('etl')}"},
        "session": {"Cookie": f"{COOKIE}={cookie}", "Origin": SITE},
        "key": {"X-API-Key": await add_key(conn, "all")},
    }
    assert len(FOR_ADMINS) > 5
    for name, headers in given.items():
        assert (await browser.http.get("/api/v1/me", headers=headers)).status_code == 200
        for operation in FOR_ADMINS:
            answer = await call(browser, operation, headers)
            assert problem(answer) == (403, "ACCESS_DENIED"), (operation.path, name)
