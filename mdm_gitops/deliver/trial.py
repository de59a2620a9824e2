"""One test delivery on demand, signed and judged like any other."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from mdm_gitops.deliver.payload import RowEvent, body_of
from mdm_gitops.deliver.receiver import delivery_headers
from mdm_gitops.deliver.sender import TIMEOUT_S, Attempt, Sender
from mdm_gitops.deliver.subscriptions import Subscription
from mdm_gitops.deliver.targets import TargetRules
from mdm_gitops.errors import SettingsError

_NOBODY: Final = "00000000-0000-0000-0000-000000000000"


async def try_once(
    subscription: Subscription, *, rules: TargetRules, timeout_s: float = TIMEOUT_S
) -> Attempt:
    """Send a made-up change of no entity; nothing is kept of it."""
    webhook_id = subscription.webhook_id
    event = RowEvent(
        event_id=0,
        occurred_at=datetime.now(UTC),
        entity_id=0,
        entity_name="test",
        record_id=_NOBODY,
        action="data_updated",
        user="system:test",
        old='{"name": "before"}',
        new='{"name": "after"}',
    )
    body = body_of(event, shown=("name",))
    message_id = f"evt_test_{webhook_id.hex}_{int(time.time())}"
    try:
        headers = delivery_headers(subscription, message_id, 0, body)
    except SettingsError as error:
        return Attempt(status=0, seconds=0.0, error=str(error))
    async with Sender(rules, timeout_s=timeout_s) as sender:
        return await sender.send(subscription.webhook.url, body, headers)
