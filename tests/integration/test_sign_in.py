"""Signing in with a browser at a real OpenID provider: there and back."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from tests.support import signing_in
from tests.support.providers import CLIENT_ID, SITE, Browser, Provider
from tests.support.serving import problem, served
from tests.support.signing_in import CALLBACK, COOKIE, ROWS, audited, grant, sessions

pytestmark = pytest.mark.anyio

provider, people, app = signing_in.provider, signing_in.people, signing_in.app
browser = signing_in.browser


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


async def test_there_and_back(browser: Browser, conn: AsyncConnection[Any]) -> None:
    await grant(conn, "group:stewards")
    answer = await browser.sign_in("anna", "/api/v1/entities?x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/api/v1/entities?x=1")
    given = answer.headers["set-cookie"]
    assert given.startswith(f"{COOKIE}=")
    assert given.endswith("; Max-Age=43200; Path=/; HttpOnly; Secure; SameSite=Lax")
    assert answer.headers["cache-control"] == "no-store"
    assert len((await browser.http.get(ROWS)).json()["items"]) == 4
    me = (await browser.http.get("/api/v1/me")).json()
    assert (me["principal"], me["kind"], me["groups"]) == ("user:anna", "user", ["stewards"])
    assert me["isGlobalAdmin"] is False
    denied = await browser.http.get("/swagger")
    assert problem(denied) == (403, "ACCESS_DENIED")
    assert await audited(conn) == [("login", "user:anna")]


async def test_what_is_asked_of_the_provider(browser: Browser, provider: Provider) -> None:
    page = await browser.open_login()
    asked = {name: each[0] for name, each in parse_qs(urlsplit(page).query).items()}
    assert page.startswith(f"{provider.issuer}/authorize?")
    assert asked["response_type"] == "code"
    assert asked["client_id"] == CLIENT_ID
    assert asked["redirect_uri"] == CALLBACK
    assert asked["scope"] == "openid profile email"
    assert asked["code_challenge_method"] == "S256"
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3


async def test_a_role_makes_a_global_admin(browser: Browser) -> None:
    await browser.sign_in("root", "/swagger")
    page = await browser.http.get("/swagger")
    assert page.status_code == 200 and "swagger-ui" in page.text
    assert (await browser.http.get("/api/v1/audit")).status_code == 200


async def test_the_store_holds_no_cookie(browser: Browser, conn: AsyncConnection[Any]) -> None:
    await browser.sign_in("anna")
    cookie = browser.http.cookies[COOKIE]
    (session,) = await sessions(conn)
    assert bytes(session[0]) == hashlib.sha256(cookie.encode()).digest()
    tables = await (
        await conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'mdm'")
    ).fetchall()
    for (table,) in tables:
        rows = await (await conn.execute(f'SELECT t::text FROM mdm."{table}" t')).fetchall()  # type: ignore[arg-type]
        assert not any(cookie in row[0] for row in rows), table


async def test_several_tabs_sign_in(browser: Browser) -> None:
    first, second = await browser.open_login("/a"), await browser.open_login("/b")
    for page, path in ((second, "/b"), (first, "/a")):
        answer = await browser.http.get(await browser.give_password(page, "anna"))
        assert (answer.status_code, answer.headers["location"]) == (303, path)


async def test_a_new_sign_in_ends_the_session_that_was(
    browser: Browser, app: Starlette, conn: AsyncConnection[Any]
) -> None:
    await browser.sign_in("anna")
    former = browser.http.cookies[COOKIE]
    await browser.sign_in("root")
    assert browser.http.cookies[COOKIE] != former
    assert [row[2] for row in await sessions(conn)] == ["root"]
    async with Browser(app) as other:
        answer = await other.http.get("/api/v1/me", headers={"Cookie": f"{COOKIE}={former}"})
        assert problem(answer) == (401, "AUTH_REQUIRED")
    assert await audited(conn) == [
        ("login", "user:anna"), ("logout", "user:anna"), ("login", "user:root")]  # fmt: skip


async def test_a_cookie_that_was_planted_does_not_become_a_session(browser: Browser) -> None:
    planted = "a" * 43
    browser.http.cookies.set(COOKIE, planted, domain="mdm.example")
    await browser.sign_in("anna")
    cookies = [each.value for each in browser.http.cookies.jar if each.name == COOKIE]
    assert planted not in cookies


@pytest.mark.parametrize(
    ("client", "settings"),
    [
        ({"auth_method": "none"}, {"ClientSecret": None}),
        ({}, {"Scopes": "openid"}),
        ({}, {"PublicUrl": f"{SITE}/"}),
    ],
)
async def test_other_ways_to_be_a_client(
    provider: Provider,
    database_url: str,
    conn: AsyncConnection[Any],
    people: None,
    client: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    provider.add_web_client(**client)
    public_url = settings.pop("PublicUrl", SITE)
    app = provider.app(database_url, public_url=public_url, **settings)
    async with served(app), Browser(app) as browser:
        assert (await browser.sign_in("anna")).status_code == 303
        assert (await browser.http.get("/api/v1/me")).status_code == 200


async def test_claims_that_only_the_userinfo_endpoint_tells(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    provider.add_user("8f1c", preferred_username="anna", groups=["stewards"], roles=["r"])
    provider.tell_in_id_tokens(only_in_userinfo=["preferred_username", "groups", "roles"])
    app = provider.app(database_url, NameClaim="preferred_username", EntryRole="r")
    async with served(app), Browser(app) as browser:
        assert (await browser.sign_in("8f1c")).status_code == 303
        me = (await browser.http.get("/api/v1/me")).json()
        assert (me["principal"], me["groups"]) == ("user:anna", ["stewards"])
        provider.tell_in_id_tokens(only_in_userinfo=["groups"], sub="somebody else")
        answer = await browser.sign_in("8f1c")
        assert problem(answer) == (400, "SIGN_IN_FAILED")
        assert "somebody else" in answer.json()["detail"]


async def test_claims_that_cannot_be_asked_for_are_not_there(
    provider: Provider, browser: Browser
) -> None:
    provider.tell_in_id_tokens(only_in_userinfo=["groups"], userinfo_is_closed=True)
    assert (await browser.sign_in("anna")).status_code == 303
    assert (await browser.http.get("/api/v1/me")).json()["groups"] == []


async def test_what_else_a_cookie_holds_ends_no_session(browser: Browser) -> None:
    garbage = {"Cookie": f"{COOKIE}=short", "Origin": SITE}
    ended = await browser.http.post("/logout", headers=garbage)
    assert ended.json() == {"signedOut": False, "providerSignOutUrl": None}


async def test_a_store_without_sessions_is_an_outage(
    browser: Browser, conn: AsyncConnection[Any]
) -> None:
    await browser.sign_in("anna")
    await conn.execute("DROP TABLE mdm.session")
    answer = await browser.http.get("/api/v1/me")
    assert problem(answer) == (503, "WAREHOUSE_UNAVAILABLE")
    assert "session" not in answer.json()["detail"]
