"""When a failed delivery is tried again, and when a receiver is given up. Pure."""

from __future__ import annotations

import random
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
# Seconds before each attempt; the first is at once.
DELAYS_S: Final = (
    0,
    5,
    5 * _MINUTE,
    30 * _MINUTE,
    2 * _HOUR,
    5 * _HOUR,
    10 * _HOUR,
    14 * _HOUR,
    20 * _HOUR,
    24 * _HOUR,
)
JITTER: Final = 0.2
# With nothing but failures for so long the subscription is switched off.
GIVE_UP_AFTER_S: Final = 120 * _HOUR
# A receiver that is down is asked again after this, then twice as long each time, up to the longest.
_FIRST_QUIET_S: Final = 1.0
MAX_QUIET_S: Final = 60.0


def delay_before_attempt_s(
    attempt: int, *, retry_after_s: float | None, chance: random.Random
) -> float | None:
    """Return the seconds to wait before *attempt* (1 is the first), None if there is none any more.

    A receiver's Retry-After may stretch the wait up to twice its length, and never shortens it.
    """
    if attempt > len(DELAYS_S):
        return None
    base: float = DELAYS_S[attempt - 1]
    if retry_after_s is not None and base:
        base = min(max(base, retry_after_s), 2 * base)
    return base * chance.uniform(1 - JITTER, 1 + JITTER)


def probe_delay_s(probes: int, *, chance: random.Random) -> float:
    """Return for how long a receiver is left alone that is down, and was asked *probes* times since."""
    base = min(_FIRST_QUIET_S * 2.0 ** min(probes, 10), MAX_QUIET_S)
    return base * chance.uniform(1 - JITTER, 1 + JITTER)
