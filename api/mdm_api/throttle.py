"""The rate limit at the door: each request under ``/api`` is counted, and turned away beyond the limit.

A request counts for its principal, or, while nobody is known, for the address it comes from: somebody
who tries keys is counted, too. The answer carries ``RateLimit-Policy`` and ``RateLimit`` (IETF draft
ratelimit-headers), and 429 also ``Retry-After``.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.types import Scope

from mdm_api.call import Call
from mdm_api.upkeep import note_refusal
from mdm_gitops.access.rate_limit import Permit, RateLimit
from mdm_gitops.errors import AuthRequired, MdmError, RateLimited

API_PREFIX: Final = "/api"
_PERMIT: Final = "mdm.permit"


async def admit_counted(call: Call) -> None:
    """Let the caller in and count the request.

    Raises:
        RateLimited: it is one too many.
        MdmError: the caller may not come in.
    """
    refused: MdmError | None = None
    try:
        await call.admit()
    except MdmError as error:
        refused = error
        if isinstance(error, AuthRequired) and call.has_credential:
            note_refusal(call)
    await count(call.request, call.services.rate_limit)
    if refused is not None:
        raise refused


async def count(request: Request, rate_limit: RateLimit | None) -> None:
    """Count *request* for whoever the scope names as its principal, else for its address."""
    if rate_limit is None or not is_limited(request.scope):
        return
    permit = await rate_limit.take(_client(request.scope))
    request.scope[_PERMIT] = permit
    if not permit.allowed:
        raise RateLimited(
            f"more than {permit.limit} requests in {permit.window_s} s",
            retry_after_s=permit.resets_in_s,
            hint="wait as long as Retry-After says",
        )


def is_limited(scope: Scope) -> bool:
    path = str(scope["path"])
    return path == API_PREFIX or path.startswith(f"{API_PREFIX}/")


def headers_of(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell the caller where it stands."""
    permit: Permit | None = scope.get(_PERMIT)
    if permit is None:
        return []
    policy = f'"default";q={permit.limit};w={permit.window_s}'
    state = f'"default";r={permit.remaining};t={permit.resets_in_s}'
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", state.encode())]


def _client(scope: Scope) -> str:
    principal = scope.get("mdm.principal")
    if principal:
        return str(principal)
    return f"address:{(scope.get('client') or ('unknown',))[0]}"
