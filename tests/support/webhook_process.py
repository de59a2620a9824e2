"""A dispatcher as a process of its own, so that it can be killed.

It tries again after about a second, not after minutes and hours. A careless one writes down how far it
has come before it delivers: the negative control, which loses what was under way.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from uuid import UUID

from mdm_gitops.deliver import receiver, schedule
from mdm_gitops.deliver.dispatcher import Dispatcher
from mdm_gitops.deliver.payload import RowEvent
from mdm_gitops.deliver.targets import TargetRules, ValidationMode
from mdm_gitops.warehouse.names import Schemas
from tests.support.faulty_receivers import PATIENCE_S

RULES = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1", "nobody.invalid"))
# So often that none is given up, however long a campaign keeps its receivers away.
DELAYS_S = (0, 0.2, 0.5, *(1.0 for _ in range(100_000)))
LONGEST_QUIET_S = 2.0


def _be_quick() -> None:
    for module, name, value in (
        (schedule, "DELAYS_S", DELAYS_S),
        (schedule, "MAX_QUIET_S", LONGEST_QUIET_S),
        (receiver, "MAX_QUIET_S", LONGEST_QUIET_S),
    ):
        assert hasattr(module, name), name
        setattr(module, name, value)


def _be_careless() -> None:
    real = receiver.Receiver._deliver_chains

    async def deliver(self: Any, chains: Mapping[UUID, Sequence[RowEvent]]) -> Any:
        end = max(event.event_id for chain in chains.values() for event in chain)
        self._stored_position = await self._queue.finish(self._stored_position, end, ())
        return await real(self, chains)

    receiver.Receiver._deliver_chains = deliver  # type: ignore[method-assign]


class Dispatching:
    """``with Dispatching(url)``: a dispatcher in a process of its own, killed with -9 at the end.

    All are forks of one process that has loaded the product, so hundreds cost little.
    """

    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload([__name__])

    def __init__(self, url: str, *, careless: bool = False) -> None:
        self._process = self._context.Process(target=_dispatch, args=(url, careless), daemon=True)

    def __enter__(self) -> None:
        self._process.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


def _dispatch(url: str, careless: bool) -> None:
    _be_quick()
    if careless:
        _be_careless()
    dispatcher = Dispatcher(url, schemas=Schemas(), rules=RULES, timeout_s=PATIENCE_S)
    asyncio.run(dispatcher.run(asyncio.Event()))
