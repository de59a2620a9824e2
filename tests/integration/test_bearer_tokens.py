"""Access tokens of a real OpenID provider, over HTTP: whose they are, and all that is none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry
from psycopg import AsyncConnection
from starlette.applications import Starlette

from tests.support.providers import AUDIENCE, CLIENT_ID, Provider, running_provider
from tests.support.serving import KEY, Client, problem, served
from tests.support.threads import served_beside

pytestmark = pytest.mark.anyio
ROWS = "/api/v1/entities/country/data"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
def database_url(countries_url: str) -> str:
    return countries_url


@pytest.fixture
def app(provider: Provider, database_url: str, conn: AsyncConnection[Any]) -> Starlette:
    return provider.app(database_url)


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[Client]:
    async with served(app) as client:
        yield client


async def ask(client: Client, token: str, path: str = ROWS, **headers: str) -> httpx2.Response:
    return await client.get(path, headers={"Authorization": f"Bearer {token}", **headers})


async def grant(conn: AsyncConnection[Any], principal: str, *actions: str) -> None:
    statement = "INSERT INTO mdm.permission VALUES (%s, 'ref', '', %s, '')"
    await conn.execute(statement, [principal, list(actions or ["read"])])


# --- whose they are -----------------------------------------------------------------------------


async def test_a_service_comes_in_with_client_credentials(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    provider.add_service("nightly")
    token = provider.service_token("nightly")
    header = json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "=="))
    assert header["typ"] == "at+jwt", "the provider speaks RFC 9068"
    assert problem(await ask(client, token)) == (404, "ENTITY_NOT_FOUND")
    await grant(conn, "nightly")
    assert problem(await ask(client, token)) == (404, "ENTITY_NOT_FOUND"), "that is a user"
    await grant(conn, "service:nightly")
    assert len((await ask(client, token)).json()["items"]) == 4
    denied = await ask(client, token, "/swagger")
    assert problem(denied) == (403, "ACCESS_DENIED")


async def test_a_role_makes_a_global_admin_and_groups_give_rights(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    provider.add_service("ops", roles=["mdm-admin"])
    admin = provider.service_token("ops")
    assert (await ask(client, admin, "/swagger")).status_code == 200
    provider.add_service("etl", groups=["loaders"])
    loader = provider.service_token("etl")
    assert problem(await ask(client, loader)) == (404, "ENTITY_NOT_FOUND")
    await grant(conn, "group:loaders")
    assert (await ask(client, loader)).status_code == 200
    assert problem(await ask(client, loader, "/swagger")) == (403, "ACCESS_DENIED")


async def test_rows_are_those_of_the_user_of_the_token(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    await conn.execute(
        "INSERT INTO mdm.permission VALUES"
        " ('user:FR', 'ref', 'country', ARRAY['read'], '[code] = me()')"
    )
    rows = (await ask(client, provider.token(sub="FR"))).json()["items"]
    assert [row["code"] for row in rows] == ["FR"]
    service = provider.token(sub="FR", client_id="FR")
    assert problem(await ask(client, service)) == (404, "ENTITY_NOT_FOUND")


async def test_without_the_entry_role_nobody_comes_in(
    provider: Provider, database_url: str, conn: AsyncConnection[Any]
) -> None:
    await grant(conn, "anna")
    async with served(provider.app(database_url, EntryRole="mdm-user")) as client:
        refused = await ask(client, provider.token(roles=["mdm-admin"]))
        assert problem(refused) == (403, "ACCESS_DENIED")
        for path in ("/api/nothing", "/api/v1/entities"):
            answer = await ask(client, provider.token(roles=["other"]), path)
            assert problem(answer) == (403, "ACCESS_DENIED")
        assert (await ask(client, provider.token(roles=["mdm-user"]))).status_code == 200
        key = await client.get(ROWS, headers={"X-API-Key": KEY})
        assert key.status_code == 200, "keys are not of the provider"


async def test_claims_may_stand_elsewhere(
    provider: Provider, database_url: str, conn: AsyncConnection[Any]
) -> None:
    await grant(conn, "group:stewards")
    names = {"NameClaim": "preferred_username", "GroupsClaim": "https://x.example/groups",
             "RolesClaim": "realm_access.roles", "EntryRole": "in"}  # fmt: skip
    claims = {"preferred_username": "anna", "https://x.example/groups": ["stewards"],
              "realm_access": {"roles": ["in"]}}  # fmt: skip
    async with served(provider.app(database_url, **names)) as client:
        assert (await ask(client, provider.token(**claims))).status_code == 200
        for missing in ("preferred_username", "realm_access"):
            answer = await ask(client, provider.token(**{**claims, missing: ...}))
            assert answer.status_code in (401, 403)


async def test_rights_count_from_the_moment_they_change(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    token = provider.token(sub="late")
    assert problem(await ask(client, token)) == (404, "ENTITY_NOT_FOUND")
    await grant(conn, "late")
    assert (await ask(client, token)).status_code == 200
    await conn.execute("DELETE FROM mdm.permission WHERE principal = 'late'")
    assert problem(await ask(client, token)) == (404, "ENTITY_NOT_FOUND")


# --- what is accepted and what is not --------------------------------------------------------------


@contextmanager
def canary() -> Iterator[tuple[str, list[str]]]:
    """A server that nobody may ask; yields its address and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with served_beside(server):
        yield f"http://127.0.0.1:{server.server_port}", asked


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Forger:
    """Makes tokens: some with the provider's key, some with what an attacker has."""

    def __init__(self, provider: Provider, elsewhere: str) -> None:
        self.provider = provider
        self.elsewhere = elsewhere
        self.own_key = RSAKey.generate_key(2048, {"kid": "own"})

    def with_own_key(self, algorithm: str = "RS256", *, key: Any = None, **header: Any) -> str:
        start = self._start({"alg": algorithm, **header})
        signature = JWSRegistry.algorithms[algorithm].sign(start.encode(), key or self.own_key)
        return f"{start}.{b64(signature)}"

    def with_secret(self, secret: bytes) -> str:
        start = self._start({"alg": "HS256"})
        return f"{start}.{b64(hmac.digest(secret, start.encode(), hashlib.sha256))}"

    def unsigned(self, algorithm: str) -> list[str]:
        start = self._start({"alg": algorithm})
        return [f"{start}.", start, f"{start}.{b64(b'x')}"]

    def _start(self, header: dict[str, Any]) -> str:
        parts = self.provider.parts(header=header, roles=["mdm-admin"])
        return ".".join(b64(part.encode()) for part in parts)

    def public_pem(self) -> bytes:
        return RSAKey.import_key(self.provider.key_set()["keys"][0]).as_pem(private=False)


