"""The provider's keys in memory: asked for once, again now and then, and when a key is unknown.

A flood of tokens with invented keys asks the provider once a minute at most. While the provider is
away, the keys known so far go on being used for a day: what it has signed is not wrong because of that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mdm_gitops.access.jwks import KeyRing, VerifyingKey
from mdm_gitops.errors import ProviderUnavailable

REFRESH_EVERY_S: Final = 60.0
TRY_FIRST_EVERY_S: Final = 5.0
LONGEST_USE_S: Final = 86_400.0


class KeyCache:
    """*load* asks the provider; *clock* counts seconds and never goes back."""

    def __init__(
        self,
        load: Callable[[], Awaitable[KeyRing]],
        *,
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._max_age_s = max_age_s
        self._clock = clock
        self._ring: KeyRing | None = None
        self._loaded_at = 0.0
        self._asked_at = float("-inf")
        self._flight: asyncio.Task[None] | None = None

    async def find(self, algorithm: str, key_id: str | None) -> VerifyingKey | None:
        """Return the key, or None when the provider has none such.

        Raises:
            ProviderUnavailable: no keys are known, or only such as are too old to be relied on.
        """
        ring = await self._current()
        key = ring.find(algorithm, key_id)
        if key is None and (self._flight is not None or self._since_asked() >= REFRESH_EVERY_S):
            ring = await self._asked_again(ring)
            key = ring.find(algorithm, key_id)
        return key

    async def aclose(self) -> None:
        """Give up what is being asked."""
        if self._flight is not None:
            self._flight.cancel()

    async def _current(self) -> KeyRing:
        """Return the keys known now, and see to it that they do not grow old."""
        ring, age = self._ring, self._clock() - self._loaded_at
        if ring is None or age > LONGEST_USE_S:
            return await self._first()
        if age > self._max_age_s and self._since_asked() >= REFRESH_EVERY_S:
            self._start()  # nobody waits for it
        return ring

    async def _first(self) -> KeyRing:
        failed_just_now = self._flight is None and self._since_asked() < TRY_FIRST_EVERY_S
        if failed_just_now:
            raise ProviderUnavailable("the identity provider did not answer a moment ago")
        await asyncio.shield(self._start())
        assert self._ring is not None, "loading either gives keys or raises"
        return self._ring

    async def _asked_again(self, known: KeyRing) -> KeyRing:
        try:
            await asyncio.shield(self._start())
        except ProviderUnavailable:
            return known
        return self._ring or known

    def _since_asked(self) -> float:
        return self._clock() - self._asked_at

    def _start(self) -> asyncio.Task[None]:
        """Ask the provider, or join those who are asking it."""
        if self._flight is None:
            self._asked_at = self._clock()
            self._flight = asyncio.create_task(self._fly())
            self._flight.add_done_callback(self._landed)
        return self._flight

    async def _fly(self) -> None:
        is_first = self._ring is None
        self._ring = await self._load()
        self._loaded_at = self._clock()
        if is_first:
            self._asked_at = float("-inf")  # the first key that is unknown may ask at once

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flight = None
        if not flight.cancelled():
            flight.exception()  # whoever waited has it; where nobody did, the keys stay as they are
