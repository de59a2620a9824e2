"""One thing that is wrong inside a definition, before anybody knows in which file it stands."""

from __future__ import annotations

from dataclasses import dataclass

Pointer = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """*pointer* leads from the root of the document to the value; *on_key* means its key."""

    rule: str
    message: str
    pointer: Pointer
    hint: str = ""
    on_key: bool = False
