"""Parameters of pages: ``skip`` and ``take``, the same wherever something is listed."""

from __future__ import annotations

from mdm_api.operations import Kind, Parameter


def skip(what: str, *, most: int) -> Parameter:
    return Parameter(
        name="skip",
        description=f"{what} to pass over.",
        kind=Kind.NUMBER,
        default=0,
        minimum=0,
        maximum=most,
    )


def take(what: str, *, default: int, most: int) -> Parameter:
    return Parameter(
        name="take",
        description=f"{what} to answer.",
        kind=Kind.NUMBER,
        default=default,
        minimum=1,
        maximum=most,
    )
