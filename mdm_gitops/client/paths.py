"""Paths of the API with names in them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from mdm_gitops.errors import InputError


def path(template: str, **names: Any) -> str:
    """Return *template* under the API with each ``{place}`` filled by a name, as one segment.

    Raises:
        InputError: a name is empty, or one that a path would swallow.
    """
    spelt = {place: _segment(place, str(name)) for place, name in names.items()}
    return "/api/v1" + template.format(**spelt)


def _segment(place: str, name: str) -> str:
    if name in ("", ".", ".."):
        raise InputError(f"{name!r} is no {place}")
    return quote(name, safe="")