def good(forger: Forger) -> dict[str, str]:
    provider, now = forger.provider, int(time.time())
    far = {"jku": f"{forger.elsewhere}/jwks", "x5u": f"{forger.elsewhere}/x5u", "x5t": "abc"}
    return {
        "plain": provider.token(),
        "several audiences": provider.token(aud=["other", AUDIENCE]),
        "long typ": provider.token(header={"typ": "application/at+jwt"}),
        "just expired": provider.token(exp=now - 30),
        "clock a little ahead": provider.token(iat=now + 30, nbf=now + 30),
        "fractions of a second": provider.token(exp=now + 30.5, iat=now - 0.5),
        "addresses that nobody goes to": provider.token(header=far),
        "unknown claims": provider.token(ext={"a": [1, None]}, amr=["pwd"]),
        "no key id, and one key only": provider.token(header={"kid": ...}),
    }


def bad(forger: Forger) -> dict[str, str]:
    provider, now, own = forger.provider, int(time.time()), forger.own_key
    token = provider.token()
    head, payload, signature = token.split(".")
    _, claims = provider.parts()
    header = f'{{"alg":"RS256","typ":"at+jwt","kid":"{provider.key_id()}"'
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    raw[10] ^= 1
    admin = b64(json.dumps({**json.loads(claims), "roles": ["mdm-admin"]}).encode())
    ec = ECKey.generate_key("P-256")
    kid = {"kid": provider.key_id()}
    own_public = own.as_dict(private=False)
    return {
        # times
        "expired": provider.token(exp=now - 61),
        "no exp": provider.token(exp=...),
        "exp is a text": provider.token(exp=str(now + 300)),
        "exp is true": provider.token(exp=True),
        "exp is null": provider.token(exp=None),
        "exp is infinite": provider.sign(header + "}", claims.replace('"jti"', '"exp":1e999,"j"')),
        "exp is NaN": provider.sign(header + "}", claims.replace('"jti": "1"', '"nbf": NaN')),
        "no iat": provider.token(iat=...),
        "issued in the future": provider.token(iat=now + 3_600),
        "not yet valid": provider.token(nbf=now + 3_600),
        # who and for whom
        "no sub": provider.token(sub=...),
        "empty sub": provider.token(sub=""),
        "sub is a number": provider.token(sub=7),
        "half a surrogate pair": provider.token(sub="\ud800"),
        "NUL": provider.token(sub="anna\x00"),
        "name of a key": provider.token(sub="apikey:bootstrap"),
        "name of a service": provider.token(sub="service:nightly"),
        "roles are no list": provider.token(roles={"mdm-admin": True}),
        "wrong issuer": provider.token(iss="https://evil.example"),
        "issuer with more": provider.token(iss=provider.issuer + "/evil"),
        "issuer with a slash": provider.token(iss=provider.issuer + "/"),
        "no issuer": provider.token(iss=...),
        "wrong audience": provider.token(aud="https://other.example/api"),
        "audience with more": provider.token(aud=AUDIENCE + "/more"),
        "part of the audience": provider.token(aud=AUDIENCE[:-1]),
        "no audience": provider.token(aud=...),
        "audience is no text": provider.token(aud=[AUDIENCE, 1]),
        "two clients": provider.token(azp="another app"),
        # of another kind
        "ID token": provider.token(header={"typ": "JWT"}, aud=CLIENT_ID, nonce="n"),
        "ID token for our audience": provider.token(header={"typ": "JWT"}, nonce="n"),
        "untyped": provider.token(header={"typ": ...}),
        "sign-out token": provider.token(header={"typ": "logout+jwt"}),
        "bound to a key": provider.token(cnf={"jkt": "x"}),
        # signatures
        **{f"alg none {n}": each for n, each in enumerate(forger.unsigned("none"))},
        **{f"alg NoNe {n}": each for n, each in enumerate(forger.unsigned("NoNe"))},
        "HS256 with the public key as PEM": forger.with_secret(forger.public_pem()),
        "HS256 with the public numbers": forger.with_secret(
            provider.key_set()["keys"][0]["n"].encode()
        ),
        "HS256 with nothing": forger.with_secret(b""),
        "RS512, which is not allowed": provider.sign(
            header.replace("RS256", "RS512") + "}", claims, algorithm="RS512"
        ),
        "says PS256, is RS256": provider.token(header={"alg": "PS256"}),
        "own key under the known id": forger.with_own_key(**kid),
        "own EC key under the known id": forger.with_own_key("ES256", key=ec, **kid),
        "own key in the header": forger.with_own_key(jwk=own_public, kid="own"),
        "own key at an address": forger.with_own_key(
            jku=f"{forger.elsewhere}/jwks", x5u=f"{forger.elsewhere}/x5u", kid="own"
        ),
        "other claims": f"{head}.{admin}.{signature}",
        "one bit of the signature": f"{head}.{payload}.{b64(bytes(raw))}",
        "no signature": f"{head}.{payload}.",
        "zeros": f"{head}.{payload}.{b64(bytes(256))}",
        "padding": token + "==",
        "spaces": f"{head}.{payload}. {signature}",
        # headers
        "kid is a path": provider.token(header={"kid": "../../../dev/null"}),
        "kid is SQL": provider.token(header={"kid": "' OR '1'='1"}),
        "kid is unknown": provider.token(header={"kid": "unknown"}),
        "kid is no text": provider.token(header={"kid": {"a": 1}}),
        "crit": provider.token(header={"crit": ["exp"]}),
        "crit of what is not there": provider.token(header={"crit": ["b64"], "b64": False}),
        "b64 false": provider.token(header={"b64": False}),
        "packed": provider.token(header={"zip": "DEF"}),
        "alg twice": provider.sign(header + ',"alg":"none"}', claims),
        # texts
        "claims twice": provider.sign(header + "}", claims[:-1] + ', "sub": "admin"}'),
        "claims are a list": provider.sign(header + "}", "[]"),
        "claims are deep": provider.sign(header + "}", "[" * 1_500 + "]" * 1_500),
        "claims are no UTF-8": provider.sign(header + "}", "{}")[:-3] + "___",
        "8 kB and more": provider.token(padding="x" * 6_000),
        "1 MB": provider.token(padding="x" * 1_000_000),
        "encrypted": "a.b.c.d.e",
        "two parts": f"{head}.{payload}",
        "nothing": "",
        "no token": "letmein",
        "a key": KEY,
    }  # fmt: skip


