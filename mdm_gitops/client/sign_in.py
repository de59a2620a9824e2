"""Signing in at the identity provider for a program without a browser of its own.

With a device code (RFC 8628) on any machine, or with a browser that comes back to a port of this one
(RFC 8252: authorization code with PKCE). What it gives is kept in the profile and renewed from there.
Who the user is is not read here: the server reads the access token, and nobody else needs to.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import httpx2

from mdm_gitops.client.connection import origin_of
from mdm_gitops.client.loopback import Loopback
from mdm_gitops.client.profiles import Profile, Profiles, Tokens
from mdm_gitops.errors import AuthRequired, InputError, MdmError, ProviderUnavailable, SignInFailed

DEFAULT_SCOPE: Final = "openid profile email offline_access"
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT_S: Final = 20.0
_EARLY_S: Final = 30.0  # a token this close to its end is renewed before it is used
_SLOWER_S: Final = 5.0  # RFC 8628, 3.5: what slow_down adds
_SHORTEST_S: Final = 0.2
_LONGEST_S: Final = 900.0
_LOCAL: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """What a person does elsewhere: open *address* and type *user_code*."""

    user_code: str
    address: str
    whole_address: str | None


@dataclass(frozen=True, slots=True)
class Provider:
    """The endpoints that an issuer describes."""

    issuer: str
    described: Mapping[str, Any]

    def endpoint(self, name: str) -> str:
        """Return an endpoint.

        Raises:
            SignInFailed: the provider has none, or one that would show secrets on the way.
        """
        found = self.described.get(name)
        if not isinstance(found, str) or not found:
            words = name.removesuffix("_endpoint").replace("_", " ")
            raise SignInFailed(
                f"the identity provider {self.issuer} offers no {words}",
                hint="choose another way: mdm-gitops login has --device and --browser",
            )
        _must_be_safe(found)
        return found

    def has(self, name: str) -> bool:
        return bool(self.described.get(name))


class SignIn:
    """Signing in with *profile*, which names issuer and client."""

    def __init__(self, profile: Profile, *, http: httpx2.AsyncClient | None = None) -> None:
        if not profile.issuer or not profile.client_id:
            raise InputError(
                f"profile {profile.name} does not say where to sign in",
                hint="mdm-gitops login --issuer URL --client-id ID, once",
            )
        self._issuer, self._client_id = profile.issuer, profile.client_id
        self._profile = profile
        self._http = http or httpx2.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def provider(self) -> Provider:
        _must_be_safe(self._issuer)
        where = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
        document = await self._asked("GET", where)
        if document.get("issuer") != self._issuer:
            raise SignInFailed(
                "the identity provider calls itself by another name than the profile does",
                hint="--issuer must be spelt as the provider spells it in its own description",
            )
        return Provider(self._issuer, document)

    async def with_device(self, tell: Callable[[DeviceCode], None]) -> Tokens:
        """Sign in on any other device; *tell* is given what to tell the person."""
        provider = await self.provider()
        given = await self._form(provider.endpoint("device_authorization_endpoint"), self._wishes())
        _no_refusal(given)
        tell(
            DeviceCode(
                user_code=str(given["user_code"]),
                address=str(given.get("verification_uri") or given.get("verification_url")),
                whole_address=given.get("verification_uri_complete"),
            )
        )
        wait = max(float(given.get("interval", 5)), _SHORTEST_S)
        until = time.monotonic() + min(float(given.get("expires_in") or 600), _LONGEST_S)
        asked = {"grant_type": _DEVICE_GRANT, "device_code": str(given["device_code"])}
        while time.monotonic() < until:
            await asyncio.sleep(wait)
            answer = await self._form(provider.endpoint("token_endpoint"), asked)
            match answer.get("error"):
                case None:
                    return self._tokens(provider, answer)
                case "authorization_pending":
                    continue
                case "slow_down":
                    wait += _SLOWER_S
                case _:
                    _no_refusal(answer)
        raise SignInFailed("nobody signed in before the code expired", hint="try again")

    async def with_browser(self, open_page: Callable[[str], None]) -> Tokens:
        """Sign in with a browser of this machine; *open_page* is given the page to show."""
        provider = await self.provider()
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        async with Loopback() as loopback:
            query = {
                **self._wishes(),
                "response_type": "code",
                "redirect_uri": loopback.address,
                "state": state,
                "nonce": secrets.token_urlsafe(24),
                "code_challenge": _challenge(verifier),
                "code_challenge_method": "S256",
            }
            page = provider.endpoint("authorization_endpoint")
            open_page(f"{page}{'&' if '?' in page else '?'}{urlencode(query)}")
            back = await loopback.answer(state, within_s=_LONGEST_S)
        _no_refusal(back)
        told = back.get("iss")
        if told != self._issuer and (
            told or provider.has("authorization_response_iss_parameter_supported")
        ):
            raise SignInFailed("the answer came from another identity provider than was asked")
        answer = await self._form(
            provider.endpoint("token_endpoint"),
            {
                "grant_type": "authorization_code",
                "code": back.get("code", ""),
                "redirect_uri": loopback.address,
                "code_verifier": verifier,
            },
        )
        _no_refusal(answer)
        return self._tokens(provider, answer)

    async def sign_out(self, tokens: Tokens) -> bool:
        """Have the provider revoke what it gave (RFC 7009); say whether it was asked to."""
        provider = await self.provider()
        if not provider.has("revocation_endpoint"):
            return False
        kind = "refresh_token" if tokens.refresh_token else "access_token"
        asked = {"token": tokens.refresh_token or tokens.access_token, "token_type_hint": kind}
        await self._form(provider.endpoint("revocation_endpoint"), asked)
        return True

    # --- speaking with the provider ---------------------------------------------------------------

    def _wishes(self) -> dict[str, str]:
        given = {
            "client_id": self._client_id,
            "scope": self._profile.scope or DEFAULT_SCOPE,
            "audience": self._profile.audience,
        }
        return {name: value for name, value in given.items() if value}

    def _tokens(self, provider: Provider, answer: Mapping[str, Any]) -> Tokens:
        return tokens_of(
            answer,
            token_endpoint=provider.endpoint("token_endpoint"),
            client_id=self._client_id,
        )

    async def _form(self, url: str, fields: Mapping[str, str]) -> dict[str, Any]:
        return await self._asked("POST", url, data={"client_id": self._client_id, **fields})

    async def _asked(self, method: str, url: str, **more: Any) -> dict[str, Any]:
        return await ask(self._http, method, url, **more)


async def ask(http: httpx2.AsyncClient, method: str, url: str, **more: Any) -> dict[str, Any]:
    """Return what a provider answers, its refusals included.

    Raises:
        ProviderUnavailable: it does not answer, or not in JSON.
    """
    try:
        answer = await http.request(method, url, **more)
        document = answer.json() if answer.content else {}
    except (httpx2.TransportError, ValueError):
        raise ProviderUnavailable(
            "the identity provider does not answer, or not as it should",
            hint="is the issuer right? mdm-gitops config get issuer shows it",
        ) from None
    is_refusal = isinstance(document, dict) and "error" in document
    if not isinstance(document, dict) or (answer.status_code >= 300 and not is_refusal):
        raise ProviderUnavailable(
            f"the identity provider answered with status {answer.status_code}"
        )
    return document


def tokens_of(
    answer: Mapping[str, Any], *, token_endpoint: str, client_id: str, refresh: str | None = None
) -> Tokens:
    """Return the tokens of an *answer*; *refresh* is kept where it brings no other."""
    token = answer.get("access_token")
    if not isinstance(token, str) or not token:
        raise SignInFailed("the identity provider gave no access token")
    return Tokens(
        access_token=token,
        refresh_token=answer.get("refresh_token") or refresh,
        expires_at=time.time() + float(answer.get("expires_in") or 300),
        token_endpoint=token_endpoint,
        client_id=client_id,
    )


class SignedIn:
    """The credential of somebody who signed in with a profile; it renews itself."""

    def __init__(self, profiles: Profiles, name: str) -> None:
        self._profiles = profiles
        self._name = name
        self._used: str | None = None

    def __repr__(self) -> str:
        return f"SignedIn({self._name!r})"

    async def headers(self) -> dict[str, str]:
        tokens = self._profiles.tokens(self._name)
        if tokens is None:
            raise self._ended()
        if tokens.expires_at - _EARLY_S < time.time() and tokens.refresh_token:
            tokens = await self._renew(tokens.access_token)
        self._used = tokens.access_token
        return {"Authorization": f"Bearer {tokens.access_token}"}

    async def renewed(self) -> bool:
        if self._used is None:
            return False
        tokens = self._profiles.tokens(self._name)
        if tokens is None or not tokens.refresh_token:
            return False
        await self._renew(self._used)
        return True

    async def _renew(self, old: str) -> Tokens:
        """Trade the refresh token, unless another command has done so already."""
        lock = self._profiles.locked()
        await asyncio.to_thread(lock.__enter__)
        try:
            tokens = self._profiles.tokens(self._name)
            if tokens is None or not tokens.refresh_token:
                raise self._ended()
            if tokens.access_token != old:
                return tokens
            new = await self._traded(tokens)
            self._profiles.store_tokens(self._name, new)
            return new
        finally:
            lock.__exit__(None, None, None)

    async def _traded(self, tokens: Tokens) -> Tokens:
        _must_be_safe(tokens.token_endpoint)
        fields = {
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh_token,
            "client_id": tokens.client_id,
        }
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False) as http:
            answer = await ask(http, "POST", tokens.token_endpoint, data=fields)
        if "error" in answer:
            raise self._ended()
        return tokens_of(
            answer,
            token_endpoint=tokens.token_endpoint,
            client_id=tokens.client_id,
            refresh=tokens.refresh_token,
        )

    def _ended(self) -> MdmError:
        return AuthRequired(
            f"the sign-in of profile {self._name} has ended", hint="mdm-gitops login"
        )


def _no_refusal(answer: Mapping[str, Any]) -> None:
    error = answer.get("error")
    if error is None:
        return
    words = {"access_denied": "the sign-in was refused", "expired_token": "the code has expired"}
    said = "".join(sign for sign in str(error)[:80] if sign.isprintable())
    raise SignInFailed(words.get(str(error), f"the identity provider refused: {said}"))


def _must_be_safe(url: str) -> None:
    """Refuse what would show codes and tokens to the network: HTTP, but for this machine."""
    scheme, host, _ = origin_of(url.partition("?")[0])
    if scheme != "https" and host not in _LOCAL:
        raise InputError("the identity provider must be reached by https")


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
