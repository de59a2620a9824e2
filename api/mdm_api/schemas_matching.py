"""JSON Schemas of matching: rows like a given one, pairs that may be duplicates, and scans for them."""

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
from mdm_gitops.model.entity import MatchMode

_ID: Final[Schema] = {"type": "string", "format": "uuid"}
_SCORE: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 1}
MATCHING: Final[dict[str, Schema]] = {
    "SimilarRequest": {
        "type": "object",
        "properties": {
            "id": {**TEXT, "description": "A row of the entity."},
            "values": {
                "type": "object",
                "description": "Or columns by name with their values, of a row that need not exist.",
                "additionalProperties": True,
            },
            "top": {
                "type": "integer",
                "minimum": 1,
                "maximum": 100,
                "description": "How many; `similarity.topN`, else 10.",
            },
            "minScore": {**_SCORE, "description": "`similarity.minScore`, else 0.3."},
        },
        "additionalProperties": False,
    },
    "ColumnScore": object_of(
        {
            "name": TEXT,
            "matchMode": {"type": "string", "enum": [mode.value for mode in MatchMode]},
            "weight": {"type": "number"},
            "score": {
                **optional(_SCORE),
                "description": "Null where a row has no value: it says nothing.",
            },
        },
        {"crossedWith": {**TEXT, "description": "The column in which the other row has it."}},
    ),
    "SimilarRows": object_of(
        {
            "matches": list_of(
                object_of(
                    {
                        "id": _ID,
                        "score": _SCORE,
                        "columns": list_of(ref("ColumnScore")),
                        "row": ref("Row"),
                    }
                )
            ),
            "rules": {"type": "string", "enum": ["definition", "derived"]},
            "skippedKeys": COUNT,
        }
    ),
    "DuplicateScanRequest": {
        "type": "object",
        "properties": {
            "full": {
                **FLAG,
                "description": "Compare all rows, not only those that changed since the last scan.",
            },
            "minScore": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "description": "Pairs below are not kept; `similarity.minScore`, else 0.6.",
            },
        },
        "additionalProperties": False,
    },
    "DuplicateScan": object_of(
        {
            "scanId": _ID,
            "state": {"type": "string", "enum": ["running", "done", "failed", "cancelled"]},
            "mode": {
                "type": "string",
                "enum": ["full", "changed"],
                "description": "Whether all rows were compared, or those changed since `sinceUtc`"
                " with all.",
            },
            "minScore": _SCORE,
            "sinceUtc": optional(MOMENT),
            "startedUtc": MOMENT,
            "startedBy": TEXT,
            "finishedUtc": optional(MOMENT),
            "step": TEXT,
            "progress": _SCORE,
            "counts": {
                **optional({"type": "object", "additionalProperties": COUNT}),
                "description": "Rows and pairs, and what was skipped; null for a caller who may not"
                " see all rows.",
            },
            "error": TEXT,
        }
    ),
    "DuplicatePairs": object_of(
        {
            "items": list_of(
                object_of(
                    {
                        "ids": list_of(_ID),
                        "score": _SCORE,
                        "columns": list_of(ref("ColumnScore")),
                        "rows": list_of(ref("Row")),
                        "changed": {
                            **FLAG,
                            "description": "Whether a row has changed since it was scored.",
                        },
                    }
                )
            ),
            "take": COUNT,
            "hasMore": FLAG,
            "nextAfter": optional(TEXT),
            "scannedUtc": optional(MOMENT),
        }
    ),
    "DuplicateIds": {
        **object_of(
            {"ids": {**list_of(_ID), "minItems": 2, "maxItems": 2, "description": "Of two rows."}}
        ),
        "additionalProperties": False,
    },
}
