"""The server as a browser sees it: its origin, its cookies, and which pages are its own."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from mdm_api.site import Site, origin_of, site_of
from mdm_gitops.errors import AccessDenied


def request(method: str = "GET", **headers: str) -> Request:
    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": method, "scheme": "http", "headers": sent})


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://mdm.example", "https://mdm.example"),
        ("https://MDM.Example:443/base/", "https://mdm.example"),
        ("http://mdm.example:80", "http://mdm.example"),
        ("http://mdm.example:8080/x", "http://mdm.example:8080"),
        ("https://mdm.example:80", "https://mdm.example:80"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://a:b", "nowhere"),
        ("http://[", "nowhere"),
    ],
)
def test_origins(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_the_address_is_what_is_set_else_what_the_request_says() -> None:
    asked = request(Host="127.0.0.1:8080")
    assert site_of(asked, None).url == "http://127.0.0.1:8080"
    assert site_of(asked, "https://mdm.example/base/").url == "https://mdm.example/base"


def test_cookies() -> None:
    site = Site("https://mdm.example")
    assert site.session_cookie.set("x", max_age_s=60) == (
        "__Host-mdm_session=x; Max-Age=60; Path=/; HttpOnly; Secure; SameSite=Lax"
    )
    assert "Max-Age=0;" in site.attempt_cookie.clear()
    assert Site("http://127.0.0.1:8080").session_cookie.name == "mdm_session"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        ("https://mdm.example", True),
        ("https://mdm.example.evil.example", False),
        ("https://evil.example", False),
        ("http://mdm.example", False),
        ("https://mdm.example:8443", False),
        ("https://MDM.example", False),
        ("null", False),
        ("", False),
        (None, False),
    ],
)
def test_only_own_pages_write(method: str, origin: str | None, is_own: bool) -> None:
    sent = {} if origin is None else {"Origin": origin}
    if is_own:
        Site("https://mdm.example/base").require_own_page(request(method, **sent))
        return
    with pytest.raises(AccessDenied, match="a page of this server"):
        Site("https://mdm.example/base").require_own_page(request(method, **sent))


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_is_told_by_the_cookies_own_rule(method: str) -> None:
    Site("https://mdm.example").require_own_page(request(method, Origin="https://evil.example"))


def test_two_origins_are_none() -> None:
    twice = Request(
        {"type": "http", "method": "POST", "headers": [(b"origin", b"https://mdm.example")] * 2}
    )
    with pytest.raises(AccessDenied):
        Site("https://mdm.example").require_own_page(twice)