@pytest.mark.parametrize("token_type", ["at+jwt", "any"])
async def test_every_token_is_taken_for_what_it_is(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], token_type: str
) -> None:
    """All bad ones are refused with a reason, and nobody goes where a token says."""
    await grant(conn, "anna")
    only_typed = {"untyped"} if token_type == "any" else set()
    with canary() as (elsewhere, asked):
        forger = Forger(provider, elsewhere)
        provider.rotate(keep=1)
        accepted, refused = good(forger), bad(forger)
        assert len(refused) > 60
        app = provider.app(database_url, TokenType=token_type)
        async with served(app) as client:
            for name, token in accepted.items():
                answer = await ask(client, token)
                assert answer.status_code == 200, (name, answer.text)
            before = provider.asked("/jwks")
            for name, token in refused.items():
                answer = await ask(client, token)
                expected = 200 if name in only_typed else 401
                assert answer.status_code == expected, (name, answer.text)
                if expected == 401:
                    assert problem(answer) == (401, "AUTH_REQUIRED"), name
                    challenge = answer.headers["www-authenticate"]
                    assert challenge.startswith('Bearer realm="mdm-gitops"'), (name, challenge)
                    if name != "nothing":
                        assert 'error="invalid_token"' in challenge, (name, challenge)
            assert provider.asked("/jwks") - before <= 1, "keys are asked for once a minute at most"
        assert asked == []
        assert httpx2.get(f"{elsewhere}/control").status_code == 404 and asked == ["/control"]


