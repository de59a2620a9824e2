"""Starts the OpenID provider of the tests, and does what its administrator and its users would."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from mdm_api.app import create_app
from mdm_gitops.settings import Settings

PROGRAM = Path(__file__).with_name("openid_provider.py")
AUDIENCE = "https://mdm.example/api"
PASSWORD = "correct horse"
CLIENT_ID, CLIENT_SECRET = "mdm web", "s+cret: 100% / ä"  # what must be encoded on the way
SITE = "https://mdm.example"


@dataclass
class Provider:
    issuer: str
    http: httpx2.Client = field(default_factory=lambda: httpx2.Client(timeout=10, verify=False))

    def add_user(self, sub: str, **claims: Any) -> str:
        return self._put(f"/test/users/{sub}", claims, sub)

    def add_client(self, client_id: str, **values: Any) -> str:
        given = {"secret": CLIENT_SECRET, **values}
        return self._put(f"/test/clients/{client_id}", given, client_id)

    def add_service(self, client_id: str, **claims: Any) -> str:
        return self.add_client(client_id, grants=["client_credentials"], claims=claims)

    def add_web_client(self, **values: Any) -> str:
        callback = [f"{SITE}/login/callback"]
        given = {"grants": ["authorization_code"], "redirect_uris": callback, **values}
        return self.add_client(CLIENT_ID, **given)

    def add_program(self, client_id: str = "mdm-cli") -> str:
        """Add a program that people run: a public client that comes back to a port of its own."""
        device = "urn:ietf:params:oauth:grant-type:device_code"
        return self.add_client(
            client_id,
            secret="",
            auth_method="none",
            grants=["authorization_code", "refresh_token", device],
            redirect_uris=["http://127.0.0.1/callback"],
        )

    def answer_device(self, user_code: str, user: str, *, answer: str = "yes") -> None:
        """Do what a person does on the page of a device code."""
        given = {"username": user, "password": PASSWORD, "user_code": user_code, "answer": answer}
        done = self.http.post(f"{self.issuer}/device", data=given)
        assert done.status_code == 200, done.text

    def tell_in_id_tokens(self, **claims: Any) -> None:
        self._put("/test/id-token", claims, "")

    def rotate(self, *, keep: int = 2) -> str:
        """Sign with a new key from now on; the newest *keep* keys stay published."""
        answer = self.http.post(f"{self.issuer}/test/rotate", params={"keep": keep})
        return str(answer.json()["kid"])

    def asked(self, path: str) -> int:
        return int(self.http.get(f"{self.issuer}/test/asked").json().get(path, 0))

    def service_token(self, client_id: str) -> str:
        answer = self.http.post(
            f"{self.issuer}/token",
            data={"grant_type": "client_credentials", "scope": "rows"},
            auth=(client_id, CLIENT_SECRET),
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def key_id(self) -> str:
        return str(self.key_set()["keys"][0]["kid"])

    def key_set(self) -> dict[str, Any]:
        document: dict[str, Any] = self.http.get(f"{self.issuer}/jwks").json()
        return document

    def sign(self, header: str, payload: str, *, algorithm: str = "RS256") -> str:
        given = {"header": header, "payload": payload, "algorithm": algorithm}
        return str(self.http.post(f"{self.issuer}/test/sign", json=given).json()["token"])

    def token(self, **changes: Any) -> str:
        """Sign an access token of user anna; a claim that is ``...`` is left out."""
        return self.sign(*self.parts(**changes))

    def parts(self, *, header: Mapping[str, Any] | None = None, **changes: Any) -> tuple[str, str]:
        now = int(time.time())
        first = {"alg": "RS256", "typ": "at+jwt", "kid": self.key_id(), **(header or {})}
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "anna",
            "iat": now,
            "exp": now + 300,
            "client_id": "some app",
            "jti": "1",
            **changes,
        }
        return _text(first), _text(claims)

    def settings(self, **auth: Any) -> dict[str, Any]:
        """Return the settings that make this the provider, for bearer tokens and browsers."""
        given = {
            "Issuer": self.issuer,
            "Audience": AUDIENCE,
            "ClientId": CLIENT_ID,
            "ClientSecret": CLIENT_SECRET,
            **auth,
        }
        return {name: value for name, value in given.items() if value is not None}

    def app(
        self, database_url: str, *, now: Any = None, public_url: str | None = SITE, **auth: Any
    ) -> Any:
        settings = Settings(
            Auth=self.settings(**auth),  # type: ignore[arg-type]
            Server={"PublicUrl": public_url},  # type: ignore[arg-type]
            RateLimit={"Enabled": False},  # type: ignore[arg-type]
        )
        more = {"now": now} if now else {}
        return create_app(database_url=database_url, settings=settings, **more)

    def _put(self, path: str, document: Mapping[str, Any], answer: str) -> str:
        done = self.http.put(self.issuer + path, json=dict(document))
        assert done.status_code == 204, done.text
        return answer


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in document.items() if value is not ...})


@contextmanager
def running_provider() -> Iterator[Provider]:
    process = subprocess.Popen(
        [sys.executable, PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin and process.stdout
    try:
        provider = Provider(process.stdout.readline().strip())
        assert provider.issuer.startswith("http://127.0.0.1:"), "the provider did not start"
        with provider.http:
            yield provider
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


class Browser:
    """A browser: one cookie jar, our server under its public name, the provider where it is."""

    def __init__(self, app: Any) -> None:
        transport = httpx2.ASGITransport(app=app)
        self.http = httpx2.AsyncClient(mounts={SITE: transport}, base_url=SITE, verify=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def open_login(self, return_to: str | None = None) -> str:
        """Go to /login; return the provider's page that it leads to."""
        query = {"returnTo": return_to} if return_to else {}
        answer = await self.http.get("/login", params=query)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    async def give_password(self, page: str, user: str, password: str = PASSWORD) -> str:
        """Sign in on the provider's *page*; return the callback that it leads to."""
        assert (await self.http.get(page)).status_code == 200
        answer = await self.http.post(page, data={"username": user, "password": password})
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    async def sign_in(self, user: str, return_to: str | None = None) -> httpx2.Response:
        """Go the whole way; return the answer of the callback."""
        callback = await self.give_password(await self.open_login(return_to), user)
        assert urlsplit(callback).netloc == urlsplit(SITE).netloc
        return await self.http.get(callback)
