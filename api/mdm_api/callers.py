"""Whose access token or session it is. (Whose API key, the state of the store says by itself.)"""

from __future__ import annotations

from datetime import timedelta

from starlette.requests import Request

from mdm_api import security
from mdm_api.security import Credential, CredentialKind
from mdm_api.services import Services
from mdm_api.site import site_of
from mdm_gitops.access import Principal
from mdm_gitops.access.identity import Identity, principal_of
from mdm_gitops.access.sessions import find_session, is_cookie
from mdm_gitops.errors import AuthRequired


async def caller_of(
    credential: Credential, request: Request, services: Services, *, with_basic: bool = False
) -> Principal:
    """Return the principal whose token or session *credential* is.

    Raises:
        AuthRequired: it is not valid.
        AccessDenied: its owner may not come in, or a foreign page makes a browser send it.
        ProviderUnavailable: the identity provider is needed to tell, and does not answer.
    """
    if credential.kind is CredentialKind.BEARER:
        identity = await _bearer(credential.value, services)
    else:
        identity = await _signed_in(credential.value, request, services, with_basic=with_basic)
    return as_principal(identity, services)


def as_principal(identity: Identity, services: Services) -> Principal:
    auth = services.settings.Auth
    return principal_of(identity, admin_role=auth.AdminRole, entry_role=auth.EntryRole)


async def _bearer(token: str, services: Services) -> Identity:
    try:
        if services.provider is None:
            raise AuthRequired("bearer tokens are not accepted here")
        return await services.provider.bearer(token, now=services.now().timestamp())
    except AuthRequired as error:
        raise security.token_refused(error) from None


async def _signed_in(
    cookie: str, request: Request, services: Services, *, with_basic: bool
) -> Identity:
    auth = services.settings.Auth
    site = site_of(request, services.settings.Server.PublicUrl)
    site.require_own_page(request)
    identity = None
    if services.provider is not None and is_cookie(cookie):
        issuer, now = services.provider.issuer, services.now()
        identity = await services.with_connection(
            lambda conn: find_session(
                conn,
                cookie,
                schemas=services.schemas,
                issuer=issuer,
                now=now,
                idle=timedelta(seconds=auth.SessionIdleSeconds),
            )
        )
    if identity is None:
        raise security.cookie_refused(auth, site, with_basic=with_basic)
    return identity
