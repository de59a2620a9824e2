"""An OpenID provider as this application knows it: what it publishes, whose tokens these are, and the
questions of a sign-in (authorization code with PKCE).

Only the issuer of the settings is ever asked, at the addresses of its own description (OpenID Connect
Discovery 1.0), which must name that issuer to the letter.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from mdm_gitops.access.attempt import Attempt
from mdm_gitops.access.fetch import Fetcher
from mdm_gitops.access.identity import ClaimNames, Identity, bearer_of, user_of
from mdm_gitops.access.jwks import KeyRing, VerifyingKey, read_key_set
from mdm_gitops.access.key_cache import TRY_FIRST_EVERY_S, KeyCache
from mdm_gitops.access.metadata import Metadata, read_metadata
from mdm_gitops.access.token_cache import TokenCache
from mdm_gitops.access.tokens import (
    MAX_ID_TOKEN_LENGTH,
    MAX_LENGTH,
    AccessRules,
    Claims,
    Token,
    TokenRefused,
    check_access_token,
    check_id_token,
    parse,
)
from mdm_gitops.errors import ProviderUnavailable, SignInFailed
from mdm_gitops.settings import AuthSettings

_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_METADATA_AGE_S: Final = 3_600.0


class Provider:
    """One per server process; ``aclose`` it at its end."""

    def __init__(
        self, settings: AuthSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert settings.Issuer, "without an issuer there is no provider"
        self._settings = settings
        self._issuer = settings.Issuer
        self._clock = clock
        self._fetcher = Fetcher(timeout_s=settings.ProviderTimeoutSeconds)
        self._keys = KeyCache(self._load_keys, max_age_s=settings.KeysMaxAgeSeconds, clock=clock)
        self._tokens = TokenCache()
        self._algorithms = frozenset(settings.Algorithms.split())
        self._metadata: Metadata | None = None
        self._asked_at = float("-inf")
        self._describing = asyncio.Lock()
        self._names = ClaimNames(
            name=settings.NameClaim,
            roles=settings.RolesClaim,
            groups=settings.GroupsClaim,
            service_marker=settings.ServiceMarker,
        )
        self._rules = AccessRules(
            issuer=self._issuer,
            audience=settings.Audience,
            clients=frozenset(settings.Clients.split()),
            only_typed=settings.TokenType == "at+jwt",
            own_client_id=settings.ClientId,
        )

    @property
    def issuer(self) -> str:
        return self._issuer

    async def aclose(self) -> None:
        await self._keys.aclose()
        await self._fetcher.aclose()

    # --- bearer tokens ----------------------------------------------------------------------------

    async def bearer(self, text: str, *, now: float) -> Identity:
        """Return whose access token *text* is; *now* is in Unix time.

        Raises:
            TokenRefused: it is not one for us.
            ProviderUnavailable: the provider's keys cannot be had now.
        """
        if not self._rules.audience:
            raise TokenRefused("bearer tokens are not accepted here")
        known = self._tokens.find(text, now=now) if len(text) <= MAX_LENGTH else None
        if known is not None and known.proven_by is await self._key_of(known.token):
            return known.identity
        token = parse(text)
        claims, key = await self._proven(token)
        check_access_token(token, claims, self._rules, now=now)
        identity = bearer_of(claims, self._names)
        self._tokens.keep(text, token, claims, identity, proven_by=key)
        return identity

    async def _proven(self, token: Token) -> tuple[Claims, VerifyingKey]:
        if token.algorithm not in self._algorithms:
            raise TokenRefused("the token has a signature of a kind that is not accepted")
        key = await self._key_of(token)
        if key is None:
            raise TokenRefused("the token is signed with a key that the provider does not have")
        return token.claims_by(key), key

    async def _key_of(self, token: Token) -> VerifyingKey | None:
        return await self._keys.find(token.algorithm, token.key_id)

    # --- signing in with a browser ------------------------------------------------------------------

    async def authorization_url(self, attempt: Attempt, *, redirect_uri: str) -> str:
        """Return where the browser goes to sign in."""
        metadata = await self.metadata()
        asked = {
            "response_type": "code",
            "client_id": self._settings.ClientId,
            "redirect_uri": redirect_uri,
            "scope": self._settings.Scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(metadata.authorization_endpoint, asked)

    async def signed_in(
        self, code: str, attempt: Attempt, *, redirect_uri: str, now: float
    ) -> Identity:
        """Trade *code* for an ID token and return who it says has signed in.

        Raises:
            SignInFailed: the provider does not take the code, or its answer is not for us.
            ProviderUnavailable: it cannot be asked.
        """
        metadata = await self.metadata()
        answer = await self._trade(metadata, code, attempt.verifier, redirect_uri)
        try:
            token = parse(_text_of(answer, "id_token"), max_length=MAX_ID_TOKEN_LENGTH)
            claims, _ = await self._proven(token)
            check_id_token(
                claims,
                issuer=self._issuer,
                client_id=self._settings.ClientId,
                nonce=attempt.nonce,
                now=now,
            )
            return user_of(await self._completed(claims, answer, metadata), self._names)
        except TokenRefused as error:
            raise SignInFailed(str(error)) from None

    async def check_issuer_of_answer(self, told: str | None) -> None:
        """Raise SignInFailed if another provider than ours answers the browser (RFC 9207)."""
        expected = (await self.metadata()).answers_with_issuer
        if told != self._issuer and (expected or told is not None):
            raise SignInFailed("another identity provider has answered")

    def refused(self, word: object) -> SignInFailed:
        """Return the error for an answer that brings *word* instead of a code."""
        return SignInFailed(
            f"the identity provider refused: {_refusal(word)}", hint="/login begins again"
        )

    async def sign_out_url(self) -> str | None:
        """Return where the browser may end its session with the provider as well, if it can."""
        endpoint = (await self.metadata()).end_session_endpoint
        return _with_query(endpoint, {"client_id": self._settings.ClientId}) if endpoint else None

    async def _trade(
        self, metadata: Metadata, code: str, verifier: str, redirect_uri: str
    ) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        client_id, secret = self._settings.ClientId, self._settings.ClientSecret
        if secret is None:
            form["client_id"] = client_id
        elif metadata.posts_secret:
            form |= {"client_id": client_id, "client_secret": secret.get_secret_value()}
        else:
            headers["Authorization"] = _basic(client_id, secret.get_secret_value())
        reply = await self._fetcher.post_form(metadata.token_endpoint, form, headers=headers)
        if reply.status != 200 or not isinstance(reply.document, dict):
            raise self.refused(reply.document)
        return reply.document

    async def _completed(
        self, claims: Claims, answer: Mapping[str, Any], metadata: Metadata
    ) -> Claims:
        """Add what the provider tells only when it is asked for it (the UserInfo endpoint)."""
        access_token = answer.get("access_token")
        if self._names.all_in(claims) or not metadata.userinfo_endpoint or not access_token:
            return claims
        headers = {"Authorization": f"Bearer {access_token}"}
        reply = await self._fetcher.get(metadata.userinfo_endpoint, headers=headers)
        more = reply.document if reply.status == 200 else None
        if not isinstance(more, dict):
            return claims
        if more.get("sub") != claims["sub"]:
            raise TokenRefused("the identity provider tells of somebody else")
        return {**more, **claims}

    # --- what the provider publishes ------------------------------------------------------------------

    async def metadata(self) -> Metadata:
        """Return what the provider says of itself, not older than an hour if it can be asked.

        Raises:
            ProviderUnavailable: it has never been reached, or does not describe this issuer.
        """
        async with self._describing:
            known, age = self._metadata, self._clock() - self._asked_at
            if known is not None and age < _METADATA_AGE_S:
                return known
            if known is None and age < TRY_FIRST_EVERY_S:
                raise ProviderUnavailable("the identity provider did not answer a moment ago")
            self._asked_at = self._clock()
            try:
                self._metadata = known = await self._described()
            except ProviderUnavailable:
                if known is None:
                    raise
            return known

    async def _described(self) -> Metadata:
        reply = await self._fetcher.get(self._issuer.rstrip("/") + _WELL_KNOWN)
        if reply.status != 200:
            raise ProviderUnavailable(f"{self._issuer} has no description ({reply.status})")
        return read_metadata(
            reply.document,
            issuer=self._issuer,
            signs_in=bool(self._settings.ClientId),
            allow_http=self._settings.AllowHttpIssuer,
        )

    async def _load_keys(self) -> KeyRing:
        reply = await self._fetcher.get((await self.metadata()).jwks_uri)
        try:
            if reply.status == 200:
                return read_key_set(reply.document, self._algorithms)
        except ValueError as error:
            raise ProviderUnavailable(f"the key set of {self._issuer}: {error}") from None
        raise ProviderUnavailable(f"the key set of {self._issuer} is not there ({reply.status})")


def _refusal(document: object) -> str:
    """Return the provider's word for what was wrong, if it is one of its protocol."""
    word = document.get("error") if isinstance(document, Mapping) else document
    is_word = isinstance(word, str) and word.isascii() and word.replace("_", "").isalnum()
    return str(word)[:60] if is_word else "no reason given"


def _text_of(answer: Mapping[str, Any], name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str):
        raise SignInFailed(f"the identity provider gave no {name}")
    return value


def _basic(client_id: str, secret: str) -> str:
    """RFC 6749, section 2.3.1: both are form-encoded before."""
    pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _with_query(url: str, values: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, urlencode(values, quote_via=quote))))
    return urlunsplit(parts._replace(query=query, fragment=""))
