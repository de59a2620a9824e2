"""Signing in with a browser, and every way it may go wrong: what is changed on the way, late or away."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_gitops.access.attempt import begin, new_secret
from mdm_gitops.access.oidc import Provider as OidcProvider
from mdm_gitops.errors import SignInFailed
from mdm_gitops.settings import Settings
from tests.support import signing_in
from tests.support.providers import CLIENT_ID, Browser, Provider
from tests.support.serving import problem, served
from tests.support.signing_in import CALLBACK, COOKIE, audited, changed, failed, sessions

pytestmark = pytest.mark.anyio

provider, people, app = signing_in.provider, signing_in.people, signing_in.app
browser = signing_in.browser


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


async def test_an_answer_is_taken_in_the_browser_that_asked(
    browser: Browser, app: Starlette, conn: AsyncConnection[Any]
) -> None:
    """Signing somebody in as somebody else (CSRF on the sign-in itself)."""
    page = await browser.open_login()
    callback = await browser.give_password(page, "root")
    async with Browser(app) as victim:
        await failed(victim, await victim.http.get(callback), "not begun in this browser")
        await victim.open_login()
        await failed(victim, await victim.http.get(callback), "not begun in this browser")
    assert await sessions(conn) == []
    assert (await browser.http.get(callback)).status_code == 303


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"state": None}, "not begun"),
        ({"state": ""}, "not begun"),
        ({"state": "a.b.c"}, "not begun"),
        ({"iss": "https://evil.example"}, "another identity provider"),
        ({"iss": None}, "another identity provider"),
        ({"code": "invented"}, "refused: invalid_grant"),
        ({"code": None}, "refused: no reason given"),
        ({"code": ""}, "refused: no reason given"),
        ({"code": None, "error": "access_denied"}, "refused: access_denied"),
        ({"code": None, "error": "<script>alert(1)</script>"}, "refused: no reason given"),
    ],
)
async def test_answers_that_are_changed_on_the_way(
    browser: Browser, values: dict[str, Any], words: str
) -> None:
    callback = await browser.give_password(await browser.open_login(), "anna")
    answer = await browser.http.get(changed(callback, **values))
    await failed(browser, answer, words)
    assert "script" not in answer.text


async def test_other_parameters_of_the_provider_do_not_matter(browser: Browser) -> None:
    callback = await browser.give_password(await browser.open_login(), "anna")
    answer = await browser.http.get(changed(callback, session_state="x", scope="openid"))
    assert answer.status_code == 303
    twice = f"{callback}&state=other"
    assert problem(await browser.http.get(twice)) == (400, "REQUEST_INVALID")


async def test_a_code_counts_once(browser: Browser) -> None:
    callback = await browser.give_password(await browser.open_login(), "anna")
    assert (await browser.http.get(callback)).status_code == 303
    browser.http.cookies.delete(COOKIE)
    await failed(browser, await browser.http.get(callback), "refused: invalid_grant")


async def test_the_verifier_of_another_sign_in_trades_no_code(
    provider: Provider, browser: Browser
) -> None:
    """PKCE: whoever catches a code has not got the verifier."""
    own = OidcProvider(Settings(Auth=provider.settings()).Auth)  # type: ignore[arg-type]
    now = datetime.now(UTC).timestamp()
    try:
        for verifier, is_right in (("x" * 43, False), (None, True)):
            attempt = begin(new_secret(), return_to="/", now=now)
            page = await own.authorization_url(attempt, redirect_uri=CALLBACK)
            callback = await browser.give_password(page, "anna")
            code = parse_qs(urlsplit(callback).query)["code"][0]
            caught = replace(attempt, verifier=verifier or attempt.verifier)
            if is_right:
                identity = await own.signed_in(code, caught, redirect_uri=CALLBACK, now=now)
                assert identity.subject == "anna"
            else:
                with pytest.raises(SignInFailed, match="invalid_grant"):
                    await own.signed_in(code, caught, redirect_uri=CALLBACK, now=now)
    finally:
        await own.aclose()


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"nonce": "of another sign-in"}, "answers another sign-in"),
        ({"nonce": None}, "answers another sign-in"),
        ({"aud": ["another client"]}, "another application"),
        ({"aud": [CLIENT_ID, "another client"]}, "given to another application"),
        ({"azp": "another client"}, "given to another application"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"exp": 1}, "expired"),
        ({"iat": 4_000_000_000, "exp": 4_100_000_000}, "in the future"),
        ({"sub": ""}, "no subject"),
        ({"sub": "apikey:bootstrap"}, "stands for a kind"),
        ({"groups": "x", "roles": {"mdm-admin": True}}, "no list"),
    ],
)
async def test_id_tokens_that_do_not_answer_us(
    provider: Provider, browser: Browser, claims: dict[str, Any], words: str
) -> None:
    provider.tell_in_id_tokens(**claims)
    await failed(browser, await browser.sign_in("anna"), words)
    provider.tell_in_id_tokens()
    assert (await browser.sign_in("anna")).status_code == 303


async def test_a_sign_in_takes_ten_minutes_at_most(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    clock = [datetime.now(UTC)]
    app = provider.app(database_url, now=lambda: clock[0])
    async with served(app), Browser(app) as browser:
        callback = await browser.give_password(await browser.open_login(), "anna")
        clock[0] += timedelta(minutes=11)
        await failed(browser, await browser.http.get(callback), "took too long")


async def test_keys_are_rotated_between_two_sign_ins(provider: Provider, browser: Browser) -> None:
    assert (await browser.sign_in("anna")).status_code == 303
    provider.rotate(keep=1)
    assert (await browser.sign_in("anna")).status_code == 303


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a%0d%0ax"]
)
async def test_a_sign_in_leads_nowhere_else(browser: Browser, path: str) -> None:
    answer = await browser.http.get(f"/login?returnTo={path}")
    assert problem(answer) == (400, "REQUEST_INVALID")


async def test_a_sign_in_leads_to_a_page_with_any_name(browser: Browser) -> None:
    answer = await browser.sign_in("anna", "/ä 日?q=a b&r=%20#x")
    assert answer.headers["location"] == "/%C3%A4%20%E6%97%A5?q=a%20b&r=%20#x"


async def test_without_the_entry_role_nobody_gets_a_session(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    app = provider.app(database_url, EntryRole="mdm-user")
    async with served(app), Browser(app) as browser:
        answer = await browser.sign_in("guest")
        assert problem(answer) == (403, "ACCESS_DENIED")
        assert "set-cookie" not in answer.headers
        assert await sessions(conn) == []
        assert (await browser.sign_in("anna")).status_code == 303
    stricter = provider.app(database_url, EntryRole="another")
    async with served(stricter), Browser(stricter) as later:
        later.http.cookies = browser.http.cookies
        assert problem(await later.http.get("/api/v1/me")) == (403, "ACCESS_DENIED")
    assert await audited(conn) == [("login_refused", "user:guest"), ("login", "user:anna")]


async def test_failed_sign_ins_are_audited(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    app = provider.app(database_url)
    async with served(app), Browser(app) as browser:
        for _ in range(3):
            await browser.http.get("/login/callback?code=x&state=y")
        await browser.http.get("/api/v1/me", headers={"Authorization": "Bearer x"})
        await browser.http.get("/api/v1/me", headers={"Cookie": f"{COOKIE}={'y' * 43}"})
    query = "SELECT details FROM mdm.audit WHERE action = 'credential_refused' ORDER BY audit_id"
    told = Counter[str]()  # in several entries, if housekeeping came by meanwhile
    for (details,) in await (await conn.execute(query)).fetchall():
        told[details["credential"]] += details["count"]
    assert told == {"signIn": 3, "bearer": 1, "session": 1}


async def test_where_signing_in_is_not_set_up(
    provider: Provider, database_url: str, conn: AsyncConnection[Any]
) -> None:
    for missing in ({"ClientId": None}, {"Issuer": None, "Audience": None, "ClientId": None}):
        app = provider.app(database_url, **missing)
        async with served(app), Browser(app) as browser:
            for path in ("/login", "/login/callback?code=x&state=y"):
                answer = await browser.http.get(path)
                assert problem(answer) == (404, "NOT_FOUND")
            answer = await browser.http.post("/logout")
            assert answer.json() == {"signedOut": False, "providerSignOutUrl": None}
            cookie = {"Cookie": f"{COOKIE}={'x' * 43}"}
            assert problem(await browser.http.get("/api/v1/me", headers=cookie))[0] == 401


async def test_a_provider_that_is_away_is_an_outage(
    provider: Provider, database_url: str, conn: AsyncConnection[Any]
) -> None:
    app = provider.app(database_url, Issuer="http://127.0.0.1:1")
    async with served(app), Browser(app) as browser:
        answer = await browser.http.get("/login")
        assert problem(answer) == (503, "IDENTITY_PROVIDER_UNAVAILABLE")
