"""The dispatcher of webhooks beside the application, from the first active subscription on.

Before that nothing of it is imported: most of its memory is the HTTP client's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from mdm_api.services import Services
from mdm_gitops.errors import MdmError

_LOOK_S: Final = 1.0


async def deliver_webhooks(services: Services, stopping: asyncio.Event) -> None:
    """Deliver until *stopping* is set. Each worker runs this; one of them has each subscription."""
    while not await _is_needed(services):
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await stopping.wait()
        if stopping.is_set():
            return
    from mdm_gitops.deliver.dispatcher import Dispatcher
    from mdm_gitops.deliver.targets import rules_of

    dispatcher = Dispatcher(
        services.database_url,
        schemas=services.schemas,
        rules=rules_of(services.settings.Webhooks),
        counting=services.metrics,
    )
    await dispatcher.run(stopping)


async def _is_needed(services: Services) -> bool:
    from mdm_gitops.deliver.admin import is_any_active

    try:
        return await services.with_connection(
            lambda conn: is_any_active(conn, schemas=services.schemas)
        )
    except MdmError:
        return False  # told by the requests that fail
