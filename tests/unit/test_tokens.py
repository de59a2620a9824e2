"""Tokens: what is refused before a key is even looked for, and what a claim must be."""

from __future__ import annotations

import base64
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from mdm_gitops.access.jwks import MAX_KEYS, KeyRing, VerifyingKey, read_key_set
from mdm_gitops.access.tokens import (
    LEEWAY_S,
    MAX_LENGTH,
    AccessRules,
    TokenRefused,
    check_access_token,
    check_id_token,
    client_of,
    parse,
)

NOW = 1_900_000_000.0
RULES = AccessRules(issuer="https://id.example", audience="mdm", own_client_id="web")
RSA = RSAKey.generate_key(2048, {"kid": "r"})
KEYS = {
    "RS256": RSA,
    "PS256": RSA,
    "ES256": ECKey.generate_key("P-256", {"kid": "e"}),
    "ES384": ECKey.generate_key("P-384", {"kid": "f"}),
    "EdDSA": OKPKey.generate_key("Ed25519", {"kid": "d"}),
}
ALGORITHMS = frozenset(KEYS)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def text_of(header: Any, payload: Any = "{}", signature: bytes = b"x") -> str:
    parts = [each if isinstance(each, str) else json.dumps(each) for each in (header, payload)]
    return ".".join(
        [*(b64(part.encode("utf-8", "surrogatepass")) for part in parts), b64(signature)]
    )


def signed(algorithm: str, payload: Any, key: Any = None) -> str:
    start = text_of({"alg": algorithm, "typ": "at+jwt"}, payload).rpartition(".")[0]
    signature = JWSRegistry.algorithms[algorithm].sign(start.encode(), key or KEYS[algorithm])
    return f"{start}.{b64(signature)}"


def claims(**changes: Any) -> dict[str, Any]:
    good = {
        "iss": "https://id.example",
        "aud": "mdm",
        "sub": "anna",
        "iat": NOW - 10,
        "exp": NOW + 300,
        "client_id": "app",
        **changes,
    }
    return {name: value for name, value in good.items() if value is not ...}


def ring(*keys: Any) -> KeyRing:
    return read_key_set({"keys": [key.as_dict(private=False) for key in keys]}, ALGORITHMS)


# --- taking apart -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a.b", "a.b.c.d", "a.b.c.d.e", " a.b.c", "a.b.c ", "a.b.c\n", "ä.b.c",
        text_of({"alg": "RS256"}) + "=", text_of({"alg": "RS256"}) + "==",
        text_of({"alg": "RS256"}, signature=b""),
        text_of({"alg": "RS256"}).replace(".", "..", 1),
        text_of("not json"), text_of("[]"), text_of("1"), text_of('{"alg":"RS256","alg":"none"}'),
        text_of('{"alg":NaN}'), text_of({}), text_of({"alg": ""}), text_of({"alg": 5}),
        text_of({"alg": None}), text_of({"alg": "RS256", "typ": 5}),
        text_of({"alg": "RS256", "kid": 5}), text_of({"alg": "RS256", "kid": {"a": 1}}),
        text_of({"alg": "RS256", "kid": None}),
        text_of({"alg": "RS256", "crit": ["exp"]}), text_of({"alg": "RS256", "crit": []}),
        text_of({"alg": "RS256", "b64": False}), text_of({"alg": "RS256", "zip": "DEF"}),
        text_of({"alg": "dir", "enc": "A256GCM"}), text_of("[" * 3_000 + "]" * 3_000),
    ],
)  # fmt: skip
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(TokenRefused):
        parse(text)


