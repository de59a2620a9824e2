"""What a typed text finds. That PostgreSQL reads the patterns so is in test_api_choices."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdm_gitops.data.likeness import folded, like_pattern, likeness

# Python reads these patterns as PostgreSQL does, its own escape sequences included.
LETTERS = "aAáÁäÄåeEéèêiİıoOöøsSßuUüzZžłŁæÆœñçďАаЯйЁΑάΣσς日本 .*+?^$|()[]{}\\%_-'\"/&1\u0301\u0308"


def finds(typed: str, text: str) -> bool:
    if text.isascii():
        plain = like_pattern(typed)
        return re.sub(r"\\(.)", r"\1", plain) in text.lower()
    return re.search(likeness(typed), text) is not None


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("zurich", "Zürich"),
        ("ZÜRICH", "zurich"),
        ("zürich", "Zu\u0308rich"),
        ("strasse", "Bahnhofstraße"),
        ("straße", "BAHNHOFSTRASSE"),
        ("stras", "Straße"),
        ("aeon", "Æon"),
        ("lodz", "Łódź"),
        ("kobenhavn", "København"),
        ("istanbul", "İstanbul"),
        ("москва", "МОСКВА"),
        ("αθηνα", "ΑΘΉΝΑ"),
        ("日本", "日本国"),
        ("50%", "50% off"),
        ("a_b", "A_B"),
        ("a.b(c)", "xA.B(C)"),
        ("a.b", "éa.b"),
    ],
)
def test_it_finds(typed: str, text: str) -> None:
    assert finds(typed, text)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("zurch", "Zürich"),
        ("a_b", "axb"),
        ("5%", "50"),
        ("a.b", "áxb"),
        ("[a]", "á"),
        ("strasse", "Strase é"),
        (".*", "ÿ"),
    ],
)
def test_it_does_not_find(typed: str, text: str) -> None:
    assert not finds(typed, text)


@given(st.text(alphabet=LETTERS, max_size=6), st.text(alphabet=LETTERS, max_size=12))
def test_what_is_folded_alike_is_found(typed: str, text: str) -> None:
    if folded(typed) in folded(text):
        assert finds(typed, text)


@given(st.text(alphabet=LETTERS, max_size=12))
def test_each_text_finds_itself(text: str) -> None:
    assert finds(text, text) or text.isascii()
    assert folded(folded(text)) == folded(text)
