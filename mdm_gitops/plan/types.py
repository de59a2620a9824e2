"""Which type changes PostgreSQL makes in place, keeping the rows as they are.

Types are spelt as ``format_type`` prints them. Only what our own types can reach is here.
"""

from __future__ import annotations

import re
from typing import Final

_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)\Z")


def widens(old: str, new: str) -> bool:
    """Whether *old* to *new* needs no rewrite: numeric with more digits before the same scale.

    Source: PostgreSQL manual, "ALTER TABLE", notes; measured, the scale must stay the same.
    """
    before = _NUMERIC.match(old)
    if before is None:
        return False
    if new == "numeric":
        return True
    after = _NUMERIC.match(new)
    return bool(after and after[2] == before[2] and int(after[1]) >= int(before[1]))
