"""What an OpenID provider says of itself (OpenID Connect Discovery 1.0), as far as it is used here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mdm_gitops.errors import ProviderUnavailable
from mdm_gitops.settings import is_private_or_tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    posts_secret: bool = False  # the client's secret goes into the form, not into a header
    answers_with_issuer: bool = False  # RFC 9207


def read_metadata(document: Any, *, issuer: str, signs_in: bool, allow_http: bool) -> Metadata:
    """Return the description that *document* is.

    Raises:
        ProviderUnavailable: it is not that of *issuer*, or lacks an address that is needed.
    """
    told = document if isinstance(document, dict) else {}
    if told.get("issuer") != issuer:
        raise ProviderUnavailable(
            f"{issuer} describes itself as {str(told.get('issuer'))[:200]!r};"
            " Mdm__Auth__Issuer must be spelt like that"
        )

    def address(name: str, *, needed: bool = False) -> str:
        return _address(told, name, needed=needed, allow_http=allow_http)

    methods = told.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return Metadata(
        jwks_uri=address("jwks_uri", needed=True),
        authorization_endpoint=address("authorization_endpoint", needed=signs_in),
        token_endpoint=address("token_endpoint", needed=signs_in),
        userinfo_endpoint=address("userinfo_endpoint"),
        end_session_endpoint=address("end_session_endpoint"),
        posts_secret="client_secret_basic" not in methods,
        answers_with_issuer=told.get("authorization_response_iss_parameter_supported") is True,
    )


def _address(told: Mapping[str, Any], name: str, *, needed: bool, allow_http: bool) -> str:
    value = told.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or not value.startswith(("https://", "http://")):
        raise ProviderUnavailable(f"the identity provider tells no usable {name}")
    if not (allow_http or is_private_or_tls(value)):
        raise ProviderUnavailable(f"the {name} of the identity provider is without TLS")
    return value
