"""Sessions of a browser: when they end, what is none, and that no other site writes with one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from psycopg import AsyncConnection
from starlette.applications import Starlette

from tests.support import signing_in
from tests.support.providers import SITE, Browser, Provider
from tests.support.serving import KEY, problem, served
from tests.support.signing_in import COOKIE, ROWS, audited, sessions

pytestmark = pytest.mark.anyio

provider, people, app = signing_in.provider, signing_in.people, signing_in.app
browser = signing_in.browser


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


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
