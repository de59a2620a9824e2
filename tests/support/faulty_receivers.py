"""Receivers of webhooks with ten kinds of faults: what befalls a delivery, and what was accepted.

Not a judge: a campaign compares what was accepted with what was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from aiohttp import web

from tests.support.receivers import Answer, broken, resetting

# The dispatcher of a campaign waits so long for an answer.
PATIENCE_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with a *share* of the deliveries; ``url`` makes an address that is wrong."""

    name: str
    answer: Answer = broken
    share: float = 0.0
    has_accepted: bool = False  # the receiver has taken it, and only its answer is lost
    url: Callable[[str], str] | None = None


async def _busy(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=429, headers={"Retry-After": "1"})


async def _gone(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=410)


async def _hanging(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(2 * PATIENCE_S)
    return web.Response(status=500)


async def _garbage(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"\x00\xff what is this\r\n\r\n")
    request.transport.close()
    return web.Response()


async def _dribbling(request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
    """Send an error byte by byte, for longer than anybody waits."""
    answer = web.StreamResponse(status=503)
    await answer.prepare(request)
    for _ in range(10):
        with suppress(ConnectionError):  # whoever asked has gone
            await answer.write(b".")
        await asyncio.sleep(PATIENCE_S / 5)
    return answer


FAULTS: Final = (
    Fault(name="none"),
    Fault(name="error", answer=broken, share=0.1),
    Fault(name="busy", answer=_busy, share=0.005),
    Fault(name="gone", answer=_gone, share=0.005),
    Fault(name="hanging", answer=_hanging, share=0.01),
    Fault(name="dribbling", answer=_dribbling, share=0.01),
    Fault(name="resetting", answer=resetting, share=0.05),
    Fault(name="answer lost", answer=resetting, share=0.05, has_accepted=True),
    Fault(name="garbage", answer=_garbage, share=0.05),
    Fault(name="no TLS", url=lambda url: url.replace("http://", "https://")),
    Fault(name="no such host", url=lambda url: url.replace("127.0.0.1", "nobody.invalid")),
)


@dataclass
class Faulty:
    """An answer for ``receiving``: fails at times (``moody``), always (``out``) or never (``well``)."""

    fault: Fault
    chance: Random
    mood: str = "moody"
    accepted: list[tuple[str, int]] = field(default_factory=list)  # record and change, as they came
    numbers: set[int] = field(default_factory=set)
    failures: int = 0
    renamed: int = 0  # deliveries of a change under another id than before
    _ids: dict[int, str] = field(default_factory=dict)

    async def __call__(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        number, name = int(request.headers["mdm-sequence"]), request.headers["webhook-id"]
        self.renamed += self._ids.setdefault(number, name) != name
        fails = (
            self.chance.random() < {"moody": self.fault.share, "out": 1.0, "well": 0.0}[self.mood]
        )
        if not fails or self.fault.has_accepted:
            self.accepted.append((document["recordId"], number))
            self.numbers.add(number)
        if fails:
            self.failures += 1
            return await self.fault.answer(request, document)
        return web.Response(status=204)

    @property
    def names(self) -> int:
        """How many changes came, each with an id of its own."""
        return len(set(self._ids.values()))

    @property
    def inversions(self) -> int:
        """How many changes of a record were first accepted after a later one."""
        highest: dict[str, int] = {}
        seen: set[int] = set()
        found = 0
        for record, number in self.accepted:
            if number not in seen:
                seen.add(number)
                found += number < highest.get(record, 0)
                highest[record] = max(number, highest.get(record, 0))
        return found
