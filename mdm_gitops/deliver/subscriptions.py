"""Subscriptions as they are delivered to: what is stored of them, and which changes they want."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from psycopg import AsyncConnection

from mdm_gitops.data.failures import translated
from mdm_gitops.deliver.signing import read_secret
from mdm_gitops.errors import SettingsError
from mdm_gitops.model import Entity, Webhook, fold
from mdm_gitops.warehouse.names import Schemas

ALL: Final = "*"
_MAX_SECRET_BYTES: Final = 1_024


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """*secrets* are the generated ones that are valid now, the newest first. *has_due*: something that
    failed is to be tried again now."""

    webhook_id: UUID
    webhook: Webhook
    position: int
    failing_since: datetime | None
    disabled_reason: str | None
    secrets: tuple[str, ...]
    has_due: bool = False

    @property
    def is_delivered(self) -> bool:
        return self.webhook.is_active and self.disabled_reason is None

    @cached_property
    def _entities(self) -> frozenset[str]:
        return frozenset(fold(name) for name in self.webhook.entities)

    def wants(self, *, action: str, entity: Entity | None, name: str) -> bool:
        """Whether a change is for this subscription. Of an entity that is gone only the name is known."""
        webhook = self.webhook
        if webhook.actions and action not in webhook.actions:
            return False
        if self._entities and fold(name) not in self._entities:
            return False
        if not webhook.domains or ALL in webhook.domains:
            return True
        return entity is not None and entity.domain in webhook.domains

    @cached_property
    def _generated_keys(self) -> list[bytes]:
        return [read_secret(secret) for secret in self.secrets]

    def signing_keys(self) -> list[bytes]:
        """Return the keys that sign now.

        Raises:
            SettingsError: the secret that the definition names cannot be read.
        """
        if self.webhook.secret_ref:
            return [read_secret(_named_secret(self.webhook.secret_ref))]
        return self._generated_keys


def _named_secret(reference: str) -> str:
    """Return what the variable of this name holds, or the file, if the name is a path."""
    try:
        if "/" not in reference:
            return os.environ[reference]
        with Path(reference).open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).decode()
    except (KeyError, OSError, UnicodeError):
        raise SettingsError(
            "the secret of a webhook cannot be read",
            hint="secretRef names an environment variable, or a file that the server may read",
        ) from None


_ALL: Final = """
SELECT w.webhook_id, w.definition::text, c.position, c.failing_since, c.disabled_reason,
       coalesce((SELECT array_agg(s.secret ORDER BY s.created_at DESC) FROM {config}.webhook_secret s
                  WHERE s.webhook_id = w.webhook_id
                    AND (s.expires_at IS NULL OR s.expires_at > now())), '{{}}'),
       EXISTS (SELECT FROM {config}.webhook_delivery d
                WHERE d.webhook_id = w.webhook_id AND d.state = 'waiting'
                  AND d.next_attempt_at <= now())
  FROM {config}.webhook w JOIN {config}.webhook_cursor c USING (webhook_id)
 ORDER BY w.name
"""


@lru_cache(maxsize=4_096)
def _webhook(text: str) -> Webhook:
    """They are read each second and seldom change."""
    return Webhook.model_validate(json.loads(text))


async def read_subscriptions(
    conn: AsyncConnection[Any], *, schemas: Schemas
) -> Mapping[UUID, Subscription]:
    query = _ALL.format(config=f'"{schemas.config}"')
    with translated():
        rows = await (await conn.execute(query.encode(), prepare=True)).fetchall()
    return {
        row[0]: Subscription(
            webhook_id=row[0],
            webhook=_webhook(row[1]),
            position=row[2],
            failing_since=row[3],
            disabled_reason=row[4],
            secrets=tuple(row[5]),
            has_due=row[6],
        )
        for row in rows
    }