def test_a_token_is_8_kilobytes_at_most() -> None:
    frame = len(text_of({"alg": "RS256"}, ""))
    room = MAX_LENGTH - frame
    payload = "x" * (room * 3 // 4)
    assert parse(text_of({"alg": "RS256"}, payload)).payload == payload.encode()
    with pytest.raises(TokenRefused, match="longer than 8,192"):
        parse(text_of({"alg": "RS256"}, payload + "xxxx"))
    assert parse(text_of({"alg": "RS256"}, payload + "xxxx"), max_length=9_000)


def test_each_value_has_one_spelling() -> None:
    """The last sign of base64url has bits that mean nothing: only one of its spellings is taken."""
    text = text_of({"alg": "RS256"}, signature=b"1234")
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    taken = []
    for sign in alphabet:
        try:
            taken.append(parse(text[:-1] + sign).signature)
        except TokenRefused:
            continue
    assert len(taken) == len(set(taken)) == 4


@given(st.text(max_size=200) | st.binary(max_size=200).map(b64) | st.tuples(
    st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60)
).map(lambda parts: ".".join(map(b64, parts))))  # fmt: skip
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    try:
        token = parse(text)
    except TokenRefused:
        return
    assert token.signed.decode() == text.rpartition(".")[0]


# --- signatures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_each_kind_of_signature(algorithm: str) -> None:
    key = ring(KEYS[algorithm]).find(algorithm, None)
    assert key is not None
    text = signed(algorithm, claims())
    assert parse(text).claims_by(key)["sub"] == "anna"
    head, payload, signature = text.split(".")
    other = b64(json.dumps(claims(sub="admin")).encode())
    flipped = b64(bytes([base64.urlsafe_b64decode(signature + "==")[0] ^ 1]) + b"1" * 63)
    for forged in (f"{head}.{other}.{signature}", f"{head}.{payload}.{flipped}"):
        with pytest.raises(TokenRefused, match="signature is wrong"):
            parse(forged).claims_by(key)
    zeros = f"{head}.{payload}.{b64(bytes(64))}"
    with pytest.raises(TokenRefused):
        parse(zeros).claims_by(key)


def test_no_key_checks_another_kind_of_signature() -> None:
    found = ring(*KEYS.values())
    token = parse(signed("ES256", claims()))
    for (algorithm, _), key in found.keys.items():
        if algorithm != "ES256":
            with pytest.raises(TokenRefused):
                token.claims_by(key)
    assert found.find("RS256", "e") is found.find("ES256", "r") is found.find("HS256", "r") is None
    assert found.find("none", None) is None
    for algorithm in sorted(ALGORITHMS - {"ES256"}):
        assert not VerifyingKey("ES256", KEYS[algorithm]).verifies(token.signed, token.signature)


@pytest.mark.parametrize(
    "payload",
    ["[]", "1", '"x"', " ", "\xff", '{"sub":"a","sub":"b"}', '{"exp":NaN}', '{"exp":Infinity}',
     "[" * 1_500 + "]" * 1_500, '{"exp":' + "9" * 5_000 + "}"],
)  # fmt: skip
def test_what_cannot_be_read_says_nothing(payload: str) -> None:
    key = ring(RSA).find("RS256", "r")
    assert key is not None
    with pytest.raises(TokenRefused, match="cannot be read"):
        parse(signed("RS256", payload)).claims_by(key)


# --- key sets -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_only_keys_that_check_signatures_are_kept() -> None:
    public = RSA.as_dict(private=False)
    entries: list[Any] = [
        {**public, "kid": "good"},
        {**public, "kid": "for-one", "alg": "PS256", "use": "sig", "key_ops": ["verify"]},
        {**public, "kid": "enc", "use": "enc"},
        {**public, "kid": "sign-only", "key_ops": ["sign"]},
        {**public, "kid": "other-alg", "alg": "RSA-OAEP"},
        {**public, "kid": "odd-alg", "alg": ["RS256"]},
        {**RSAKey.generate_key(1024).as_dict(private=False), "kid": "short"},
        {**OKPKey.generate_key("X25519").as_dict(private=False), "kid": "agreement"},
        {**KEYS["ES256"].as_dict(private=False), "y": "AAAA", "kid": "off-curve"},
        {"kty": "oct", "k": public["n"], "kid": "secret"},
        {"kty": "RSA", "n": 5, "e": 3, "kid": "numbers"},
        {"kty": "RSA", "kid": "empty"},
        {"kty": ["RSA"], "kid": "list"},
        {"kty": "EC", "crv": [], "kid": "crv"},
        {"kty": "RSA", "key_ops": 5, "kid": "ops"},
        "text",
        None,
    ]
    found = read_key_set({"keys": entries}, ALGORITHMS)
    assert sorted(found.keys) == [("PS256", "for-one"), ("PS256", "good"), ("RS256", "good")]


