"""JSON Schemas of definitions as they are written: entities, common entities, packages, commits."""

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
from mdm_gitops.access.catalog import DefinitionState

_STATE: Final[Schema] = {"type": "string", "enum": [state.value for state in DefinitionState]}
_STATUS_MEMBERS: Final[dict[str, Schema]] = {
    "state": _STATE,
    "deployedVersion": optional(TEXT),
    "commit": optional(TEXT),
    "deployedAt": optional(MOMENT),
    "actions": list_of(TEXT),
}
DEFINITIONS: Final[dict[str, Schema]] = {
    "CommitMade": object_of({"commit": optional(TEXT), "branch": optional(TEXT)}),
    "EntityStatus": object_of(_STATUS_MEMBERS),
    "EntityDocument": {
        "type": "object",
        "description": "The definition as `Entity`, and its `status`, which is read-only.",
        "required": ["name", "domain", "columns", "status"],
        "properties": {
            "name": TEXT,
            "domain": TEXT,
            "columns": list_of({"type": "object"}),
            "status": ref("EntityStatus"),
        },
        "additionalProperties": True,
    },
    "EntityList": object_of({"items": list_of(ref("EntityDocument"))}),
    "EntityCommitted": {
        "type": "object",
        "description": "The definition as `EntityDocument`, and where it was written; `commit` is null"
        " where nothing had to change, `status` on a branch.",
        "required": ["name", "domain", "columns", "status", "commit", "branch"],
        "properties": {
            "name": TEXT,
            "domain": TEXT,
            "columns": list_of({"type": "object"}),
            "status": optional(ref("EntityStatus")),
            "commit": optional(TEXT),
            "branch": optional(TEXT),
        },
        "additionalProperties": True,
    },
    "CommonEntities": object_of({"items": list_of(ref("CommonEntity"))}),
    "CommonEntity": object_of(
        {
            "id": TEXT,
            "name": TEXT,
            "displayName": optional(TEXT),
            "description": optional(TEXT),
            "domain": TEXT,
            "version": TEXT,
            "rows": COUNT,
            "dependencies": list_of(TEXT),
            "source": TEXT,
            "licence": TEXT,
            "installed": FLAG,
            "installedVersion": optional(TEXT),
            "changedLocally": optional(FLAG),
            "upgradable": FLAG,
        }
    ),
    "CommonInstall": {
        "type": "object",
        "properties": {"domain": optional(TEXT)},
        "additionalProperties": False,
    },
    "CommonInstalled": object_of(
        {
            "installed": list_of(TEXT),
            "upgraded": list_of(TEXT),
            "commit": optional(TEXT),
            "branch": optional(TEXT),
        }
    ),
    "PackageExport": {
        "type": "object",
        "properties": {
            "entityNames": {**list_of(TEXT), "description": "Empty for all."},
            "autoIncludeDependencies": {**FLAG, "default": True},
            "includePermissions": {**FLAG, "default": False},
            "includeWebhooks": {**FLAG, "default": False},
            "includeSeed": {**FLAG, "default": False},
            "version": {**TEXT, "maxLength": 64, "description": "Of the package."},
        },
        "additionalProperties": False,
    },
    "PackageDeployed": object_of(
        {
            "success": {"const": True},
            "deployedEntities": list_of(TEXT),
            "commit": optional(TEXT),
            "branch": optional(TEXT),
            "deploymentId": optional(COUNT),
            "log": list_of(object_of({"step": COUNT, "action": TEXT, "detail": TEXT})),
        }
    ),
    "EntityRemoved": object_of(
        {
            "name": TEXT,
            "state": {**optional(_STATE), "description": "Null where nothing is left of it."},
            "commit": optional(TEXT),
            "branch": optional(TEXT),
        }
    ),
    "EntitySummary": object_of(
        {
            "name": TEXT,
            "displayName": optional(TEXT),
            "domain": TEXT,
            "version": TEXT,
            "columnCount": COUNT,
            "historyEnabled": FLAG,
            "approvalRequired": FLAG,
            **_STATUS_MEMBERS,
        }
    ),
    "EntitySummaries": object_of(
        {
            "items": list_of(ref("EntitySummary")),
            "counts": {"type": "object", "additionalProperties": COUNT},
            "definitions": object_of(
                {"available": FLAG, "commit": optional(TEXT), "errorCount": COUNT}
            ),
        }
    ),
    "YamlText": {**object_of({"yaml": TEXT}), "additionalProperties": False},
    "Validation": object_of({"valid": {"const": True}, "definition": ref("Entity")}),
}
