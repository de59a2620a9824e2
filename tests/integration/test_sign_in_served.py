"""Sign-in, tokens and sign-out on a real server with two workers, and what its log keeps of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.support import server_process
from tests.support.providers import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    PASSWORD,
    Provider,
    running_provider,
)
from tests.support.server_process import Process, serving

ME = "/api/v1/me"
folder = server_process.folder


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def server(provider: Provider, empty_database_url: str, folder: Path) -> Iterator[Process]:
    auth = {
        "Mdm__Auth__Issuer": provider.issuer,
        "Mdm__Auth__Audience": AUDIENCE,
        "Mdm__Auth__ClientId": CLIENT_ID,
        "Mdm__Auth__ClientSecret": CLIENT_SECRET,
        "Mdm__RateLimit__Enabled": "false",
    }
    with serving(empty_database_url, folder, "--workers", "2", **auth) as server:
        yield server


def statuses(server: Process, number: int = 30, **headers: str) -> set[int]:
    """Ask by *number* new connections, which both workers take."""
    with httpx2.Client(verify=False, headers={**headers, "Connection": "close"}) as client:
        return {client.get(server.url + ME, timeout=20).status_code for _ in range(number)}


def test_one_session_on_two_workers(provider: Provider, server: Process) -> None:
    callback = f"{server.url}/login/callback"
    provider.add_web_client(redirect_uris=[callback])
    provider.add_user("anna", roles=["mdm-admin"])
    provider.add_service("nightly", roles=["mdm-admin"])
    token = provider.service_token("nightly")
    assert statuses(server, Authorization=f"Bearer {token}") == {200}
    assert statuses(server, Authorization=f"Bearer {token[:-1]}") == {401}
    assert statuses(server) == {401}

    begun = httpx2.get(f"{server.url}/login", params={"returnTo": "/swagger"})
    attempt = begun.headers["set-cookie"].partition(";")[0]
    form = {"username": "anna", "password": PASSWORD}
    back = httpx2.post(begun.headers["location"], data=form).headers["location"]
    assert back.startswith(f"{callback}?")
    done = httpx2.get(back, headers={"Cookie": attempt})
    assert (done.status_code, done.headers["location"]) == (303, "/swagger"), done.text
    cookie = done.headers["set-cookie"].partition(";")[0]
    assert cookie.startswith("mdm_session="), "no prefix without TLS"
    assert statuses(server, Cookie=cookie) == {200}

    foreign = httpx2.post(f"{server.url}/logout", headers={"Cookie": cookie})
    assert foreign.status_code == 403
    own = {"Cookie": cookie, "Origin": server.url}
    assert httpx2.post(f"{server.url}/logout", headers=own).json()["signedOut"] is True
    assert statuses(server, Cookie=cookie) == {401}

    code = parse_qs(urlsplit(back).query)["code"][0]
    assert server.stop() == 0
    secrets = [token, cookie.partition("=")[2], attempt.partition("=")[2], code, CLIENT_SECRET]
    assert not any(secret in server.log for secret in secrets)
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    principals = {line.get("principal") for line in lines if line["logger"] == "mdm_api.access"}
    assert principals == {"user:anna", "service:nightly", None}
