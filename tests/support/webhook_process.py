"""A dispatcher as a process of its own, so that it can be killed: ``python -m ... <database URL>``."""

from __future__ import annotations

import asyncio
import sys

from mdm_gitops.deliver.dispatcher import Dispatcher
from mdm_gitops.deliver.targets import TargetRules, ValidationMode
from mdm_gitops.warehouse.names import Schemas

TIMEOUT_S = 1.0
RULES = TargetRules(mode=ValidationMode.STRICT, allowed=("127.0.0.1",))


async def main(url: str) -> None:
    dispatcher = Dispatcher(url, schemas=Schemas(), rules=RULES, timeout_s=TIMEOUT_S)
    await dispatcher.run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
