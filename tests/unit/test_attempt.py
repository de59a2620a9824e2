"""A sign-in under way: only the browser that began it can end it, in time, and where it said."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.access.attempt import MAX_AGE_S, begin, is_secret, new_secret, resume
from mdm_gitops.errors import InputError, SignInFailed

NOW = 1_900_000_000.0
SECRET = new_secret()


def test_what_was_begun_is_found_again() -> None:
    attempt = begin(SECRET, return_to="/swagger?a=1", now=NOW)
    assert resume(SECRET, attempt.state, now=NOW + MAX_AGE_S) == attempt
    assert attempt.return_to == "/swagger?a=1"
    digest = hashlib.sha256(attempt.verifier.encode()).digest()
    assert attempt.challenge == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert 43 <= len(attempt.verifier) <= 128
    assert is_secret(SECRET)


def test_nothing_is_alike_in_two_attempts() -> None:
    one, two = (begin(SECRET, return_to="/", now=NOW) for _ in range(2))
    said = {one.state, two.state, one.nonce, two.nonce, one.verifier, two.verifier}
    assert len(said) == 6
    assert all(SECRET not in each for each in said)


@pytest.mark.parametrize(
    ("secret", "later", "words"),
    [
        (new_secret(), 0, "not begun in this browser"),
        ("", 0, "not begun in this browser"),
        ("short", 0, "not begun in this browser"),
        (SECRET, MAX_AGE_S + 1, "took too long"),
        (SECRET, -MAX_AGE_S - 1, "took too long"),
    ],
    ids=["of another", "none", "too short", "too late", "too early"],
)
def test_another_browser_or_another_day(secret: str, later: float, words: str) -> None:
    attempt = begin(SECRET, return_to="/", now=NOW)
    with pytest.raises(SignInFailed, match=words):
        resume(secret, attempt.state, now=NOW + later)


@pytest.mark.parametrize(
    "state", ["", ".", "..", "a.b.c", "a.b.c.d", "ä.b.c", "!.!.!", "x" * 5_000]
)
def test_what_is_no_state(state: str) -> None:
    with pytest.raises(SignInFailed):
        resume(SECRET, state, now=NOW)


@given(st.integers(min_value=0), st.integers(1, 255))
def test_no_sign_of_a_state_can_be_changed(place: int, change: int) -> None:
    state = begin(SECRET, return_to="/a", now=NOW).state
    place %= len(state)
    other = state[:place] + chr(ord(state[place]) ^ change) + state[place + 1 :]
    with pytest.raises(SignInFailed):
        resume(SECRET, other, now=NOW)


ELSEWHERE = [
    "", "swagger", "//evil.example", "///evil.example", "/\\evil.example", "\\/evil.example",
    "https://evil.example", "http:/evil", "javascript:alert(1)", "/a\nSet-Cookie: x", "/\tevil",
    "/a\u202eb", " /a", "/" + "x" * 1_024,
]  # fmt: skip


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_sign_in_does_not_lead_elsewhere(path: str) -> None:
    with pytest.raises(InputError, match="returnTo does not lead"):
        begin(SECRET, return_to=path, now=NOW)


@pytest.mark.parametrize("path", ELSEWHERE[2:6])
def test_not_even_when_the_browser_itself_says_so(path: str) -> None:
    """Whoever planted the secret could work out such a state."""
    from mdm_gitops.access.attempt import _attempt

    started = bytes(16) + int(NOW).to_bytes(6, "big")
    with pytest.raises(SignInFailed, match="leads elsewhere"):
        resume(SECRET, _attempt(SECRET, started, path).state, now=NOW)
