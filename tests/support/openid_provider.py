"""A real OpenID provider for the tests, as a process of its own: Authlib's authorization server.

    python tests/support/openid_provider.py --port 0

prints its address and serves until its standard input ends. Authorization code with PKCE, client
credentials, device codes, refresh tokens, revocation, RFC 9068 access tokens, ID tokens, UserInfo, RFC 9207
are Authlib's; here are only its memory, a page to sign in on, and, under ``/test/``, what a test could not do from outside: replace the
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
from urllib.parse import urlsplit

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # plain HTTP, on this machine only

from authlib.common.security import generate_token
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import (
    DeviceAuthorizationEndpoint,
    DeviceCodeGrant,
    DeviceCredentialDict,
)
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from authlib.oidc.core import OpenIDCode, UserInfo
from flask import Flask, Response, jsonify, redirect, request
from joserfc.jwk import KeySet, RSAKey
from joserfc.jws import JWSRegistry
from werkzeug.serving import make_server

AUDIENCE = "https://mdm.example/api"
PASSWORD = "correct horse"
_LOOPBACK = "http://127.0.0.1"
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
        return redirect_uri in self.redirect_uris or _without_port(redirect_uri) in (
            _without_port(each) for each in self.redirect_uris if each.startswith(_LOOPBACK)
        )

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return endpoint != "token" or method == self.auth_method

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.grants


def _without_port(uri: str) -> str:
    """RFC 8252, 7.3: the port of a loopback address is whatever was free."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.hostname}{parts.path}"


@dataclass
class Refresh:
    token: str
    client_id: str
    scope: str
    user: User

    def get_scope(self) -> str:
        return self.scope

    def check_client(self, client: Client) -> bool:
        return client.client_id == self.client_id


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
    refreshes: dict[str, Refresh] = field(default_factory=dict)
    devices: dict[str, DeviceCredentialDict] = field(default_factory=dict)
    device_answers: dict[str, tuple[User, bool]] = field(default_factory=dict)  # by user code
    keys: list[RSAKey] = field(default_factory=list)  # the first one signs
    asked: Counter[str] = field(default_factory=Counter)
    id_token_claims: dict[str, Any] = field(default_factory=dict)  # these instead of the right ones
    only_in_userinfo: frozenset[str] = frozenset()
    userinfo_is_closed: bool = False

    @property
    def signing(self) -> RSAKey:
        return self.keys[0]

    def save_token(self, token: dict[str, Any], asked: Any) -> None:
        self.tokens[token["access_token"]] = asked.user
        if "refresh_token" in token:
            text, client = token["refresh_token"], asked.client.client_id
            self.refreshes[text] = Refresh(text, client, token.get("scope", ""), asked.user)

    def add_key(self) -> None:
        self.keys.insert(0, RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True))


def create(issuer: str) -> Flask:
    memory = Memory(issuer=issuer)
    memory.add_key()
    app = Flask("openid_provider")
    server = AuthorizationServer(app, query_client=memory.clients.get, save_token=memory.save_token)
    server.register_token_generator("default", _access_tokens(memory))
    server.register_grant(grants.ClientCredentialsGrant)
    server.register_grant(_code_grant(memory), [_id_tokens(memory), CodeChallenge(required=True)])
    server.register_grant(_refresh_grant(memory))
    server.register_grant(_device_grant(memory))
    server.register_endpoint(_device_endpoint(memory))
    server.register_endpoint(_revocation(memory))
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

    return AccessTokens(
        issuer=memory.issuer, refresh_token_generator=lambda **_: generate_token(42)
    )


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


def _refresh_grant(memory: Memory) -> type[grants.RefreshTokenGrant]:
    class RefreshGrant(grants.RefreshTokenGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "none")
        INCLUDE_NEW_REFRESH_TOKEN = True

        def authenticate_refresh_token(self, refresh_token: str) -> Refresh | None:
            return memory.refreshes.get(refresh_token)

        def authenticate_user(self, refresh_token: Refresh) -> User:
            return refresh_token.user

        def revoke_old_credential(self, refresh_token: Refresh) -> None:
            memory.refreshes.pop(refresh_token.token, None)

    return RefreshGrant


def _device_endpoint(memory: Memory) -> type[DeviceAuthorizationEndpoint]:
    class DeviceEndpoint(DeviceAuthorizationEndpoint):
        INTERVAL = 0

        def get_verification_uri(self) -> str:
            return f"{memory.issuer}/device"

        def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
            given = {"client_id": client_id, "scope": scope, **data}
            memory.devices[data["device_code"]] = DeviceCredentialDict(given)

    return DeviceEndpoint


def _device_grant(memory: Memory) -> type[DeviceCodeGrant]:
    class DeviceGrant(DeviceCodeGrant):
        def query_device_credential(self, device_code: str) -> DeviceCredentialDict | None:
            return memory.devices.get(device_code)

        def query_user_grant(self, user_code: str) -> tuple[User, bool] | None:
            return memory.device_answers.get(user_code)

        def should_slow_down(self, credential: Any) -> bool:
            return False

    return DeviceGrant


def _revocation(memory: Memory) -> type[RevocationEndpoint]:
    class Revocation(RevocationEndpoint):
        CLIENT_AUTH_METHODS = ("client_secret_basic", "none")

        def query_token(self, token_string: str, token_type_hint: str) -> Refresh | None:
            return memory.refreshes.get(token_string)

        def revoke_token(self, token: Refresh, request: Any) -> None:
            memory.refreshes.pop(token.token, None)

    return Revocation


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
            device_authorization_endpoint=f"{issuer}/device_authorization",
            revocation_endpoint=f"{issuer}/revoke",
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

    @app.post("/device_authorization")
    def device_authorization() -> Any:
        return server.create_endpoint_response("device_authorization")

    @app.post("/revoke")
    def revoke() -> Any:
        return server.create_endpoint_response("revocation")

    @app.post("/device")
    def device() -> Any:
        """What a person does on the page of the code: sign in, and say yes or no."""
        user = memory.users.get(request.form["username"])
        codes = {each["user_code"] for each in memory.devices.values()}
        code = request.form["user_code"]
        if user is None or request.form["password"] != PASSWORD or code not in codes:
            return Response("no", status=403)
        memory.device_answers[code] = (user, request.form["answer"] == "yes")
        return Response("done")

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
