"""Tokens that were proven a moment ago need no second proof: the text is the same, only time goes on.

An entry counts while the clock is within the token's own times and the key that proved it is still the
provider's; keys that were asked for anew prove each token anew. Only accepted tokens are kept, by
their SHA-256.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mdm_gitops.access.identity import Identity
from mdm_gitops.access.tokens import LEEWAY_S, Claims, Token

if TYPE_CHECKING:
    from mdm_gitops.access.jwks import VerifyingKey

MAX_TOKENS: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    identity: Identity
    token: Token  # without what it says and its signature
    proven_by: VerifyingKey
    since: float
    until: float


class TokenCache:
    """Whose the tokens are that came in of late; the oldest make room for new ones."""

    def __init__(self) -> None:
        self._proven: dict[bytes, Proven] = {}

    def find(self, text: str, *, now: float) -> Proven | None:
        """Return what was proven of *text*, if the clock is within its times."""
        found = self._proven.get(_digest(text))
        return found if found is not None and found.since <= now < found.until else None

    def keep(
        self,
        text: str,
        token: Token,
        claims: Claims,
        identity: Identity,
        *,
        proven_by: VerifyingKey,
    ) -> None:
        """Remember whose *text* is; its *claims* have been checked."""
        while len(self._proven) >= MAX_TOKENS:
            del self._proven[next(iter(self._proven))]
        self._proven[_digest(text)] = Proven(
            identity=identity,
            token=replace(token, signed=b"", payload=b"", signature=b""),
            proven_by=proven_by,
            since=max(claims["iat"], claims.get("nbf", claims["iat"])) - LEEWAY_S,
            until=claims["exp"] + LEEWAY_S,
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