@pytest.mark.parametrize("document", [None, [], {}, {"keys": {}}, {"keys": [{}] * (MAX_KEYS + 1)}])
def test_what_is_no_key_set(document: Any) -> None:
    with pytest.raises(ValueError, match="keys at most"):
        read_key_set(document, ALGORITHMS)


def test_the_first_of_two_keys_with_one_id_counts_and_no_id_needs_to_be_clear() -> None:
    other = RSAKey.generate_key(2048, {"kid": "r"})
    both = ring(RSA, other)
    assert parse(signed("RS256", claims())).claims_by(both.keys["RS256", "r"])
    apart = ring(RSA, RSAKey.generate_key(2048, {"kid": "s"}))
    assert apart.find("RS256", None) is None
    assert apart.find("RS256", "s") is not None


# --- access tokens ------------------------------------------------------------------------------


def check(rules: AccessRules = RULES, *, typ: str | None = "at+jwt", **changes: Any) -> None:
    header = {"alg": "RS256", **({"typ": typ} if typ is not None else {})}
    check_access_token(parse(text_of(header)), claims(**changes), rules, now=NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": ["other", "mdm"]},
        {"typ": "application/at+jwt"},
        {"typ": "AT+JWT"},
        {"exp": NOW - LEEWAY_S + 1},
        {"iat": NOW + LEEWAY_S},
        {"nbf": NOW + LEEWAY_S},
        {"iat": NOW - 0.5, "exp": NOW + 0.5},
        {"client_id": "app", "azp": "app"},
        {"sub": "ä" * 255},
        {"nonce": "typed access tokens may hold it"},
    ],
)
def test_access_tokens_that_are_for_us(changes: dict[str, Any]) -> None:
    check(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exp": NOW - LEEWAY_S}, "expired"),
        ({"exp": ...}, "no exp"),
        ({"exp": str(NOW + 300)}, "no exp"),
        ({"exp": True}, "no exp"),
        ({"exp": None}, "no exp"),
        ({"exp": [NOW]}, "no exp"),
        ({"exp": float("inf")}, "no moment"),
        ({"exp": float("nan")}, "no moment"),
        ({"exp": 10**400}, "no moment"),
        ({"exp": -(10**400)}, "no moment"),
        ({"iat": ...}, "no iat"),
        ({"iat": "yesterday"}, "no iat"),
        ({"iat": NOW + LEEWAY_S + 1}, "in the future"),
        ({"nbf": NOW + LEEWAY_S + 1}, "not valid yet"),
        ({"nbf": "now"}, "no nbf"),
        ({"iss": ...}, "another issuer"),
        ({"iss": "https://id.example/"}, "another issuer"),
        ({"iss": "https://id.example.evil.example"}, "another issuer"),
        ({"iss": "https://ID.example"}, "another issuer"),
        ({"iss": ["https://id.example"]}, "another issuer"),
        ({"aud": ...}, "no audience"),
        ({"aud": "mdm2"}, "another audience"),
        ({"aud": "md"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": ["other"]}, "another audience"),
        ({"aud": ["mdm", 5]}, "no audience"),
        ({"aud": {"mdm": 1}}, "no audience"),
        ({"sub": ...}, "no subject"),
        ({"sub": ""}, "no subject"),
        ({"sub": 5}, "no subject"),
        ({"sub": "x" * 256}, "no subject"),
        ({"sub": "a\x00b"}, "no subject"),
        ({"sub": "\ud800"}, "no subject"),
        ({"typ": "JWT"}, "does not say that it is an access token"),
        ({"typ": None}, "does not say that it is an access token"),
        ({"typ": "logout+jwt"}, "does not say that it is an access token"),
        ({"cnf": {"jkt": "x"}}, "bound to a key"),
        ({"azp": "other"}, "two clients"),
        ({"azp": 5}, "no text"),
    ],
)  # fmt: skip
def test_access_tokens_that_are_not(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TokenRefused, match=words):
        check(**changes)


def test_without_an_audience_there_are_no_access_tokens() -> None:
    with pytest.raises(TokenRefused, match="another audience"):
        check(AccessRules(issuer="https://id.example", audience=""), aud="")


def test_clients_can_be_chosen() -> None:
    rules = AccessRules(issuer="https://id.example", audience="mdm", clients=frozenset({"app"}))
    check(rules)
    for other in ("apps", "", ...):
        with pytest.raises(TokenRefused, match="not among those allowed"):
            check(rules, client_id=other)
    assert client_of({"cid": "app", "azp": None}) == "app"


ANY = AccessRules(
    issuer="https://id.example", audience="mdm", only_typed=False, own_client_id="web"
)


@pytest.mark.parametrize("typ", ["JWT", "jwt", None, "at+jwt"])
def test_providers_that_do_not_say_what_is_an_access_token(typ: str | None) -> None:
    check(ANY, typ=typ)
    with_claim = AccessRules(issuer=RULES.issuer, audience="mdm", only_typed=False)
    header = parse(text_of({"alg": "RS256", "typ": "JWT"}))
    check_access_token(header, claims(typ="Bearer"), with_claim, now=NOW)


@pytest.mark.parametrize(
    ("typ", "changes", "words"),
    [
        ("JWT", {"nonce": "n"}, "ID token"),
        ("JWT", {"at_hash": "h"}, "ID token"),
        (None, {"c_hash": "h"}, "ID token"),
        ("logout+jwt", {}, "no access token"),
        ("id+jwt", {}, "no access token"),
        ("JWT", {"aud": ["mdm", "web"]}, "may be an ID token"),
        ("JWT", {"aud": ["mdm", "web"], "scope": ""}, "may be an ID token"),
    ],
)
def test_id_tokens_do_not_pass_for_access_tokens(
    typ: str | None, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(TokenRefused, match=words):
        check(ANY, typ=typ, **changes)


@pytest.mark.parametrize("word", ["ID", "Refresh", "Logout", 5])
def test_the_kind_may_stand_in_a_claim(word: Any) -> None:
    token = parse(text_of({"alg": "RS256", "typ": "JWT"}))
    with pytest.raises(TokenRefused, match="no access token"):
        check_access_token(token, claims(typ=word), ANY, now=NOW)


def test_what_was_granted_tells_access_tokens_where_audience_and_client_are_one() -> None:
    for granted in ({"scope": "rows"}, {"scp": ["rows"]}, {"idtyp": "app"}):
        check(ANY, typ="JWT", aud=["mdm", "web"], **granted)


# --- ID tokens ----------------------------------------------------------------------------------


def check_id(**changes: Any) -> None:
    given = claims(aud="web", nonce="n", client_id=..., **changes)
    check_id_token(given, issuer=RULES.issuer, client_id="web", nonce="n", now=NOW)


def test_id_tokens_that_answer_us() -> None:
    check_id()
    given = claims(aud=["web"], azp="web", nonce="n")
    check_id_token(given, issuer=RULES.issuer, client_id="web", nonce="n", now=NOW)
    several = claims(aud=["web", "x"], azp="web", nonce="n")
    check_id_token(several, issuer=RULES.issuer, client_id="web", nonce="n", now=NOW)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aud": "mdm"}, "another application"),
        ({"aud": ["web", "x"]}, "given to another"),
        ({"aud": ["web", "x"], "azp": "x"}, "given to another"),
        ({"azp": "x"}, "given to another"),
        ({"nonce": "m"}, "another sign-in"),
        ({"nonce": ...}, "another sign-in"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"exp": NOW - 61}, "expired"),
        ({"iat": ...}, "no iat"),
        ({"sub": ...}, "no subject"),
    ],
)
def test_id_tokens_that_do_not(changes: dict[str, Any], words: str) -> None:
    given = claims(**{"aud": "web", "nonce": "n", "client_id": ..., **changes})
    with pytest.raises(TokenRefused, match=words):
        check_id_token(given, issuer=RULES.issuer, client_id="web", nonce="n", now=NOW)
