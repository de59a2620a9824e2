"""JSON Schemas of what happened, and who is told: changes, audit, webhooks."""

from __future__ import annotations

from typing import Final

from mdm_api.schema_parts import (
    COUNT,
    FLAG,
    MOMENT,
    TEXT,
    Schema,
    list_of,
    object_of,
    optional,
    ref,
)
from mdm_gitops.model.access import EventType

_ROW_ACTIONS: Final = [
    "data_created",
    "data_updated",
    "data_soft_deleted",
    "data_deleted",
    "data_restored",
    "data_edited",
    "data_rejected",
]
_WEBHOOK_MEMBERS: Final[dict[str, Schema]] = {
    "name": TEXT,
    "url": TEXT,
    "domains": list_of(TEXT),
    "entities": list_of(TEXT),
    "actions": list_of({"type": "string", "enum": [event.value for event in EventType]}),
    "description": optional(TEXT),
    "is_active": FLAG,
    "secretRef": optional(TEXT),
}
EVENTS: Final[dict[str, Schema]] = {
    "WebhookInput": {
        "type": "object",
        "required": ["name", "url"],
        "properties": _WEBHOOK_MEMBERS,
        "additionalProperties": False,
    },
    "WebhookStatus": object_of(
        {
            "id": {"type": "string", "format": "uuid"},
            **_WEBHOOK_MEMBERS,
            "signing": {"enum": ["secretRef", "secret", "unseen"]},
            "createdUtc": MOMENT,
            "position": COUNT,
            "behind": COUNT,
            "failingSinceUtc": optional(MOMENT),
            "disabledUtc": optional(MOMENT),
            "disabledReason": optional(TEXT),
            "waiting": COUNT,
            "dead": COUNT,
            "blocked": COUNT,
        },
        {"secret": TEXT, "commit": optional(TEXT), "branch": optional(TEXT)},
    ),
    "WebhookList": object_of({"items": list_of(ref("WebhookStatus"))}),
    "WebhookTrial": object_of(
        {
            "delivered": FLAG,
            "blocked": FLAG,
            "status": optional(COUNT),
            "error": optional(TEXT),
            "durationMs": {"type": "number"},
        }
    ),
    "WebhookSecret": object_of({"secret": TEXT, "previousValidHours": COUNT}),
    "DeliveryList": object_of(
        {
            "items": list_of(
                object_of(
                    {
                        "id": COUNT,
                        "recordId": {"type": "string", "format": "uuid"},
                        "state": {"type": "string", "enum": ["waiting", "dead", "blocked"]},
                        "attempts": COUNT,
                        "nextAttemptUtc": optional(MOMENT),
                        "lastAttemptUtc": optional(MOMENT),
                        "lastStatus": optional(COUNT),
                        "lastError": optional(TEXT),
                    }
                )
            ),
            "hasMore": FLAG,
        }
    ),
    "Change": object_of(
        {
            "id": {"type": "integer", "minimum": 1},
            "occurredUtc": MOMENT,
            "entityName": TEXT,
            "recordId": {"type": "string", "format": "uuid"},
            "action": {"type": "string", "enum": _ROW_ACTIONS},
            "user": TEXT,
            "commit": optional(TEXT),
        }
    ),
    "ChangesPage": object_of(
        {
            "entries": list_of(ref("Change")),
            "nextAfterId": {**COUNT, "description": "The `afterId` of the next call."},
            "hasMore": FLAG,
            "totalCount": {
                **COUNT,
                "description": "Entries that match, with this page. Under a row filter a lower bound"
                " where more than 16,384 changes have to be looked at.",
            },
        }
    ),
    "AuditEntry": object_of(
        {
            "id": {
                **TEXT,
                "description": "`change:<id of the change feed>` or `action:<number>`.",
            },
            "occurredUtc": MOMENT,
            "user": TEXT,
            "action": TEXT,
            "entityName": optional(TEXT),
            "recordId": optional({"type": "string", "format": "uuid"}),
            "commit": optional(TEXT),
            "details": {
                "type": "object",
                "description": "Of a change of a row `version` and `changes`, which holds `old` and"
                " `new` of each changed column; of other actions what they are about.",
                "additionalProperties": True,
            },
        }
    ),
    "AuditPage": object_of({"entries": list_of(ref("AuditEntry")), "totalCount": COUNT}),
}
