"""JSON Schemas of merges: what is asked for, what it would do, what it did, and what undid it."""

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

_ID: Final[Schema] = {"type": "string", "format": "uuid"}
_STATE: Final[Schema] = {
    "type": "string",
    "enum": ["pending", "merged", "undo_pending", "undone", "rejected"],
}
_RELINKED: Final[Schema] = {
    "type": "object",
    "description": "Per entity, how many rows that the caller may see.",
    "additionalProperties": COUNT,
}
_VALUE: Final[Schema] = {"description": "As a row has it."}
_ORIGIN: Final[dict[str, Schema]] = {
    "column": TEXT,
    "from": {
        **TEXT,
        "description": "`survivor`, `duplicate`, `both`, `values` or `neither`; `***` where it is"
        " masked.",
    },
    "rule": {**TEXT, "description": "What decided."},
}
_MERGE: Final[dict[str, Schema]] = {
    "mergeId": _ID,
    "state": _STATE,
    "survivorId": _ID,
    "duplicateId": _ID,
    "proposedBy": TEXT,
    "proposedAt": MOMENT,
    "mergedBy": optional(TEXT),
    "mergedAt": optional(MOMENT),
    "undoneBy": optional(TEXT),
    "undoneAt": optional(MOMENT),
    "comment": optional(TEXT),
}
_REQUEST: Final = {
    **object_of(
        {"survivorId": _ID, "duplicateId": _ID},
        {
            "values": {
                "type": "object",
                "description": "Columns of the survivor with values that win over all rules.",
                "additionalProperties": True,
            },
            "survivorVersion": optional({"type": "integer", "minimum": 1}),
            "duplicateVersion": optional({"type": "integer", "minimum": 1}),
        },
    ),
    "additionalProperties": False,
}
_COLUMNS: Final = list_of(
    object_of({**_ORIGIN, "survivor": _VALUE, "duplicate": _VALUE, "value": _VALUE})
)
_MERGED: Final[dict[str, Schema]] = {
    "mergeId": _ID,
    "state": _STATE,
    "survivor": ref("Row"),
    "relinked": _RELINKED,
    "columns": _COLUMNS,
}
_UNDONE: Final[dict[str, Schema]] = {
    "mergeId": _ID,
    "state": _STATE,
    "survivor": ref("Row"),
    "duplicate": ref("Row"),
    "relinked": _RELINKED,
}
MERGING: Final[dict[str, Schema]] = {
    "MergeRequest": _REQUEST,
    "MergePreview": object_of(
        {
            "survivor": ref("Row"),
            "columns": _COLUMNS,
            "relinked": _RELINKED,
            "survivorVersion": COUNT,
            "duplicateVersion": COUNT,
        }
    ),
    "Merged": object_of(_MERGED),
    "MergeUndone": object_of(_UNDONE),
    "MergeDecided": {"oneOf": [ref("Merged"), ref("MergeUndone")]},
    "MergeUndo": {
        "type": "object",
        "properties": {
            "keepLaterEdits": {
                **FLAG,
                "description": "Leave what was changed since as it is, and undo the rest.",
            }
        },
        "additionalProperties": False,
    },
    "MergeState": object_of({"mergeId": _ID, "state": _STATE}),
    "MergePage": object_of(
        {
            "items": list_of(object_of(_MERGE)),
            "take": COUNT,
            "hasMore": FLAG,
            "nextAfter": optional(TEXT),
        }
    ),
    "Merge": object_of({**_MERGE, "columns": list_of(object_of(_ORIGIN)), "relinked": _RELINKED}),
}
