"""JSON Schemas of the answers and bodies, for the OpenAPI document.

Entity definitions come from the model's own schema; the rest is small and written out here.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from mdm_gitops.access import Tier
from mdm_gitops.access.catalog import DefinitionState
from mdm_gitops.errors import CATALOGUE
from mdm_gitops.model import Action
from mdm_gitops.model.access import EventType
from mdm_gitops.source.schemas import schema_text

Schema = dict[str, Any]
_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_FLAG: Final[Schema] = {"type": "boolean"}
_MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


@cache
def components() -> dict[str, Schema]:
    """Return all named schemas."""
    return {**_entity_schemas(), **_OWN}


def _entity_schemas() -> dict[str, Schema]:
    """Return the entity's schema and its parts, with references as a component has them."""
    text = schema_text("entity").replace('"#/$defs/', '"#/components/schemas/Entity.')
    document = json.loads(text)
    parts = document.pop("$defs", {})
    for key in ("$schema", "$id"):
        document.pop(key, None)
    return {"Entity": document, **{f"Entity.{name}": part for name, part in parts.items()}}


_API_KEY_MEMBERS: Final[dict[str, Schema]] = {
    "name": _TEXT,
    "isGlobalAdmin": _FLAG,
    "state": {"type": "string", "enum": ["active", "expired", "revoked"]},
    "createdUtc": _MOMENT,
    "createdBy": _TEXT,
    "expiresUtc": _optional(_MOMENT),
    "revokedUtc": _optional(_MOMENT),
    "lastUsedUtc": _optional(_MOMENT),
}
_STATE: Final[Schema] = {"type": "string", "enum": [state.value for state in DefinitionState]}
_ROW_STATES: Final = ["active", "deleted", "pending", "rejected"]
_ROW_ACTIONS: Final = [
    "data_created",
    "data_updated",
    "data_soft_deleted",
    "data_deleted",
    "data_restored",
    "data_edited",
    "data_rejected",
]
_SYSTEM_MEMBERS: Final[dict[str, Schema]] = {
    "_sys_id": {"type": "string", "format": "uuid"},
    "_sys_version": _COUNT,
    "_sys_created_at": _MOMENT,
    "_sys_created_by": _TEXT,
    "_sys_last_modified_at": _MOMENT,
    "_sys_last_modified_by": _TEXT,
    "_sys_is_deleted": _FLAG,
    "_sys_deleted_at": _optional(_MOMENT),
    "_sys_state": {"type": "string", "enum": _ROW_STATES},
}
_STATUS_MEMBERS: Final[dict[str, Schema]] = {
    "state": _STATE,
    "deployedVersion": _optional(_TEXT),
    "commit": _optional(_TEXT),
    "deployedAt": _optional(_MOMENT),
    "actions": _list(_TEXT),
}
_SAVED_FILTER: Final[dict[str, Schema]] = {
    "filter": {**_TEXT, "description": "In the bracket language; empty for all rows."},
    "sort": {**_TEXT, "description": "As the query parameter of a list; empty for its default."},
    "columns": {**_list(_TEXT), "description": "Columns to show; empty for all."},
    "isDefault": _FLAG,
}
_WEBHOOK_MEMBERS: Final[dict[str, Schema]] = {
    "name": _TEXT,
    "url": _TEXT,
    "domains": _list(_TEXT),
    "entities": _list(_TEXT),
    "actions": _list({"type": "string", "enum": [event.value for event in EventType]}),
    "description": _optional(_TEXT),
    "is_active": _FLAG,
    "secretRef": _optional(_TEXT),
}
_OWN: Final[dict[str, Schema]] = {
    "Problem": _object(
        {
            "type": {"type": "string", "format": "uri-reference"},
            "title": _TEXT,
            "status": {"type": "integer"},
            "detail": _TEXT,
            "code": {"type": "string", "enum": list(CATALOGUE)},
            "traceId": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
        {"hint": _TEXT, "errors": _list(ref("ProblemItem"))},
    ),
    "ProblemItem": _object(
        {"code": _TEXT, "message": _TEXT},
        {
            "pointer": {**_TEXT, "description": "JSON Pointer into the definition."},
            "line": _COUNT,
            "file": _TEXT,
            "hint": _TEXT,
        },
    ),
    "ApiKeys": _object({"items": _list(ref("ApiKey"))}),
    "ApiKey": _object(_API_KEY_MEMBERS),
    "CreatedApiKey": _object({**_API_KEY_MEMBERS, "key": _TEXT}),
    "NewApiKey": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {**_TEXT, "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
            "isGlobalAdmin": {**_FLAG, "default": False},
            "expiresUtc": _optional(_MOMENT),
        },
        "additionalProperties": False,
    },
    "Me": _object(
        {
            "principal": {**_TEXT, "description": "As events and rows name the caller."},
            "kind": {"type": "string", "enum": ["user", "apikey", "service"]},
            "name": _TEXT,
            "groups": _list(_TEXT),
            "isGlobalAdmin": _FLAG,
            "credential": {"type": "string", "enum": ["apiKey", "bearer", "session"]},
            "tier": {"type": "string", "enum": [tier.value for tier in Tier]},
            "domains": _list(_object({"domain": _TEXT, "actions": _list(_TEXT)})),
            "rights": _list(
                _object(
                    {
                        "entity": _TEXT,
                        "domain": _TEXT,
                        "actions": _list(_TEXT),
                        "onSomeRows": {
                            **_list(_TEXT),
                            "description": "Those of the actions that a row filter limits.",
                        },
                    }
                )
            ),
        }
    ),
    "Roles": _object(
        {
            "items": _list(
                _object(
                    {
                        "name": _TEXT,
                        "action": _TEXT,
                        "grants": _list(_TEXT),
                        "description": _TEXT,
                    }
                )
            ),
            "applicationRoles": _object({"globalAdmin": _TEXT, "entry": _optional(_TEXT)}),
        }
    ),
    "SignedOut": _object({"signedOut": _FLAG, "providerSignOutUrl": _optional(_TEXT)}),
    "Health": _object({"status": _TEXT}, {"version": _TEXT, "entities": _COUNT}),
    "Row": {
        "type": "object",
        "description": "The columns of the entity by the names of its definition, and the system"
        " columns. Which are there depends on `fields`.",
        "properties": {
            **_SYSTEM_MEMBERS,
            "_expanded": {
                "type": "object",
                "description": "The rows that the columns named in `expand` refer to.",
                "additionalProperties": _optional({"type": "object"}),
            },
        },
        "additionalProperties": True,
    },
    "Permission": {
        "type": "object",
        "required": ["principal", "domain", "actions"],
        "properties": {
            "principal": _TEXT,
            "domain": _TEXT,
            "entity": _optional(_TEXT),
            "actions": _list({"type": "string", "enum": [action.value for action in Action]}),
            "rowFilterDsl": _optional(_TEXT),
        },
        "additionalProperties": False,
    },
    "PermissionList": _object({"items": _list(ref("Permission"))}),
    "PermissionCommitted": _object(
        {"commit": _optional(_TEXT), "branch": _optional(_TEXT)},
        {
            "principal": _TEXT,
            "domain": _TEXT,
            "entity": _optional(_TEXT),
            "actions": _list(_TEXT),
            "rowFilterDsl": _optional(_TEXT),
        },
    ),
    "WebhookInput": {
        "type": "object",
        "required": ["name", "url"],
        "properties": _WEBHOOK_MEMBERS,
        "additionalProperties": False,
    },
    "WebhookStatus": _object(
        {
            "id": {"type": "string", "format": "uuid"},
            **_WEBHOOK_MEMBERS,
            "signing": {"enum": ["secretRef", "secret", "unseen"]},
            "createdUtc": _MOMENT,
            "position": _COUNT,
            "behind": _COUNT,
            "failingSinceUtc": _optional(_MOMENT),
            "disabledUtc": _optional(_MOMENT),
            "disabledReason": _optional(_TEXT),
            "waiting": _COUNT,
            "dead": _COUNT,
            "blocked": _COUNT,
        },
        {"secret": _TEXT, "commit": _optional(_TEXT), "branch": _optional(_TEXT)},
    ),
    "WebhookList": _object({"items": _list(ref("WebhookStatus"))}),
    "WebhookTrial": _object(
        {
            "delivered": _FLAG,
            "blocked": _FLAG,
            "status": _optional(_COUNT),
            "error": _optional(_TEXT),
            "durationMs": {"type": "number"},
        }
    ),
    "WebhookSecret": _object({"secret": _TEXT, "previousValidHours": _COUNT}),
    "DeliveryList": _object(
        {
            "items": _list(
                _object(
                    {
                        "id": _COUNT,
                        "recordId": {"type": "string", "format": "uuid"},
                        "state": {"type": "string", "enum": ["waiting", "dead", "blocked"]},
                        "attempts": _COUNT,
                        "nextAttemptUtc": _optional(_MOMENT),
                        "lastAttemptUtc": _optional(_MOMENT),
                        "lastStatus": _optional(_COUNT),
                        "lastError": _optional(_TEXT),
                    }
                )
            ),
            "hasMore": _FLAG,
        }
    ),
    "CommitMade": _object({"commit": _optional(_TEXT), "branch": _optional(_TEXT)}),
    "RowInput": {
        "type": "object",
        "description": "Columns of the entity by the names of its definition, with their values.",
        "additionalProperties": True,
    },
    "ImportResult": _object(
        {
            "received": _COUNT,
            "inserted": _COUNT,
            "updated": _COUNT,
            "unchanged": _COUNT,
            "rejected": _COUNT,
            "pending": _COUNT,
            "batchName": _optional(_TEXT),
            "errors": _list(
                _object(
                    {
                        "row": {**_COUNT, "description": "From 1, the header not counted."},
                        "column": _optional(_TEXT),
                        "code": _TEXT,
                        "message": _TEXT,
                        "value": _optional(_TEXT),
                    }
                )
            ),
            "errorsTruncated": {**_FLAG, "description": "Whether there are more than 1,000."},
            "errorsUrl": _optional({**_TEXT, "description": "All errors as CSV."}),
        }
    ),
    "RowPage": _object(
        {
            "items": _list(ref("Row")),
            "skip": _COUNT,
            "take": _COUNT,
            "hasMore": _FLAG,
            "nextAfter": _optional(_TEXT),
            "totalCount": _optional(_COUNT),
        }
    ),
    "Version": _object(
        {
            "version": _COUNT,
            "validFrom": _MOMENT,
            "validTo": _optional(_MOMENT),
            "changedBy": _TEXT,
            "action": {
                "type": "string",
                "enum": ["data_created", "data_updated", "data_soft_deleted", "data_restored"],
            },
            "row": ref("Row"),
        }
    ),
    "VersionPage": _object(
        {
            "items": _list(ref("Version")),
            "skip": _COUNT,
            "take": _COUNT,
            "hasMore": _FLAG,
            "totalCount": _COUNT,
        }
    ),
    "TimeTravelBounds": _object({"fromUtc": _optional(_MOMENT), "toUtc": _MOMENT}),
    "Choices": _object(
        {"options": _list(_object({"value": {"description": "As a row has it."}, "label": _TEXT}))}
    ),
    "SavedFilterInput": {
        **_object({"name": {**_TEXT, "minLength": 1, "maxLength": 200}}, _SAVED_FILTER),
        "additionalProperties": False,
    },
    "SavedFilter": _object(
        {"name": _TEXT, **_SAVED_FILTER, "updatedUtc": _MOMENT, "valid": _FLAG},
        {"reason": {**_TEXT, "description": "Why it is not valid any more."}},
    ),
    "SavedFilters": _object({"items": _list(ref("SavedFilter"))}),
    "Comment": {
        "type": "object",
        "properties": {"comment": _optional({**_TEXT, "maxLength": 2_000})},
        "additionalProperties": False,
    },
    "Approval": {
        "type": "object",
        "properties": {
            "comment": _optional({**_TEXT, "maxLength": 2_000}),
            "submittedAt": _optional(_MOMENT),
        },
        "additionalProperties": False,
    },
    "BatchDecision": {
        "type": "object",
        "description": "Either `batchName` or `ids`.",
        "properties": {
            "batchName": {**_TEXT, "maxLength": 200},
            "ids": {**_list(_TEXT), "maxItems": 10_000},
            "comment": _optional({**_TEXT, "maxLength": 2_000}),
        },
        "additionalProperties": False,
    },
    "BatchOutcome": _object(
        {
            "approved": _COUNT,
            "rejected": _COUNT,
            "failed": _COUNT,
            "results": _list(
                _object(
                    {
                        "id": _TEXT,
                        "status": {"type": "string", "enum": ["approved", "rejected", "failed"]},
                    },
                    {"code": _TEXT, "message": _TEXT},
                )
            ),
            "resultsTruncated": _FLAG,
        }
    ),
    "PendingPage": _object(
        {
            "items": _list(ref("Proposal")),
            "skip": _COUNT,
            "take": _COUNT,
            "hasMore": _FLAG,
            "nextAfter": _optional(_TEXT),
            "totalCount": _optional(_COUNT),
        }
    ),
    "Proposal": _object(
        {
            "id": {"type": "string", "format": "uuid"},
            "operation": {
                "type": "string",
                "enum": ["create", "update", "soft_delete", "delete", "restore"],
            },
            "state": {"type": "string", "enum": ["pending", "rejected"]},
            "submittedBy": _TEXT,
            "submittedAt": _MOMENT,
            "decidedBy": _optional(_TEXT),
            "decidedAt": _optional(_MOMENT),
            "batchName": _optional(_TEXT),
            "comment": {**_optional(_TEXT), "description": "Why it was rejected."},
            "baseVersion": {
                **_optional(_COUNT),
                "description": "The approved version that it rests on; null for a creation.",
            },
            "isStale": _FLAG,
            "changes": {
                "type": "object",
                "description": "Column name to its approved (`old`) and proposed (`new`) value.",
                "additionalProperties": _object({"old": {}, "new": {}}),
            },
            "row": ref("Row"),
        }
    ),
    "PendingBatches": _object(
        {
            "items": _list(
                _object(
                    {
                        "batchName": _TEXT,
                        "count": _COUNT,
                        "submittedBy": {**_TEXT, "description": "Who submitted the first row."},
                        "submitters": _COUNT,
                        "submittedAt": _MOMENT,
                        "lastSubmittedAt": _MOMENT,
                        "creates": _COUNT,
                        "updates": _COUNT,
                        "others": {**_COUNT, "description": "Deletions and restorations."},
                        "stale": _COUNT,
                    }
                )
            ),
            "skip": _COUNT,
            "take": _COUNT,
            "hasMore": _FLAG,
        }
    ),
    "EntityStatus": _object(_STATUS_MEMBERS),
    "EntityDocument": {
        "type": "object",
        "description": "The definition as `Entity`, and its `status`, which is read-only.",
        "required": ["name", "domain", "columns", "status"],
        "properties": {
            "name": _TEXT,
            "domain": _TEXT,
            "columns": _list({"type": "object"}),
            "status": ref("EntityStatus"),
        },
        "additionalProperties": True,
    },
    "EntityList": _object({"items": _list(ref("EntityDocument"))}),
    "EntityCommitted": {
        "type": "object",
        "description": "The definition as `EntityDocument`, and where it was written; `commit` is null"
        " where nothing had to change, `status` on a branch.",
        "required": ["name", "domain", "columns", "status", "commit", "branch"],
        "properties": {
            "name": _TEXT,
            "domain": _TEXT,
            "columns": _list({"type": "object"}),
            "status": _optional(ref("EntityStatus")),
            "commit": _optional(_TEXT),
            "branch": _optional(_TEXT),
        },
        "additionalProperties": True,
    },
    "CommonEntities": _object({"items": _list(ref("CommonEntity"))}),
    "CommonEntity": _object(
        {
            "id": _TEXT,
            "name": _TEXT,
            "displayName": _optional(_TEXT),
            "description": _optional(_TEXT),
            "domain": _TEXT,
            "version": _TEXT,
            "rows": _COUNT,
            "dependencies": _list(_TEXT),
            "source": _TEXT,
            "licence": _TEXT,
            "installed": _FLAG,
        }
    ),
    "CommonInstall": {
        "type": "object",
        "properties": {"domain": _optional(_TEXT)},
        "additionalProperties": False,
    },
    "CommonInstalled": _object(
        {"installed": _list(_TEXT), "commit": _optional(_TEXT), "branch": _optional(_TEXT)}
    ),
    "PackageExport": {
        "type": "object",
        "properties": {
            "entityNames": {**_list(_TEXT), "description": "Empty for all."},
            "autoIncludeDependencies": {**_FLAG, "default": True},
            "includePermissions": {**_FLAG, "default": False},
            "includeWebhooks": {**_FLAG, "default": False},
            "includeSeed": {**_FLAG, "default": False},
            "version": {**_TEXT, "maxLength": 64, "description": "Of the package."},
        },
        "additionalProperties": False,
    },
    "PackageDeployed": _object(
        {
            "success": {"const": True},
            "deployedEntities": _list(_TEXT),
            "commit": _optional(_TEXT),
            "branch": _optional(_TEXT),
            "deploymentId": _optional(_COUNT),
            "log": _list(_object({"step": _COUNT, "action": _TEXT, "detail": _TEXT})),
        }
    ),
    "EntityRemoved": _object(
        {
            "name": _TEXT,
            "state": {**_optional(_STATE), "description": "Null where nothing is left of it."},
            "commit": _optional(_TEXT),
            "branch": _optional(_TEXT),
        }
    ),
    "EntitySummary": _object(
        {
            "name": _TEXT,
            "displayName": _optional(_TEXT),
            "domain": _TEXT,
            "version": _TEXT,
            "columnCount": _COUNT,
            "historyEnabled": _FLAG,
            "approvalRequired": _FLAG,
            **_STATUS_MEMBERS,
        }
    ),
    "EntitySummaries": _object(
        {
            "items": _list(ref("EntitySummary")),
            "counts": {"type": "object", "additionalProperties": _COUNT},
            "definitions": _object(
                {"available": _FLAG, "commit": _optional(_TEXT), "errorCount": _COUNT}
            ),
        }
    ),
    "Change": _object(
        {
            "id": {"type": "integer", "minimum": 1},
            "occurredUtc": _MOMENT,
            "entityName": _TEXT,
            "recordId": {"type": "string", "format": "uuid"},
            "action": {"type": "string", "enum": _ROW_ACTIONS},
            "user": _TEXT,
            "commit": _optional(_TEXT),
        }
    ),
    "ChangesPage": _object(
        {
            "entries": _list(ref("Change")),
            "nextAfterId": {**_COUNT, "description": "The `afterId` of the next call."},
            "hasMore": _FLAG,
            "totalCount": {
                **_COUNT,
                "description": "Entries that match, with this page. Under a row filter a lower bound"
                " where more than 16,384 changes have to be looked at.",
            },
        }
    ),
    "AuditEntry": _object(
        {
            "id": {
                **_TEXT,
                "description": "`change:<id of the change feed>` or `action:<number>`.",
            },
            "occurredUtc": _MOMENT,
            "user": _TEXT,
            "action": _TEXT,
            "entityName": _optional(_TEXT),
            "recordId": _optional({"type": "string", "format": "uuid"}),
            "commit": _optional(_TEXT),
            "details": {
                "type": "object",
                "description": "Of a change of a row `version` and `changes`, which holds `old` and"
                " `new` of each changed column; of other actions what they are about.",
                "additionalProperties": True,
            },
        }
    ),
    "AuditPage": _object({"entries": _list(ref("AuditEntry")), "totalCount": _COUNT}),
    "YamlText": {**_object({"yaml": _TEXT}), "additionalProperties": False},
    "Validation": _object({"valid": {"const": True}, "definition": ref("Entity")}),
    "Plan": {
        "type": "object",
        "description": "docs/reference/plan-json.md tells it.",
        "additionalProperties": True,
    },
    "ReconcileRequested": _object({"requested": _optional(_COUNT)}),
    "SuspendRequest": {
        "type": "object",
        "properties": {
            "entity": {**_optional(_TEXT), "description": "Only this one; without it everything."},
            "reason": _optional(_TEXT),
        },
        "additionalProperties": False,
    },
    "ResumeRequest": {
        "type": "object",
        "properties": {"entity": _optional(_TEXT)},
        "additionalProperties": False,
    },
    "Reconciliation": _object(
        {
            "mode": _TEXT,
            "heartbeatUtc": _optional(_MOMENT),
            "observedCommit": _optional(_TEXT),
            "attemptedCommit": _optional(_TEXT),
            "appliedCommit": _optional(_TEXT),
            "conditions": _list(ref("ReconciliationCondition")),
            "requested": _COUNT,
            "handled": {**_COUNT, "description": "The last request that a run has seen."},
        },
        {
            "isSuspended": _FLAG,
            "source": _TEXT,
            "operator": _TEXT,
            "acceptedCommit": _optional(_TEXT),
            "suspensions": _list({"type": "object"}),
            "history": _list({"type": "object"}),
            "events": _list({"type": "object"}),
        },
    ),
    "ReconciliationCondition": _object(
        {"type": _TEXT, "status": _FLAG, "reason": _TEXT, "sinceUtc": _MOMENT}, {"message": _TEXT}
    ),
    "PlanDecision": {
        "type": "object",
        "properties": {"comment": _optional(_TEXT)},
        "additionalProperties": False,
    },
    "WaitingPlan": _object(
        {
            "id": _TEXT,
            "state": {
                "type": "string",
                "enum": ["waiting", "approved", "rejected", "applied", "superseded"],
            },
            "commit": _optional(_TEXT),
            "reason": _TEXT,
            "entities": _list(_TEXT),
            "domains": _list(_TEXT),
            "isWider": {**_FLAG, "description": "Whether it changes what belongs to no entity."},
            "changes": _COUNT,
            "createdUtc": _MOMENT,
            "decidedUtc": _optional(_MOMENT),
            "decidedBy": _optional(_TEXT),
            "comment": _TEXT,
            "endedUtc": _optional(_MOMENT),
        },
        {"plan": ref("Plan")},
    ),
    "WaitingPlans": _object({"items": _list(ref("WaitingPlan"))}),
    "DeployRequest": {
        "type": "object",
        "properties": {
            "allow": {**_list(_TEXT), "description": "Hazards, like `REMOVES_COLUMN:customer`."},
            "planId": {**_TEXT, "description": "`plan_id` of the preview that was reviewed."},
        },
        "additionalProperties": False,
    },
    "RemoveRequest": {
        "type": "object",
        "properties": {"allow": _list(_TEXT)},
        "additionalProperties": False,
    },
    "Confirmation": {**_object({"confirm": _TEXT}), "additionalProperties": False},
    "DeployResult": {
        "type": "object",
        "required": ["entity"],
        "properties": {
            "entity": _TEXT,
            "planId": _TEXT,
            "deploymentId": _optional(_COUNT),
            "steps": _COUNT,
            "changes": _COUNT,
            "droppedTables": _list(_TEXT),
            "droppedColumns": _list(_TEXT),
        },
    },
    "Deployments": _object(
        {
            "items": _list(
                _object(
                    {
                        "id": _COUNT,
                        "planId": _TEXT,
                        "commit": _optional(_TEXT),
                        "actor": _TEXT,
                        "state": _TEXT,
                        "startedUtc": _MOMENT,
                        "finishedUtc": _optional(_MOMENT),
                        "entityCount": _COUNT,
                    }
                )
            ),
            "skip": _COUNT,
            "take": _COUNT,
            "hasMore": _FLAG,
        }
    ),
}
