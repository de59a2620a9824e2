"""Tokens that were proven a moment ago: until when that counts, and how many are kept."""

from __future__ import annotations

import pytest
from joserfc.jwk import OKPKey

from mdm_gitops.access import PrincipalKind
from mdm_gitops.access.identity import Identity
from mdm_gitops.access.jwks import VerifyingKey
from mdm_gitops.access.token_cache import MAX_TOKENS, TokenCache
from mdm_gitops.access.tokens import LEEWAY_S, Token

NOW = 1_900_000_000.0
KEY = VerifyingKey("EdDSA", OKPKey.generate_key("Ed25519"))
TOKEN = Token(algorithm="EdDSA", key_id="a", kind="", signed=b"1", payload=b"2", signature=b"3")
ANNA = Identity(issuer="i", subject="s", kind=PrincipalKind.USER, name="anna")


@pytest.mark.parametrize(
    ("claims", "since", "until"),
    [
        ({"iat": NOW, "exp": NOW + 300}, NOW - LEEWAY_S, NOW + 300 + LEEWAY_S),
        ({"iat": NOW, "nbf": NOW + 10, "exp": NOW + 300}, NOW + 10 - LEEWAY_S, NOW + 360),
        ({"iat": NOW, "nbf": NOW - 10, "exp": NOW + 300}, NOW - LEEWAY_S, NOW + 360),
    ],
)
def test_a_proof_counts_as_long_as_the_token(
    claims: dict[str, float], since: float, until: float
) -> None:
    cache = TokenCache()
    cache.keep("token", TOKEN, claims, ANNA, proven_by=KEY)
    for now, counts in ((since - 0.1, False), (since, True), (until - 0.1, True), (until, False)):
        assert (cache.find("token", now=now) is not None) is counts
    found = cache.find("token", now=NOW + 20)
    assert found is not None and found.identity is ANNA and found.proven_by is KEY
    assert (found.token.algorithm, found.token.key_id) == ("EdDSA", "a")
    assert found.token.payload == found.token.signature == found.token.signed == b""
    assert cache.find("Token", now=NOW + 20) is cache.find("\ud800", now=NOW) is None


def test_the_oldest_make_room() -> None:
    cache = TokenCache()
    for number in range(MAX_TOKENS + 5):
        claims = {"iat": NOW, "exp": NOW + 300}
        cache.keep(f"t{number}", TOKEN, claims, ANNA, proven_by=KEY)
    known = [cache.find(f"t{number}", now=NOW) is not None for number in range(MAX_TOKENS + 5)]
    assert known == [False] * 5 + [True] * MAX_TOKENS
    assert {len(key) for key in vars(cache)["_proven"]} == {32}, "digests, not tokens"
