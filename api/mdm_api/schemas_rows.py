"""JSON Schemas of rows: pages, versions, imports, proposals, choices and saved filters."""

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

_ROW_STATES: Final = ["active", "deleted", "pending", "rejected"]
_SYSTEM_MEMBERS: Final[dict[str, Schema]] = {
    "_sys_id": {"type": "string", "format": "uuid"},
    "_sys_version": COUNT,
    "_sys_created_at": MOMENT,
    "_sys_created_by": TEXT,
    "_sys_last_modified_at": MOMENT,
    "_sys_last_modified_by": TEXT,
    "_sys_is_deleted": FLAG,
    "_sys_deleted_at": optional(MOMENT),
    "_sys_state": {"type": "string", "enum": _ROW_STATES},
}
_SAVED_FILTER: Final[dict[str, Schema]] = {
    "filter": {**TEXT, "description": "In the bracket language; empty for all rows."},
    "sort": {**TEXT, "description": "As the query parameter of a list; empty for its default."},
    "columns": {**list_of(TEXT), "description": "Columns to show; empty for all."},
    "isDefault": FLAG,
}
ROWS: Final[dict[str, Schema]] = {
    "Row": {
        "type": "object",
        "description": "The columns of the entity by the names of its definition, and the system"
        " columns. Which are there depends on `fields`.",
        "properties": {
            **_SYSTEM_MEMBERS,
            "redirectedFrom": {
                "type": "string",
                "format": "uuid",
                "description": "The identifier that was asked for, if its row was merged into this"
                " one; not there if the entity has a column of that name.",
            },
            "_expanded": {
                "type": "object",
                "description": "The rows that the columns named in `expand` refer to.",
                "additionalProperties": optional({"type": "object"}),
            },
        },
        "additionalProperties": True,
    },
    "RowInput": {
        "type": "object",
        "description": "Columns of the entity by the names of its definition, with their values.",
        "additionalProperties": True,
    },
    "ImportResult": object_of(
        {
            "received": COUNT,
            "inserted": COUNT,
            "updated": COUNT,
            "unchanged": COUNT,
            "rejected": COUNT,
            "pending": COUNT,
            "batchName": optional(TEXT),
            "errors": list_of(
                object_of(
                    {
                        "row": {**COUNT, "description": "From 1, the header not counted."},
                        "column": optional(TEXT),
                        "code": TEXT,
                        "message": TEXT,
                        "value": optional(TEXT),
                    }
                )
            ),
            "errorsTruncated": {**FLAG, "description": "Whether there are more than 1,000."},
            "errorsUrl": optional({**TEXT, "description": "All errors as CSV."}),
        }
    ),
    "BulkAction": {
        **object_of(
            {"action": {"type": "string", "enum": ["update", "delete"]}},
            {
                "filter": {**TEXT, "description": "In the bracket language."},
                "all": {**FLAG, "description": "Said instead of a filter: all rows are meant."},
                "set": {**ref("RowInput"), "description": "New values, for an update."},
                "soft": {**FLAG, "description": "Whether a delete only marks the rows as deleted."},
                "batchName": {
                    **TEXT,
                    "maxLength": 200,
                    "description": "Name of the proposals, where the entity needs approval.",
                },
                "previewToken": {**TEXT, "description": "From the preview, for the execution."},
            },
        ),
        "additionalProperties": False,
    },
    "BulkActionPreview": object_of(
        {
            "matchCount": {**COUNT, "description": "Rows that you see and the filter finds."},
            "notAllowed": {**COUNT, "description": "Those of them that you may not write."},
            "sample": list_of(ref("Row")),
            "previewToken": TEXT,
        }
    ),
    "BulkActionResult": object_of(
        {
            "matchCount": COUNT,
            "updated": COUNT,
            "deleted": COUNT,
            "unchanged": COUNT,
            "pending": COUNT,
            "rejected": COUNT,
            "batchName": optional(TEXT),
            "errors": list_of(
                object_of(
                    {
                        "id": {"type": "string", "format": "uuid"},
                        "column": optional(TEXT),
                        "code": TEXT,
                        "message": TEXT,
                        "value": optional(TEXT),
                    }
                )
            ),
            "errorsTruncated": {**FLAG, "description": "Whether there are more than 1,000."},
        }
    ),
    "BulkActionLine": {
        "description": "One line: how far it is, or at the end what came of it.",
        "oneOf": [
            object_of({"progress": object_of({"done": COUNT, "of": COUNT})}),
            object_of({"result": ref("BulkActionResult")}),
            object_of({"problem": ref("Problem")}),
        ],
    },
    "RowPage": object_of(
        {
            "items": list_of(ref("Row")),
            "skip": COUNT,
            "take": COUNT,
            "hasMore": FLAG,
            "nextAfter": optional(TEXT),
            "totalCount": optional(COUNT),
        }
    ),
    "Version": object_of(
        {
            "version": COUNT,
            "validFrom": MOMENT,
            "validTo": optional(MOMENT),
            "changedBy": TEXT,
            "action": {
                "type": "string",
                "enum": ["data_created", "data_updated", "data_soft_deleted", "data_restored"],
            },
            "row": ref("Row"),
        }
    ),
    "VersionPage": object_of(
        {
            "items": list_of(ref("Version")),
            "skip": COUNT,
            "take": COUNT,
            "hasMore": FLAG,
            "totalCount": COUNT,
        }
    ),
    "TimeTravelBounds": object_of({"fromUtc": optional(MOMENT), "toUtc": MOMENT}),
    "Choices": object_of(
        {
            "options": list_of(
                object_of({"value": {"description": "As a row has it."}, "label": TEXT})
            )
        }
    ),
    "SavedFilterInput": {
        **object_of({"name": {**TEXT, "minLength": 1, "maxLength": 200}}, _SAVED_FILTER),
        "additionalProperties": False,
    },
    "SavedFilter": object_of(
        {"name": TEXT, **_SAVED_FILTER, "updatedUtc": MOMENT, "valid": FLAG},
        {"reason": {**TEXT, "description": "Why it is not valid any more."}},
    ),
    "SavedFilters": object_of({"items": list_of(ref("SavedFilter"))}),
    "Comment": {
        "type": "object",
        "properties": {"comment": optional({**TEXT, "maxLength": 2_000})},
        "additionalProperties": False,
    },
    "Approval": {
        "type": "object",
        "properties": {
            "comment": optional({**TEXT, "maxLength": 2_000}),
            "submittedAt": optional(MOMENT),
        },
        "additionalProperties": False,
    },
    "BatchDecision": {
        "type": "object",
        "description": "Either `batchName` or `ids`.",
        "properties": {
            "batchName": {**TEXT, "maxLength": 200},
            "ids": {**list_of(TEXT), "maxItems": 10_000},
            "comment": optional({**TEXT, "maxLength": 2_000}),
        },
        "additionalProperties": False,
    },
    "BatchOutcome": object_of(
        {
            "approved": COUNT,
            "rejected": COUNT,
            "failed": COUNT,
            "results": list_of(
                object_of(
                    {
                        "id": TEXT,
                        "status": {"type": "string", "enum": ["approved", "rejected", "failed"]},
                    },
                    {"code": TEXT, "message": TEXT},
                )
            ),
            "resultsTruncated": FLAG,
        }
    ),
    "PendingPage": object_of(
        {
            "items": list_of(ref("Proposal")),
            "skip": COUNT,
            "take": COUNT,
            "hasMore": FLAG,
            "nextAfter": optional(TEXT),
            "totalCount": optional(COUNT),
        }
    ),
    "Proposal": object_of(
        {
            "id": {"type": "string", "format": "uuid"},
            "operation": {
                "type": "string",
                "enum": ["create", "update", "soft_delete", "delete", "restore"],
            },
            "state": {"type": "string", "enum": ["pending", "rejected"]},
            "submittedBy": TEXT,
            "submittedAt": MOMENT,
            "decidedBy": optional(TEXT),
            "decidedAt": optional(MOMENT),
            "batchName": optional(TEXT),
            "comment": {**optional(TEXT), "description": "Why it was rejected."},
            "baseVersion": {
                **optional(COUNT),
                "description": "The approved version that it rests on; null for a creation.",
            },
            "isStale": FLAG,
            "changes": {
                "type": "object",
                "description": "Column name to its approved (`old`) and proposed (`new`) value.",
                "additionalProperties": object_of({"old": {}, "new": {}}),
            },
            "row": ref("Row"),
        }
    ),
    "PendingBatches": object_of(
        {
            "items": list_of(
                object_of(
                    {
                        "batchName": TEXT,
                        "count": COUNT,
                        "submittedBy": {**TEXT, "description": "Who submitted the first row."},
                        "submitters": COUNT,
                        "submittedAt": MOMENT,
                        "lastSubmittedAt": MOMENT,
                        "creates": COUNT,
                        "updates": COUNT,
                        "others": {**COUNT, "description": "Deletions and restorations."},
                        "stale": COUNT,
                    }
                )
            ),
            "skip": COUNT,
            "take": COUNT,
            "hasMore": FLAG,
        }
    ),
}