async def test_the_reason_stands_in_the_challenge(provider: Provider, client: Client) -> None:
    answer = await ask(client, provider.token(exp=1))
    assert answer.headers["www-authenticate"] == (
        'Bearer realm="mdm-gitops", error="invalid_token",'
        ' error_description="the token has expired"'
    )
    nothing = await client.get(ROWS)
    assert nothing.headers["www-authenticate"] == (
        'Bearer realm="mdm-gitops", ApiKey realm="mdm-gitops", header="X-API-Key"'
    )
    assert "headers" not in nothing.json()


# --- one credential -------------------------------------------------------------------------------


async def test_of_two_credentials_none_counts(provider: Provider, client: Client) -> None:
    token = provider.token(roles=["mdm-admin"])
    cookie = f"__Host-mdm_session={'x' * 43}"
    both = [
        {"Authorization": f"Bearer {token}", "X-API-Key": KEY},
        {"Authorization": f"Bearer {token}", "Cookie": cookie},
        {"X-API-Key": KEY, "Cookie": cookie},
        {"Authorization": "Bearer garbage", "X-API-Key": KEY},
    ]
    for headers in both:
        for path in ("/api/v1/entities", "/api/nothing", "/swagger"):
            answer = await client.get(path, headers=headers)
            assert problem(answer) == (400, "REQUEST_INVALID")
            assert "more than one credential" in answer.text
    twice = [("Authorization", f"Bearer {token}")] * 2
    assert problem(await client.get(ROWS, headers=twice)) == (401, "AUTH_REQUIRED")


