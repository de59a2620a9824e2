"""Which names a definition may use, and how two names are compared.

Names are unique without regard to case; ``fold`` gives the form that is compared and that
PostgreSQL stores, so no table of ours ever needs a quote in hand-written SQL unless its name is a
reserved word. This module knows names only: where a name is written is the source's business.
"""

from __future__ import annotations

import re
import sys
from typing import Final

MAX_LENGTH: Final = 48  # leaves room in PostgreSQL's 63 bytes for _arch_<n>_ and __archive_<n>_h

NAME_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_]{0,47}$"
_NAME: Final = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")

# Columns that each PostgreSQL table has already (manual, "System Columns").
POSTGRES_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
# Path segments of the API that stand where an entity name stands.
API_SEGMENTS: Final = frozenset({"summary", "validate"})

# One object for equal texts, since a name like ``code`` stands in a thousand entities. Python 3.12 never
# gives up what it interned, and callers may ask for any name.
one_object: Final = str if sys.version_info[:2] == (3, 12) else sys.intern


def fold(name: str) -> str:
    """Return the form of *name* that is compared and stored: lower case (names are ASCII)."""
    return one_object(name.lower())


def why_unusable(name: str) -> str | None:
    """Say in a sentence why *name* cannot name an entity or a column, or return None."""
    if _NAME.match(name) and "__" not in name:
        return None
    if len(name) > MAX_LENGTH:
        return f"{name[:20]!r}... has {len(name)} characters, at most {MAX_LENGTH} are allowed"
    if name.startswith("_"):
        return f"{name!r} starts with _, which is kept for system columns"
    if not _NAME.match(name):
        return f"{name!r} may hold only A-Z, a-z, 0-9 and _, and must start with a letter"
    return f"{name!r} holds __, which is kept for the tables behind an entity"


def why_unusable_entity(name: str) -> str | None:
    if fold(name) in API_SEGMENTS:
        return f"{name!r} is a path of the API and cannot name an entity"
    return why_unusable(name)


def why_unusable_column(name: str) -> str | None:
    if name.lower() in POSTGRES_COLUMNS:
        return f"{name!r} is a column that PostgreSQL keeps for itself"
    return why_unusable(name)
