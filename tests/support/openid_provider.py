"""A real OpenID provider for the tests, as a process of its own: Authlib's authorization server.

    python tests/support/openid_provider.py --port 0

prints its address and serves until its standard input ends. Authorization code with PKCE, client
credentials, RFC 9068 access tokens, ID tokens, UserInfo, RFC 9207 are Authlib's; here are only its
memory, a page to sign in on, and, under ``/test/``, what a test could not do from outside: replace the
signing key, sign any text with it, count the questions asked.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # plain HTTP, on this machine only

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from authlib.oidc.core import OpenIDCode, UserInfo
from flask import Flask, Response, jsonify, redirect, request
from joserfc.jwk import KeySet, RSAKey
from joserfc.jws import JWSRegistry
from werkzeug.serving import make_server

AUDIENCE = "https://mdm.example/api"
PASSWORD = "correct horse"
_FORM = """<!doctype html><title>Sign in</title><form method="post">
<input name="username"><input name="password" type="password"><button>Sign in</button></form>"""


@dataclass
class User:
    sub: str
    claims: dict[str, Any] = field(default_factory=dict)

    def get_user_id(self) -> str:
        return self.sub


@dataclass
class Client(ClientMixin):
    client_id: str
    secret: str
    grants: tuple[str, ...]
    redirect_uris: tuple[str, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)  # of its own access tokens
    auth_method: str = "client_secret_basic"

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str | None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return endpoint != "token" or method == self.auth_method

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.grants


@dataclass
class Code:
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    user: User
    nonce: str | None
    code_challenge: str | None
    code_challenge_method: str | None
    auth_time: int

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str | None:
        return self.nonce

    def get_auth_time(self) -> int:
        return self.auth_time

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


@dataclass
class Memory:
    issuer: str
    users: dict[str, User] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: dict[str, User] = field(default_factory=dict)
    keys: list[RSAKey] = field(default_factory=list)  # the first one signs
    asked: Counter[str] = field(default_factory=Counter)
    id_token_claims: dict[str, Any] = field(default_factory=dict)  # these instead of the right ones
    only_in_userinfo: frozenset[str] = frozenset()
    userinfo_is_closed: bool = False

    @property
    def signing(self) -> RSAKey:
        return self.keys[0]

    def add_key(self) -> None:
        self.keys.insert(0, RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True))


def create(issuer: str) -> Flask:
    memory = Memory(issuer=issuer)
    memory.add_key()
    app = Flask("openid_provider")
    server = AuthorizationServer(
        app,
        query_client=memory.clients.get,
        save_token=lambda token, asked: memory.tokens.__setitem__(
            token["access_token"], asked.user
        ),
    )
    server.register_token_generator("default", _access_tokens(memory))
    server.register_grant(grants.ClientCredentialsGrant)
    server.register_grant(_code_grant(memory), [_id_tokens(memory), CodeChallenge(required=True)])
    server.register_extension(_issuer_parameter(memory))
    _serve_protocol(app, server, memory)
    _serve_tests(app, memory)
    return app


def _access_tokens(memory: Memory) -> JWTBearerTokenGenerator:
    class AccessTokens(JWTBearerTokenGenerator):
        def get_jwks(self) -> KeySet:
            return KeySet([memory.signing])

        def get_audiences(self, client: Client, user: User, scope: str) -> str:
            return AUDIENCE

        def get_extra_claims(
            self, client: Client, grant_type: str, user: User | None, scope: str
        ) -> dict[str, Any]:
            return user.claims if user else client.claims

    return AccessTokens(issuer=memory.issuer)


def _code_grant(memory: Memory) -> type[grants.AuthorizationCodeGrant]:
    class CodeGrant(grants.AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

        def save_authorization_code(self, code: str, asked: Any) -> None:
            data = asked.payload.data
            memory.codes[code] = Code(
                code=code,
                client_id=asked.client.client_id,
                redirect_uri=asked.payload.redirect_uri,
                scope=asked.scope,
                user=asked.user,
                nonce=data.get("nonce"),
                code_challenge=data.get("code_challenge"),
                code_challenge_method=data.get("code_challenge_method"),
                auth_time=int(time.time()),
            )

        def query_authorization_code(self, code: str, client: Client) -> Code | None:
            found = memory.codes.get(code)
            return found if found and found.client_id == client.client_id else None

        def delete_authorization_code(self, authorization_code: Code) -> None:
            del memory.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: Code) -> User:
            return authorization_code.user

    return CodeGrant


def _id_tokens(memory: Memory) -> OpenIDCode:
    class IdTokens(OpenIDCode):
        def exists_nonce(self, nonce: str, asked: Any) -> bool:
            return any(code.nonce == nonce for code in memory.codes.values())

        def resolve_client_private_key(self, client: Client) -> RSAKey:
            return memory.signing

        def get_client_algorithm(self, client: Client) -> str:
            return "RS256"

        def get_encode_header(self, client: Client) -> dict[str, str]:
            return {"alg": "RS256", "kid": memory.signing.kid}

        def get_client_claims(self, client: Client) -> dict[str, Any]:
            return {"iss": memory.issuer, "aud": [client.client_id]}

        def generate_user_info(self, user: User, scope: str) -> dict[str, Any]:
            hidden = memory.only_in_userinfo
            told = {name: value for name, value in user.claims.items() if name not in hidden}
            return {"sub": user.sub, **told, **memory.id_token_claims}

    return IdTokens()


def _issuer_parameter(memory: Memory) -> IssuerParameter:
    class Issuer(IssuerParameter):
        def get_issuer(self) -> str:
            return memory.issuer

    return Issuer()


def _serve_protocol(app: Flask, server: AuthorizationServer, memory: Memory) -> None:
    issuer = memory.issuer

    @app.before_request
    def count() -> None:
        memory.asked[request.path] += 1

    @app.get("/.well-known/openid-configuration")
    def describe() -> Response:
        return jsonify(
            issuer=issuer,
            jwks_uri=f"{issuer}/jwks",
            authorization_endpoint=f"{issuer}/authorize",
            token_endpoint=f"{issuer}/token",
            userinfo_endpoint=f"{issuer}/userinfo",
            end_session_endpoint=f"{issuer}/end_session",
            response_types_supported=["code"],
            subject_types_supported=["public"],
            id_token_signing_alg_values_supported=["RS256"],
            authorization_response_iss_parameter_supported=True,
        )

    @app.get("/jwks")
    def jwks() -> Response:
        return jsonify(KeySet(list(memory.keys)).as_dict(private=False))

    @app.route("/authorize", methods=["GET", "POST"])
    def authorize() -> Any:
        try:
            grant = server.get_consent_grant(end_user=None)
        except OAuth2Error as error:
            return server.handle_error_response(server.create_oauth2_request(None), error)
        user = memory.users.get(request.form.get("username", ""))
        if request.method == "GET" or user is None or request.form["password"] != PASSWORD:
            return Response(_FORM, status=200 if request.method == "GET" else 403)
        return server.create_authorization_response(grant_user=user, grant=grant)

    @app.post("/token")
    def token() -> Any:
        return server.create_token_response()

    @app.get("/userinfo")
    def userinfo() -> Any:
        text = request.headers.get("Authorization", "").removeprefix("Bearer ")
        user = memory.tokens.get(text)
        if user is None or memory.userinfo_is_closed:
            return jsonify(error="invalid_token"), 401
        return jsonify(UserInfo(sub=user.sub, **user.claims))

    @app.get("/end_session")
    def end_session() -> Response:
        return Response("signed out")


def _serve_tests(app: Flask, memory: Memory) -> None:
    @app.put("/test/users/<sub>")
    def put_user(sub: str) -> Any:
        memory.users[sub] = User(sub, request.get_json())
        return "", 204

    @app.put("/test/clients/<client_id>")
    def put_client(client_id: str) -> Any:
        given = request.get_json()
        lists = {name: tuple(given.pop(name, ())) for name in ("grants", "redirect_uris")}
        memory.clients[client_id] = Client(client_id, **given, **lists)
        return "", 204

    @app.put("/test/id-token")
    def put_id_token() -> Any:
        given = request.get_json()
        memory.only_in_userinfo = frozenset(given.pop("only_in_userinfo", ()))
        memory.userinfo_is_closed = given.pop("userinfo_is_closed", False)
        memory.id_token_claims = given
        return "", 204

    @app.post("/test/rotate")
    def rotate() -> Any:
        memory.add_key()
        del memory.keys[int(request.args.get("keep", "2")) :]
        return jsonify(kid=memory.signing.kid)

    @app.post("/test/sign")
    def sign() -> Any:
        """Sign any header and payload, as they are spelt, with the key that signs tokens now."""
        given = request.get_json()
        parts = [given["header"].encode(), given["payload"].encode()]
        text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
        algorithm = JWSRegistry.algorithms[given.get("algorithm", "RS256")]
        signature = algorithm.sign(text, memory.signing)
        return jsonify(
            token=(text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()
        )

    @app.get("/test/asked")
    def asked() -> Response:
        return jsonify(memory.asked)

    @app.get("/test/elsewhere")
    def elsewhere() -> Any:
        return redirect("/jwks")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    listening = make_server("127.0.0.1", port, Flask("not yet"), threaded=True)
    issuer = f"http://127.0.0.1:{listening.port}"
    listening.app = create(issuer)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    print(issuer, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
