"""An identity provider that is broken, slow or hostile: the server waits so long, reads so much, follows
nothing, and says 503."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from mdm_gitops.access.attempt import begin, new_secret
from mdm_gitops.access.fetch import MAX_BYTES, Fetcher
from mdm_gitops.access.metadata import read_metadata
from mdm_gitops.access.oidc import Provider
from mdm_gitops.access.tokens import TokenRefused
from mdm_gitops.errors import ProviderUnavailable, SignInFailed
from mdm_gitops.settings import AuthSettings
from tests.support.threads import served_beside

pytestmark = pytest.mark.anyio
WELL_KNOWN = "/.well-known/openid-configuration"
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        with contextlib.suppress(OSError):  # the client had enough
            self.server.answers.get(self.path, missing)(self)

    do_POST = do_GET

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def missing(handler: Handler) -> None:
    handler.say(404, b"{}")


def document(value: Any) -> Answer:
    return lambda handler: handler.say(200, json.dumps(value).encode())


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    for _ in range(20_000):
        handler.wfile.write(b" " * 65_536)
        handler.server.sent += 65_536


def trickling(handler: Handler) -> None:
    """A byte now and then: no single read ever times out."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def packed(handler: Handler) -> None:
    handler.say(200, gzip.compress(b" " * 50_000_000), Content_Encoding="gzip")


def elsewhere(handler: Handler) -> None:
    handler.say(302, b"", Location="/canary")


def silent(handler: Handler) -> None:
    time.sleep(3)


def cut(handler: Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(**answers: Answer) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.asked, server.sent, server.answers = [], 0, {}
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.answers = {f"/{name}": answer for name, answer in answers.items()}
    with served_beside(server):
        yield server


@pytest.mark.parametrize(
    "answer",
    [
        endless,
        trickling,
        packed,
        elsewhere,
        silent,
        cut,
        lambda handler: handler.say(200, b"<html>"),
        lambda handler: handler.say(200, b""),
        lambda handler: handler.say(200, b"\xff\xfe"),
        lambda handler: handler.say(200, gzip.compress(b"{}"), Content_Encoding="gzip"),
        lambda handler: handler.say(200, b"[" * 100_000),
        lambda handler: handler.say(200, b" " * (MAX_BYTES + 1)),
    ],
)
async def test_an_answer_that_is_none(answer: Answer) -> None:
    fetcher = Fetcher(timeout_s=1.0)
    with serving(x=answer, canary=document({})) as server:
        started = time.perf_counter()
        try:
            reply = await fetcher.get(f"{server.url}/x")
        except ProviderUnavailable:
            pass
        else:
            assert reply.status == 302, "a redirect without a body is not JSON either"
        assert time.perf_counter() - started < 10
        assert "/canary" not in server.asked
        assert server.sent < 20 * MAX_BYTES
        assert (await fetcher.get(f"{server.url}/canary")).document == {}
    await fetcher.aclose()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "http://", "nonsense", "http://[", "ftp://x"]
)
async def test_addresses_where_nobody_is(url: str) -> None:
    fetcher = Fetcher(timeout_s=1.0)
    with pytest.raises(ProviderUnavailable, match="did not answer"):
        await fetcher.get(url)
    await fetcher.aclose()
    await Fetcher(timeout_s=1.0).aclose()


async def test_what_is_sent() -> None:
    told: dict[str, Any] = {}

    def keep(handler: Handler) -> None:
        told.update(handler.headers.items())
        told["body"] = handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.say(401, b'{"error": "x"}')

    fetcher = Fetcher(timeout_s=1.0)
    with serving(x=keep) as server:
        reply = await fetcher.post_form(f"{server.url}/x", {"a": "b c"}, headers={"X-A": "1"})
    await fetcher.aclose()
    assert (reply.status, reply.document) == (401, {"error": "x"})
    assert (told["body"], told["X-A"], told["Accept-Encoding"]) == (b"a=b+c", "1", "identity")


# --- descriptions -------------------------------------------------------------------------------


def described(issuer: str = "https://id.example", **more: Any) -> dict[str, Any]:
    found = {
        "issuer": issuer,
        "jwks_uri": f"{issuer}/jwks",
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        **more,
    }
    return {name: value for name, value in found.items() if value is not ...}


def read(document: Any, *, signs_in: bool = True, allow_http: bool = False) -> Any:
    return read_metadata(
        document, issuer="https://id.example", signs_in=signs_in, allow_http=allow_http
    )


def test_a_description() -> None:
    found = read(described(end_session_endpoint="https://id.example/end"))
    assert found.jwks_uri == "https://id.example/jwks"
    assert found.userinfo_endpoint == ""
    assert found.posts_secret is found.answers_with_issuer is False
    posts = described(token_endpoint_auth_methods_supported=["client_secret_post"])
    assert read(posts).posts_secret is True
    both = described(
        token_endpoint_auth_methods_supported=["client_secret_post", "client_secret_basic"]
    )
    assert read(both).posts_secret is False
    only_tokens = described(authorization_endpoint=..., token_endpoint=...)
    assert read(only_tokens, signs_in=False).token_endpoint == ""
    assert read(described(jwks_uri="http://id.example/jwks"), allow_http=True)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "describes itself as 'None'"),
        ([], "describes itself"),
        ({}, "describes itself"),
        (described("https://id.example/"), "must be spelt like that"),
        (described("https://evil.example"), "evil.example"),
        (described(jwks_uri=...), "no usable jwks_uri"),
        (described(jwks_uri=5), "no usable jwks_uri"),
        (described(jwks_uri="file:///etc/passwd"), "no usable jwks_uri"),
        (described(jwks_uri="http://id.example/jwks"), "without TLS"),
        (described(token_endpoint="http://id.example/token"), "without TLS"),
        (described(token_endpoint=...), "no usable token_endpoint"),
        (described(authorization_endpoint=...), "no usable authorization_endpoint"),
        (described(userinfo_endpoint=[]), "no usable userinfo_endpoint"),
    ],
)
def test_descriptions_that_are_none(document: Any, words: str) -> None:
    with pytest.raises(ProviderUnavailable, match=words):
        read(document)


