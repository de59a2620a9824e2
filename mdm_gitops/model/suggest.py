"""``did you mean``: the nearest of the words that would have been right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_MAX_LISTED: Final = 12


def did_you_mean(word: object, candidates: Iterable[str]) -> str:
    """Return a hint naming the nearest candidate, all of them if they are few, or ""."""
    known = list(dict.fromkeys(candidates))
    near = nearest(str(word), known)
    if near:
        return f"did you mean {near!r}?"
    if known and len(known) <= _MAX_LISTED:
        return "known here: " + ", ".join(known)
    return ""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate that is most like *word*, "" if none is like it."""
    by_fold = {candidate.lower(): candidate for candidate in candidates}
    near = get_close_matches(word[:200].lower(), by_fold, n=1, cutoff=0.6)
    return by_fold[near[0]] if near else ""