async def test_other_schemes_are_no_credentials(provider: Provider, client: Client) -> None:
    token = provider.token(roles=["mdm-admin"])
    for value in (f"Token {token}", f"DPoP {token}", token, "Bearer", "", "Negotiate x"):
        answer = await client.get(ROWS, headers={"Authorization": value})
        assert problem(answer) == (401, "AUTH_REQUIRED")
    for word in ("bearer", "BEARER"):
        answer = await client.get(ROWS, headers={"Authorization": f"{word} {token}"})
        assert answer.status_code == 200
    with_basic_of_a_proxy = {"Authorization": "Basic cHJveHk6cHJveHk=", "X-API-Key": KEY}
    assert (await client.get(ROWS, headers=with_basic_of_a_proxy)).status_code == 200


@pytest.mark.parametrize(
    "missing", [{"Audience": None}, {"Issuer": None, "Audience": None, "ClientId": None}]
)
async def test_where_bearer_tokens_are_not_set_up(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], missing: dict[str, Any]
) -> None:
    async with served(provider.app(database_url, **missing)) as client:
        answer = await ask(client, provider.token())
        assert problem(answer) == (401, "AUTH_REQUIRED")
        assert "not accepted here" in answer.text


# --- the provider's keys ----------------------------------------------------------------------------


async def test_keys_are_rotated_without_a_restart(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    await grant(conn, "anna")
    old = provider.token()
    assert (await ask(client, old)).status_code == 200
    provider.rotate()
    new = provider.token()
    assert (await ask(client, new)).status_code == 200
    assert (await ask(client, old)).status_code == 200, "the former key is still published"


async def test_a_withdrawn_key_ends_its_tokens(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    await grant(conn, "anna")
    old = provider.token()
    assert (await ask(client, old)).status_code == 200
    provider.rotate(keep=1)
    assert (await ask(client, provider.token())).status_code == 200
    assert problem(await ask(client, old)) == (401, "AUTH_REQUIRED")


async def test_a_flood_of_unknown_keys_asks_the_provider_once(
    provider: Provider, client: Client, conn: AsyncConnection[Any]
) -> None:
    await grant(conn, "anna")
    assert (await ask(client, provider.token())).status_code == 200
    genuine = provider.token()
    _, payload, signature = genuine.split(".")
    before = provider.asked("/jwks")
    for number in range(200):
        head = b64(json.dumps({"alg": "RS256", "typ": "at+jwt", "kid": f"k{number}"}).encode())
        assert (await ask(client, f"{head}.{payload}.{signature}")).status_code == 401
    assert provider.asked("/jwks") - before == 1
    assert (await ask(client, genuine)).status_code == 200


async def test_times_are_those_of_the_server(
    provider: Provider, database_url: str, conn: AsyncConnection[Any]
) -> None:
    await grant(conn, "service:clockwork")
    provider.add_service("clockwork")
    token = provider.service_token("clockwork")
    clock = [datetime.now(UTC)]
    async with served(provider.app(database_url, now=lambda: clock[0])) as client:
        assert (await ask(client, token)).status_code == 200
        clock[0] += timedelta(days=30)
        assert problem(await ask(client, token)) == (401, "AUTH_REQUIRED")
        clock[0] -= timedelta(days=60)
        answer = await ask(client, token)
        assert problem(answer) == (401, "AUTH_REQUIRED") and "in the future" in answer.text


@pytest.mark.parametrize(
    "issuer",
    [
        "http://127.0.0.1:1",
        "http://127.0.0.1:1/realm",
        "{issuer}/",
        "{issuer}/realm",
        "http://localhost:{port}",
    ],
)
async def test_a_provider_that_is_away_or_another_one_is_told_as_an_outage(
    provider: Provider, database_url: str, conn: AsyncConnection[Any], issuer: str
) -> None:
    port = provider.issuer.rpartition(":")[2]
    named = issuer.format(issuer=provider.issuer, port=port)
    async with served(provider.app(database_url, Issuer=named)) as client:
        answer = await ask(client, provider.token(iss=named))
        assert problem(answer) == (503, "IDENTITY_PROVIDER_UNAVAILABLE")
        assert answer.headers["retry-after"]
        assert "127.0.0.1" not in answer.text and port not in answer.text
        assert (await client.get(ROWS, headers={"X-API-Key": KEY})).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
