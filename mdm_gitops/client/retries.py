"""When a request is made again, and how long that is waited for. Pure.

Only a request that may be made twice is: by its method, or by an idempotency key. What a server asks for
in ``Retry-After`` is kept to; what it asks beyond the bounds is not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_BUSY: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Bounds. *attempts* counts the first one, too; ``Retries(attempts=1)`` never tries again."""

    attempts: int = 5
    total_wait_s: float = 90.0
    first_wait_s: float = 0.5

    def wait_s(self, *, attempt: int, waited_s: float, asked_s: float | None) -> float | None:
        """Return how long to wait after *attempt* (from 1), None where it is given up."""
        if attempt >= self.attempts:
            return None
        wait = self.first_wait_s * 2 ** (attempt - 1) if asked_s is None else asked_s
        return wait if waited_s + wait <= self.total_wait_s else None


def may_repeat(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether making the same request twice does what making it once does."""
    return method.upper() in _IDEMPOTENT or any(
        name.lower() == "idempotency-key" for name in headers
    )


def is_busy(status: int) -> bool:
    """Return whether *status* says: not now."""
    return status in _BUSY


def asked_wait_s(retry_after: str, *, now: datetime | None = None) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for, None where it says nothing readable."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