# --- a provider that changes --------------------------------------------------------------------


def provider_at(server: Any, clock: list[float]) -> Provider:
    settings = AuthSettings(Issuer=server.url, Audience="a", ClientId="c", ProviderTimeoutSeconds=1)
    server.answers[WELL_KNOWN] = document(described(server.url))
    return Provider(settings, clock=lambda: clock[0])


async def test_a_description_is_kept_for_an_hour_and_longer_while_the_provider_is_away() -> None:
    clock = [0.0]
    with serving() as server:
        provider = provider_at(server, clock)
        for _ in range(5):
            await provider.metadata()
        assert server.asked == [WELL_KNOWN]
        clock[0] = 3_600
        server.answers[WELL_KNOWN] = document(described(server.url, jwks_uri=f"{server.url}/new"))
        assert (await provider.metadata()).jwks_uri.endswith("/new")
        server.answers.clear()
        for hour in range(2, 50):
            clock[0] = hour * 3_600.0
            assert (await provider.metadata()).jwks_uri.endswith("/new")
        await provider.aclose()


async def test_a_provider_that_is_down_is_asked_every_few_seconds() -> None:
    clock = [0.0]
    with serving() as server:
        provider = provider_at(server, clock)
        working, server.answers[WELL_KNOWN] = server.answers[WELL_KNOWN], missing
        for _ in range(20):
            with pytest.raises(ProviderUnavailable):
                await provider.metadata()
        assert len(server.asked) == 1
        clock[0], server.answers[WELL_KNOWN] = 5.0, working
        assert await provider.metadata()
        await provider.aclose()


@pytest.mark.parametrize(
    "answer",
    [missing, document([]), document({"keys": 5}), document({"keys": [{}] * 101}), silent],
)
async def test_key_sets_that_are_none(answer: Answer) -> None:
    with serving(jwks=answer) as server:
        provider = provider_at(server, [0.0])
        token = "eyJhbGciOiJSUzI1NiIsInR5cCI6ImF0K2p3dCIsImtpZCI6ImEifQ.e30.c2ln"
        with pytest.raises(ProviderUnavailable):
            await provider.bearer(token, now=0)
        await provider.aclose()


async def test_garbage_asks_the_provider_nothing() -> None:
    with serving() as server:
        provider = provider_at(server, [0.0])
        for text in ("garbage", "a.b.c", "x" * 10_000, "eyJhbGciOiJub25lIn0.e30.eA"):
            with pytest.raises(TokenRefused):
                await provider.bearer(text, now=0)
        assert server.asked == []
        await provider.aclose()


@pytest.mark.parametrize(
    ("methods", "secret", "header", "in_form"),
    [
        (None, "s+cret: ä", "Basic bWRtJTIwd2ViOnMlMkJjcmV0JTNBJTIwJUMzJUE0", {}),
        (["client_secret_basic"], "s", "Basic bWRtJTIwd2ViOnM=", {}),
        (["client_secret_post"], "s", None, {"client_id": "mdm web", "client_secret": "s"}),
        (None, None, None, {"client_id": "mdm web"}),
    ],
)
async def test_how_the_client_shows_who_it_is(
    methods: Any, secret: str | None, header: str | None, in_form: dict[str, str]
) -> None:
    told: dict[str, Any] = {}

    def keep(handler: Handler) -> None:
        told["header"] = handler.headers.get("Authorization")
        body = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        told["form"] = {name: values[0] for name, values in parse_qs(body).items()}
        handler.say(400, b"{}")

    attempt = begin(new_secret(), return_to="/", now=0)
    with serving(token=keep) as server:
        settings = AuthSettings(
            Issuer=server.url,
            ClientId="mdm web",
            ClientSecret=secret,  # type: ignore[arg-type]
        )
        more = {"token_endpoint_auth_methods_supported": methods} if methods else {}
        server.answers[WELL_KNOWN] = document(described(server.url, **more))
        provider = Provider(settings)
        with pytest.raises(SignInFailed):
            await provider.signed_in("c", attempt, redirect_uri="https://x/cb", now=0)
        await provider.aclose()
    assert told["header"] == header
    assert told["form"] == {
        "grant_type": "authorization_code",
        "code": "c",
        "redirect_uri": "https://x/cb",
        "code_verifier": attempt.verifier,
        **in_form,
    }


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda handler: handler.say(500, b"{}"), "no reason given"),
        (lambda handler: handler.say(400, b'{"error": "invalid_client"}'), "invalid_client"),
        (lambda handler: handler.say(400, b'{"error": "<b>"}'), "no reason given"),
        (lambda handler: handler.say(400, b'{"error": 5}'), "no reason given"),
        (document([]), "no reason given"),
        (document({}), "no id_token"),
        (document({"id_token": 5}), "no id_token"),
        (document({"id_token": "a.b.c"}), "not base64url"),
    ],
)
async def test_answers_to_a_code_that_are_none(answer: Answer, words: str) -> None:
    attempt = begin(new_secret(), return_to="/", now=0)
    with serving(token=answer) as server:
        provider = provider_at(server, [0.0])
        with pytest.raises(SignInFailed, match=words):
            await provider.signed_in("code", attempt, redirect_uri="https://x/cb", now=0)
        assert await provider.sign_out_url() is None
        await provider.aclose()
