"""One test delivery on demand, signed and judged like any other."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.deliver.admin import no_such_webhook
from mdm_gitops.deliver.payload import RowEvent, body_of
from mdm_gitops.deliver.receiver import delivery_headers
from mdm_gitops.deliver.sender import Attempt, Sender
from mdm_gitops.deliver.subscriptions import read_subscriptions
from mdm_gitops.deliver.targets import TargetRules
from mdm_gitops.errors import SettingsError
from mdm_gitops.warehouse.names import Schemas

_NOBODY = "00000000-0000-0000-0000-000000000000"


async def try_once(
    conn: AsyncConnection[Any], *, schemas: Schemas, rules: TargetRules, webhook_id: UUID
) -> Attempt:
    """Send a made-up change of no entity; nothing is kept of it."""
    subscription = (await read_subscriptions(conn, schemas=schemas)).get(webhook_id)
    if subscription is None:
        raise no_such_webhook()
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
    body = body_of(event, restricted=frozenset())
    message_id = f"evt_test_{webhook_id.hex}_{int(time.time())}"
    try:
        headers = delivery_headers(subscription, message_id, 0, body)
    except SettingsError as error:
        return Attempt(status=0, seconds=0.0, error=str(error))
    async with Sender(rules) as sender:
        return await sender.send(subscription.webhook.url, body, headers)
