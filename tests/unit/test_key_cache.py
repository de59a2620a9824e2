"""The provider's keys in memory: how often it is asked, and what holds while it is away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from joserfc.jwk import OKPKey

from mdm_gitops.access.jwks import KeyRing, VerifyingKey
from mdm_gitops.access.key_cache import (
    LONGEST_USE_S,
    REFRESH_EVERY_S,
    TRY_FIRST_EVERY_S,
    KeyCache,
)
from mdm_gitops.errors import ProviderUnavailable

pytestmark = pytest.mark.anyio
KEY = OKPKey.generate_key("Ed25519")


@dataclass
class Published:
    """A provider, as the cache sees it."""

    ids: list[str] = field(default_factory=lambda: ["a"])
    is_away: bool = False
    asked: int = 0
    now: float = 0.0
    gate: asyncio.Event | None = None

    async def load(self) -> KeyRing:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise ProviderUnavailable("away")
        return KeyRing({("EdDSA", each): VerifyingKey("EdDSA", KEY) for each in self.ids})

    def cache(self) -> KeyCache:
        return KeyCache(self.load, max_age_s=600, clock=lambda: self.now)


async def knows(cache: KeyCache, key_id: str) -> bool:
    return await cache.find("EdDSA", key_id) is not None


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_provider_is_asked_once_for_many() -> None:
    published = Published()
    cache = published.cache()
    assert all(await asyncio.gather(*(knows(cache, "a") for _ in range(50))))
    for _ in range(50):
        assert await knows(cache, "a")
    assert published.asked == 1


async def test_a_new_key_is_found_at_once_and_a_second_one_a_minute_later() -> None:
    published = Published()
    cache = published.cache()
    assert await knows(cache, "a")
    published.ids = ["b", "a"]
    assert await knows(cache, "b") and await knows(cache, "a")
    assert published.asked == 2
    published.ids = ["c", "b"]
    published.now += REFRESH_EVERY_S - 1
    assert not await knows(cache, "c")
    assert published.asked == 2
    published.now += 1
    assert await knows(cache, "c")
    assert not await knows(cache, "a"), "a key that was withdrawn is not taken any more"


async def test_a_flood_of_invented_keys_asks_once_a_minute() -> None:
    published = Published()
    cache = published.cache()
    for second in range(300):
        published.now = float(second)
        found = await asyncio.gather(*(knows(cache, f"x{n}") for n in range(20)))
        assert not any(found)
    assert published.asked == 1 + 300 // REFRESH_EVERY_S


async def test_a_withdrawn_key_is_forgotten_without_anybody_asking_for_another() -> None:
    published = Published()
    cache = published.cache()
    assert await knows(cache, "a")
    published.ids, published.now = ["b"], 601
    assert await knows(cache, "a"), "nobody waits for the provider"
    await settled()
    assert published.asked == 2
    assert not await knows(cache, "a")


async def test_known_keys_hold_for_a_day_while_the_provider_is_away() -> None:
    published = Published()
    cache = published.cache()
    assert await knows(cache, "a")
    published.is_away = True
    for hour in range(1, 24):
        published.now = hour * 3_600.0
        assert await knows(cache, "a")
        await settled()
        assert not await knows(cache, "b")
    published.now = LONGEST_USE_S + 61
    with pytest.raises(ProviderUnavailable):
        await knows(cache, "a")
    published.is_away = False
    published.now += TRY_FIRST_EVERY_S
    assert await knows(cache, "a")


async def test_an_unknown_key_is_unknown_while_the_provider_is_away() -> None:
    published = Published()
    cache = published.cache()
    assert await knows(cache, "a")
    published.is_away = True
    assert not await knows(cache, "b")
    assert await knows(cache, "a")
    assert published.asked == 2


async def test_a_provider_that_never_answered_is_tried_every_few_seconds() -> None:
    published = Published(is_away=True)
    cache = published.cache()
    for _ in range(20):
        with pytest.raises(ProviderUnavailable):
            await knows(cache, "a")
    assert published.asked == 1
    published.now, published.is_away = TRY_FIRST_EVERY_S, False
    assert await knows(cache, "a")


async def test_who_gives_up_waiting_takes_nobody_with_him() -> None:
    published = Published(gate=asyncio.Event())
    cache = published.cache()
    first, second = (asyncio.create_task(knows(cache, "a")) for _ in range(2))
    await settled()
    first.cancel()
    await settled()
    assert published.gate is not None
    published.gate.set()
    assert await second
    assert first.cancelled()
    assert published.asked == 1


async def test_what_is_being_asked_is_given_up_at_the_end() -> None:
    published = Published(gate=asyncio.Event())
    cache = published.cache()
    waiting = asyncio.create_task(knows(cache, "a"))
    await settled()
    await cache.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await published.cache().aclose()
