"""The settings of an identity provider: what fits together, and what is refused at the start."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mdm_gitops.settings import AuthSettings

GOOD = {"Issuer": "https://id.example/company", "Audience": "mdm", "ClientId": "web"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        GOOD,
        {"Issuer": GOOD["Issuer"], "Audience": "mdm"},
        {"Issuer": GOOD["Issuer"], "ClientId": "web"},
        {**GOOD, "Issuer": "http://127.0.0.1:8081"},
        {**GOOD, "Issuer": "http://localhost:8081/x"},
        {**GOOD, "Issuer": "http://[::1]:8081"},
        {**GOOD, "Issuer": "http://id.internal", "AllowHttpIssuer": True},
        {**GOOD, "Algorithms": "RS512 ES384"},
        {**GOOD, "Scopes": "openid roles"},
        {**GOOD, "SessionIdleSeconds": 60, "SessionMaxSeconds": 60},
    ],
)
def test_what_fits(given: dict[str, Any]) -> None:
    assert AuthSettings(**given).TokenType == "at+jwt"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"Audience": "mdm"}, "need an Issuer"),
        ({"ClientId": "web"}, "need an Issuer"),
        ({"Issuer": GOOD["Issuer"]}, "needs an Audience"),
        ({**GOOD, "Issuer": "http://id.example"}, "must begin with https"),
        ({**GOOD, "Issuer": "http://localhost.evil.example"}, "must begin with https"),
        ({**GOOD, "Issuer": "http://127.0.0.1@evil.example"}, "an issuer is an address"),
        ({**GOOD, "Issuer": "https://"}, "pattern"),
        ({**GOOD, "Issuer": "https://id.example/?x=1"}, "pattern"),
        ({**GOOD, "Issuer": "id.example"}, "pattern"),
        ({**GOOD, "Algorithms": "HS256"}, "choose from"),
        ({**GOOD, "Algorithms": "RS256 none"}, "choose from"),
        ({**GOOD, "Algorithms": " "}, "choose from"),
        ({**GOOD, "Scopes": "profile"}, "openid must be among them"),
        ({**GOOD, "TokenType": "JWT"}, "at\\+jwt"),
        ({**GOOD, "SessionIdleSeconds": 61, "SessionMaxSeconds": 60}, "is greater than"),
        ({**GOOD, "SessionMaxSeconds": 0}, "greater than 0"),
    ],
)
def test_what_does_not(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        AuthSettings(**given)


def test_the_secret_is_not_shown() -> None:
    settings = AuthSettings(**GOOD, ClientSecret="hunter2hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump_json()}"
