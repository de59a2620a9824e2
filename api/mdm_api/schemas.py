"""JSON Schemas of the answers and bodies, for the OpenAPI document.

Entity definitions come from the model's own schema; the rest is small and written out here.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from mdm_gitops.access.catalog import DefinitionState
from mdm_gitops.errors import CATALOGUE
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


_STATE: Final[Schema] = {"type": "string", "enum": [state.value for state in DefinitionState]}
_ROW_STATES: Final = ["active", "deleted", "pending", "rejected"]
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
    "RowInput": {
        "type": "object",
        "description": "Columns of the entity by the names of its definition, with their values.",
        "additionalProperties": True,
    },
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
    "Choices": _object(
        {"options": _list(_object({"value": {"description": "As a row has it."}, "label": _TEXT}))}
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
    "YamlText": {**_object({"yaml": _TEXT}), "additionalProperties": False},
    "Validation": _object({"valid": {"const": True}, "definition": ref("Entity")}),
    "Plan": {
        "type": "object",
        "description": "docs/reference/plan-json.md tells it.",
        "additionalProperties": True,
    },
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
