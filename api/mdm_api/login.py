"""Signing in with a browser at the identity provider, and out again.

``/login`` sends the browser to the provider, which sends it back to ``/login/callback`` with a code; the
server trades the code for an ID token and gives the browser a session.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import Response

from mdm_api import schemas
from mdm_api.call import Call, json_response
from mdm_api.callers import as_principal
from mdm_api.operations import Access, Answer, Operation, Parameter
from mdm_api.security import session_cookie
from mdm_api.site import Site, site_of
from mdm_api.upkeep import Refusal
from mdm_gitops.access.attempt import MAX_AGE_S, begin, is_secret, new_secret, resume
from mdm_gitops.access.identity import Identity
from mdm_gitops.access.sessions import end_session, is_cookie, start_session
from mdm_gitops.data import audit
from mdm_gitops.errors import AccessDenied, NotFound, ProviderUnavailable, SignInFailed
from mdm_gitops.warehouse.connect import Connection

if TYPE_CHECKING:
    from mdm_gitops.access.oidc import Provider

_CALLBACK: Final = "/login/callback"
_HOME: Final = "/api/v1/me"
_IN_ADDRESSES: Final = "%/:?#[]@!$&'()*+,;="  # RFC 3986; the rest a header cannot hold


async def begin_login(call: Call) -> Response:
    provider, site = _provider(call), _site(call)
    # A secret that the browser has already serves several tabs; it dies of itself.
    kept = call.request.cookies.get(site.attempt_cookie.name, "")
    secret = kept if is_secret(kept) else new_secret()
    attempt = begin(
        secret, return_to=call.parameters["returnTo"], now=call.services.now().timestamp()
    )
    url = await provider.authorization_url(attempt, redirect_uri=site.url + _CALLBACK)
    return _redirect(url, site.attempt_cookie.set(secret, max_age_s=MAX_AGE_S))


async def finish_login(call: Call) -> Response:
    site = _site(call)
    try:
        identity, return_to = await _who_came_back(call, site)
    except SignInFailed:
        client = call.request.client
        address = client.host if client else "unknown"
        call.services.refusals.note(Refusal(address=address, kind="signIn"))
        raise
    cookie = await call.services.with_connection(lambda conn: _new_session(conn, call, identity))
    longest = int(call.services.settings.Auth.SessionMaxSeconds)
    return _redirect(return_to, site.session_cookie.set(cookie, max_age_s=longest))


async def _who_came_back(call: Call, site: Site) -> tuple[Identity, str]:
    provider, now = _provider(call), call.services.now().timestamp()
    secret = call.request.cookies.get(site.attempt_cookie.name, "")
    attempt = resume(secret, call.parameters["state"], now=now)
    await provider.check_issuer_of_answer(call.parameters["iss"])
    if not (code := call.parameters["code"]):
        raise provider.refused(call.parameters["error"])
    redirect_uri = site.url + _CALLBACK
    identity = await provider.signed_in(code, attempt, redirect_uri=redirect_uri, now=now)
    return identity, attempt.return_to


async def end_login(call: Call) -> Response:
    site = _site(call)
    cookie = session_cookie(call.request, call.services.settings)
    ended = None
    if cookie is not None:
        site.require_own_page(call.request)
        ended = await call.services.with_connection(lambda conn: _end_session(conn, call, cookie))
    url = None
    if ended is not None and call.services.provider is not None:
        with contextlib.suppress(ProviderUnavailable):
            url = await call.services.provider.sign_out_url()
    answer = {"signedOut": ended is not None, "providerSignOutUrl": url}
    return json_response(answer, headers={"Set-Cookie": site.session_cookie.clear()})


def _provider(call: Call) -> Provider:
    provider = call.services.provider
    if provider is None or not call.services.settings.Auth.ClientId:
        raise NotFound(
            "signing in with a browser is not set up here",
            hint="Mdm__Auth__Issuer and Mdm__Auth__ClientId set it up",
        )
    return provider


def _site(call: Call) -> Site:
    return site_of(call.request, call.services.settings.Server.PublicUrl)


async def _new_session(conn: Connection, call: Call, identity: Identity) -> str:
    """Start a session; one that the browser still had is over.

    Should the connection break at its end, another one is started, and nobody has the cookie of this.
    """
    services = call.services
    try:
        principal = as_principal(identity, services)
    except AccessDenied:
        await _record(conn, call, identity, "login_refused")
        raise
    call.request.scope["mdm.principal"] = principal.actor
    former = session_cookie(call.request, services.settings)
    longest = timedelta(seconds=services.settings.Auth.SessionMaxSeconds)
    async with conn.transaction():
        if former is not None:
            await _end_session(conn, call, former)
        await _record(conn, call, identity, "login")
        return await start_session(
            conn, identity, schemas=services.schemas, now=services.now(), longest=longest
        )


async def _end_session(conn: Connection, call: Call, cookie: str) -> Identity | None:
    if not is_cookie(cookie):
        return None
    async with conn.transaction():
        ended = await end_session(conn, cookie, schemas=call.services.schemas)
        if ended is not None:
            await _record(conn, call, ended, "logout")
    return ended


async def _record(conn: Connection, call: Call, identity: Identity, action: str) -> None:
    """Write down who did *action*: a name may change hands at the provider, the subject never."""
    await audit.record(
        conn,
        schemas=call.services.schemas,
        actor=f"{identity.kind}:{identity.name}",
        action=action,
        details={"issuer": identity.issuer, "subject": identity.subject},
    )


def _redirect(url: str, cookie: str) -> Response:
    location = quote(url, safe=_IN_ADDRESSES)
    headers = {"Location": location, "Set-Cookie": cookie, "Cache-Control": "no-store"}
    return Response(status_code=303, headers=headers)


_TAG: Final = "Signing in"

operations = (
    Operation(
        method="GET",
        path="/login",
        handler=begin_login,
        summary="Sign in with a browser",
        description="Sends the browser to the identity provider; afterwards it is back at `returnTo`"
        " with a session.",
        tag=_TAG,
        access=Access.PUBLIC,
        parameters=(
            Parameter(
                name="returnTo",
                description="Path of this server to go to afterwards.",
                default=_HOME,
                example="/swagger",
            ),
        ),
        answers={
            303: Answer(
                description="To the identity provider.",
                headers={"Location": "Its page.", "Set-Cookie": "What this sign-in is known by."},
            )
        },
        errors=("NOT_FOUND", "REQUEST_INVALID", "IDENTITY_PROVIDER_UNAVAILABLE"),
    ),
    Operation(
        method="GET",
        path=_CALLBACK,
        handler=finish_login,
        summary="Where the identity provider sends the browser back to",
        description="Register this address with the provider. Other parameters that it adds are not"
        " looked at.",
        tag=_TAG,
        access=Access.PUBLIC,
        takes_any_query=True,
        parameters=(
            Parameter(name="code", description="What is traded for the ID token."),
            Parameter(name="state", description="Which sign-in this is.", default=""),
            Parameter(name="iss", description="Who answers (RFC 9207)."),
            Parameter(name="error", description="Why there is no code."),
        ),
        answers={
            303: Answer(
                description="To where the sign-in was begun from.",
                headers={"Location": "That page.", "Set-Cookie": "The session."},
            )
        },
        errors=(
            "NOT_FOUND",
            "REQUEST_INVALID",
            "SIGN_IN_FAILED",
            "ACCESS_DENIED",
            "IDENTITY_PROVIDER_UNAVAILABLE",
            "WAREHOUSE_UNAVAILABLE",
        ),
    ),
    Operation(
        method="POST",
        path="/logout",
        handler=end_login,
        summary="Sign out",
        description="Ends the session of the cookie, on every server at once. The browser stays signed"
        " in at the identity provider; `providerSignOutUrl` is where that can be ended, if anywhere.",
        tag=_TAG,
        access=Access.PUBLIC,
        answers={
            200: Answer(
                description="There is no session any more.",
                schema=schemas.ref("SignedOut"),
                headers={"Set-Cookie": "Clears the session's cookie."},
            )
        },
        errors=("ACCESS_DENIED", "WAREHOUSE_UNAVAILABLE"),
    ),
)
