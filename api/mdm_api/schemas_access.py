"""JSON Schemas of who somebody is and what they may do."""

from __future__ import annotations

from typing import Final

from mdm_api.schema_parts import FLAG, MOMENT, TEXT, Schema, list_of, object_of, optional, ref
from mdm_gitops.access import Tier
from mdm_gitops.model import Action

_API_KEY_MEMBERS: Final[dict[str, Schema]] = {
    "name": TEXT,
    "isGlobalAdmin": FLAG,
    "state": {"type": "string", "enum": ["active", "expired", "revoked"]},
    "createdUtc": MOMENT,
    "createdBy": TEXT,
    "expiresUtc": optional(MOMENT),
    "revokedUtc": optional(MOMENT),
    "lastUsedUtc": optional(MOMENT),
}
ACCESS: Final[dict[str, Schema]] = {
    "ApiKeys": object_of({"items": list_of(ref("ApiKey"))}),
    "ApiKey": object_of(_API_KEY_MEMBERS),
    "CreatedApiKey": object_of({**_API_KEY_MEMBERS, "key": TEXT}),
    "NewApiKey": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {**TEXT, "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
            "isGlobalAdmin": {**FLAG, "default": False},
            "expiresUtc": optional(MOMENT),
        },
        "additionalProperties": False,
    },
    "Me": object_of(
        {
            "principal": {**TEXT, "description": "As events and rows name the caller."},
            "kind": {"type": "string", "enum": ["user", "apikey", "service"]},
            "name": TEXT,
            "groups": list_of(TEXT),
            "isGlobalAdmin": FLAG,
            "credential": {"type": "string", "enum": ["apiKey", "bearer", "session"]},
            "tier": {"type": "string", "enum": [tier.value for tier in Tier]},
            "domains": list_of(object_of({"domain": TEXT, "actions": list_of(TEXT)})),
            "rights": list_of(
                object_of(
                    {
                        "entity": TEXT,
                        "domain": TEXT,
                        "actions": list_of(TEXT),
                        "onSomeRows": {
                            **list_of(TEXT),
                            "description": "Those of the actions that a row filter limits.",
                        },
                    }
                )
            ),
        }
    ),
    "Roles": object_of(
        {
            "items": list_of(
                object_of(
                    {
                        "name": TEXT,
                        "action": TEXT,
                        "grants": list_of(TEXT),
                        "description": TEXT,
                    }
                )
            ),
            "applicationRoles": object_of({"globalAdmin": TEXT, "entry": optional(TEXT)}),
        }
    ),
    "SignedOut": object_of({"signedOut": FLAG, "providerSignOutUrl": optional(TEXT)}),
    "Permission": {
        "type": "object",
        "required": ["principal", "domain", "actions"],
        "properties": {
            "principal": TEXT,
            "domain": TEXT,
            "entity": optional(TEXT),
            "actions": list_of({"type": "string", "enum": [action.value for action in Action]}),
            "rowFilterDsl": optional(TEXT),
        },
        "additionalProperties": False,
    },
    "PermissionList": object_of({"items": list_of(ref("Permission"))}),
    "PermissionCommitted": object_of(
        {"commit": optional(TEXT), "branch": optional(TEXT)},
        {
            "principal": TEXT,
            "domain": TEXT,
            "entity": optional(TEXT),
            "actions": list_of(TEXT),
            "rowFilterDsl": optional(TEXT),
        },
    ),
}
