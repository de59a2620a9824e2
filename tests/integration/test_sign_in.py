"""Signing in with a browser at a real OpenID provider: there and back, and every way it may go wrong."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from mdm_gitops.access.attempt import begin, new_secret
from mdm_gitops.access.oidc import Provider as OidcProvider
from mdm_gitops.errors import SignInFailed
from mdm_gitops.settings import Settings
from tests.support.providers import CLIENT_ID, SITE, Browser, Provider, running_provider
from tests.support.serving import KEY, problem, served

pytestmark = pytest.mark.anyio
ROWS = "/api/v1/entities/country/data"
CALLBACK = f"{SITE}/login/callback"
COOKIE = "__Host-mdm_session"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


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


# --- there and back -------------------------------------------------------------------------------


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


# --- the ways it may go wrong -----------------------------------------------------------------------


async def failed(browser: Browser, answer: httpx2.Response, words: str) -> None:
    """*answer* tells why nobody has signed in, and nobody has."""
    assert problem(answer) == (400, "SIGN_IN_FAILED")
    assert words in answer.json()["detail"], answer.text
    assert COOKIE not in answer.headers.get("set-cookie", "")
    assert problem(await browser.http.get("/api/v1/me")) == (401, "AUTH_REQUIRED")


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


# --- sessions ---------------------------------------------------------------------------------------


async def test_signing_out_counts_at_once_on_each_worker(
    provider: Provider, app: Starlette, browser: Browser, database_url: str,
    conn: AsyncConnection[Any],
) -> None:  # fmt: skip
    await browser.sign_in("anna")
    other_worker = provider.app(database_url)
    async with served(other_worker), Browser(other_worker) as there:
        there.http.cookies.update(browser.http.cookies)
        for each in (browser, there):
            assert (await each.http.get("/api/v1/me")).status_code == 200
        ended = await browser.http.post("/logout", headers={"Origin": SITE})
        assert ended.json() == {
            "signedOut": True,
            "providerSignOutUrl": f"{provider.issuer}/end_session?client_id=mdm%20web",
        }
        assert ended.headers["set-cookie"].startswith(f"{COOKIE}=; Max-Age=0;")
        assert COOKIE not in browser.http.cookies
        answer = await there.http.get("/api/v1/me")
        assert problem(answer) == (401, "AUTH_REQUIRED")
        assert answer.headers["set-cookie"].startswith(f"{COOKIE}=; Max-Age=0;")
    assert await sessions(conn) == []
    assert (await browser.http.post("/logout")).json()["signedOut"] is False
    told = [each for each in await audited(conn) if each[0] != "credential_refused"]
    assert told == [("login", "user:anna"), ("logout", "user:anna")]


async def test_a_session_ends_when_it_lies_idle_and_in_any_case(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    clock = [datetime.now(UTC)]
    settings = {"SessionIdleSeconds": 600, "SessionMaxSeconds": 3_600}
    app = provider.app(database_url, now=lambda: clock[0], **settings)
    async with served(app), Browser(app) as browser:
        await browser.sign_in("anna")
        begun = clock[0]
        for minutes in (9, 18, 27, 36, 45, 54, 59.9):
            clock[0] = begun + timedelta(minutes=minutes)
            assert (await browser.http.get("/api/v1/me")).status_code == 200, minutes
        clock[0] = begun + timedelta(minutes=60)
        assert problem(await browser.http.get("/api/v1/me")) == (401, "AUTH_REQUIRED")
        begun = clock[0] = datetime.now(UTC)
        await browser.sign_in("anna")
        clock[0] = begun + timedelta(seconds=599)
        assert (await browser.http.get("/api/v1/me")).status_code == 200
        clock[0] = begun + timedelta(seconds=599 + 600)
        assert problem(await browser.http.get("/api/v1/me")) == (401, "AUTH_REQUIRED")


async def test_use_is_noted_now_and_then(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    """Reading does not write with each request."""
    clock = [datetime.now(UTC)]
    app = provider.app(database_url, now=lambda: clock[0], SessionIdleSeconds=600)
    versions = set()
    async with served(app), Browser(app) as browser:
        await browser.sign_in("anna")
        for _ in range(60):
            clock[0] += timedelta(seconds=1)
            await browser.http.get("/api/v1/me")
            row = await (await conn.execute("SELECT xmin::text FROM mdm.session")).fetchone()
            versions.add(row)
    assert len(versions) == 2, "600 s of idleness are noted every 30"


@pytest.mark.parametrize("garbage", ["x", "x" * 43, "x" * 5_000, "'; DROP TABLE", "é"])
async def test_garbage_is_no_session(browser: Browser, garbage: str) -> None:
    sent = [(b"Cookie", f"{COOKIE}={garbage}".encode())]
    answer = await browser.http.get("/api/v1/me", headers=sent)
    assert problem(answer) == (401, "AUTH_REQUIRED")
    assert answer.headers["set-cookie"].startswith(f"{COOKIE}=; Max-Age=0;")
    other = [(b"Cookie", f"mdm_session={garbage}; theme=dark".encode())]
    assert problem(await browser.http.get("/api/v1/me", headers=other))[0] == 401
    with_key = [*other, (b"X-API-Key", KEY.encode())]
    assert (await browser.http.get("/api/v1/me", headers=with_key)).status_code == 200


async def test_a_session_of_another_issuer_is_none(
    browser: Browser, conn: AsyncConnection[Any]
) -> None:
    await browser.sign_in("anna")
    await conn.execute("UPDATE mdm.session SET issuer = 'https://former.example'")
    assert problem(await browser.http.get("/api/v1/me")) == (401, "AUTH_REQUIRED")


async def test_roles_are_those_of_the_sign_in_and_what_they_mean_is_set(
    provider: Provider, browser: Browser, database_url: str
) -> None:
    await browser.sign_in("root")
    other = provider.app(database_url, AdminRole="mdm-owner")
    async with served(other), Browser(other) as there:
        there.http.cookies.update(browser.http.cookies)
        assert (await there.http.get("/api/v1/me")).json()["isGlobalAdmin"] is False
    provider.add_user("root", roles=[])
    assert (await browser.http.get("/api/v1/me")).json()["isGlobalAdmin"] is True


# --- other sites ------------------------------------------------------------------------------------

FORMS = [
    ("text/plain", b'{"code": "XX"}'),
    ("text/plain;charset=UTF-8", b'{"code": "XX"}'),
    ("application/x-www-form-urlencoded", b"code=XX"),
    ("multipart/form-data; boundary=x", b'--x\r\n\r\n{"code": "XX"}\r\n--x--'),
    ("application/json", b'{"code": "XX"}'),
    (None, b'{"code": "XX"}'),
]


@pytest.mark.parametrize(("content_type", "body"), FORMS)
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://mdm.example.evil.example", None]
)
async def test_other_sites_cannot_write_with_somebodys_session(
    browser: Browser, conn: AsyncConnection[Any], content_type: str | None, body: bytes,
    origin: str | None,
) -> None:  # fmt: skip
    await browser.sign_in("root")
    headers = {"Content-Type": content_type, "Origin": origin, "Sec-Fetch-Site": "cross-site"}
    sent = {name: value for name, value in headers.items() if value is not None}
    for method, path in (("POST", ROWS), ("DELETE", f"{ROWS}/1"), ("POST", "/logout")):
        answer = await browser.http.request(method, path, content=body, headers=sent)
        assert problem(answer) == (403, "ACCESS_DENIED"), (method, path)
    count = await (await conn.execute("SELECT count(*) FROM mdm_data.country")).fetchone()
    assert count == (5,)
    assert (await browser.http.get("/api/v1/me")).status_code == 200, "and it goes on"


async def test_own_pages_write(browser: Browser) -> None:
    await browser.sign_in("root")
    headers = {"Origin": SITE, "Content-Type": "application/json"}
    answer = await browser.http.post(ROWS, content=b'{"code": "XX"}', headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.json()["_sys_created_by"] == "user:root"


async def test_a_key_in_a_header_needs_no_origin(browser: Browser) -> None:
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    answer = await browser.http.post(ROWS, content=b'{"code": "YY"}', headers=headers)
    assert answer.status_code == 201, answer.text


async def test_pages_for_a_browser_take_the_session_before_a_password(browser: Browser) -> None:
    await browser.sign_in("root")
    basic = httpx2.BasicAuth("anyone", "no key at all, but long")
    assert (await browser.http.get("/swagger", auth=basic)).status_code == 200
    await browser.http.post("/logout", headers={"Origin": SITE})
    answer = await browser.http.get("/swagger")
    assert answer.headers["www-authenticate"].startswith("Basic ")


async def test_many_requests_of_one_session_at_once(browser: Browser) -> None:
    await browser.sign_in("root")
    answers = await asyncio.gather(*(browser.http.get("/api/v1/me") for _ in range(40)))
    assert {answer.status_code for answer in answers} == {200}


async def test_sessions_that_have_ended_are_forgotten(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], people: None
) -> None:
    clock = [datetime.now(UTC)]
    app = provider.app(database_url, now=lambda: clock[0], SessionMaxSeconds=3_600)
    async with served(app), Browser(app) as first, Browser(app) as second:
        await first.sign_in("anna")
        clock[0] += timedelta(minutes=30)
        await second.sign_in("root")
    clock[0] += timedelta(minutes=31)
    assert len(await sessions(conn)) == 2
    async with served(provider.app(database_url, now=lambda: clock[0])):
        for _ in range(500):
            if len(await sessions(conn)) < 2:
                break
            await asyncio.sleep(0.02)
    assert [row[2] for row in await sessions(conn)] == ["root"]
